"""Decision, envelope and wording over arbitrary cells: what must hold whatever was measured."""

import itertools
import math

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from draftproof.judge.decide.cells import decide_effect, exceeds_null, is_dominated
from draftproof.judge.decide.outcome import decide, find_limits
from draftproof.judge.decide.wording import list_reasons, name_segment, render_sentence
from draftproof.judge.results.decide import Reference
from draftproof.judge.results.run import Cell, EnvelopeEntry, Figure, Reason
from draftproof.plan.schema import Thresholds

THRESHOLDS = Thresholds.model_validate({})
LEVELS = (1, 4, 16)
SEGMENTS = ("task=rewriting,language=ar", "task=chat,language=en", "task=code,language=zh")


@st.composite
def figures(draw):
    """An interval around a ratio, or no estimate."""
    if draw(st.booleans()) and draw(st.booleans()):
        return Figure(value=None, reason="too few prompts", needed=3)
    value = draw(st.floats(0.2, 3.0))
    spread = draw(st.floats(1.0, 2.0))
    return Figure(value=value, low=value / spread, high=value * spread, level=0.95, n=20)


@st.composite
def cells(draw, segment, concurrency):
    """One cell with any status; only a gain is sure to have an estimate, below 1."""
    status = draw(st.sampled_from(["gain", "harm", "neutral", "inconclusive", "invalid"]))
    value = draw(st.floats(0.2, 0.9))
    gained = Figure(value=value, low=value / 1.01, high=value * 1.01, level=0.95, n=20)
    codes = st.sampled_from(["dominated", "output_length_shift", "guardrail_ttft", "effect_gain"])
    return Cell(
        segment=segment,
        load=f"c{concurrency}",
        concurrency=concurrency,
        status=status,
        effect=gained if status == "gain" else draw(figures()),
        alternative_effect=None,
        reasons=(Reason(code=draw(codes), text="Because.", evidence=Reference("row")),),
    )


@st.composite
def cell_grids(draw):
    """Every segment at every load with any status."""
    segments = SEGMENTS[: draw(st.integers(1, 3))]
    loads = LEVELS[: draw(st.integers(1, 3))]
    return tuple(draw(cells(segment, concurrency)) for concurrency in loads for segment in segments)


def does_no_harm(cell):
    """A gain, or neutral with answers as long as before and no better alternative."""
    settled = {"dominated", "output_length_shift"} & {reason.code for reason in cell.reasons}
    return cell.status == "gain" or (cell.status == "neutral" and not settled)


@given(cell_grids())
def test_the_envelope_ends_in_a_gain_above_gain_and_neutral_cells_only(grid):
    """Up to a limit only cells that do no harm, at it a gain, and no gain that could be reached above."""
    limits = find_limits(grid)
    for segment in {cell.segment for cell in grid}:
        own = sorted((cell for cell in grid if cell.segment == segment), key=lambda one: one.concurrency)
        limit = limits[segment].concurrency if segment in limits else 0
        assert all(does_no_harm(cell) for cell in own if cell.concurrency <= limit)
        assert segment not in limits or any(
            cell.status == "gain" for cell in own if cell.concurrency == limit
        )
        higher = [cell for cell in own if cell.concurrency > limit]
        reached = itertools.takewhile(does_no_harm, higher)
        assert "gain" not in {cell.status for cell in reached}


@given(cell_grids())
def test_of_two_loads_with_equal_requests_in_flight_the_worse_one_counts(grid):
    """A second load of the same concurrency that shows harm closes the envelope below it."""
    harmed = [
        msgspec.structs.replace(cell, load=f"{cell.load}-bursts", status="harm")
        for cell in grid
        if cell.concurrency == LEVELS[0]
    ]
    assert find_limits((*grid, *harmed)) == {}


@given(cell_grids(), st.booleans())
def test_nothing_is_adopted_without_a_gain_or_on_an_incomplete_run(grid, is_complete):
    """To adopt takes a gain cell and a complete run; to adopt without limits takes no bad cell at all."""
    decision = decide(grid, THRESHOLDS, is_complete=is_complete, shows_no_gain=lambda _: True)
    statuses = {cell.status for cell in grid}
    if decision in ("adopt", "adopt_limited"):
        assert is_complete
        assert "gain" in statuses
    if decision == "adopt":
        assert statuses <= {"gain", "neutral"}
    if decision == "defer":
        assert is_complete
        assert "gain" not in statuses
    assert (decision == "invalid") == (statuses == {"invalid"})


@given(cell_grids(), st.booleans(), st.sampled_from(["representative", "synthetic", "smoke"]))
def test_every_grid_has_a_sentence(grid, is_complete, evidence):
    """Whatever the cells, the decision has one sentence that ends once and hides no evidence level."""
    incomplete = (
        ()
        if is_complete
        else (Reason(code="incomplete", text="Requests are missing.", evidence=Reference("r")),)
    )
    decision = decide(grid, THRESHOLDS, is_complete=is_complete, shows_no_gain=lambda _: True)
    limits = find_limits(grid)
    envelope = tuple(
        EnvelopeEntry(segment=name, max_concurrency=limit.concurrency, max_context_tokens=None)
        for name, limit in limits.items()
    )
    reasons = list_reasons(decision, grid, incomplete, ())
    sentence = render_sentence(
        decision, evidence, cells=grid, envelope=envelope, metric="tpot_ns", reasons=reasons
    )
    assert sentence.endswith(".")
    assert not sentence.endswith("..")
    if decision != "invalid":
        assert ("(pilot: " in sentence) == (evidence != "representative")


@given(figures(), st.floats(1.0, 1.5))
def test_widening_an_interval_never_periods_one_claim_into_another(figure, factor):
    """A wider interval keeps the claim or one that it implies, or is inconclusive; it makes no new claim."""
    if figure.value is None:
        assert decide_effect(figure, THRESHOLDS) == "inconclusive"
        return
    wide = Figure(value=figure.value, low=figure.low / factor, high=figure.high * factor)
    claim = decide_effect(figure, THRESHOLDS)
    implied = {"no_gain"} if claim in ("harm", "neutral") else set()
    assert decide_effect(wide, THRESHOLDS) in {claim, "inconclusive"} | implied


@given(figures(), figures())
def test_an_effect_inside_the_null_never_exceeds_it(effect, null_effect):
    """Only an interval wholly below the null's and its mirror image is beyond the null."""
    if exceeds_null(effect, null_effect):
        assert effect.high < null_effect.low
        assert effect.high * null_effect.high < 1


@given(figures())
def test_dominance_is_the_inverse_ratio_below_its_margin(figure):
    """The candidate is dominated exactly where alternative / candidate lies below 1 − margin."""
    if figure.low is None:
        assert not is_dominated(figure, 0.05)
    elif not math.isclose(1 / figure.low, 0.95):
        assert is_dominated(figure, 0.05) == (1 / figure.low < 0.95)


def test_segment_names_are_their_labels():
    """A reader sees labels, not dimensions."""
    assert name_segment("task=rewriting,language=ar") == "rewriting/ar"
    assert name_segment("all") == "all"
