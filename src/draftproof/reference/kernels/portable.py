"""The kernels in torch, for every device; products of float32 on a CPU use the packed form of oneDNN."""

import torch
from torch import nn
from torch.nn import functional

from draftproof.reference.kernels import Attention, Linear
from draftproof.reference.models.linear import pack_or_none
from draftproof.reference.models.ragged import RaggedBatch, attend_sequences


class PortableKernels:
    """Torch operators; a row's last bits may depend on how many rows are computed together."""

    name = "portable"
    row_independent = False

    def supports(self, head_size: int, *widths: int) -> bool:  # noqa: ARG002 - torch takes every size
        """Return True."""
        return True

    def pack(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
        """Keep the weights, packed for a few rows where that is possible."""
        outputs, inputs = weight.shape
        packed = pack_or_none(weight, bias)
        return Linear(packed if packed is not None else weight, bias, inputs, outputs)

    def linear(self, rows: torch.Tensor, layer: Linear, add_to: torch.Tensor | None = None) -> torch.Tensor:
        """Return the product."""
        if isinstance(layer.weights, nn.Module):
            product: torch.Tensor = layer.weights(rows)
        else:
            product = functional.linear(rows, layer.weights, layer.bias)
        return product if add_to is None else add_to.add_(product)

    def rms_norm(self, rows: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """Return the normed rows."""
        return functional.rms_norm(rows, (rows.shape[-1],), weight, eps)

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        """Return the gated product."""
        gate, up = gate_up.chunk(2, dim=-1)
        return functional.silu(gate) * up

    def attend(
        self, qkv: torch.Tensor, angles: torch.Tensor, batch: RaggedBatch, layer: int, shape: Attention
    ) -> torch.Tensor:
        """Rotate, then attend by torch's own attention."""
        heads = qkv.view(len(qkv), -1, shape.head_size)
        query, key, value = heads.split_with_sizes([shape.query_heads, shape.kv_heads, shape.kv_heads], dim=1)
        if shape.query_norm is not None:
            query = self.rms_norm(query, shape.query_norm, shape.eps)
        if shape.key_norm is not None:
            key = self.rms_norm(key, shape.key_norm, shape.eps)
        query, key = rotate(query, angles), rotate(key, angles)
        mixed = attend_sequences(
            query.transpose(0, 1)[None],
            key.transpose(0, 1)[None],
            value.transpose(0, 1)[None],
            batch=batch,
            layer=layer,
            scale=shape.scale,
        )  # [1, tokens, heads, head_size]
        return mixed.reshape(len(qkv), -1)


def rotate(heads: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """Return heads [tokens, heads, head_size] turned by their rotary angles, halves against each other."""
    cos, sin = angles[:, None, :].chunk(2, dim=-1)
    first, second = heads.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
