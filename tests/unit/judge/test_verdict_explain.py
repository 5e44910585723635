"""From a verdict down to raw requests: the explanation adds up and hides nothing."""

import re

import pytest
from tests.builders.disturbed import BUSY, note_hosts

from draftproof.core.errors import UsageError
from draftproof.judge.compute import compute_results
from draftproof.judge.inform.explain import explain, find_cell
from draftproof.tell.report.explanation import render_explanation
from draftproof.tell.report.summary import summarise

ROOMY = {"failure_margin": 0.4, "quality_margin": 0.4}


def one_carries(case):
    """Return times in which one prompt alone makes the gain: 100 times as fast, all others equal."""
    return 20.0 * (0.01 if (case.arm, case.number) == ("candidate", 3) else 1.0)


def lost(case):
    return "timeout" if (case.arm, case.number, case.segment) == ("candidate", 5, "chat") else "ok"


@pytest.fixture(scope="module")
def told(world):
    """A run in which the candidate takes 0.5 of the time, with one lost request, and its explanation."""

    def tpot_ms(case):
        return 20.0 * (0.5 + 0.01 * case.number if case.arm == "candidate" else 1.0)

    made = world(tpot_ms=tpot_ms, noise=0.0, outcome=lost, items_per_segment=12, thresholds=ROOMY)
    run = made.run()
    results = compute_results(run)
    places = {record.request_id: (f"journal/records.jsonl:{n}",) for n, record in enumerate(run.records, 1)}
    return run, results, explain(run, results, places)


def test_every_cell_and_every_request_is_reached(told):
    """All cells of the verdict are there, and every measured request under exactly one prompt."""
    run, results, found = told
    assert [(one.segment, one.load, one.status) for one in found.cells] == [
        (one.segment, one.load, one.status) for one in results.cells
    ]
    reached = [r.request_id for cell in found.cells for prompt in cell.prompts for r in prompt.requests]
    assert sorted(reached) == sorted(record.request_id for record in run.records)


def test_prompts_are_sorted_by_their_own_ratio(told):
    """In a world without noise prompt n has the ratio 0.5 + 0.01 n, the lowest first."""
    _, _, found = told
    cell = next(one for one in found.cells if one.segment == "task=rewriting")
    assert [one.item_id for one in cell.prompts] == [f"rewriting-{n}" for n in range(12)]
    assert [one.ratio for one in cell.prompts] == pytest.approx([0.5 + 0.01 * n for n in range(12)], rel=1e-6)


def test_leaving_a_prompt_out_gives_the_mean_of_the_others(told):
    """Without prompt 0 the ratio is the mean of 0.51 to 0.61, without prompt 11 that of 0.50 to 0.60."""
    _, _, found = told
    cell = next(one for one in found.cells if one.segment == "task=rewriting")
    assert cell.leave_one_out_high == pytest.approx(0.56, rel=1e-6)
    assert cell.leave_one_out_low == pytest.approx(0.55, rel=1e-6)
    assert cell.leave_one_out_low < cell.simultaneous.value < cell.leave_one_out_high


def test_the_interval_that_decides_stands_beside_the_single_one(told):
    """The simultaneous interval is the cell's own and wider than that of one comparison."""
    _, results, found = told
    for view, cell in zip(found.cells, results.cells, strict=True):
        assert view.simultaneous == cell.effect
        assert view.single.low is not None
        assert view.simultaneous.low is not None
        assert view.single.low > view.simultaneous.low
        assert view.single.value == view.simultaneous.value


def test_a_lost_request_is_named_as_the_reason_of_a_missing_ratio(told):
    """A prompt that one arm did not answer has no ratio, comes last and says why."""
    _, _, found = told
    cell = next(one for one in found.cells if (one.segment, one.load) == ("task=chat", "low"))
    assert (cell.prompts[-1].item_id, cell.prompts[-1].ratio) == ("chat-5", None)
    assert cell.prompts[-1].why == "not answered by both: candidate timeout"


def test_a_request_whose_period_is_left_out_says_so(told):
    """The host disturbed it: nobody accuses the client alone."""
    run, results, _ = told
    first = run.blocks[0]
    run = note_hosts(run, {(first.load, first.block, first.arm): BUSY})
    text = render_explanation(explain(run, results, {}, f"chat@{first.load}"))
    assert "no ratio, the client was late in its period, or the host disturbed it" in text
    assert "client late or host disturbed: times not used" in text


