#!/usr/bin/env python3
"""Writes the trained draft model that ships with the package as a model folder that other engines load.

The folder has the target's embeddings, output rows and tokenizer, and the drafter's own layers and final
norm; its vocabulary is the target's, not the drafter's part of it.

Example: scripts/export_draft_model.py --target ~/.cache/draftproof/models/SmolLM2-135M-Instruct-bf16
--out models/draft
"""

import argparse
import json
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

_TOKENIZER_FILES = (
    *("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"),
    *("special_tokens_map.json", "vocab.json", "merges.txt"),
)
_SAME = {
    "input_norm": "input_layernorm",
    "output": "self_attn.o_proj",
    "mlp_norm": "post_attention_layernorm",
    "down": "mlp.down_proj",
}


def main() -> None:
    """Read the arguments, write the folder; bad input ends in one sentence."""
    from draftproof.core.errors import DraftproofError  # noqa: PLC0415
    from draftproof.reference.drafters.artefact import builtin_folder  # noqa: PLC0415

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", type=Path, required=True, help="folder of the target model")
    parser.add_argument("--drafter", type=Path, default=builtin_folder() / "draft-model")
    parser.add_argument("--out", type=Path, required=True, help="folder to make; it must not exist")
    options = parser.parse_args()
    try:
        export(options.target, options.drafter, options.out)
    except (DraftproofError, OSError, ValueError, KeyError) as error:
        sys.exit(f"export_draft_model: {error}")
    print(f"{options.out}: the draft model of {options.drafter}")


def export(target: Path, drafter: Path, out: Path) -> None:
    """Write the folder.

    Raises:
        OSError: a file is missing or cannot be written.
        ValueError: `out` exists, or the drafter belongs to another target.
        KeyError: a tensor is missing.
    """
    from safetensors.torch import load_file, save_file  # noqa: PLC0415 - torch takes seconds to import

    config = json.loads((target / "config.json").read_text(encoding="utf-8"))
    record = json.loads((drafter / "drafter.json").read_text(encoding="utf-8"))
    if out.exists():
        raise ValueError(f"{out} exists; name a folder that does not.")
    if record["target"]["hidden_size"] != config["hidden_size"]:
        raise ValueError(f"{drafter} was trained for another target than {target}.")
    whole, own = load_file(target / "model.safetensors"), load_file(drafter / "weights.safetensors")
    tensors = {name: whole[name] for name in whole if "layers." not in name and name != "model.norm.weight"}
    tensors["model.norm.weight"] = own["final_norm"]
    for index in range(record["layers"]):
        tensors |= _convert_layer(own, index, config)
    out.mkdir(parents=True)
    save_file({name: one.contiguous() for name, one in tensors.items()}, out / "model.safetensors")
    config |= {"num_hidden_layers": record["layers"]}
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    for name in _TOKENIZER_FILES:
        if (target / name).is_file():
            shutil.copyfile(target / name, out / name)


def _convert_layer(
    own: dict[str, "torch.Tensor"], index: int, config: dict[str, int]
) -> dict[str, "torch.Tensor"]:
    """Return a layer's weights under the names of transformers; fused ones are taken apart by rows."""
    import torch  # noqa: PLC0415 - seconds to import

    source, target = f"layers.{index}.", f"model.layers.{index}."
    size = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    queries, keys = config["num_attention_heads"] * size, config["num_key_value_heads"] * size
    query, key, value = torch.split(own[source + "qkv"], [queries, keys, keys])
    gate, up = own[source + "gate_up"].chunk(2)
    layer = {f"{target}{theirs}.weight": own[source + ours] for ours, theirs in _SAME.items()}
    fused = {"self_attn.q_proj": query, "self_attn.k_proj": key, "self_attn.v_proj": value}
    fused |= {"mlp.gate_proj": gate, "mlp.up_proj": up}
    return layer | {f"{target}{name}.weight": weight for name, weight in fused.items()}


if __name__ == "__main__":
    main()
