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
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

_LAYER = re.compile(r"(?:^|\.)(?:layers|h)\.(\d+)\.")
_LENGTH = struct.Struct("<Q")  # safetensors: header length, JSON header, then the tensors' bytes
_COPIED_SUFFIXES = (".json", ".jinja", ".model", ".txt", ".md")
_NOT_COPIED = ("config.json", "model.safetensors.index.json", "draftproof-model.json")
_PER_LAYER_KEYS = ("layer_types", "no_rope_layers")
_BLOCK_BYTES = 1 << 22


class _Tensor(NamedTuple):
    """Where a tensor's bytes lie in a file, with its entry of the header."""

    path: Path
    start: int
    size: int
    entry: dict[str, Any]


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
    tensors = dict(_find_tensors(target))
    kept = {name: tensor for name, tensor in tensors.items() if _layer_of(name) < layers}
    if len(kept) == len(tensors):
        raise ValueError(f"no weight of {target} has a layer number of {layers} or more in its name.")
    if out.exists():
        raise ValueError(f"{out} exists; name a folder that does not.")
    out.mkdir(parents=True)
    _save_tensors(kept, out / "model.safetensors")
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


def _find_tensors(target: Path) -> Iterator[tuple[str, _Tensor]]:
    paths = sorted(target.glob("*.safetensors"))
    if not paths:
        raise ValueError(f"{target} has no *.safetensors file.")
    for path in paths:
        with path.open("rb") as source:
            header, base = _load_header(source, path)
        for name, entry in header.items():
            begin, end = entry["data_offsets"]  # counted from the end of the header
            yield name, _Tensor(path, base + begin, end - begin, entry)


def _load_header(source: BinaryIO, path: Path) -> tuple[dict[str, Any], int]:
    """Return the tensors' entries and where their bytes begin in the file."""
    start = source.read(_LENGTH.size)
    length = _LENGTH.unpack(start)[0] if len(start) == _LENGTH.size else path.stat().st_size
    if length > path.stat().st_size - _LENGTH.size:
        raise ValueError(f"{path} is no whole safetensors file.")
    try:
        header = json.loads(source.read(length))
    except ValueError as error:
        raise ValueError(f"{path} is no safetensors file ({error}).") from error
    header.pop("__metadata__", None)
    return header, _LENGTH.size + length


def _save_tensors(tensors: dict[str, _Tensor], path: Path) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, tensor in tensors.items():
        header[name] = tensor.entry | {"data_offsets": [offset, offset + tensor.size]}
        offset += tensor.size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # readers map the file; the tensors stay aligned
    with path.open("wb") as out:
        out.write(_LENGTH.pack(len(text)) + text)
        for tensor in tensors.values():
            _copy_bytes(tensor, out)


def _copy_bytes(tensor: _Tensor, out: BinaryIO) -> None:
    with tensor.path.open("rb") as source:
        source.seek(tensor.start)
        left = tensor.size
        while left:
            block = source.read(min(left, _BLOCK_BYTES))
            if not block:
                raise ValueError(f"{tensor.path} ends in the middle of a tensor.")
            out.write(block)
            left -= len(block)


if __name__ == "__main__":
    main()
