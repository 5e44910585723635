"""Drafters on disk: each family loads and drafts, and everything that can be wrong is one clear sentence."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from tiny_drafters import METHODS
from tiny_engine import (
    byte_tokenizer,
    make_engine,
    repetitive_prompt,
    run_all,
    tiny_llama,
    tiny_model,
    tiny_target,
    token_ids_of,
)

from draftproof.cli.app import main
from draftproof.core.errors import UsageError
from draftproof.reference.drafters.artefact import (
    RECORD_NAME,
    WEIGHTS_NAME,
    DrafterRecord,
    TargetIdentity,
    write_drafter,
)
from draftproof.reference.drafters.loading import load_drafter, load_drafters
from draftproof.reference.models.model import TargetModel
from draftproof.reference.types import GenerationRequest, SamplingParams, SpeculationParams

FAMILIES = ("draft_model", "attached", "self")
READS = {"draft_model": (), "attached": (1, 2), "self": (1,)}
HIDDEN, VOCAB, QKV, WIDTH = 48, 260, 80, 64
Tensors = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def target():
    return tiny_target()


def layer_tensors(prefix: str) -> Tensors:
    return {
        prefix + "input_norm": torch.ones(HIDDEN),
        prefix + "qkv": 0.3 * torch.randn(QKV, HIDDEN),
        prefix + "output": 0.3 * torch.randn(HIDDEN, HIDDEN),
        prefix + "mlp_norm": torch.ones(HIDDEN),
        prefix + "gate_up": 0.3 * torch.randn(2 * WIDTH, HIDDEN),
        prefix + "down": 0.3 * torch.randn(HIDDEN, WIDTH),
    }


def family_tensors(family: str) -> Tensors:
    """Return random tensors by the names `make drafters` gives them, over half of the vocabulary."""
    torch.manual_seed(3)
    shared = {
        "vocabulary": torch.arange(0, VOCAB, 2, dtype=torch.int32).flip(0),
        "final_norm": torch.ones(HIDDEN),
    }
    if family == "draft_model":
        return shared | layer_tensors("layers.0.") | layer_tensors("layers.1.")
    if family == "attached":
        norms = {name: torch.ones(HIDDEN) for name in ("state_norm", "embedding_norm")}
        products = {name: 0.2 * torch.randn(HIDDEN, 2 * HIDDEN) for name in ("fuse", "mix")}
        return shared | norms | products | layer_tensors("layer.")
    feed_forward = {"gate_up": torch.randn(2 * WIDTH, HIDDEN), "down": 0.1 * torch.randn(HIDDEN, WIDTH)}
    return shared | feed_forward | {"norm": torch.ones(HIDDEN)}


def family_record(family: str) -> DrafterRecord:
    return DrafterRecord(
        name=family,
        family=family,  # type: ignore[arg-type]
        target=TargetIdentity(origin="tiny", weights_sha256="", vocab_size=VOCAB, hidden_size=HIDDEN),
        reads=READS[family],
        layers={"draft_model": 2, "attached": 1, "self": 0}[family],
        vocab_size=VOCAB // 2,
        parameters=0,
        licence="none",
        provenance="random",
        corpus={},
        training={},
        weights_sha256="",
    )


def write_family(
    folder: Path,
    family: str,
    record: dict[str, Any] | None = None,
    *,
    change: Callable[[Tensors], object] = lambda _: None,
) -> Path:
    """Write a drafter whose tensors and record are changed before they are signed."""
    tensors = family_tensors(family)
    change(tensors)
    write_drafter(folder, msgspec.structs.replace(family_record(family), **(record or {})), tensors)
    return folder


def request(name: str, prompt: list[int], method: str) -> GenerationRequest:
    return GenerationRequest(
        request_id=name,
        prompt_token_ids=tuple(prompt),
        sampling=SamplingParams(max_tokens=20, ignore_eos=True),
        speculation=SpeculationParams(method=method, num_spec_tokens=3),  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("family", [*FAMILIES, "layers:0"])
def test_a_good_drafter_drafts_and_changes_no_greedy_token(
    target: TargetModel, tmp_path: Path, family: str
) -> None:
    """What was written loads, drafts in every answer without a fault, and the tokens are those without it."""
    name = family if family.startswith("layers:") else str(write_family(tmp_path, family))
    method, proposer = load_drafter(name, target)
    generator = torch.Generator().manual_seed(1)
    prompts = [repetitive_prompt(generator) for _ in range(4)]
    plain = run_all(make_engine(target), [request(str(i), p, "off") for i, p in enumerate(prompts)])
    engine = make_engine(target, proposers={method: proposer})
    drafted = run_all(engine, [request(str(i), p, method) for i, p in enumerate(prompts)])
    for key in plain:
        assert token_ids_of(drafted[key]) == token_ids_of(plain[key])
        assert drafted[key][-1].fallbacks == 0
        assert sum(output.round.proposed for output in drafted[key] if output.round) >= 10


def spoil(folder: Path, name: str, spoilt: Callable[[bytes], bytes | None]) -> None:
    content = spoilt((folder / name).read_bytes())
    if content is None:
        (folder / name).unlink()
    else:
        (folder / name).write_bytes(content)


def flip_a_bit(content: bytes) -> bytes:
    at = len(content) - 5
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]


SPOILT_FILES = {
    "record missing": (RECORD_NAME, lambda _: None, "drafter.json cannot be read"),
    "record no JSON": (RECORD_NAME, lambda _: b"{not", "is no drafter's record"),
    "record no text": (RECORD_NAME, lambda _: b'{"name": "\xff"}', "is no drafter's record"),
    "record too deep": (RECORD_NAME, lambda _: b'{"x":' * 20_000, "is no drafter's record"),
    "record of nothing": (RECORD_NAME, lambda _: b"{}", "is no drafter's record"),
    "record empty": (RECORD_NAME, lambda _: b"", "is no drafter's record"),
    "record of the future": (
        RECORD_NAME,
        lambda content: content.replace(b'"schema_version": 1', b'"schema_version": 7'),
        "has schema version 7 and this draftproof reads 1",
    ),
    "record of a future family": (
        RECORD_NAME,
        lambda content: content.replace(b'"attached"', b'"tree"'),
        "is no drafter's record",
    ),
    "weights missing": (WEIGHTS_NAME, lambda _: None, "weights cannot be read"),
    "weights cut": (WEIGHTS_NAME, lambda content: content[:-100], "weights are damaged"),
    "weights flipped": (WEIGHTS_NAME, flip_a_bit, "weights are damaged"),
    "weights empty": (WEIGHTS_NAME, lambda _: b"", "weights are damaged"),
}


@pytest.mark.parametrize("case", SPOILT_FILES)
def test_a_spoilt_file_is_one_sentence_with_place_and_fix(
    target: TargetModel, tmp_path: Path, case: str
) -> None:
    """A file that is missing, cut, altered or of another version is refused as such."""
    name, spoilt, sentence = SPOILT_FILES[case]
    write_family(tmp_path, "attached")
    spoil(tmp_path, name, spoilt)
    assert_refused(str(tmp_path), target, sentence)


def assert_refused(name: str, target: TargetModel, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence) as caught:
        load_drafter(name, target)
    assert caught.value.exit_code == 2
    assert caught.value.place is not None
    assert name in caught.value.place
    assert caught.value.fix
    assert "\n" not in str(caught.value)


def test_weights_that_are_signed_but_no_tensors_are_refused(target: TargetModel, tmp_path: Path) -> None:
    """A record that vouches for bytes that are no safetensors does not make them any."""
    import hashlib

    write_family(tmp_path, "attached")
    (tmp_path / WEIGHTS_NAME).write_bytes(b"\x08" + bytes(7) + b"{broken}")
    record = msgspec.json.decode((tmp_path / RECORD_NAME).read_bytes())
    record["weights_sha256"] = hashlib.sha256((tmp_path / WEIGHTS_NAME).read_bytes()).hexdigest()
    (tmp_path / RECORD_NAME).write_bytes(msgspec.json.encode(record))
    assert_refused(str(tmp_path), target, "no safetensors")


ALTERED: dict[str, tuple[str, dict[str, Any], str]] = {
    "other vocabulary": (
        "attached",
        {"target": TargetIdentity(origin="big", weights_sha256="", vocab_size=300, hidden_size=HIDDEN)},
        "target of vocabulary 300 and width 48",
    ),
    "other width": (
        "self",
        {"target": TargetIdentity(origin="big", weights_sha256="", vocab_size=VOCAB, hidden_size=64)},
        "vocabulary 260 and width 64",
    ),
    "taps beyond": ("attached", {"reads": (1, 3)}, r"reads the layers \[1, 3\] of its target, which has 2"),
    "taps before": ("attached", {"reads": (0, 1)}, r"reads the layers \[0, 1\]"),
    "no taps": ("attached", {"reads": ()}, r"reads the layers \[\]"),
    "exit beyond": ("self", {"reads": (3,)}, r"reads the layers \[3\]"),
    "two exits": ("self", {"reads": (1, 2)}, r"reads the layers \[1, 2\]"),
    "no layers": ("draft_model", {"layers": 0}, "has 0 layers"),
    "endless layers": ("draft_model", {"layers": 1000}, "tensor layers.2.input_norm is missing"),
    "fewer taps": ("attached", {"reads": (1,)}, r"tensor fuse has the shape \[48, 96\] where \[48, 48\]"),
    "draft vocabulary": ("self", {"vocab_size": 7}, r"tensor vocabulary has the shape \[130\] where \[7\]"),
    "other family": ("attached", {"family": "self", "reads": (1,)}, "tensor norm is missing"),
}


@pytest.mark.parametrize("case", ALTERED)
def test_a_record_that_fits_neither_target_nor_weights_is_refused(
    target: TargetModel, tmp_path: Path, case: str
) -> None:
    """A whole drafter for another target, or a record of other tensors, is told apart."""
    family, record, sentence = ALTERED[case]
    assert_refused(str(write_family(tmp_path, family, record)), target, sentence)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_tensor_is_needed_in_its_shape(target: TargetModel, tmp_path: Path, family: str) -> None:
    """Without any one tensor, or with rows more or less, a drafter is refused by the tensor's name."""
    for index, name in enumerate(family_tensors(family)):
        one = write_family(tmp_path / f"missing{index}", family, change=lambda tensors: tensors.pop(name))  # noqa: B023
        assert_refused(str(one), target, f"tensor {name} is missing")
        for kind, resized in (("more", more_rows), ("less", fewer_rows)):
            other = write_family(
                tmp_path / f"{kind}{index}",
                family,
                change=lambda tensors: tensors.update({name: resized(tensors[name])}),  # noqa: B023
            )
            # The first tensor of a feed-forward sets its width, so a row more there is missed in the second.
            assert_refused(str(other), target, r"tensor [a-z_.0-9]+ has the shape")


