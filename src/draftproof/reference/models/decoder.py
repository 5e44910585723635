"""A decoder taken apart: the parts of a Llama-shaped model, each callable alone.

The shape is that of Llama, Qwen2 and Qwen3: pre-norm layers with RMS norms, rotary embedding over whole
heads, grouped queries, optional biases and query-key norms, a gated SiLU feed-forward. `from_transformers`
reads it out of a loaded model; what it read is checked against the model's own path by the caller.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from draftproof.reference.kernels import Attention, Kernels, Linear
from draftproof.reference.kernels.portable import PortableKernels
from draftproof.reference.models.ragged import RaggedBatch

FUSED_MODEL_TYPES = frozenset({"llama", "qwen2", "qwen3"})


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """One layer's weights, queries, keys and values in one product, gate and up in another."""

    input_norm: torch.Tensor
    qkv: Linear
    attention: Attention
    output: Linear
    mlp_norm: torch.Tensor
    gate_up: Linear
    down: Linear


class Decoder:
    """Runs any of its parts over a ragged batch.

    `embedding`: [vocab, hidden]. `layers`: in order. `final_norm`: [hidden]. `output_rows`: [vocab, hidden],
    the unpacked weights of the head. `inverse_frequencies`: rotary frequencies, [head_size / 2].
    """

    def __init__(
        self,
        kernels: Kernels,
        *,
        embedding: torch.Tensor,
        layers: Sequence[DecoderLayer],
        final_norm: torch.Tensor,
        head: Linear,
        output_rows: torch.Tensor,
        inverse_frequencies: torch.Tensor,
        eps: float,
    ) -> None:
        self.kernels = kernels
        self.layers = list(layers)
        self.embedding, self.final_norm, self.head = embedding, final_norm, head
        self.output_rows = output_rows
        self.inverse_frequencies, self.eps = inverse_frequencies, eps

    def embed(self, token_ids: Sequence[int]) -> torch.Tensor:
        """Return [tokens, hidden]."""
        ids = torch.tensor(token_ids, device=self.embedding.device)
        return self.embedding.index_select(0, ids)

    def angles(self, batch: RaggedBatch) -> torch.Tensor:
        """Return [tokens, head_size]: cosines, then sines, of each new token's rotary angles."""
        positions = torch.tensor(
            batch.position_ids(), dtype=torch.float32, device=self.inverse_frequencies.device
        )
        turned = positions[:, None] * self.inverse_frequencies
        return torch.cat((turned.cos(), turned.sin()), dim=-1).to(self.embedding.dtype)

    def run(
        self, hidden: torch.Tensor, batch: RaggedBatch, layers: Iterable[int], angles: torch.Tensor
    ) -> torch.Tensor:
        """Run some layers over [tokens, hidden], in place where possible; return [tokens, hidden]."""
        for index in layers:
            hidden = run_layer(
                self.kernels,
                self.layers[index],
                hidden,
                batch=batch,
                cache_layer=index,
                angles=angles,
                eps=self.eps,
            )
        return hidden

    def normed(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the final norm of [rows, hidden]."""
        return self.kernels.rms_norm(hidden, self.final_norm, self.eps)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return [rows, vocab] from what the last layer gave, [rows, hidden]."""
        return self.kernels.linear(self.normed(hidden), self.head)


def run_layer(
    kernels: Kernels,
    layer: DecoderLayer,
    hidden: torch.Tensor,  # [tokens, hidden]
    *,
    batch: RaggedBatch,
    cache_layer: int,
    angles: torch.Tensor,  # [tokens, head_size]
    eps: float,
) -> torch.Tensor:
    """Add a layer's attention and feed-forward to `hidden`, in place, and return it."""
    qkv = kernels.linear(kernels.rms_norm(hidden, layer.input_norm, eps), layer.qkv)
    mixed = kernels.attend(qkv, angles, batch, cache_layer, layer.attention)
    hidden = kernels.linear(mixed, layer.output, add_to=hidden)
    gate_up = kernels.linear(kernels.rms_norm(hidden, layer.mlp_norm, eps), layer.gate_up)
    return kernels.linear(kernels.silu_mul(gate_up), layer.down, add_to=hidden)


def from_transformers(model: Any, kernels: Kernels) -> Decoder | None:
    """Return the decoder of a loaded causal LM, or None where its shape is another.

    A shape that is not Llama's in some detail the list of model types does not show gives other logits;
    whoever loads a model compares.
    """
    config = model.config.get_text_config()
    if not _llama_shaped(config):
        return None
    body = model.model
    head_size = body.layers[0].self_attn.head_dim
    if not kernels.supports(head_size, config.hidden_size, config.intermediate_size):
        kernels = PortableKernels()
    return Decoder(
        kernels,
        embedding=body.embed_tokens.weight.detach(),
        layers=[_read_layer(layer, config, kernels) for layer in body.layers],
        final_norm=body.norm.weight.detach(),
        head=kernels.pack(model.lm_head.weight, model.lm_head.bias),
        output_rows=model.lm_head.weight.detach(),
        inverse_frequencies=body.rotary_emb.inv_freq.detach().float(),
        eps=config.rms_norm_eps,
    )


def _read_layer(layer: Any, config: Any, kernels: Kernels) -> DecoderLayer:
    attention, mlp = layer.self_attn, layer.mlp
    size = attention.head_dim
    return DecoderLayer(
        input_norm=layer.input_layernorm.weight.detach(),
        qkv=_join(kernels, attention.q_proj, attention.k_proj, attention.v_proj),
        attention=Attention(
            query_heads=attention.q_proj.out_features // size,
            kv_heads=attention.k_proj.out_features // size,
            head_size=size,
            scale=attention.scaling,
            eps=config.rms_norm_eps,
            query_norm=_norm_or_none(attention, "q_norm"),
            key_norm=_norm_or_none(attention, "k_norm"),
        ),
        output=_join(kernels, attention.o_proj),
        mlp_norm=layer.post_attention_layernorm.weight.detach(),
        gate_up=_join(kernels, mlp.gate_proj, mlp.up_proj),
        down=_join(kernels, mlp.down_proj),
    )


def _join(kernels: Kernels, *linears: nn.Linear) -> Linear:
    """Pack several products over the same rows as one."""
    weights = [linear.weight.detach() for linear in linears]
    weight = weights[0] if len(weights) == 1 else torch.cat(weights)
    biases = [linear.bias for linear in linears if linear.bias is not None]
    return kernels.pack(weight, torch.cat([bias.detach() for bias in biases]) if biases else None)


def _norm_or_none(attention: Any, name: str) -> torch.Tensor | None:
    norm = getattr(attention, name, None)
    return None if norm is None else norm.weight.detach()


def _llama_shaped(config: Any) -> bool:
    whole = set(getattr(config, "layer_types", None) or ["full_attention"]) == {"full_attention"}
    known = config.model_type in FUSED_MODEL_TYPES and config.hidden_act == "silu"
    rope = getattr(config, "rope_parameters", None) or {}
    plain = rope.get("rope_type", "default") == "default" and rope.get("partial_rotary_factor", 1.0) == 1.0
    return bool(known and whole and plain)
