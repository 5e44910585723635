"""A recording replayed, from the plan to the package: the same due times in every arm, and what is said."""

from itertools import groupby

import msgspec
import numpy as np
import pytest

from draftproof.measure.run.check import choose_items
from draftproof.measure.run.progress import Progress
from draftproof.measure.run.runner import run_plan
from draftproof.plan.load import RecordedWindow
from draftproof.plan.loading import load_plan
from draftproof.store import RunDirectory
from draftproof.tell.handover.withholding import Withholder

TRACE = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
    f"2024-05-10 00:00:0{number * 0.2:.7f},{20 + number},{5 + number % 3}\n" for number in range(16)
)


def use_trace(stage, *, load, workload='path = "trace.csv"\nsegment_by = ["prompt_length"]', **plan):
    """Write a staged plan whose only level is `load`, over the trace."""
    (stage.folder / "trace.csv").write_text(TRACE)
    path = stage.plan(**plan)
    text = path.read_text().replace('path = "items.jsonl"', workload).replace("concurrency = 1", load)
    path.write_text(text)
    return path


def turn_of(record):
    return record.block, record.arm


def gaps_ns(records):
    due = [record.scheduled_ns for record in sorted(records, key=lambda one: one.order_in_block)]
    return np.diff(due).tolist()


def test_a_trace_is_replayed_alike_in_every_arm(stage):
    """Twice as fast as recorded: each arm's requests are due at half the recorded distances, in windows."""
    path = use_trace(stage, load="replay = { speed = 2.0 }", block_size=8)
    results = run_plan(*load_plan(path), stage.out, stage.no_model, Progress())
    assert results.evidence == "synthetic"
    contents = RunDirectory.open(stage.out).load()
    counted = [one for one in contents.records if one.phase == "measure"]
    assert len(counted) == 32
    for _, own in groupby(sorted(counted, key=turn_of), key=turn_of):
        assert gaps_ns(own) == [100_000_000] * 7
    assert {one.outcome for one in counted} == {"ok"}
    assert [item.due_ns for item in contents.items] == [number * 200_000_000 for number in range(16)]
    assert any("workload: the prompts are invented" in text for text in results.warnings)


def test_invented_prompts_never_count_as_representative(stage):
    """The plan's claim is lowered in the run's own record, and the verdict says which one counts."""
    path = use_trace(
        stage,
        load="replay = { speed = 50.0 }",
        workload='path = "trace.csv"\nsegment_by = ["prompts"]\n[workload.window]\nrequests = 6',
        block_size=6,
    )
    path.write_text(path.read_text().replace("question =", 'evidence = "representative"\nquestion =', 1))
    results = run_plan(*load_plan(path), stage.out, stage.no_model, Progress())
    assert results.evidence == "synthetic"
    assert any("calls its traffic representative" in text for text in results.warnings)
    assert len((stage.out / "workload.jsonl").read_text().splitlines()) == 6


def test_check_says_how_long_the_replay_takes_and_what_is_invented(stage, call):
    """Before anything is measured; nothing forbids the run."""
    code, out, err = call("check", "-q", use_trace(stage, load="replay = {}", block_size=8))
    assert code == 0, err
    assert "load single: 4 periods of up to 8 requests, 5.6 s at least by their due times" in out
    assert "workload: the prompts are invented words" in out


def test_check_refuses_a_replay_of_items_without_times_before_it_starts_an_arm(stage, call):
    """One sentence, no process."""
    path = stage.plan()
    path.write_text(path.read_text().replace("concurrency = 1", "replay = {}"))
    code, out, err = call("check", "-q", path)
    assert (code, out) == (2, "")
    assert "a replay needs a workload that says when each request came" in err


def test_a_package_without_prompts_keeps_when_they_came(stage):
    """Withheld items have their times, labels and limits, and none of their words."""
    plan, _ = load_plan(use_trace(stage, load="replay = {}"))
    _, items = choose_items(plan)
    withheld = [Withholder(bytes(range(32)), items).item(item) for item in items]
    assert [item.due_ns for item in withheld] == [item.due_ns for item in items]
    assert [item.segments for item in withheld] == [item.segments for item in items]
    words = set(items[0].messages[0].text.split())
    assert not words & set(msgspec.json.encode(withheld[0].messages).decode().split('"'))


@pytest.mark.parametrize(
    ("extra", "kept"),
    [("items_per_segment = 3", 3), ('where = { answer_length = ["0-63"] }', 16)],
)
def test_a_trace_is_thinned_by_label(stage, extra, kept):
    """What is left keeps its times, so the load is thinner than the recorded one."""
    workload = f'path = "trace.csv"\nsegment_by = ["prompts"]\n{extra}'
    plan, _ = load_plan(use_trace(stage, load="replay = {}", workload=workload))
    items = choose_items(plan)[1]
    assert len(items) == kept
    assert {item.due_ns for item in items} <= {number * 200_000_000 for number in range(16)}


def test_init_writes_a_plan_that_replays_a_trace(tmp_path, call):
    """With its marks filled in, the plan takes its first ten minutes as one level."""
    trace, out = tmp_path / "trace.csv", tmp_path / "plan.toml"
    trace.write_text(TRACE)
    code, _, err = call("init", "--engine", "reference", "--trace", trace, "--out", out)
    assert (code, err) == (0, "")
    plan, _ = load_plan(out)
    assert [level.replay_speed for level in plan.load] == [1.0]
    assert plan.workload.path == str(trace)
    assert plan.workload.window == RecordedWindow(start_s=0.0, duration_s=600.0)
    assert len(choose_items(plan)[1]) == 16


@pytest.mark.parametrize(
    "text",
    ['{"id": "a", "messages": [{"role": "user", "content": "x"}], "segments": {}}\n', "when,what\n1,2\n"],
)
def test_init_refuses_what_is_no_recording(tmp_path, call, text):
    """One sentence, and no file is written."""
    trace = tmp_path / "trace.jsonl"
    trace.write_text(text)
    code, _, err = call("init", "--engine", "openai", "--trace", trace, "--out", tmp_path / "plan.toml")
    assert (code, err.count("\n")) == (2, 1)
    assert not (tmp_path / "plan.toml").exists()
