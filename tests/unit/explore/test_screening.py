"""From a plan or a run to a screening: whose answers, what is refused, and lookup beside real engines."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cost_builders import build_costs

from draftproof.core.errors import StoreError, UsageError
from draftproof.core.records import ScreenedAnswer, Withheld
from draftproof.explore import screening
from draftproof.explore.screening import Job, Lookup, check_rule, open_source, screen_source
from draftproof.judge.metrics.acceptance import count_decode_steps
from draftproof.measure.run.progress import Progress
from draftproof.reference.drafters.teacher_forcing import Answered, look_up
from draftproof.reference.drafters.teacher_forcing import Lookup as TeachersLookup
from draftproof.reference.screening import Impossible, Kept
from draftproof.reference.types import GenerationRequest, SamplingParams, SpeculationParams
from draftproof.store import RunDirectory
from draftproof.store.tables import load_table

FIXTURES = Path(__file__).parents[2] / "fixtures"
TOKENS = json.loads((FIXTURES / "files" / "screened-prompts.json").read_text("utf-8"))
LENGTHS = tuple(range(1, 9))


class RecordedTeacher:
    """Looks n-grams up in prompts that the target's tokenizer has encoded once."""

    def __init__(self, run, lookup=None):
        self.known, self.lookup, self.methods = TOKENS[run], lookup or Lookup(), ("ngram",)
        self.encode: Any = None
        self.refused, self.impossible = set(), set()

    def load(self):
        """There is no model."""

    def read(self, name, body):
        if name in self.refused:
            raise UsageError("it is refused", place=name)
        return GenerationRequest(
            request_id=name,
            prompt_token_ids=tuple(self.known[name]["prompt"]),
            sampling=SamplingParams(max_tokens=body["max_tokens"]),
            speculation=SpeculationParams(),
        )

    def answer(self, requests, report):
        report(len(requests), len(requests))
        return [(1, 2, 3, 1, 2, 3)] * len(requests)

    def screen(self, answers, longest, report):
        for at, (request, tokens) in enumerate(answers):
            if request.request_id in self.impossible:
                yield Impossible(at, "it cannot be")
                continue
            tables = look_up(
                Answered(request, tokens), TeachersLookup(*msgspec.structs.astuple(self.lookup)), longest
            )
            yield from (Kept(at, method, *tables) for method in self.methods)
        report(len(answers), len(answers))


JOB = Job(draft_lengths=LENGTHS, lookup=Lookup(), greedy_drafts=True)


def screen_run(name, **changes):
    """Return the source of a kept run, its teacher with the candidate's lookup, and what came out."""
    source = open_source(FIXTURES / "runs" / name)
    teacher = RecordedTeacher(name, screening.find_lookup(source.engine, source.settings))
    for key, value in changes.items():
        setattr(teacher, key, value)
    return source, *screen_source(source, teacher, JOB, Progress())


def count_steps(records):
    """Return the decode steps of each record."""
    return [found[0] for one in records if (found := count_decode_steps(one))]


def test_lookup_takes_the_rounds_that_vllm_took() -> None:
    """On every answer of a run of vLLM the steps of its n-gram lookup are those that are expected."""
    source, _, answers = screen_run("vllm-ngram")
    expected = {one.item_id: one.rounds for one in answers if one.draft_length == 4}
    text = {one.item_id: one.token_ids for one in source.asked}
    data = RunDirectory.open(FIXTURES / "runs" / "vllm-ngram").load()
    drafted = [one for one in data.records if one.arm == "candidate" and one.phase == "measure"]
    same = [one for one in drafted if one.token_ids == text[one.item_id]]
    assert len(same) == len(drafted) == 48
    assert count_steps(same) == [expected[one.item_id] for one in same]


