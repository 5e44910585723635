"""A ragged batch and its key-value cache: whose each new token is, and attention over both.

All new tokens of all sequences lie in one row, so that the linear layers do no work for padding; attention
appends to each sequence's own buffer and goes sequence by sequence, causal within the new tokens. Everything
at or beyond a sequence's length is unwritten or rejected and no reader ever sees it.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch.nn.functional import scaled_dot_product_attention

_BLOCK_TOKENS = 64
_GROWTH = 1.25  # a copy every quarter more keeps the cost per token constant and the spare room small


@dataclass(frozen=True, slots=True)
class CacheShape:
    """What one token costs: keys and values of every layer."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype
    device: torch.device

    @property
    def bytes_per_token(self) -> int:
        """Bytes of keys and values of one token over all layers."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * self.dtype.itemsize


class SequenceCache:
    """Keys and values of one sequence in a buffer [layers, 2, kv_heads, capacity, head_dim]."""

    def __init__(self, shape: CacheShape) -> None:
        self._shape = shape
        self._buffer = self._allocate(0)
        self._length = 0

    @property
    def length(self) -> int:
        """Tokens that readers may see."""
        return self._length

    @property
    def capacity_tokens(self) -> int:
        """Tokens the buffer has room for."""
        return self._buffer.shape[3]

    @property
    def nbytes(self) -> int:
        """Bytes held, spare room included."""
        return self._buffer.nbytes

    def data_ptr(self) -> int:
        """Address of the buffer; it changes when the buffer grows."""
        return self._buffer.data_ptr()

    def reserve(self, new_tokens: int) -> None:
        """Make room for `new_tokens` more than `length`."""
        needed = self._length + new_tokens
        if needed <= self.capacity_tokens:
            return
        wanted = max(needed, int(self.capacity_tokens * _GROWTH))
        grown = self._allocate(-(-wanted // _BLOCK_TOKENS) * _BLOCK_TOKENS)
        grown[:, :, :, : self._length] = self._buffer[:, :, :, : self._length]
        self._buffer = grown

    def view(self, start: int, stop: int) -> tuple[torch.Tensor, ...]:
        """Return keys and values of positions `start` to `stop` by layer: [2, kv_heads, tokens, head_dim]."""
        return self._buffer[:, :, :, start:stop].unbind(0)

    def advance(self, new_tokens: int) -> None:
        """Make `new_tokens` positions, just written, visible."""
        self._length += new_tokens

    def truncate(self, length: int) -> None:
        """Forget every position from `length` on: rejected drafts are never seen again."""
        self._length = min(self._length, length)

    def _allocate(self, capacity: int) -> torch.Tensor:
        shape = self._shape
        size = (shape.num_layers, 2, shape.num_kv_heads, capacity, shape.head_dim)
        return torch.empty(size, dtype=shape.dtype, device=shape.device)


Spans = Sequence[tuple[SequenceCache, int]]


class CacheTable(NamedTuple):
    """The batch's caches as C arrays, one entry per sequence: addresses and sizes."""

    caches: ctypes.Array[ctypes.c_void_p]
    lengths: ctypes.Array[ctypes.c_long]
    counts: ctypes.Array[ctypes.c_long]
    capacities: ctypes.Array[ctypes.c_long]


class RaggedBatch:
    """The sequences of one forward pass.

    `spans`: per sequence its cache and its number of new tokens, in the order of the packed row.
    """

    def __init__(self, spans: Spans) -> None:
        self._spans = list(spans)
        self.new_tokens = [count for _, count in self._spans]
        for cache, count in self._spans:
            cache.reserve(count)

    @property
    def num_tokens(self) -> int:
        """New tokens of all sequences."""
        return sum(self.new_tokens)

    def position_ids(self) -> list[int]:
        """Return each new token's position in its own sequence."""
        return [cache.length + offset for cache, count in self._spans for offset in range(count)]

    def last_rows(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the last new token's row of each sequence, [sequences, ...] of [tokens, ...]."""
        if len(self.new_tokens) == len(rows):
            return rows
        ends = torch.tensor(self.new_tokens, device=rows.device).cumsum(0) - 1
        return rows.index_select(0, ends)

    def advance(self) -> None:
        """Make the new positions visible, once every layer has written them."""
        for cache, count in self._spans:
            cache.advance(count)

    @cached_property
    def written(self) -> list[tuple[torch.Tensor, ...]]:
        """Where each sequence's new keys and values go, by layer: [2, kv_heads, new tokens, head_dim]."""
        return [cache.view(cache.length, cache.length + count) for cache, count in self._spans]

    @cached_property
    def visible(self) -> list[tuple[torch.Tensor, ...]]:
        """What each sequence's new tokens may see, by layer: [2, kv_heads, tokens, head_dim]."""
        return [cache.view(0, cache.length + count) for cache, count in self._spans]

    @cached_property
    def masks(self) -> list[torch.Tensor | None]:
        """Return per sequence [new tokens, tokens], added to the scores; one new token sees everything."""
        return [self._causal_mask(index) for index in range(len(self._spans))]

    @cached_property
    def table(self) -> CacheTable:
        """The caches as C arrays."""
        size = len(self._spans)
        return CacheTable(
            caches=(ctypes.c_void_p * size)(*[cache.data_ptr() for cache, _ in self._spans]),
            lengths=(ctypes.c_long * size)(*[cache.length for cache, _ in self._spans]),
            counts=(ctypes.c_long * size)(*self.new_tokens),
            capacities=(ctypes.c_long * size)(*[cache.capacity_tokens for cache, _ in self._spans]),
        )

    def _causal_mask(self, index: int) -> torch.Tensor | None:
        cache, count = self._spans[index]
        if count == 1:
            return None
        total, like = cache.length + count, self.visible[index][0]
        hidden = torch.ones(count, total, dtype=torch.bool, device=like.device).triu(total - count + 1)
        mask = torch.zeros(count, total, dtype=like.dtype, device=like.device)
        return mask.masked_fill_(hidden, -torch.inf)


def attend_sequences(
    query: torch.Tensor,  # [1, heads, tokens, head_dim]
    key: torch.Tensor,  # [1, kv_heads, tokens, head_dim]
    value: torch.Tensor,  # [1, kv_heads, tokens, head_dim]
    *,
    batch: RaggedBatch,
    layer: int,
    scale: float | None,
) -> torch.Tensor:
    """Write a layer's keys and values, attend, and return [1, tokens, heads, head_dim]."""
    heads, head_dim = query.shape[1], query.shape[3]
    kv_heads = key.shape[1]
    grouped = (1, kv_heads, -1, head_dim)  # the queries of one key-value head lie together
    new_keys_values = torch.split_with_sizes(torch.cat((key, value)), batch.new_tokens, dim=2)
    attended = []
    for index, queries in enumerate(torch.split_with_sizes(query, batch.new_tokens, dim=2)):
        batch.written[index][layer].copy_(new_keys_values[index])
        keys, values = batch.visible[index][layer].unsqueeze(1).unbind(0)
        mask = batch.masks[index]
        mixed = scaled_dot_product_attention(
            queries.reshape(grouped),
            keys,
            values,
            attn_mask=None if mask is None else mask.repeat(heads // kv_heads, 1),
            scale=scale,
        )
        # Some attention kernels lay their result out by token: then no view has its heads apart.
        attended.append(mixed.reshape(1, heads, -1, head_dim).transpose(1, 2))
    return attended[0] if len(attended) == 1 else torch.cat(attended, dim=1)
