"""The section on the capacity knee: where marks lie, what is left out, and what the words say."""

import msgspec
import pytest
from tests.builders.results import build_results

from draftproof.judge.results.decide import Figure
from draftproof.judge.results.knee import ArmKnee, KneePoint, KneeRatio, KneeSearch
from draftproof.tell.report import render_full, render_html
from draftproof.tell.report.knee import build_knee, write_end


def point(arm, load, standing, interval, **fields):
    share, low, high = interval
    figure = Figure(value=share, low=low, high=high, level=0.98, n=200)
    known = {"arm": arm, "load": load, "level": f"knee-{load:g}", "standing": standing, "share": figure}
    return KneePoint(
        **(
            known
            | {"trials": 1, "invalid_trials": 0, "attempted": 200, "unjudged": 0, "prompts": 40}
            | fields
        )
    )


def knee(arm, holds, fails, **fields):
    return ArmKnee(arm=arm, holds=holds, fails=fails, devices=1, text=f"the {arm} is here", **fields)


FOUND = KneeSearch(
    axis="rps",
    unit="requests/s",
    grid=(1.0, 2.0, 4.0, 8.0),
    target=0.95,
    confidence=0.95,
    trial_level=0.98,
    budget_s=600.0,
    spent_s=120.0,
    periods=6,
    ended="settled",
    points=(
        point("baseline", 1.0, "holds", (1.0, 0.97, 1.0)),
        point("baseline", 2.0, "open", (0.96, 0.9, 0.99), reason="the <service> is odd"),
        point("baseline", 4.0, "fails", (0.2, 0.1, 0.3), saturated="it fell behind", reason="it fell behind"),
        point("candidate", 4.0, "holds", (1.0, 0.97, 1.0)),
    ),
    arms=(knee("baseline", 1.0, 4.0), knee("candidate", 4.0, None, reason="none fails", needed=12)),
    ratios=(
        KneeRatio(arm="candidate", versus="baseline", low=1.0, high=None, text="It is at least as much"),
    ),
    sentence="The baseline & the candidate were searched.",
    notes=("The candidate: none fails.",),
)


def results(found=FOUND):
    return msgspec.structs.replace(build_results(), knee=found)


def section_of(found):
    return build_knee(found)


def test_without_a_search_there_is_no_section_and_no_link_to_one():
    """A run whose plan has no search says nothing of a knee, on the page or the terminal."""
    assert build_knee(build_results()) is None
    page = render_html(build_results())
    assert 'id="knee"' not in page
    assert "Capacity knee" not in render_full(build_results())


def test_the_page_holds_sentence_points_notes_and_an_escaped_reason():
    """What the results say is on the page, and nothing of it is taken for markup."""
    page = render_html(results())
    for text in (
        'id="knee"',
        "The baseline &amp; the candidate",
        "the &lt;service&gt; is odd".capitalize(),
    ):
        assert text.lower() in page.lower()
    assert "The candidate: none fails." in page


def test_the_terminal_says_the_sentence_and_the_notes():
    """The summary has the knees in one sentence."""
    assert "The baseline & the candidate were searched." in render_full(results())


def test_higher_shares_lie_higher_and_higher_loads_further_right():
    """The plot's axes go the usual way, and intervals end around their mark."""
    section = section_of(results())
    first, second, third = section.lines[0].marks
    assert first.x < second.x < third.x
    assert first.y < second.y < third.y
    assert first.high <= first.y <= first.low
    assert first.y < section.target_y < third.y
    assert len(section.lines[0].pieces) == 2


def test_what_is_not_told_is_hollow():
    """Only the open load is drawn hollow."""
    assert [mark.is_open for mark in section_of(results()).lines[0].marks] == [False, True, False]


def test_a_bracket_without_an_end_runs_to_the_edge():
    """The candidate was not shown to fail: its bar ends at the edge, without a mark there."""
    baseline, candidate = section_of(results()).rows
    assert 0 < baseline.start < baseline.end < 100
    assert (candidate.end, candidate.knee.fails, write_end(candidate.knee.fails)) == (100.0, None, "—")


@pytest.mark.parametrize("axis", ["rps", "concurrency"])
def test_a_search_that_has_not_begun_is_said_to_be_none(axis):
    """A page can be made of a run that was broken off before its search."""
    empty = msgspec.structs.replace(
        FOUND,
        axis=axis,
        points=(),
        arms=(knee("baseline", None, None),),
        ratios=(),
        notes=(),
        ended="unfinished",
    )
    section = section_of(results(empty))
    assert section.points.groups == ()
    assert section.rows[0].start is None
    assert "broken off" in section.method
    assert 'id="knee"' in render_html(results(empty))
