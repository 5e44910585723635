#!/usr/bin/env python3
"""Makes a small draft model from a target's own first layers, for trying `draft_model` speculation.

Embeddings, final norm, output head and tokenizer are the target's, so the vocabulary agrees by construction.
Nothing is trained: the draft guesses badly and shows how a draft model runs, not what a good one gains.

Example: scripts/make_truncated_draft.py --target models/SmolLM2-135M --layers 6 --out models/draft-6
"""

import argparse
import json
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

_LAYER = re.compile(r"(?:^|\.)(?:layers|h)\.(\d+)\.")
_COPIED_SUFFIXES = (".json", ".jinja", ".model", ".txt", ".md")
_NOT_COPIED = ("config.json", "model.safetensors.index.json", "draftproof-model.json")
_PER_LAYER_KEYS = ("layer_types", "no_rope_layers")


def main() -> None:
    """Read the arguments, make the folder; bad input ends in one sentence."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", type=Path, required=True, help="folder of the target model")
    parser.add_argument("--layers", type=int, required=True, help="how many of its first layers to keep")
    parser.add_argument("--out", type=Path, required=True, help="folder to make; it must not exist")
    options = parser.parse_args()
    try:
        make_draft(options.target, options.layers, options.out)
    except (ValueError, OSError) as error:
        sys.exit(f"make_truncated_draft: {error}")
    print(f"{options.out}: the first {options.layers} layers of {options.target}")


def make_draft(target: Path, layers: int, out: Path) -> None:
    """Write the folder of the draft.

    Raises:
        ValueError: the target is no model folder, has fewer layers, or `out` exists.
        OSError: a file cannot be read or written.
    """
    config = _load_config(target, layers)
    paths = sorted(target.glob("*.safetensors"))
    if not paths:
        raise ValueError(f"{target} has no *.safetensors file.")
    tensors = dict(pair for path in paths for pair in _load_tensors(path, layers))
    kept = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    if len(kept) == len(tensors):
        raise ValueError(f"no weight of {target} has a layer number of {layers} or more in its name.")
    if out.exists():
        raise ValueError(f"{out} exists; name a folder that does not.")
    out.mkdir(parents=True)
    save_file(kept, out / "model.safetensors", {"format": "pt"})
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    for path in sorted(target.iterdir()):
        if path.suffix in _COPIED_SUFFIXES and path.name not in _NOT_COPIED:
            shutil.copyfile(path, out / path.name)


def _load_config(target: Path, layers: int) -> dict[str, Any]:
    path = target / "config.json"
    if not path.is_file():
        raise ValueError(f"{path} is missing; --target takes the folder of a Hugging Face model.")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        whole = int(config["num_hidden_layers"])
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{path} is no model configuration with num_hidden_layers.") from error
    if not 1 <= layers < whole:
        raise ValueError(f"--layers {layers}: the target has {whole}, keep at least 1 and fewer than all.")
    cut = {key: config[key][:layers] for key in _PER_LAYER_KEYS if isinstance(config.get(key), list)}
    return {**config, **cut, "num_hidden_layers": layers}


def _layer_of(name: str) -> int:
    """Return the number of a weight's layer, -1 for a weight outside the layers."""
    found = _LAYER.search(name)
    return int(found[1]) if found else -1


def _load_tensors(path: Path, layers: int) -> Iterator[tuple[str, torch.Tensor | None]]:
    """Yield the tensors of a file by name, None for those of layers that are not kept."""
    try:
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 - it is no mapping
                yield name, file.get_tensor(name) if _layer_of(name) < layers else None
    except SafetensorError as error:
        raise ValueError(f"{path} is no whole safetensors file ({error}).") from error


if __name__ == "__main__":
    main()
