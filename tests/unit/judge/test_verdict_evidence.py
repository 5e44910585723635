"""Every reason points to rows that exist: over runs of many kinds, with faults and without."""

import json
from typing import Literal

import msgspec
import pytest
from tests.builders.references import list_references

from draftproof.core.records import TelemetrySample
from draftproof.judge.compute import compute_results
from draftproof.judge.inform.evidence import find_evidence
from draftproof.judge.results.decide import ALL_LOADS, Reference, refer


def effects_row(cell, arm="candidate", versus="baseline", name="tpot_ns"):
    return Reference("effects", arm, versus, at=cell, name=name)


GRID = {
    "segments": ("rewriting", "chat"),
    "items_per_segment": 12,
    "thresholds": {"failure_margin": 0.3, "quality_margin": 0.3},
}


def ratio(**factors):
    """Return a time per token with the candidate's factor by "segment_load", 1 where none is given."""
    return lambda case: (
        20.0 * (factors.get(f"{case.segment}_{case.load}", 1.0) if case.arm == "candidate" else 1.0)
    )


def fast(case):
    return 10.0 if case.arm == "candidate" else 20.0


WORLDS = {
    "equal arms": {},
    "gain everywhere": {"tpot_ms": fast},
    "harm at high load": {
        "tpot_ms": ratio(rewriting_low=0.6, rewriting_high=1.4, chat_low=0.6, chat_high=1.4)
    },
    "gain above a gap": {"tpot_ms": ratio(rewriting_low=1.3, rewriting_high=0.6)},
    "representative": {"tpot_ms": fast, "evidence": "representative"},
    "late first token": {
        "tpot_ms": fast,
        "ttft_ms": lambda case: 300.0 if case.arm == "candidate" else 100.0,
    },
    "shorter answers": {"tokens": lambda case: 20 if case.arm == "candidate" else 40},
    "failing candidate": {
        "tpot_ms": fast,
        "outcome": lambda case: "timeout" if case.arm == "candidate" and case.number % 2 else "ok",
    },
    "dead candidate": {"outcome": lambda case: "http_error" if case.arm == "candidate" else "ok"},
    "dead baseline": {"outcome": lambda case: "http_error" if case.arm == "baseline" else "ok"},
    "all dead": {"outcome": lambda _: "http_error"},
    "wrong answers": {
        "tpot_ms": fast,
        "critical": True,
        "text": lambda case: "no" if case.arm == "candidate" else "yes",
    },
    "no checks": {"tpot_ms": fast, "has_checks": False},
    "no speculation": {"tpot_ms": fast, "accepted": lambda _: 0},
    "idle at one load": {
        "tpot_ms": fast,
        "accepted": lambda case: 2 if (case.arm, case.load) == ("candidate", "low") else 0,
    },
    "idle in one cell": {
        "tpot_ms": fast,
        "accepted": lambda case: 2 if (case.arm, case.segment) == ("candidate", "chat") else 0,
    },
    "speculating baseline": {"tpot_ms": fast, "accepted": lambda _: 2},
    "late client": {"tpot_ms": fast, "lag_ms": lambda _: 90.0},
    "incomplete": {"tpot_ms": fast, "is_kept": lambda case: case.load == "low" or case.number < 9},
    "missing candidate": {"is_kept": lambda case: case.arm != "candidate"},
    "empty": {"is_kept": lambda _: False},
    "few prompts": {"tpot_ms": fast, "items_per_segment": 4},
    "two dimensions": {"tpot_ms": fast, "plan": {"workload": {"segment_by": ["task", "language"]}}},
    "end to end": {"tpot_ms": fast, "comparison": {"metric": "e2e_from_schedule_ns"}},
    "short contexts suffer": {
        "tpot_ms": lambda case: (
            20.0 * ((0.4 if case.number >= 7 else 1.1) if case.arm == "candidate" else 1.0)
        ),
        "tokens": lambda case: 30 + 4 * case.number,
    },
    "long contexts suffer": {
        "tpot_ms": lambda case: (
            20.0 * ((0.5 if case.number < 18 else 1.1) if case.arm == "candidate" else 1.0)
        ),
        "tokens": lambda case: 30 + 4 * case.number,
        "items_per_segment": 27,
    },
}
FOUR_ARMS = {
    "dominated": {"tpot_ms": lambda case: 20.0 * {"candidate": 0.8, "alternative": 0.5}.get(case.arm, 1.0)},
    "no alternative answer": {
        "tpot_ms": fast,
        "outcome": lambda case: "http_error" if case.arm == "alternative" else "ok",
    },
    "unequal null": {"tpot_ms": lambda case: {"candidate": 17.0, "baseline_null": 14.0}.get(case.arm, 20.0)},
    "no null answer": {
        "tpot_ms": fast,
        "outcome": lambda case: "cut" if case.arm == "baseline_null" else "ok",
    },
    "other texts": {
        "tpot_ms": fast,
        "text": lambda case: f"yes {case.arm} {case.number}" if case.arm == "candidate" else "yes",
    },
}
# One load is enough for the others, whose loads are alike.
SEVERAL_LOADS = {
    "gain everywhere",
    "harm at high load",
    "gain above a gap",
    "idle at one load",
    "incomplete",
    "long contexts suffer",
    "unequal null",
}


