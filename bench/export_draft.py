"""Writes a shipped draft model as a Hugging Face folder, so that transformers can assist with the same draft.

Embedding and tied output rows are the target's. The engine's draft has a reduced vocabulary, which assisted
generation has no form for: there the exported model computes all output rows.
"""

from pathlib import Path
from typing import Any

import torch
from sides import Prompt
from transformers import AutoConfig, AutoModelForCausalLM

from draftproof.core.errors import EngineError
from draftproof.reference.drafters.artefact import find_drafter, read_record, read_weights
from draftproof.reference.drafters.lockstep import LockstepProposer
from draftproof.reference.proposer import DraftContext

_TOLERANCE = 1e-3  # relative to the largest logit; both compute in float32, in different orders
_NAMES = {
    "input_norm": "input_layernorm",
    "mlp_norm": "post_attention_layernorm",
    "output": "self_attn.o_proj",
    "down": "mlp.down_proj",
}


def export_draft(name: str, target_folder: str, folder: Path) -> None:
    """Write the draft `name` of a target as a Llama folder in bf16.

    Raises:
        UsageError: there is no such drafter, or it is damaged.
    """
    source = find_drafter(name)
    record = read_record(source)
    tensors = read_weights(source, record)
    config = AutoConfig.from_pretrained(target_folder)
    config.num_hidden_layers = record.layers
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[: record.layers]
    target = AutoModelForCausalLM.from_pretrained(target_folder, dtype=torch.bfloat16)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    state = {"model.embed_tokens.weight": target.get_input_embeddings().weight.detach()}
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    state["model.norm.weight"] = tensors["final_norm"]
    for index in range(record.layers):
        state |= _layer_state(tensors, index, config)
    model.load_state_dict(state)
    model.generation_config = target.generation_config
    model.save_pretrained(folder)


def _layer_state(tensors: dict[str, torch.Tensor], index: int, config: Any) -> dict[str, torch.Tensor]:
    ours, theirs = f"layers.{index}.", f"model.layers.{index}."
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    query, shared = size * config.num_attention_heads, size * config.num_key_value_heads
    state = {f"{theirs}{long}.weight": tensors[ours + short] for short, long in _NAMES.items()}
    parts = torch.split(tensors[ours + "qkv"], [query, shared, shared])
    for part, weight in zip("qkv", parts, strict=True):
        state[f"{theirs}self_attn.{part}_proj.weight"] = weight
    gate, up = tensors[ours + "gate_up"].chunk(2)
    return state | {f"{theirs}mlp.gate_proj.weight": gate, f"{theirs}mlp.up_proj.weight": up}


@torch.inference_mode()
def check_export(folder: Path, proposer: LockstepProposer, text: Prompt) -> float:
    """Return the largest difference of logits between the folder, in float32, and the engine's draft.

    Compared after several lengths of the text, on the rows of the draft vocabulary, relative to the largest
    logit.

    Raises:
        EngineError: they are not the same model.
    """
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    theirs = model(torch.tensor([text]), use_cache=False).logits[0]
    worst = 0.0
    for length in (1, len(text) // 2, len(text)):
        context = DraftContext(request_id="check", token_ids=list(text[:length]), max_draft_tokens=1)
        ours = proposer.network.begin([context])[0]
        proposer.network.end()
        rows = theirs[length - 1]
        rows = rows if proposer.network.vocabulary is None else rows[proposer.network.vocabulary]
        worst = max(worst, float((ours - rows).abs().max() / rows.abs().max()))
    proposer.network.release("check")
    if not worst <= _TOLERANCE:
        raise EngineError(f"the exported draft differs from the engine's by {worst:.1%}", place=str(folder))
    return worst
