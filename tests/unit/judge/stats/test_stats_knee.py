"""The knee search as a pure function of what was seen: the grid, the order of loads, and what is shown."""

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftproof.judge.stats.knee import (
    Rules,
    Seen,
    Step,
    choose_step,
    evaluate_share,
    find_bracket,
    geometric_grid,
    list_ladder,
    ratio_limits,
    trials_to_show,
)

RULES = Rules(points=17, per_doubling=4, trials=3, target=0.95)


def next_step(seen, rules):
    return choose_step(seen, rules)


def see(*fields):
    return Seen(*fields)


def search(knees, rules=RULES, *, open_near=0):
    """Run a search against arms that hold below a point and fail from it on; near it nothing can be told."""
    steps = []
    seen: dict[str, dict[int, Seen]] = {arm: {} for arm in knees}
    while (step := next_step(seen, rules)) is not None:
        steps.append(step)
        assert len(steps) < 500, "the search does not end"
        for arm in step.arms:
            standing = "holds" if step.point < knees[arm] else "fails"
            if abs(step.point - knees[arm]) < open_near:
                standing = "open"
            before = seen[arm].get(step.point)
            share = 0.97 if step.point < knees[arm] else 0.9
            seen[arm][step.point] = see(standing, share, before.trials + 1 if before else 1)
    return {arm: find_bracket(points) for arm, points in seen.items()}, steps, seen


def test_a_grid_has_the_stated_points_in_each_doubling_and_both_ends():
    """From 1 to 16 with 4 points a doubling there are 17 loads, each 2^(1/4) times the one before."""
    grid = geometric_grid(1, 16, 4)
    assert len(grid) == 17
    assert (grid[0], grid[4], grid[-1]) == (1, 2, 16)
    assert all(b / a == pytest.approx(2**0.25, rel=1e-3) for a, b in pairwise(grid))


def test_a_grid_of_whole_loads_has_each_once():
    """Requests in flight are whole: points that round to the same number are one."""
    assert geometric_grid(1, 8, 4, whole=True) == (1, 2, 3, 4, 5, 6, 7, 8)


@pytest.mark.parametrize("ends", [(0, 4), (4, 2), (-1, 2)])
def test_a_grid_needs_positive_ends_in_order(ends):
    """A grid that cannot be is refused."""
    with pytest.raises(ValueError, match="low"):
        geometric_grid(ends[0], ends[1], 4)


@given(st.integers(0, 17), st.integers(0, 17))
def test_every_knee_on_the_grid_is_found_exactly(first, second):
    """Where every trial tells, each arm's knee lies between two neighbours of the grid, wherever it is."""
    found, steps, _ = search({"a": first, "b": second})
    for arm, knee in (("a", first), ("b", second)):
        assert found[arm].holds == (knee - 1 if knee else None)
        assert found[arm].fails == (knee if knee < RULES.points else None)
    assert len(steps) <= 2 * (math.ceil(math.log2(RULES.per_doubling)) + 1) + len(list_ladder(17, 4))


def test_the_climb_is_by_doublings_and_ends_at_the_first_failure():
    """An arm goes 0, 4, 8, … and never above the first load that it fails."""
    _, steps, _ = search({"a": 6})
    assert [step.point for step in steps][:3] == [0, 4, 8]
    assert max(step.point for step in steps) == 8


def test_every_arm_that_a_load_may_tell_of_takes_part():
    """Arms whose knees are in different places share every load at which neither is decided yet."""
    _, steps, _ = search({"a": 6, "b": 14})
    assert [step for step in steps if step.point in (0, 4, 8)] == [
        Step(0, ("a", "b")),
        Step(4, ("a", "b")),
        Step(8, ("a", "b")),
    ]
    assert all("b" not in step.arms for step in steps if step.point < 8 and step.point % 4)