@pytest.mark.parametrize("name", [*WORLDS, *FOUR_ARMS])
def test_every_reference_of_a_run_leads_to_a_row(world, name):
    """Reasons of the verdict and of cells, guardrails and answers rest on rows that the run has."""
    arms = {"arms": world.ALL_ARMS} if name in FOUR_ARMS else {}
    loads = {} if name in SEVERAL_LOADS else {"loads": (("low", 1),)}
    run = world(**(GRID | loads | arms | (WORLDS | FOUR_ARMS)[name])).run()
    results = compute_results(run)
    references = set(list_references(results))
    assert references
    lost = {
        one for one in references if not find_evidence(results, one, manifest=run.manifest, plan=run.plan)
    }
    assert lost == set()


def test_a_reason_of_the_services_leads_to_their_rows(world):
    """Foreign traffic seen in telemetry points to what the services said at that load."""
    run = world(tpot_ms=fast, **GRID).run()
    edges: tuple[tuple[int, float, Literal["start", "end"]], ...] = ((0, 0.0, "start"), (1, 1e6, "end"))
    samples = tuple(
        TelemetrySample(
            arm=block.arm,
            at_ns=at,
            values={"draftproof:generation_tokens_total": value, "draftproof:request_success_total": value},
            period=f"{block.load}/{block.block}",
            mark=mark,
        )
        for block in run.blocks
        for at, value, mark in edges
    )
    results = compute_results(msgspec.structs.replace(run, telemetry=samples))
    found = [reason for reason in results.verdict.reasons if reason.code == "foreign_traffic"]
    assert found
    rows = find_evidence(results, found[0])
    assert {row.table for row in rows} == {"services"}
    assert {row.row.load for row in rows} == {found[0].evidence.partition("period ")[2].partition("/")[0]}


@pytest.fixture(scope="module")
def judged(world):
    """A run with two segments, two loads and four arms."""
    return compute_results(world(arms=world.ALL_ARMS, tpot_ms=fast, **GRID).run())


def test_a_reference_leads_to_exactly_the_row_that_it_names(judged):
    """Metric, arms, segment and load select one row of the effects."""
    (found,) = find_evidence(judged, effects_row(("task=chat", "high")))
    row = found.row
    assert (row.metric, row.arm, row.versus, row.segment, row.load) == (
        "tpot_ns",
        "candidate",
        "baseline",
        "task=chat",
        "high",
    )
    assert judged.effects[found.index] is row


@pytest.mark.parametrize(
    "reference",
    [
        effects_row(("task=code", "high")),
        effects_row(("task=chat", "nowhere")),
        effects_row(("task=chat", "high"), name="goodness"),
        effects_row(("task=chat", "high"), versus="baseline extra"),
        effects_row(("task=chat", "high"), arm="baseline", versus="candidate"),
        refer("differences", ("all", "high"), "nonsense"),
        Reference("nothing", "candidate", at=ALL_LOADS),
        Reference("acceptance", "candidate", at="nowhere"),
        Reference("telemetry", period="nowhere/3", at="nowhere"),
        Reference("run_name"),
        Reference(""),
        Reference("effects: tpot_ns candidate / baseline, task=chat × high"),
    ],
)
def test_a_reference_to_what_is_not_there_leads_nowhere(judged, reference):
    """A wrong segment, load, metric, arm, table or word, or text without parts, is found out, not ignored."""
    assert find_evidence(judged, reference) == ()


def test_names_with_separators_in_them_are_told_apart(world):
    """Labels and loads are data: commas, crosses and slashes in them do not confuse a reference."""
    odd = "a, b × c"
    run = world(
        tpot_ms=fast, segments=(odd, "c"), loads=(("low", 1), ("low-2", 8)), items_per_segment=14
    ).run()
    results = compute_results(run)
    (found,) = find_evidence(results, effects_row((f"task={odd}", "low-2")))
    assert (found.row.segment, found.row.load) == (f"task={odd}", "low-2")
    (cell,) = find_evidence(results, Reference("cells", at=("task=c", "low")))
    assert cell.row.segment == "task=c"


@pytest.mark.parametrize(
    ("reference", "written"),
    [
        (Reference("cells"), "cells"),
        (
            effects_row(("task=chat", "busy")),
            "effects: tpot_ns candidate / baseline, task=chat × busy",
        ),
        (refer("tails", ("all", "busy"), "tpot_ns"), "tails tpot_ns: candidate / baseline, all × busy"),
        (
            Reference("arm_cells", name="progress", at=("all", "busy")),
            "arm_cells: progress, all × busy",
        ),
        (Reference("counters", "candidate", at="busy"), "counters: candidate, load busy"),
        (Reference("outcomes", "baseline", at=ALL_LOADS), "outcomes: baseline, all loads"),
        (Reference("telemetry", period="busy/3", at="busy"), "telemetry: period busy/3"),
        (Reference("plan", name="rollback"), "plan: rollback"),
        (Reference("behaviour", "candidate", quantity="tools"), "behaviour tools: candidate"),
    ],
)
def test_a_reference_is_written_as_readers_know_it(reference, written):
    """Table, quantity, arms, segment and load in one line, which is what results.json holds."""
    assert (reference, f"{reference}", json.loads(msgspec.json.encode([reference], enc_hook=str))) == (
        written,
        written,
        [written],
    )
