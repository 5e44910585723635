"""Plain layer skipping: how layers are written, and the choice that ships for the demo's model."""

import random

import msgspec
import pytest
import torch
from tiny_engine import byte_tokenizer, make_engine, run_all, tiny_model, tiny_target, token_ids_of

from draftproof.core.errors import UsageError
from draftproof.reference.drafters import self_speculation as layer_skip
from draftproof.reference.drafters.loading import describe_drafters, load_drafter
from draftproof.reference.drafters.self_speculation import BUILTIN_SKIP, parse_layers, read_layer_record
from draftproof.reference.models.model import TargetModel
from draftproof.reference.types import GenerationRequest, SamplingParams, SpeculationParams

IDLE_LAYER, LAYERS = 2, 5


@pytest.fixture(scope="module")
def target() -> TargetModel:
    """Return a target of five layers whose third changes nothing."""
    model = tiny_model("llama", num_hidden_layers=LAYERS)
    idle = model.model.layers[IDLE_LAYER]
    with torch.no_grad():
        idle.self_attn.o_proj.weight.zero_()
        idle.mlp.down_proj.weight.zero_()
    return TargetModel(model, byte_tokenizer())


@pytest.mark.parametrize("seed", range(20))
def test_layers_are_read_whatever_their_order(seed) -> None:
    """Any choice of layers, written one by one in any order, is read in rising order."""
    rng = random.Random(seed)  # noqa: S311 - a test input
    layers = rng.sample(range(30), rng.randint(1, 30))
    assert parse_layers("layers:" + ",".join(map(str, layers)), 30) == tuple(sorted(layers))


def test_the_builtin_name_stands_for_the_layers_of_its_record(target, tmp_path, monkeypatch) -> None:
    """The choice that a record names drafts, is stated as its layers, and fits one target only."""
    shipped = read_layer_record()
    kin = msgspec.structs.replace(
        shipped.target, vocab_size=target.vocab_size, hidden_size=target.hidden_size
    )
    record = msgspec.structs.replace(shipped, target=kin, num_layers=LAYERS, layers="layers:0-1,3-4")
    (tmp_path / "layer-skip.json").write_bytes(msgspec.json.encode(record))
    monkeypatch.setattr(layer_skip, "builtin_folder", lambda: tmp_path)
    assert describe_drafters([BUILTIN_SKIP]) == {"drafter.self": record.layers}
    with pytest.raises(UsageError, match=r"chosen for .* with 5 layers, and this target is another with 2"):
        load_drafter(BUILTIN_SKIP, tiny_target())
    engine = make_engine(target, proposers=dict([load_drafter(BUILTIN_SKIP, target)]))
    asked = {
        name: GenerationRequest(
            request_id=name,
            prompt_token_ids=(1, 2, 3),
            sampling=SamplingParams(max_tokens=12),
            speculation=SpeculationParams(method=method, num_spec_tokens=3),  # type: ignore[arg-type]
        )
        for name, method in (("drafted", "self"), ("plain", "off"))
    }
    outputs = run_all(engine, list(asked.values()))
    assert token_ids_of(outputs["drafted"]) == token_ids_of(outputs["plain"])
    assert sum(one.round.accepted for one in outputs["drafted"] if one.round) > 0


def test_a_missing_or_damaged_record_is_one_sentence(tmp_path, monkeypatch) -> None:
    """Without a readable record the name says how to make one."""
    monkeypatch.setattr(layer_skip, "builtin_folder", lambda: tmp_path)
    for content in (None, b"{}", b"\xff"):
        if content is not None:
            (tmp_path / "layer-skip.json").write_bytes(content)
        with pytest.raises(UsageError, match=r"builtin:layer-skip cannot be read.*name the layers"):
            describe_drafters([BUILTIN_SKIP])
