"""The trace: every step is a line, its parts are the step, and it tells the same story as everything else."""

import logging
from itertools import count, pairwise
from pathlib import Path

import msgspec
import pytest
import torch
from tiny_engine import FakeFailure, make_request, repetitive_prompt, run_all, tiny_target

from draftproof.core.errors import UsageError
from draftproof.reference.counters import StepTrace, TraceFile
from draftproof.reference.engine import Engine
from draftproof.reference.models.model import TargetModel
from draftproof.reference.types import EngineConfig, GenerationRequest

LIMITS = EngineConfig(
    model_path="tiny", max_model_len=512, max_num_seqs=3, max_num_batched_tokens=48, ngram_min=1
)


@pytest.fixture(scope="module")
def target():
    return tiny_target()


def requests() -> list[GenerationRequest]:
    """Return more than fit at once, every other one drafting."""
    generator = torch.Generator().manual_seed(0)
    prompts = [repetitive_prompt(generator) for _ in range(7)]
    return [
        make_request(f"r{index}", prompt, drafts=4 * (index % 2), max_tokens=16 + index)
        for index, prompt in enumerate(prompts)
    ]


def parts(step: StepTrace) -> int:
    return step.draft_ns + step.verify_ns + step.sample_ns + step.schedule_ns


def test_the_parts_leave_out_nothing(target: TargetModel) -> None:
    """On a clock that moves by one a reading, the parts miss the total by the one reading behind them."""
    ticks = count()
    steps: list[StepTrace] = []
    engine = Engine(target, LIMITS, clock=lambda: next(ticks), tracer=steps.append)
    run_all(engine, requests())
    assert {step.total_ns - parts(step) for step in steps} == {1}