def test_lookup_takes_the_rounds_that_llamacpp_took(monkeypatch) -> None:
    """The same of llama.cpp's ngram-simple; its answers are known as text, one token short at their end."""
    source = open_source(FIXTURES / "runs" / "llamacpp-ngram")
    known = TOKENS["llamacpp-ngram"]
    teacher = RecordedTeacher("llamacpp-ngram", screening.find_lookup(source.engine, source.settings))
    texts = {one.text: tuple(known[one.name]["answer"]) for one in source.asked}
    monkeypatch.setattr(teacher, "encode", lambda text, _count: texts[text])
    _, answers = screen_source(source, teacher, JOB, Progress())
    expected = {one.item_id: one.rounds for one in answers if one.draft_length == 8}
    by_item = {one.item_id: one.text for one in source.asked}
    data = RunDirectory.open(FIXTURES / "runs" / "llamacpp-ngram").load()
    drafted = [one for one in data.records if one.arm == "candidate" and one.phase == "measure"]
    same = [one for one in drafted if one.text == by_item[one.item_id]]
    assert len(same) == 67
    assert count_steps(same) == [expected[one.item_id] for one in same]


def test_a_screening_is_written_and_read_again(tmp_path) -> None:
    """The table holds every answer, method and length; a second screening does not overwrite the first."""
    _, found, answers = screen_run("vllm-ngram")
    folder = tmp_path / "screened"
    screening.check_free(folder)
    screening.save_screening(folder, found, answers)
    assert load_table(folder / "screening.parquet", ScreenedAnswer) == tuple(answers)
    assert len(answers) == 24 * len(LENGTHS)
    summary = json.loads((folder / "screening.json").read_text("utf-8"))
    assert summary["answers"] == 24
    assert summary["answered_s"] is None
    with pytest.raises(StoreError, match="choose another folder"):
        screening.check_free(folder)


def test_what_is_left_out_has_its_reason() -> None:
    """Requests that are refused, answers that cannot be and later turns are named, the rest goes on."""
    _, found, answers = screen_run("vllm-ngram", refused={"en-grounded-08"}, impossible={"en-explanation-07"})
    assert found.left_out == {"it is refused": ("en-grounded-08",), "it cannot be": ("en-explanation-07",)}
    assert found.answers == 22
    assert {one.item_id for one in answers}.isdisjoint({"en-grounded-08", "en-explanation-07"})


def test_an_answer_whose_text_does_not_give_its_tokens_is_left_out(monkeypatch) -> None:
    """Where only text is known, and it is not as many tokens as were counted, nothing is guessed."""
    source = open_source(FIXTURES / "runs" / "llamacpp-ngram")
    teacher = RecordedTeacher("llamacpp-ngram")
    monkeypatch.setattr(teacher, "encode", lambda _text, count: (1,) * (count - (count == 36)))
    found, _ = screen_source(source, teacher, JOB, Progress())
    [(reason, ids)] = found.left_out.items()
    assert "not as many tokens" in reason
    assert 0 < len(ids) < 36
    monkeypatch.setattr(teacher, "encode", lambda _text, _count: ())
    with pytest.raises(UsageError, match="no answer can be screened"):
        screen_source(source, teacher, JOB, Progress())


def test_a_plan_asks_all_that_its_workload_lets_through(tmp_path) -> None:
    """The sample of a run is small, a screening takes every item of `where`; the target answers."""
    text = (FIXTURES / "runs" / "vllm-ngram" / "plan.toml").read_text("utf-8")
    (tmp_path / "plan.toml").write_text(text, "utf-8")
    source = open_source(tmp_path / "plan.toml")
    assert len(source.asked) > 24
    assert not source.is_run
    assert screening.find_lookup(source.engine, source.settings) == Lookup(
        ngram_min=2, ngram_max=4, earliest=True
    )
    teacher = RecordedTeacher("vllm-ngram")
    teacher.known = {one.name: {"prompt": [1, 2]} for one in source.asked}
    found, answers = screen_source(source, teacher, JOB, Progress())
    assert found.answered_s is not None
    assert {one.tokens for one in answers} == {5}


