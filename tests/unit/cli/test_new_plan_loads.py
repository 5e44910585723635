"""The loads that a new plan offers in comments: valid once their marks are removed, and can be laid out."""

import itertools

import msgspec
import pytest

from draftproof.cli.new_plan import METHODS, Wanted, render_new_plan
from draftproof.measure.run.check import choose_items
from draftproof.measure.run.measure import plan_periods
from draftproof.plan.loading import parse_plan

SHAPES = ("ordinary", "bursts", "mixed", "readers", "replayed")


def uncomment(text: str, name: str) -> str:
    """Remove the marks of the commented load of that name: from its [[load]] to the next empty line."""
    lines = text.splitlines()
    first = lines.index(f'# name = "{name}"') - 1
    assert lines[first] == "# [[load]]"
    block = itertools.takewhile(lambda line: line.startswith("# "), lines[first:])
    wanted = [line.removeprefix("# ") for line in block]
    return "\n".join([*lines[:first], *wanted, *lines[first + len(wanted) :]])


@pytest.fixture(scope="module", params=sorted(METHODS))
def text(request):
    """The text of a new plan for each engine, its marks filled in."""
    return render_new_plan(Wanted(engine=request.param)).replace("FILL_IN", "filled-in")


@pytest.mark.parametrize("name", SHAPES)
def test_every_offered_load_is_valid_once_its_marks_are_removed(text, name):
    """The plan has one more level, of the shape that the comment promises."""
    before, plan = parse_plan(text), parse_plan(uncomment(text, name))
    assert [level.name for level in plan.load] == [*(level.name for level in before.load), name]
    level = plan.load[-1]
    told = (level.arrivals, level.classes, level.think_s, level.replay, level.concurrency)
    assert any(told[:4])
    assert bool(level.arrivals) == (name in {"ordinary", "bursts"})
    assert bool(level.replay) == (name == "replayed")


def test_all_offered_loads_together_can_be_laid_out():
    """Every level gets periods of every arm from the starter items, a replay from items with times."""
    text = render_new_plan(Wanted(engine="openai")).replace("FILL_IN", "filled-in")
    for name in SHAPES:
        text = uncomment(text, name)
    plan = parse_plan(text)
    items = tuple(
        msgspec.structs.replace(item, due_ns=place * 10**9)
        for place, item in enumerate(choose_items(plan)[1])
    )
    periods = plan_periods(plan, items, ("baseline", "candidate"))
    by_level = {period.load: period for period in periods}
    assert set(by_level) == {"single", "busy", *SHAPES}
    assert by_level["ordinary"].due_ns
    assert by_level["replayed"].due_ns
    assert by_level["readers"].think_s == 20.0


def test_the_offered_classes_keep_their_shares():
    """Three to one, as the comment says."""
    text = uncomment(render_new_plan(Wanted(engine="openai")).replace("FILL_IN", "filled-in"), "mixed")
    plan = parse_plan(text)
    items = {item.id: item for item in choose_items(plan)[1]}
    asked = [
        items[item_id].segments["task"]
        for period in plan_periods(plan, tuple(items.values()), ("baseline",))
        if period.load == "mixed"
        for item_id in period.item_ids
    ]
    assert {task: asked.count(task) for task in set(asked)} == {"chat": 12, "grounded": 4}
