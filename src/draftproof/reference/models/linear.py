"""Linear layers for a few rows on a CPU, and the ragged attention as transformers' layer code calls it.

Verification of k drafts is nearly free only where a product of k + 1 rows costs little more than one of one
row: so does oneDNN with weights packed once. The packed form is taken only where this build of torch has it
and its numbers agree with the public form, layer by layer.
"""

from typing import Any

import torch
from torch import nn
from transformers import AttentionInterface

from draftproof.core.errors import EngineError
from draftproof.reference.models.ragged import RaggedBatch, attend_sequences

_PACK_ROWS = 8  # the row count the packed layout is tuned for: one sequence's draft, or a small batch
_RELATIVE_TOLERANCE = 1e-4


class PackedLinear(nn.Module):
    """A linear layer over weights packed for oneDNN; numbers as `nn.Linear` up to rounding."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self._packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), _PACK_ROWS)  # noqa: SLF001
        self._bias = None if linear.bias is None else linear.bias.detach()

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Return rows [..., in] times the weights: [..., out]."""
        product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(  # noqa: SLF001
            rows, self._packed, self._bias, "none", [], ""
        )
        return product


def pack_linears(model: nn.Module) -> int:
    """Replace the fp32 CPU linear layers of a model by packed ones and return how many were replaced.

    A weight tied to the embedding stays where the embedding is; the packed copy is the output layer's own.
    Nothing is replaced where the packed form is missing or disagrees.
    """
    if not packing_available():
        return 0
    replaced = 0
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            packed = _packed_or_none(child)
            if packed is not None:
                setattr(parent, name, packed)
                replaced += 1
    return replaced


def packing_available() -> bool:
    """Return whether this build of torch has the packed product."""
    return torch.backends.mkldnn.is_available() and all(  # type: ignore[no-untyped-call]
        hasattr(torch.ops.mkldnn, name) for name in ("_reorder_linear_weight", "_linear_pointwise")
    )


def pack_or_none(weight: torch.Tensor, bias: torch.Tensor | None) -> PackedLinear | None:
    """Return a packed product for weights [out, in], or None where it is missing or disagrees."""
    if not packing_available():
        return None
    with torch.device("meta"):
        layer = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
    layer.weight = nn.Parameter(weight.detach(), requires_grad=False)
    if bias is not None:
        layer.bias = nn.Parameter(bias.detach(), requires_grad=False)
    return _packed_or_none(layer)


def _packed_or_none(layer: nn.Module) -> PackedLinear | None:
    if type(layer) is not nn.Linear:
        return None
    if layer.weight.dtype != torch.float32 or layer.weight.device.type != "cpu":
        return None
    packed = PackedLinear(layer)
    return packed if _agrees(packed, layer) else None


def _agrees(packed: PackedLinear, layer: nn.Linear) -> bool:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(1, 3, layer.in_features, generator=generator)
    expected, got = layer(rows), packed(rows)
    return bool((expected - got).abs().max() <= _RELATIVE_TOLERANCE * expected.abs().max())


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
