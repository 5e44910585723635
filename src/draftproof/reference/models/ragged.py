"""A ragged batch: which new tokens belong to which sequence, and attention that follows it.

All new tokens of all sequences lie in one row, so that the linear layers do no work for padding; attention
appends to each sequence's cache and attends sequence by sequence, causal within the new tokens.
"""

import ctypes
from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import torch
from torch.nn.functional import scaled_dot_product_attention

from draftproof.reference.models.cache import SequenceCache

Spans = Sequence[tuple[SequenceCache, int]]


class CacheTable(NamedTuple):
    """The batch's caches as C arrays, one entry per sequence: addresses and sizes."""

    caches: ctypes.Array[ctypes.c_void_p]
    lengths: ctypes.Array[ctypes.c_long]
    counts: ctypes.Array[ctypes.c_long]
    capacities: ctypes.Array[ctypes.c_long]


class RaggedBatch:
    """The sequences of one forward pass.

    Args:
        spans: per sequence its cache and its number of new tokens, in the order of the packed row.
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