def test_an_effect_that_one_prompt_carries_is_found_out(world):
    """Without its one fast prompt the ratio of such a cell is exactly 1, and it is no gain."""
    run = world(tpot_ms=one_carries, noise=0.0, items_per_segment=12, thresholds=ROOMY).run()
    cells = explain(run, compute_results(run), {}).cells
    assert [one.leave_one_out_high for one in cells] == pytest.approx([1.0] * 4)
    lows = [one.leave_one_out_low for one in cells]
    assert all(low is not None and low < 0.95 for low in lows)
    assert {one.carried_by for one in cells} == {None}


def test_the_number_of_prompts_that_carry_a_gain_is_counted(world):
    """Six fast prompts of 24 carry the gain: with the last of them left the ratio is still below 0.95."""

    def tpot_ms(case):
        factor = 0.2 if case.number < 6 else 0.99
        return 20.0 * (factor if case.arm == "candidate" else 1.0)

    run = world(
        segments=("chat",), loads=(("low", 1),), tpot_ms=tpot_ms, items_per_segment=24, thresholds=ROOMY
    ).run()
    results = compute_results(run)
    (cell,) = explain(run, results, {}).cells
    assert results.cells[0].status == "gain"
    # With k of them left the ratio is 0.99 − 0.79 k / (18 + k): 0.948 for k = 1, 0.99 for k = 0.
    assert cell.carried_by == 6


def test_a_cell_is_found_by_key_and_by_labels(told):
    """Both ways of writing a segment name the same cell."""
    _, results, _ = told
    assert find_cell(results, "task=chat@low") is find_cell(results, "chat@low")


def test_an_unknown_cell_names_those_there_are(told):
    """A wrong name is the user's, and the message lists the right ones."""
    run, results, _ = told
    with pytest.raises(UsageError, match=re.escape("no cell 'chat@none'")) as caught:
        explain(run, results, {}, "chat@none")
    assert "rewriting@low, chat@low" in str(caught.value)


def test_the_text_counts_what_it_leaves_out(told):
    """Twelve prompts of a cell are cut to the three at either end, and the rest is counted."""
    _, _, found = told
    text = render_explanation(found)
    assert "… 6 more; --cell rewriting@low for all" in text
    assert "chat-5: no ratio, not answered by both: candidate timeout" in text
    assert text.splitlines()[0].startswith(found.decision)


def test_a_named_cell_is_told_in_full(told):
    """With --cell nothing is cut: every prompt and every request with its place on disk."""
    run, results, _ = told
    places = {record.request_id: (f"journal/records.jsonl:{n}",) for n, record in enumerate(run.records, 1)}
    text = render_explanation(explain(run, results, places, "rewriting@high"))
    assert "more" not in re.sub(r"more (prompts|pairs|requests)", "", text)
    for record in run.records:
        inside = (record.load, record.item_id.partition("-")[0]) == ("high", "rewriting")
        assert (f"{record.request_id} [journal/records.jsonl:" in text) == inside
    assert "guardrail critical_errors: held" in text


def test_the_reasons_begin_with_what_the_answer_says(world):
    """The same sentences in the same order; what has a row names it, and nothing is said twice."""
    run = world(
        tpot_ms=lambda case: 20.0 * (0.5 if case.arm == "candidate" else 1.0), evidence="representative"
    ).run()
    results = compute_results(run)
    blocks = summarise(results).blocks
    text = render_explanation(explain(run, results, {}), blocks)
    reasons = text.partition("  why\n")[2].partition("  cells\n")[0].splitlines()
    assert blocks
    assert all(line.startswith(f"    - {block}") for line, block in zip(reasons, blocks, strict=False))
    assert all(reasons.count(line) == 1 for line in reasons)


def test_a_long_verdict_is_cut_and_counted(world):
    """Fourteen cells are shown up to twelve, and the reader is told how to see the others."""
    segments = tuple(f"s{n}" for n in range(7))
    run = world(segments=segments, items_per_segment=6, thresholds=ROOMY).run()
    text = render_explanation(explain(run, compute_results(run), {}))
    assert "… 2 more; --cell SEGMENT@LOAD for one of them, --json for all" in text
