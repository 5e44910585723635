"""A run's tokens per decode step beside what its steps need."""

import msgspec
import pytest
from tests.builders.results import build_results

from draftproof.explore.estimate import compare_run, judge
from draftproof.explore.results import StepCost
from draftproof.judge.results.run import Figure


def figure(value, low=None, high=None):
    return Figure(value=value, low=low, high=high, level=0.95, n=9)


def build_step(length, batch, ratio, drafting="own"):
    return StepCost(
        draft_length=length,
        batch=batch,
        drafting=drafting,
        step_ns=figure(1e6),
        ratio=ratio,
        acceptance=figure(0.3),
        waves=5,
        requests=5,
        steps=100,
        drafted=float(length),
        prompt_tokens=100,
    )


@pytest.mark.parametrize(
    ("needs", "has", "word"),
    [
        (figure(1.31, 1.25, 1.38), 1.12, "does_not_pay"),
        (figure(1.31, 1.25, 1.38), 1.30, "too_close"),
        (figure(1.31, 1.25, 1.38), 1.39, "pays"),
        (figure(1.31), 1.32, "pays"),
        (figure(None), 1.32, "unknown"),
        (figure(1.31, 1.25, 1.38), None, "unknown"),
    ],
)
def test_only_the_whole_interval_decides(needs, has, word):
    """Beyond the interval on one side it pays, on the other it does not, inside it is too close to call."""
    assert judge(needs, has) == word


def test_every_cell_of_the_candidate_gets_its_sentence():
    """The batch is the load's concurrency; the sentence has both numbers and what follows."""
    results = build_results()
    load, batch = results.loads[0]
    steps = [build_step(4, batch, figure(9.0, 8.5, 9.5)), build_step(4, batch, figure(1.0), "ngram")]
    rows = compare_run(results, 4, steps)
    here = [one for one in rows if one.load == load and one.has is not None]
    assert here
    for one in here:
        assert one.pays == "does_not_pay"
        assert one.sentence == f"needs 9.00, has {one.has:.2f}: does not pay at batch {batch}."


def test_what_was_not_measured_says_what_to_measure():
    """Another draft length, another batch, an unknown length: each says what is missing."""
    results = build_results()
    _, batch = results.loads[0]
    assert batch is not None
    step = build_step(4, batch + 1, figure(1.5))
    assert {one.pays for one in compare_run(results, 4, [step])} == {"unknown"} or any(
        f"add {batch} to --batches" in one.sentence for one in compare_run(results, 4, [step])
    )
    assert all("add 3 to --draft-lengths" in one.sentence for one in compare_run(results, 3, [step]))
    assert all("does not say how many" in one.sentence for one in compare_run(results, None, [step]))


def test_a_candidate_that_discloses_nothing_has_no_row():
    """Cells without acceptance are left out, not taken for 1."""
    results = build_results()
    silent = tuple(msgspec.structs.replace(cell, acceptance=None) for cell in results.arm_cells)
    assert compare_run(msgspec.structs.replace(results, arm_cells=silent), 4, []) == ()
