"""The sections on time, the drafter's cost and economics: readable at every size, and silent on nothing."""

from typing import Any

import msgspec
import pytest
from tests.builders.results import build_results

from draftproof.judge.results.decide import Figure
from draftproof.judge.results.inform import (
    ArmUse,
    BreakEven,
    Capacity,
    Diagnoses,
    DrafterFact,
    Economics,
    Remedy,
    Sign,
    Span,
    TimeParts,
    Worth,
)
from draftproof.tell.report import render_full, render_html
from draftproof.tell.report.diagnosis import build_drafter, build_time_section
from draftproof.tell.report.economics import UNPRICED, build_economics, write_volume

UNKNOWN = Figure(value=None, reason="nothing was answered")


def figure(value):
    return Figure(value=value, low=value * 0.9, high=value * 1.1, level=0.95, n=9)


def parts(arm, segment, load, *, failing=False):
    share: dict[str, Any] = {name: UNKNOWN if failing else figure(value) for name, value in SHARES.items()}
    return TimeParts(
        arm=arm,
        segment=segment,
        load=load,
        source="none" if failing else "server",
        requests=0 if failing else 9,
        bound="unknown" if failing else "decode-bound",
        is_shown=not failing,
        ceiling=UNKNOWN if failing else figure(5.0),
        predicted=None if arm == "baseline" else figure(1.4),
        measured=None if arm == "baseline" else figure(1.3),
        **share,
    )


def told(section):
    """Return a section that is there."""
    assert section is not None
    return section


SHARES = {"queue": 0.05, "prefill": 0.1, "decode": 0.8, "other": 0.05, "before_first": 0.15}


def break_even(segment, load):
    return BreakEven(
        segment=segment, load=load, batch_size=4.0, full_length=4, draft_length=3.8, tokens_per_step=2.1,
        step_ns=3e7, needed_tokens=1.4, margin=figure(1.5), acceptance=0.4, needed_acceptance=None,
        acceptance_reason="a step costs more than all its tokens", draft_ns=1e6, draft_limit_ns=2e6,
        draft_reason=None,
    )  # fmt: skip


def fact(load, quantity, unit, *values, part="memory"):
    return DrafterFact(
        load=load, part=part, quantity=quantity, unit=unit, baseline=values[0], candidate=values[1],
        source="rounds", reason=None if values[1] is not None else "nobody tells it",
    )  # fmt: skip


def build(*, segments=2, loads=2, failing=False, priced=True):
    """Results of any size with all three sections filled."""
    results = build_results(segments=segments, loads=loads, failing=failing)
    names = [name for name, _ in results.loads]
    places = [(segment, load) for load in names for segment in ("all", *results.segments)]
    remedy = Remedy(
        code="more_capacity", title="More <batching>", text="Requests wait.", loads=(names[0],), stake=0.31,
        evidence=(Sign(text="queueing takes 31 %", row="diagnosis: baseline"),),
    )  # fmt: skip
    diagnoses = Diagnoses(
        parts=tuple(parts(arm, *place, failing=failing) for place in places for arm in results.arms[:3]),
        remedies=() if failing else (remedy,),
        drafter=tuple(
            one
            for load in names
            for one in (
                fact(load, "cache_capacity", "tokens", 23_296.0, 21_760.0),
                fact(load, "cache_limited_concurrency", "requests", 5.1, 4.2),
                fact(load, "step_time", "ns", None, None, part="compute"),
            )
        ),
        break_evens=() if failing else tuple(break_even(*place) for place in places),
        not_measured=(("media-bound", "not measured: no trace"),),
    )
    return msgspec.structs.replace(
        results, diagnoses=diagnoses, economics=economics(results, names, failing=failing, priced=priced)
    )


def economics(results, names, *, failing, priced):
    value = UNKNOWN if failing else figure(22.0)
    money = Span(low=1.0, high=2.0) if priced and not failing else Span(reason="no price")
    uses = tuple(
        ArmUse(
            arm=arm, load=load, devices=1, window_s=8.8, measured_share=1.0, attempted=9,
            good=0 if failing else 8,
            unchecked=0, output_tokens=360, device_s_per_1000_tokens=value, device_s_per_1000_good=value,
            good_per_device_hour=value, joules_per_1000_tokens=None, joules_reason="no meter",
            on_time_share=1.0, meets_objectives=not failing, money_per_1000_tokens=money,
            money_per_1000_good=money,
        )
        for load in names
        for arm in results.arms
    )  # fmt: skip
    worths = tuple(
        Worth(
            arm=arm, versus="baseline", load=load, token_ratio=UNKNOWN if failing else figure(0.8),
            good_ratio=UNKNOWN if failing else figure(0.8), noise=1.03, quality="held",
            saving_over_horizon=Span(low=-40.0, high=900.0) if priced else money,
            break_even_per_month=Span(low=4.1e7, reason="open"), unit="tokens",
            standing="not_worth" if priced else "unknown", left_out=("energy (not metered)",),
            text="In <words>.",
        )
        for load in (*names, None)
        for arm in ("candidate", "alternative")
    )  # fmt: skip
    return Economics(
        currency="EUR", priced=priced, has_deadline=False, on_time_target=0.95, horizon_months=12.0,
        uses=uses,
        capacities=tuple(
            Capacity(arm=arm, load=None if failing else names[-1], concurrency=8, good_per_device_hour=value)
            for arm in results.arms
        ),
        worths=worths,
    )  # fmt: skip


