"""The script that cuts a draft model out of a target."""

import importlib.util
import json
import struct
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "scripts" / "make_truncated_draft.py"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("make_truncated_draft", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def target(tmp_path):
    """A model folder of three layers whose weights are two bytes each."""
    folder = tmp_path / "target"
    folder.mkdir()
    names = [
        "model.embed_tokens.weight",
        *(f"model.layers.{n}.mlp.weight" for n in range(3)),
        "model.norm.weight",
    ]
    header = {
        name: {"dtype": "BF16", "shape": [1], "data_offsets": [2 * at, 2 * at + 2]}
        for at, name in enumerate(names)
    }
    text = json.dumps(header).encode()
    data = bytes(range(2 * len(names)))
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    (folder / "config.json").write_text(json.dumps({"num_hidden_layers": 3, "layer_types": ["a", "b", "c"]}))
    (folder / "tokenizer.json").write_text("{}")
    return folder


def read(folder):
    """Return name -> bytes of a folder's weights."""
    raw = (folder / "model.safetensors").read_bytes()
    length = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8 : 8 + length])
    base = 8 + length
    return {
        name: raw[base + entry["data_offsets"][0] : base + entry["data_offsets"][1]]
        for name, entry in header.items()
        if name != "__metadata__"
    }


def test_the_first_layers_and_all_else_are_kept(script, target, tmp_path):
    """Weights keep their bytes, the configuration says how many layers, the tokenizer comes along."""
    out = tmp_path / "draft"
    script.make_draft(target, 2, out)
    assert read(out) == {
        "model.embed_tokens.weight": b"\x00\x01",
        "model.layers.0.mlp.weight": b"\x02\x03",
        "model.layers.1.mlp.weight": b"\x04\x05",
        "model.norm.weight": b"\x08\x09",
    }
    assert json.loads((out / "config.json").read_text()) == {
        "num_hidden_layers": 2,
        "layer_types": ["a", "b"],
    }
    assert (out / "tokenizer.json").is_file()


@pytest.mark.parametrize(
    ("layers", "break_it", "message"),
    [
        (3, None, "--layers 3: the target has 3"),
        (0, None, "--layers 0: the target has 3"),
        (2, "config.json", "is missing; --target takes the folder"),
        (2, "model.safetensors", "has no [*].safetensors file"),
    ],
)
def test_what_cannot_be_cut_is_refused_in_one_sentence(script, target, layers, break_it, message):
    """Too many layers, none, no configuration and no weights: nothing is written."""
    if break_it is not None:
        (target / break_it).unlink()
    with pytest.raises(ValueError, match=message):
        script.make_draft(target, layers, target.parent / "draft")
    assert not (target.parent / "draft").exists()


def test_a_torn_file_is_refused(script, target, tmp_path):
    """Weights shorter than their header says are no model."""
    path = target / "model.safetensors"
    path.write_bytes(path.read_bytes()[:20])
    with pytest.raises(ValueError, match="no whole safetensors file"):
        script.make_draft(target, 2, tmp_path / "draft")


def test_a_folder_that_exists_is_left_alone(script, target, tmp_path):
    """An older draft is not overwritten."""
    (tmp_path / "draft").mkdir()
    with pytest.raises(ValueError, match="name a folder that does not"):
        script.make_draft(target, 2, tmp_path / "draft")
