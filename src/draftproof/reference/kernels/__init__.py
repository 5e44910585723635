"""The arithmetic of a decoder layer, in two interchangeable forms.

`portable` is written in torch and runs on every device; `native` is compiled once on the machine it runs on.
Both compute the same functions in float32; the native form also computes each row independently of the rows
beside it, so that verification and batching change no bit of a logit. Here: what a decoder needs of them.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import torch

from draftproof.reference.models.ragged import RaggedBatch


@dataclass(frozen=True, slots=True)
class Attention:
    """Shape of one attention layer; the norms, [head_size], are None where a model has none."""

    query_heads: int
    kv_heads: int
    head_size: int
    scale: float
    eps: float
    query_norm: torch.Tensor | None = None
    key_norm: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class Linear:
    """Weights in the form one kernel set wants them; `outputs` rows of `inputs`."""

    weights: Any
    bias: torch.Tensor | None
    inputs: int
    outputs: int


class Kernels(Protocol):
    """Functions over rows, float32 on a CPU; shapes as given."""

    name: str
    row_independent: bool  # a row's bits never depend on the rows beside it

    def supports(self, head_size: int, *widths: int) -> bool:
        """Return whether a decoder with these sizes can run on these kernels."""
        ...

    def pack(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
        """Prepare weights [outputs, inputs] for `linear`."""
        ...

    def linear(self, rows: torch.Tensor, layer: Linear, add_to: torch.Tensor | None = None) -> torch.Tensor:
        """Return [rows, outputs], rows [rows, inputs] times the weights, added to `add_to` in place."""
        ...

    def rms_norm(self, rows: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """Return each row divided by its root mean square, times `weight`: [rows, width]."""
        ...

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        """Return silu(gate) * up from rows of both, [rows, 2 * width]: [rows, width]."""
        ...

    def attend(
        self, qkv: torch.Tensor, angles: torch.Tensor, batch: RaggedBatch, layer: int, shape: Attention
    ) -> torch.Tensor:
        """Write a layer's new keys and values to the caches and attend causally, sequence by sequence.

        `qkv`: [tokens, (query_heads + 2 * kv_heads) * head_size], before the rotary embedding. `angles`:
        [tokens, head_size], cosines of the first half, then sines. `layer`: index of the caches' layer.
        Returns [tokens, query_heads * head_size].
        """
        ...


__all__ = ["Attention", "Kernels", "Linear", "select_kernels"]