@pytest.mark.parametrize(
    ("engine", "settings", "rule"),
    [
        ("vllm", {"speculation.rejection_sample_method": "block"}, "block verification"),
        ("vllm", {"speculation.rejection_sample_method": "synthetic"}, "accepted by chance"),
        ("sglang", {"speculation.use_block_verification": True}, "block verification"),
        ("sglang", {"speculation.method": "EAGLE3", "speculation.eagle_topk": 4}, "a tree"),
        ("sglang", {"speculation.method": "NGRAM"}, "a tree"),
        ("sglang", {"speculation.method": "EAGLE", "speculation.accept_threshold_single": 0.8}, "below 1"),
        ("tensorrt-llm", {"speculation.use_relaxed_acceptance_for_thinking": True}, "relaxed acceptance"),
    ],
)
def test_other_rules_of_acceptance_are_refused_by_name(engine, settings, rule) -> None:
    """Block verification, trees and relaxed acceptance are not what the chances here are of."""
    source = open_source(FIXTURES / "runs" / "vllm-ngram")
    check_rule(source)
    with pytest.raises(UsageError, match=rule):
        check_rule(msgspec.structs.replace(source, engine=engine, settings=settings))


def test_withheld_texts_are_refused(monkeypatch) -> None:
    """A package without texts says where they are."""
    data = RunDirectory.open(FIXTURES / "runs" / "vllm-ngram").load()
    bare = [msgspec.structs.replace(one, withheld=Withheld()) for one in data.records]
    monkeypatch.setattr(RunDirectory, "load", lambda _run: msgspec.structs.replace(data, records=tuple(bare)))
    with pytest.raises(UsageError, match="withheld"):
        open_source(FIXTURES / "runs" / "vllm-ngram")


def test_engines_draft_as_they_do() -> None:
    """The reference engine draws its drafts; others take the likeliest unless told otherwise."""
    assert not screening.drafts_greedily("reference", {})
    assert screening.drafts_greedily("vllm", {})
    assert not screening.drafts_greedily("vllm", {"speculation.draft_sample_method": "probabilistic"})


def test_one_screen_shows_methods_and_segments() -> None:
    """At most 25 lines, whatever there is; with step costs the best length of each."""
    _, found, _ = screen_run("vllm-ngram", methods=tuple(f"m{at}" for at in range(9)))
    text = screening.render_screening(found)
    assert "rewriting" in text
    assert "m0" in text
    cells = [
        msgspec.structs.replace(cell, segment=f"task={cell.segment}-{at}") if cell.segment != "all" else cell
        for cell in found.cells
        for at in range(30)
    ]
    many = msgspec.structs.replace(found, cells=tuple(cells), left_out={"why": ("a", "b")})
    shown = screening.render_screening(many)
    assert len(shown.splitlines()) <= 24
    assert "more" in shown
    with pytest.raises(UsageError, match="batch 3 was not timed"):
        screening.render_screening(found, 3)


def test_step_costs_choose_the_length(tmp_path) -> None:
    """With what `costs` wrote, every segment shows its best number of drafts and the time it predicts."""
    costs = build_costs(method="ngram")
    (tmp_path / "costs.json").write_bytes(msgspec.json.encode(costs))
    loaded = screening.load_costs(tmp_path)
    assert loaded == costs
    source = open_source(FIXTURES / "runs" / "vllm-ngram")
    teacher = RecordedTeacher("vllm-ngram")
    priced = msgspec.structs.replace(JOB, costs=loaded)
    found, _ = screen_source(source, teacher, priced, Progress())
    longest = max(costs.draft_lengths)
    assert all(bool(cell.ratios) == (cell.draft_length <= longest) for cell in found.cells)
    shown = screening.render_screening(found, costs.batches[-1])
    assert f"Predicted time per token at batch {costs.batches[-1]}" in shown
    assert " k=" in shown
    newer = msgspec.structs.replace(costs, schema_version=99)
    (tmp_path / "costs.json").write_bytes(msgspec.json.encode(newer))
    with pytest.raises(UsageError, match="newer"):
        screening.load_costs(tmp_path)