def test_an_arm_is_never_asked_at_a_load_that_cannot_tell_more():
    """No arm is at a load below one that it held or above one that it failed."""
    seen = {"a": {0: Seen("holds", 1.0, 1), 4: Seen("fails", 0.1, 1)}, "b": {0: Seen("holds", 1.0, 1)}}
    step = next_step(seen, RULES)
    assert step == Step(2, ("a", "b"))
    assert next_step({"a": seen["a"]}, RULES).point in range(1, 4)


def test_an_open_load_is_looked_at_again_and_no_more_often_than_allowed():
    """Loads that stay open get all their trials, then the search ends with the bracket around them."""
    found, _, seen = search({"a": 8}, open_near=2)
    assert (found["a"].holds, found["a"].fails) == (6, 10)
    assert {at: one.trials for at, one in seen["a"].items() if one.standing == "open"} == {7: 3, 8: 3, 9: 3}


def test_a_search_ends_where_nothing_can_be_told():
    """If every load stays open the search ends, and shows nothing."""
    found, steps, _ = search({"a": 8}, open_near=100)
    assert found["a"] == (None, None, True)
    assert len(steps) <= RULES.points * RULES.trials


def test_a_load_held_above_a_failure_does_not_count():
    """A curve that is not monotone gives the part below its lowest failure, and says so."""
    points = {0: Seen("holds", 1, 1), 4: Seen("fails", 0.5, 1), 8: Seen("holds", 1, 1)}
    assert find_bracket(points) == (0, 4, False)


def test_a_trial_again_can_open_a_bracket_that_leaned_the_other_way():
    """What an open load leans to decides only the order: in the end everything between was looked at."""
    seen = {"a": {0: Seen("holds", 1.0, 1), 2: Seen("open", 0.9, 1), 4: Seen("fails", 0.1, 1)}}
    for point, standing in ((1, "holds"), (3, "fails"), (2, "open"), (2, "open")):
        assert next_step(seen, RULES) == Step(point, ("a",))
        before = seen["a"].get(point)
        seen["a"][point] = see(standing, 0.95, before.trials + 1 if before else 1)
    assert next_step(seen, RULES) is None


def test_the_next_step_depends_on_what_was_seen_alone():
    """The same sights in another order of arms and loads give the same load."""
    one = {"a": {0: Seen("holds", 1, 1), 4: Seen("open", 0.96, 1)}, "b": {0: Seen("holds", 1, 1)}}
    other = {"b": dict(one["b"]), "a": dict(reversed(list(one["a"].items())))}
    assert next_step(one, RULES).point == next_step(other, RULES).point


@pytest.mark.parametrize(
    ("low", "high", "standing"),
    [(0.95, 1.0, "holds"), (0.0, 0.9499, "fails"), (0.94, 0.96, "open"), (0.9, 0.95, "open")],
)
def test_an_interval_decides_only_as_a_whole(low, high, standing):
    """The target itself counts as held; an interval that holds it decides nothing."""
    assert evaluate_share(low, high, 0.95) == standing


@pytest.mark.parametrize(("target", "level", "needed"), [(0.95, 0.95, 72), (0.9, 0.95, 36), (0.5, 0.9, 5)])
def test_trials_that_show_a_target_follow_from_the_closed_form(target, level, needed):
    """All of n trials show the target if and only if tail^(1/n) reaches it."""
    tail = (1 - level) / 2
    assert trials_to_show(target, level) == needed
    assert tail ** (1 / needed) >= target > tail ** (1 / (needed - 1))


def test_a_ratio_of_knees_spans_what_both_brackets_allow():
    """The least ratio is least by greatest; an end that is not shown leaves the ratio open there."""
    assert ratio_limits((4, 8), (2, 4)) == (1.0, 4.0)
    assert ratio_limits((4, None), (2, 4)) == (1.0, None)
    assert ratio_limits((None, 8), (2, 4)) == (None, 4.0)
    assert ratio_limits((4, 8), (None, None)) == (None, None)
