"""Attention over a ragged batch, hooked into the layer code of transformers.

All new tokens of all sequences lie in one row, so the linear layers do no work for padding. The hook, called
by each layer with that row's queries, keys and values, appends to each sequence's cache and attends sequence
by sequence: causal within the new tokens, grouped queries without repeating keys.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from draftproof.errors import EngineError
from draftproof.reference.cache import SequenceCache

RAGGED_ATTENTION = "draftproof_ragged"
_UNSUPPORTED = ("softcap", "s_aux", "sliding_window")


class RaggedBatch:
    """The sequences of one forward pass: where each one's new tokens lie in the row and in its cache.

    Args:
        spans: per sequence its cache and its number of new tokens, in the order of the packed row.
        query_group: query heads per key-value head.
    """

    def __init__(self, spans: Sequence[tuple[SequenceCache, int]], query_group: int) -> None:
        self._spans = list(spans)
        self.query_group = query_group
        self.new_tokens = [count for _, count in self._spans]
        for cache, count in self._spans:
            cache.reserve(count)
        self.written = [cache.view(cache.length, cache.length + count) for cache, count in self._spans]
        self.visible = [cache.view(0, cache.length + count) for cache, count in self._spans]
        self.masks = [self._causal_mask(cache.length + count, count) for cache, count in self._spans]

    def position_ids(self) -> list[int]:
        """Return each new token's position in its own sequence."""
        return [cache.length + offset for cache, count in self._spans for offset in range(count)]

    def advance(self) -> None:
        """Make the new positions visible, once every layer has written them."""
        for cache, count in self._spans:
            cache.advance(count)

    def _causal_mask(self, total: int, count: int) -> torch.Tensor | None:
        """Return [query_group * count, total], added to the scores; one new token sees everything."""
        if count == 1:
            return None
        like = self.visible[0][0]
        hidden = torch.ones(count, total, dtype=torch.bool, device=like.device).triu(total - count + 1)
        mask = torch.zeros(count, total, dtype=like.dtype, device=like.device)
        return mask.masked_fill_(hidden, -torch.inf).repeat(self.query_group, 1)


def ragged_attention(
    module: torch.nn.Module,
    query: torch.Tensor,  # [1, heads, tokens, head_dim]
    key: torch.Tensor,  # [1, kv_heads, tokens, head_dim]
    value: torch.Tensor,  # [1, kv_heads, tokens, head_dim]
    attention_mask: torch.Tensor | None,  # noqa: ARG001 - the signature transformers calls
    *,
    ragged_batch: RaggedBatch,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Write this layer's keys and values, attend, and return [1, tokens, heads, head_dim]."""
    if any(kwargs.get(name) is not None for name in _UNSUPPORTED):
        raise EngineError(
            f"the model's attention uses {', '.join(n for n in _UNSUPPORTED if kwargs.get(n) is not None)}",
            fix="choose a model with plain causal attention",
        )
    layer = int(module.layer_idx)  # type: ignore[arg-type]
    _, heads, _, head_dim = query.shape
    grouped = (1, key.shape[1], -1, head_dim)  # the queries of one key-value head lie together
    new_keys_values = torch.split_with_sizes(torch.cat((key, value)), ragged_batch.new_tokens, dim=2)
    attended = []
    for index, queries in enumerate(torch.split_with_sizes(query, ragged_batch.new_tokens, dim=2)):
        ragged_batch.written[index][layer].copy_(new_keys_values[index])
        keys, values = ragged_batch.visible[index][layer].unsqueeze(1).unbind(0)
        mixed = scaled_dot_product_attention(
            queries.reshape(grouped), keys, values, attn_mask=ragged_batch.masks[index], scale=scaling
        )
        attended.append(mixed.view(1, heads, -1, head_dim).transpose(1, 2))
    return attended[0] if len(attended) == 1 else torch.cat(attended, dim=1), None


AttentionInterface.register(RAGGED_ATTENTION, ragged_attention)
