"""What a run said of its own chances is in its results, and why it ended is the first reason."""

import msgspec
import numpy as np
import pytest
from tests.builders.runs import Layout, Requests, build_run

from draftproof.core.records import Notice
from draftproof.judge.compute import compute_results
from draftproof.judge.inform.evidence import find_evidence
from draftproof.judge.observe.observed import FORECAST, explain_ending, find_ending, note_going_on

NOTE = Notice(code="drift", severity="note", text="Times have doubled.", remedy="look", at_ns=1)
END = Notice(code="host_busy", severity="cannot_end_well", text="Others use it.", remedy="stop them", at_ns=2)
AGAIN = msgspec.structs.replace(END, at_ns=0)
WAITED = Notice(code="waited", severity="note", text="The run waited.", remedy="none is needed", at_ns=3)


@pytest.mark.parametrize(
    ("notices", "ending"),
    [
        ((), None),
        ((NOTE,), None),
        ((NOTE, END), END),
        ((END, WAITED), None),
        ((END, note_going_on(4)), None),
        ((END, note_going_on(1), AGAIN), AGAIN),
    ],
)
def test_a_run_ended_early_unless_it_went_on(notices, ending):
    """The last word counts, also where the clock began anew in between; a note ends nothing."""
    assert find_ending(notices) == ending
    assert bool(explain_ending(notices)) == (ending is not None)


def run(notices, *, prompts=8):
    layout = Layout(segments=("chat",), loads=(("low", 1),), prompts=8, comparison={"resamples": 200})
    drawn = {
        (arm, "chat", "low"): Requests(
            tpot_ms=np.linspace(20.0, 27.0, 8),
            ttft_ms=np.full(8, 100.0),
            tokens=np.full(8, 40),
            is_ok=np.ones(8, dtype=bool),
        )
        for arm in layout.arms
    }
    made = build_run(layout, drawn, {("low", 0): layout.arms})
    kept = tuple(one for one in made.records if int(one.item_id.rpartition("-")[2]) < prompts)
    return msgspec.structs.replace(made, records=kept, notices=tuple(notices))


def test_the_reason_of_an_early_end_comes_first():
    """In the sentence and in the reasons, with what helps, whatever else is missing."""
    results = compute_results(run([NOTE, END], prompts=4))
    first = results.verdict.reasons[0]
    assert (results.verdict.decision, first.code) == ("inconclusive", "ended_early")
    assert first.text == (
        "The run ended before its end, because it could not end well: others use it. What helps: stop them."
    )
    assert first.text.rstrip(".") in results.verdict.sentence
    assert find_evidence(results, first)


def test_nothing_measured_is_invalid_for_that_reason():
    """The arms had begun to warm up when the run ended."""
    results = compute_results(run([END], prompts=0))
    assert results.verdict.decision == "invalid"
    assert "could not end well: others use it" in results.verdict.sentence


def test_a_forecast_is_over_when_the_report_is_written():
    """What was left then is left no more, neither in the reason nor in the warnings."""
    ending = msgspec.structs.replace(END, text=f"{END.text.rstrip('.')}{FORECAST} 8 s are left.")
    for results in (compute_results(run([ending], prompts=0)), compute_results(run([ending]))):
        said = [results.verdict.sentence, *results.warnings]
        assert not any("at this pace" in one for one in said)
        assert any("thers use it." in one for one in said)


def test_a_whole_run_is_not_called_ended_early():
    """The word came with the last period: all is measured."""
    results = compute_results(run([END]))
    assert "ended_early" not in {reason.code for reason in results.verdict.reasons}
    assert "While it was measured: others use it." in results.warnings