def test_the_parts_are_the_wall_time_of_real_steps(target: TargetModel) -> None:
    """In most steps of a real model the parts are within 2 % of what the clock says of the whole step."""
    steps: list[StepTrace] = []
    run_all(Engine(target, LIMITS, tracer=steps.append), requests())
    missing = sorted(1 - parts(step) / step.total_ns for step in steps)
    assert missing[0] >= 0
    assert missing[len(missing) // 2] < 0.02


def test_steps_and_the_gaps_between_them_are_all_the_time_there_is(target: TargetModel) -> None:
    """Each start is the start before plus that step and the gap; where the engine waited there is no gap."""
    steps: list[StepTrace] = []
    engine = Engine(target, LIMITS, tracer=steps.append)
    run_all(engine, requests())
    first = len(steps)
    run_all(engine, requests()[:1])
    for before, after in pairwise(steps):
        if after.gap_ns is not None:
            assert after.start_ns == before.start_ns + before.total_ns + after.gap_ns
    assert [index for index, step in enumerate(steps) if step.gap_ns is None] == [0, first]


@pytest.mark.parametrize("how", ["cancel", "fail"])
def test_no_gap_follows_requests_that_ended_between_steps(target: TargetModel, how: str) -> None:
    """Where the last request is cancelled or fails between two steps, the engine waited: there is no gap."""
    steps: list[StepTrace] = []
    engine = Engine(target, LIMITS, tracer=steps.append)
    engine.add_request(requests()[0])
    engine.step()
    if how == "cancel":
        engine.cancel("r0")
    else:
        engine.fail_running("x")
    assert not engine.has_work
    engine.add_request(requests()[1])
    engine.step()
    assert [step.gap_ns for step in steps] == [None, None]


def test_the_trace_is_what_responses_and_metrics_say(target: TargetModel) -> None:
    """Rounds by request, and the engine's totals, are the trace's, number by number."""
    steps: list[StepTrace] = []
    engine = Engine(target, LIMITS, tracer=steps.append)
    outputs = run_all(engine, requests())
    for request_id, delivered in outputs.items():
        traced = [
            (one.proposed, one.accepted, one.committed, one.draft_limit, step.draft_ns, step.verify_ns)
            for step in steps
            for one in step.sequences
            if one.request_id == request_id and not one.prefill_tokens
        ]
        told = [output.round for output in delivered if output.round is not None]
        assert traced == [
            (one.proposed, one.accepted, one.committed, one.draft_limit, one.draft_ns, one.verify_ns)
            for one in told
        ]
    stats, lines = engine.stats(), [one for step in steps for one in step.sequences]
    assert [step.step for step in steps] == [*range(1, stats.steps + 1)]
    assert sum(step.prefill_tokens for step in steps) == sum(one.prefill_tokens for one in lines)
    assert stats.prompt_tokens == sum(one.prefill_tokens for one in lines)
    assert stats.generation_tokens == sum(one.committed for one in lines)
    assert stats.draft_tokens == sum(one.proposed for one in lines) > 0
    assert stats.accepted_tokens == sum(one.accepted for one in lines)
    for name in ("draft_ns", "verify_ns", "sample_ns", "schedule_ns"):
        assert getattr(stats, name) == sum(getattr(step, name) for step in steps)


def test_a_line_says_what_the_step_carried(target: TargetModel) -> None:
    """Rows are prompt chunks, last tokens and drafts; the last step leaves nothing behind."""
    steps: list[StepTrace] = []
    run_all(Engine(target, LIMITS, tracer=steps.append), requests())
    for step in steps:
        decoding = [one for one in step.sequences if not one.prefill_tokens]
        assert step.rows == step.prefill_tokens + sum(1 + one.proposed for one in decoding)
        assert step.rows <= LIMITS.max_num_batched_tokens
    assert max(step.waiting for step in steps) > 0
    assert max(step.cache_bytes for step in steps) > 0
    assert (steps[-1].running, steps[-1].waiting, steps[-1].cache_bytes) == (0, 0, 0)


def test_a_step_that_raised_has_no_line(target: TargetModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the trace nor the metrics count it."""
    steps: list[StepTrace] = []
    engine = Engine(target, LIMITS, tracer=steps.append)
    engine.add_request(requests()[0])

    def fail(*_: object) -> None:
        raise FakeFailure

    with monkeypatch.context() as patched:
        patched.setattr(target, "forward", fail)
        with pytest.raises(FakeFailure):
            engine.step()
    engine.fail_running("x")
    run_all(engine, requests()[1:2])
    assert [step.step for step in steps] == [*range(1, engine.stats().steps + 1)]


def test_the_file_holds_the_records_and_is_continued(target: TargetModel, tmp_path: Path) -> None:
    """Each line is there as soon as its step is over, and a second process appends."""
    path = tmp_path / "trace.jsonl"
    for _ in range(2):
        trace = TraceFile(path)
        engine = Engine(target, LIMITS, tracer=trace)
        engine.add_request(requests()[1])
        before = path.read_bytes().count(b"\n")
        engine.step()
        engine.step()
        assert path.read_bytes().count(b"\n") == before + 2
        trace.close()
        engine.step()
    lines = [msgspec.json.decode(line, type=StepTrace) for line in path.read_bytes().splitlines()]
    assert [line.step for line in lines] == [1, 2, 1, 2]
    assert [line.sequences[0].request_id for line in lines] == ["r1"] * 4


def test_a_full_disk_ends_the_trace_and_nothing_else(
    target: TargetModel, caplog: pytest.LogCaptureFixture
) -> None:
    """One warning names the file and the reason; every answer is complete."""
    engine = Engine(target, LIMITS, tracer=TraceFile(Path("/dev/full")))
    with caplog.at_level(logging.WARNING):
        outputs = run_all(engine, requests())
    assert {delivered[-1].finish_reason for delivered in outputs.values()} <= {"stop", "length"}
    assert [record.getMessage() for record in caplog.records] == [
        "/dev/full: tracing ends here: No space left on device"
    ]


@pytest.mark.parametrize("place", ["", "no-such-folder/trace.jsonl"])
def test_a_file_that_cannot_be_opened_is_a_usage_error(tmp_path: Path, place: str) -> None:
    """A folder in the file's place, or none around it, is said before any model is loaded."""
    with pytest.raises(UsageError, match="trace cannot be written") as caught:
        TraceFile(tmp_path / place)
    assert caught.value.place == str(tmp_path / place)
