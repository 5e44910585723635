"""The search for layers to draft without: what it removes, what a subset is worth, and how it is written."""

import importlib.util
import random
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
import torch
from tiny_engine import byte_tokenizer, make_engine, run_all, tiny_model, tiny_target, token_ids_of

from draftproof.errors import UsageError
from draftproof.reference.drafters import layer_skip
from draftproof.reference.drafters.artefact import TargetIdentity
from draftproof.reference.drafters.layer_skip import (
    BUILTIN_SKIP,
    format_layers,
    parse_layers,
    read_layer_record,
)
from draftproof.reference.drafters.loading import describe_drafters, load_drafter
from draftproof.reference.models.decoder import Decoder
from draftproof.reference.models.model import TargetModel
from draftproof.reference.training.identity import identify_target
from draftproof.reference.training.layer_search import (
    AgreementMeter,
    Estimate,
    PassPrices,
    Subset,
    Text,
    best_estimate,
    estimate,
    output_share,
    search_subsets,
    take_texts,
)
from draftproof.reference.training.layer_table import make_record, write_layer_record
from draftproof.reference.types import GenerationRequest, SamplingParams, SpeculationParams

IDLE_LAYER, LAYERS = 2, 5
SCRIPT = Path(__file__).parents[3] / "scripts" / "search_layers.py"


@pytest.fixture(scope="module")
def target() -> TargetModel:
    """Return a target of five layers whose third changes nothing."""
    model = tiny_model("llama", num_hidden_layers=LAYERS)
    idle = model.model.layers[IDLE_LAYER]
    with torch.no_grad():
        idle.self_attn.o_proj.weight.zero_()
        idle.mlp.down_proj.weight.zero_()
    return TargetModel(model, byte_tokenizer())


def texts(seed: int = 1) -> list[Text]:
    rng = random.Random(seed)  # noqa: S311 - a test input
    return [Text(tuple(rng.randrange(256) for _ in range(length)), 3) for length in (20, 9, 31)]


def decoder_of(target: TargetModel) -> Decoder:
    assert target.decoder is not None
    return target.decoder


def meter_of(target: TargetModel) -> AgreementMeter:
    return AgreementMeter(decoder_of(target), target.cache_shape, texts())


def test_a_layer_that_does_nothing_is_removed_first(target) -> None:
    """The idle layer goes first at full agreement, and every number of layers has its subset."""
    lines: list[str] = []
    subsets = search_subsets(meter_of(target), LAYERS, lines.append)
    assert [len(one.layers) for one in subsets] == [5, 4, 3, 2, 1]
    assert subsets[1] == Subset((0, 1, 3, 4), 1.0)
    assert subsets[2].agreement < 1.0
    assert all(set(less.layers) < set(more.layers) for more, less in pairwise(subsets))
    assert lines[0] == "4 layers without 2: agreement 1.000"
    stopped = search_subsets(meter_of(target), LAYERS, lines.append, fewest=4)
    assert [len(one.layers) for one in stopped] == [5, 4]


def test_all_layers_agree_with_themselves(target) -> None:
    """Agreement of all layers is one, of the embedding alone it is not, and a pass leaves no trace."""
    meter = meter_of(target)
    assert meter.positions == 17 + 6 + 28
    assert meter.agreement(range(LAYERS)) == 1.0
    assert meter.agreement([]) < 1.0
    assert meter.agreement(range(LAYERS)) == 1.0


def test_agreement_is_that_of_the_next_tokens_the_subset_alone_would_name(target) -> None:
    """What the meter says of each candidate is what running it over each text by itself says."""
    layers, decoder = (0, 1, 3, 4), decoder_of(target)
    meter = meter_of(target)
    states = meter.states(layers)
    found = [meter.without(layers, place, states) for place in range(len(layers))]
    for place, agreement in enumerate(found):
        left = [layer for layer in layers if layer != layers[place]]
        same = total = 0
        for text in texts():
            alone = AgreementMeter(decoder, target.cache_shape, [text])
            same += round(alone.agreement(left) * alone.positions)
            total += alone.positions
        assert agreement == pytest.approx(same / total, abs=1e-6)
    assert len(set(found)) > 1


def test_texts_without_answers_are_refused(target) -> None:
    """With nothing to agree on there is no agreement."""
    with pytest.raises(ValueError, match="no token after their prompts"):
        AgreementMeter(decoder_of(target), target.cache_shape, [Text((1, 2, 3), 3)])


