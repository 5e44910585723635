"""The frozen target as its drafters see it in training: its tensors, and its view of a state."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch.nn import functional
from transformers import AutoConfig

from training.modules import Rotary, TrainedLayer

_LONGEST = 4096


@dataclass(frozen=True, slots=True)
class Teacher:
    """A target of Llama's shape with a tied output layer.

    Attributes:
        tensors: its checkpoint in float32, by name.
        config: its configuration.
    """

    tensors: dict[str, torch.Tensor]
    config: Any

    @property
    def embedding(self) -> torch.Tensor:
        """[vocab, hidden]; its rows are the output rows too."""
        return self.tensors["model.embed_tokens.weight"]

    @property
    def final_norm(self) -> torch.Tensor:
        """[hidden]."""
        return self.tensors["model.norm.weight"]

    @property
    def eps(self) -> float:
        """Of the norms."""
        return float(self.config.rms_norm_eps)

    def normed(self, state: torch.Tensor) -> torch.Tensor:
        """Return the final norm of the last layer's state, [..., hidden]."""
        return functional.rms_norm(state, self.final_norm.shape, self.final_norm, self.eps)

    def rotary(self) -> Rotary:
        """Return the rotary angles."""
        size = self.config.head_dim
        theta = self.config.rope_parameters["rope_theta"]
        return Rotary(theta ** -(torch.arange(0, size, 2, dtype=torch.float32) / size), _LONGEST)

    def fresh_layer(self) -> TrainedLayer:
        """Return an untrained layer of the target's shape."""
        return TrainedLayer(
            hidden=self.config.hidden_size,
            heads=self.config.num_attention_heads,
            kv_heads=self.config.num_key_value_heads,
            head_size=self.config.head_dim,
            intermediate=self.config.intermediate_size,
            eps=self.eps,
        )

    def copied_layer(self, index: int) -> TrainedLayer:
        """Return a layer that begins as the target's layer `index`."""
        layer, tensors, prefix = self.fresh_layer(), self.tensors, f"model.layers.{index}."
        parts = {
            layer.input_norm.weight: ("input_layernorm",),
            layer.mlp_norm.weight: ("post_attention_layernorm",),
            layer.qkv.weight: ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
            layer.output.weight: ("self_attn.o_proj",),
            layer.gate_up.weight: ("mlp.gate_proj", "mlp.up_proj"),
            layer.down.weight: ("mlp.down_proj",),
        }
        with torch.no_grad():
            for parameter, names in parts.items():
                parameter.copy_(torch.cat([tensors[f"{prefix}{name}.weight"] for name in names]))
        return layer


def load_teacher(folder: Path) -> Teacher:
    """Read a target's checkpoint."""
    tensors = {name: tensor.float() for name, tensor in load_file(folder / "model.safetensors").items()}
    return Teacher(tensors, AutoConfig.from_pretrained(folder))
