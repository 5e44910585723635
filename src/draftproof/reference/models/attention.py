"""The ragged batch's attention as transformers' layer code calls it, for models that run on that code."""

from typing import Any

import torch
from transformers import AttentionInterface

from draftproof.errors import EngineError
from draftproof.reference.models.linear import pack_linears
from draftproof.reference.models.ragged import RaggedBatch, attend_sequences

RAGGED_ATTENTION = "draftproof_ragged"
_UNSUPPORTED = ("softcap", "s_aux", "sliding_window")


def ragged_attention(
    module: torch.nn.Module,
    query: torch.Tensor,  # [1, heads, tokens, head_dim]
    key: torch.Tensor,  # [1, kv_heads, tokens, head_dim]
    value: torch.Tensor,  # [1, kv_heads, tokens, head_dim]
    attention_mask: torch.Tensor | None,  # noqa: ARG001 - the signature transformers calls
    *,
    ragged_batch: RaggedBatch | None = None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Write this layer's keys and values, attend, and return [1, tokens, heads, head_dim]."""
    if ragged_batch is None:
        raise TypeError("it does not hand the batch on to its attention")
    if any(kwargs.get(name) is not None for name in _UNSUPPORTED):
        raise EngineError(
            f"the model's attention uses {', '.join(n for n in _UNSUPPORTED if kwargs.get(n) is not None)}",
            fix="choose a model with plain causal attention",
        )
    layer = int(module.layer_idx)  # type: ignore[arg-type]
    return attend_sequences(query, key, value, batch=ragged_batch, layer=layer, scale=scaling), None


def hook_model(model: Any) -> Any:
    """Give a transformers model the ragged attention and, on a CPU in float32, packed products; return it."""
    model.set_attn_implementation(RAGGED_ATTENTION)
    pack_linears(model)
    return model


AttentionInterface.register(RAGGED_ATTENTION, ragged_attention)