def test_a_subset_is_worth_the_tokens_of_its_best_round_over_their_price() -> None:
    """At agreement 0.8, half the layers and an output layer of a fifth, one draft pays best; by hand."""
    found = estimate(Subset(tuple(range(5)), 0.8), 10, PassPrices(output=0.2))
    assert found.draft_price == pytest.approx(0.6)
    assert found.drafts == 1
    assert found.tokens == pytest.approx(1.8)
    assert found.speedup == pytest.approx(1.8 / 1.6)
    never = estimate(Subset(tuple(range(9)), 0.5), 10, PassPrices(output=0.2))
    assert never.drafts == 1
    assert never.speedup == pytest.approx(1.5 / 1.92)
    dearer = estimate(Subset(tuple(range(5)), 0.8), 10, PassPrices(output=0.2, row=0.1))
    assert dearer.speedup == pytest.approx(1.8 / 1.7)


def test_the_best_of_equal_estimates_keeps_fewest_layers() -> None:
    """The highest speed-up wins, then the smaller subset."""
    made = [
        Estimate(Subset(tuple(range(n)), 0.9), 1, 1.9, 0.5, gain)
        for n, gain in ((9, 1.1), (7, 1.2), (5, 1.2))
    ]
    assert best_estimate(made).subset.layers == (0, 1, 2, 3, 4)


def test_the_output_layer_share_counts_weights(target) -> None:
    """Output rows over all weights that a row meets."""
    layer = 64 * (64 + 64) + 64 * 64 + 64 * 160 + 80 * 64  # queries and both of keys and values, and so on
    assert output_share(decoder_of(target)) == pytest.approx(260 * 64 / (260 * 64 + LAYERS * layer))


def test_texts_are_cut_to_the_length_asked_for() -> None:
    """The first texts are taken, the last one cut, and none that would be prompt only."""
    first, second, third = texts()
    assert take_texts([first, second, third], 24) == [first, Text(second.token_ids[:4], 3)]
    assert take_texts([first, second, third], 22) == [first]


@pytest.mark.parametrize("seed", range(20))
def test_layers_survive_being_written_and_read(seed) -> None:
    """Any choice of layers reads back as it was."""
    rng = random.Random(seed)  # noqa: S311 - a test input
    layers = tuple(sorted(rng.sample(range(30), rng.randint(1, 30))))
    assert parse_layers(format_layers(layers), 30) == layers


def test_a_written_record_is_what_the_builtin_name_stands_for(target, tmp_path, monkeypatch) -> None:
    """The choice of a search as it ships: it drafts, is stated as its layers, and fits one target only."""
    subsets = search_subsets(meter_of(target), LAYERS, lambda _: None)
    prices = PassPrices(output=0.1)
    estimates = [estimate(one, LAYERS, prices) for one in subsets[1:]]
    identity = identify_target(tmp_path, vocab_size=260, hidden_size=64)
    assert identity == TargetIdentity(origin=tmp_path.name, weights_sha256="", vocab_size=260, hidden_size=64)
    record = make_record(identity, texts(), 51, estimates, prices)
    write_layer_record(tmp_path / "layer-skip.json", record)
    assert read_layer_record(tmp_path) == record
    assert [one.kept for one in record.choices] == [4, 3, 2, 1]
    assert record.choices[0] == layer_skip.LayerChoice(
        layers="layers:0-1,3-4", kept=4, agreement=1.0, drafts=8, speedup=record.choices[0].speedup
    )
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
        with pytest.raises(UsageError, match=r"builtin:layer-skip cannot be read.*run scripts/search_layers"):
            describe_drafters([BUILTIN_SKIP])


def test_the_script_searches_a_folder_of_a_model(tmp_path, capsys) -> None:
    """From a model's folder to the printed layers and the record, calibrated on answers made on the spot."""
    model = tiny_model("llama", num_hidden_layers=3, max_position_embeddings=2048)
    model.save_pretrained(tmp_path / "model")
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = "{% for message in messages %}{{ message.content }}{% endfor %}:"
    tokenizer.save_pretrained(tmp_path / "model")
    spec = importlib.util.spec_from_file_location("search_layers", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    arguments = ["--corpus", str(tmp_path), "--tokens", "400", "--row-price", "0.05", "--threads", "1"]
    out = tmp_path / "found.json"
    script.main(["--model", str(tmp_path / "model"), *arguments, "--out", str(out)])
    record = msgspec.json.decode(out.read_bytes(), type=layer_skip.LayerRecord)
    assert capsys.readouterr().out.splitlines()[-1] == record.layers
    assert (record.num_layers, record.row_price, len(record.choices)) == (3, 0.05, 2)