@pytest.mark.parametrize(("segments", "loads"), [(1, 1), (5, 2), (60, 12)])
def test_every_size_of_run_has_the_three_sections(segments, loads):
    """One segment or sixty, one load or twelve: bars of all tasks, costs, economics, no placeholder left."""
    page = render_html(build(segments=segments, loads=loads))
    for anchor in ('id="diagnosis"', 'id="drafter"', 'id="economics"'):
        assert anchor in page
    assert page.count('class="part decode"') == 3 * loads
    assert "None" not in page


def test_what_comes_from_outside_is_escaped():
    """Titles and sentences of a result file cannot write into the page."""
    page = render_html(build())
    assert "More &lt;batching&gt;" in page
    assert "In &lt;words&gt;." in page


def test_a_run_in_which_every_request_failed_says_what_is_missing():
    """Sentences stand where bars, break-even and remedies would."""
    page = render_html(build(failing=True))
    assert "so no time can be split" in page
    assert "draftproof costs measures it" in page
    assert "evidence for another remedy" in page


def test_results_of_an_earlier_version_still_render():
    """Without the fields a section says in one sentence what to run."""
    page = render_html(build_results())
    assert page.count("come from an earlier version") == 2
    assert build_economics(build_results()) is None
    assert build_drafter(build_results()) is None
    assert build_time_section(build_results()) is None


def test_the_parts_of_a_bar_fill_it():
    """Queue, prefill, decoding and the rest lie end to end and end at 100."""
    row = told(build_time_section(build())).panels[0].groups[0].rows[0]
    assert row.parts[-1].start + row.parts[-1].width == pytest.approx(100, abs=0.1)
    assert [part.tone for part in row.parts] == ["queue", "prefill", "decode", "other"]
    assert row.figures[0] == ("80.0%", "[72.0%, 88.0%]")


def test_lost_cache_is_said_with_what_it_means_for_the_load():
    """1,536 tokens fewer, and fewer requests fit than are in flight: the knee moves."""
    sentences = told(build_drafter(build())).sentences
    assert "takes 1,536 tokens of cache" in sentences[1]
    assert "moves the knee" in sentences[1]
    assert "not what limits" in sentences[0]


def test_a_missing_figure_is_a_dash_with_its_reason():
    """What one arm reports is beside a dash; what none reports is named once, with the reason; never 0."""
    section = told(build_drafter(build()))
    shown = {row.cells[0].text for group in section.costs[0].table.groups for row in group.rows}
    assert "Time of a step" not in shown
    assert "Not known: time of a step (nobody tells it)." in section.sentences


def test_without_prices_there_is_no_money():
    """No axis of money, no amounts, and one sentence that says how to get them."""
    section = told(build_economics(build(priced=False)))
    assert section.unpriced == UNPRICED
    assert section.money_ticks == ()
    assert all("Money" not in column.over for column in section.uses.columns)


def test_the_axis_of_money_shows_0_and_every_range_on_it():
    """A range from −40 to 900 lies inside the axis, with 0 marked between its ends."""
    section = told(build_economics(build()))
    start, width = section.bar(section.groups[0].rows[0].saving_over_horizon)
    zero = next(tick.at for tick in section.money_ticks if tick.label == "0")
    assert 0 <= start < zero < start + width <= 100


def test_an_open_end_of_a_range_is_infinite_and_not_0():
    """No volume pays at the unfavourable end."""
    assert write_volume(told(build_economics(build())).groups[0].rows[0]) == "41.0 million to ∞ tokens"


def test_the_terminal_names_what_to_look_at_first():
    """The first remedies with their figures; none, no heading."""
    assert "What to look at first\n  - More <batching>: queueing takes 31 %." in render_full(build())
    assert "What to look at first" not in render_full(build_results())


def test_few_good_requests_are_said_above_the_capacities():
    """The sentence of the results stands in the section, and nothing stands there without it."""
    results = build()
    warned = msgspec.structs.replace(
        results, economics=msgspec.structs.replace(told(results.economics), few_good="Few <good> ones.")
    )
    page = render_html(warned)
    assert page.count("Few &lt;good&gt; ones.") == 1
    assert page.index("Few &lt;good&gt; ones.") < page.index("What every arm took at each load")
    assert "Few &lt;good&gt;" not in render_html(results)