def more_rows(tensor: torch.Tensor) -> torch.Tensor:
    return torch.cat((tensor, tensor[:2]))


def fewer_rows(tensor: torch.Tensor) -> torch.Tensor:
    return tensor[:-1].clone()


SPOILT_TENSORS = {
    "not finite": ("final_norm", torch.full((HIDDEN,), float("nan")), "holds numbers that are not finite"),
    "a token twice": ("vocabulary", torch.zeros(VOCAB // 2, dtype=torch.int32), "each once"),
    "a token beyond": ("vocabulary", torch.arange(VOCAB // 2) + 200, "token ids below 260"),
    "a token before": ("vocabulary", torch.arange(VOCAB // 2) - 1, "token ids below 260"),
    "no token ids": ("vocabulary", torch.arange(VOCAB // 2).float(), "token ids below 260"),
    "a number": ("gate_up", torch.tensor(1.0), r"tensor gate_up has the shape \[\]"),
}


@pytest.mark.parametrize("case", SPOILT_TENSORS)
def test_values_that_cannot_draft_are_refused(target: TargetModel, tmp_path: Path, case: str) -> None:
    """Numbers that are none, and a vocabulary that is none, are found at load."""
    name, tensor, sentence = SPOILT_TENSORS[case]
    folder = write_family(tmp_path, "self", change=lambda tensors: tensors.update({name: tensor}))
    assert_refused(str(folder), target, sentence)


@pytest.mark.parametrize(
    "text",
    [
        "layers:",
        "layers:x",
        "layers:2",
        "layers:0-2",
        "layers:-1",
        "layers:1-0",
        "layers:0,1-0",
        "layers:0,,1",
        "layers:0-99999999999999999999",
        "layers:0.5",
    ],
)
def test_layers_that_are_none_are_refused(target: TargetModel, text: str) -> None:
    """A list that names no layers, some that are not there, or a range the wrong way round, is refused."""
    assert_refused(text, target, "no layers of the target")


@pytest.mark.parametrize("name", ["no-such-folder", "builtin:no-such-drafter", "builtin:"])
def test_a_drafter_that_is_nowhere_is_refused(target: TargetModel, name: str) -> None:
    """The sentence names what was asked for."""
    with pytest.raises(UsageError) as caught:
        load_drafter(name, target)
    assert caught.value.fix


def test_two_drafters_for_one_method_are_refused(target: TargetModel, tmp_path: Path) -> None:
    """Which of them would draft nobody could tell."""
    names = [str(write_family(tmp_path, "self")), "layers:0"]
    with pytest.raises(UsageError, match="two drafters serve the method self") as caught:
        load_drafters(names, target)
    assert caught.value.place == "layers:0"


def test_a_draft_model_of_another_vocabulary_is_refused(target: TargetModel, tmp_path: Path) -> None:
    """A causal LM whose tokens are not the target's cannot draft for it."""
    tiny_llama(vocab_size=100).save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    assert_refused(str(tmp_path), target, "vocabulary of 100 and the target one of 260")


@pytest.mark.parametrize("name", ["layers:0", "no-such-folder"])
def test_a_target_without_a_decoder_of_its_own_is_refused(name: str) -> None:
    """A model on the layer code of transformers cannot be taken apart, whatever was to draft for it."""
    target = TargetModel(tiny_model("gpt2"), byte_tokenizer())
    assert_refused(name, target, "cannot be taken apart for a drafter")


def test_serve_exits_with_2_and_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A damaged drafter ends `draftproof serve` before it answers anything."""
    model, drafter = tmp_path / "model", tmp_path / "drafter"
    tiny_llama().save_pretrained(model)
    byte_tokenizer().save_pretrained(model)
    write_family(drafter, "attached")
    spoil(drafter, WEIGHTS_NAME, flip_a_bit)
    arguments = ["serve", "--model", str(model), "--port", "0", "--drafter", str(drafter)]
    limits = ["--max-model-len", "512", "--kernels", "portable", "--num-threads", "1"]
    monkeypatch.setattr("sys.argv", ["draftproof", *arguments, *limits])
    capsys.readouterr()  # what saving a model says
    assert main() == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert len(said) == 1
    assert said[0].startswith(f"draftproof: {drafter / WEIGHTS_NAME}: the drafter's weights are damaged")
    assert ". Fix: use a folder written by `make drafters`" in said[0]


def test_every_family_of_the_tests_has_a_method() -> None:
    """What is written here covers every method that a folder can serve."""
    assert set(FAMILIES) == set(METHODS.values()) - {"ngram"}
