#!/usr/bin/env python3
"""Makes a small draft model for llama.cpp: the target's own GGUF file with some of its layers only.

Tokenizer, embeddings, output and precision stay those of the target, so the draft passes every check of the
vocabulary and needs no training. It drafts worse than a trained model: it is there to try out a draft model.

    scripts/make_truncated_gguf.py target.gguf draft.gguf --layers 0-9,24-29

`--differing-token ID` changes one vocabulary string, which makes the file a draft that llama.cpp must refuse.
"""

import argparse
import re
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np

_BLOCK = re.compile(r"blk\.(\d+)\.")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")
_TOKENS = "tokenizer.ggml.tokens"
_WRITTEN_BY_THE_WRITER = ("general.architecture",)
_SUFFIX = "-differs"


def main(arguments: list[str] | None = None) -> None:
    """Read the target, write the draft and say what it holds."""
    options = _parse(arguments)
    reader = gguf.GGUFReader(options.target)
    architecture = reader.fields["general.architecture"].contents()
    total = reader.fields[f"{architecture}.block_count"].contents()
    layers = _parse_layers(options.layers, total)
    writer = gguf.GGUFWriter(options.draft, architecture)
    _copy_fields(reader, writer, {f"{architecture}.block_count": len(layers)}, options.differing_token)
    places = {layer: place for place, layer in enumerate(layers)}
    kept = 0
    for tensor in reader.tensors:
        name = _place(tensor.name, places)
        if name is not None:
            writer.add_tensor(name, tensor.data, raw_dtype=tensor.tensor_type)
            kept += 1
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    print(f"{options.draft}: {len(layers)} of {total} layers, {kept} tensors")


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("target", type=Path, help="GGUF file of the target")
    parser.add_argument("draft", type=Path, help="GGUF file to write")
    parser.add_argument("--layers", required=True, help="layers to keep, counted from 0: 0-7 or 0-9,24-29")
    parser.add_argument("--differing-token", type=int, help="id of one token whose string is changed")
    return parser.parse_args(arguments)


def _parse_layers(text: str, total: int) -> list[int]:
    """Return the layers of `0-9,24-29` in order; ends with a sentence on what is no such list."""
    layers: list[int] = []
    for part in text.split(","):
        found = _RANGE.fullmatch(part)
        if found is None:
            sys.exit(f"--layers is {text!r}; write it like 0-9,24-29")
        layers += range(int(found[1]), int(found[2] or found[1]) + 1)
    if not layers or layers != sorted(set(layers)) or layers[-1] >= total:
        sys.exit(f"--layers is {text!r}; give layers from 0 to {total - 1}, each once and in order")
    return layers


def _place(tensor: str, places: dict[int, int]) -> str | None:
    """Return the tensor's name in the draft, None for one of a layer that is left out."""
    block = _BLOCK.match(tensor)
    if block is None:
        return tensor
    place = places.get(int(block[1]))
    return None if place is None else f"blk.{place}.{tensor[block.end() :]}"


def _copy_fields(
    reader: gguf.GGUFReader, writer: gguf.GGUFWriter, changed: dict[str, Any], differing_token: int | None
) -> None:
    """Copy every key with its type; the writer adds the header's own keys itself."""
    for key, field in reader.fields.items():
        if key in _WRITTEN_BY_THE_WRITER or key.startswith("GGUF."):
            continue
        value = changed.get(key, field.contents())
        if key == _TOKENS and differing_token is not None:
            value[differing_token] += _SUFFIX
        kinds = field.types
        writer.add_key_value(key, _plain(value), kinds[0], kinds[-1] if len(kinds) > 1 else None)


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else value


if __name__ == "__main__":
    main()
