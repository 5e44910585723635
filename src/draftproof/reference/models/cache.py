"""The ragged key-value cache: each sequence owns a buffer that grows with the tokens it uses.

A sequence has one length; everything at or beyond it is unwritten or rejected and no reader ever sees it.
"""

from dataclasses import dataclass

import torch

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
