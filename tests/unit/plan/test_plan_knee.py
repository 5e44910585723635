"""The table [knee]: what is refused, with the fix in the sentence, and what a load becomes."""

import pytest

from draftproof.core.errors import PlanError
from draftproof.plan.load import name_level
from draftproof.plan.loading import parse_plan, render_plan, thresholds_sha256

HEAD = 'name = "t"\n[[load]]\nname = "{name}"\nconcurrency = 1\n[arms.baseline]\n[arms.candidate]\n'
DEADLINE = "[objectives]\ne2e_ms = 100\n"


def parse(keys="", *, deadline=DEADLINE, name="low", ends="low = 1\nhigh = 8\n"):
    return parse_plan(f"{HEAD.format(name=name)}{deadline}[knee]\n{ends}{keys}")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"deadline": ""}, "state ttft_ms, tpot_ms or e2e_ms in [objectives]"),
        ({"name": "knee-1"}, "rename it"),
        ({"ends": "low = 9\nhigh = 8\n"}, "exchange them"),
        ({"keys": 'axis = "concurrency"\n', "ends": "low = 1.5\nhigh = 8\n"}, "whole numbers"),
        ({"keys": "points_per_doubling = 16\n", "ends": "low = 0.001\nhigh = 100000\n"}, "fewer points"),
        ({"keys": "requests = 20\n"}, "set requests to 32 at least"),
        ({"keys": "cv = 2.0\n"}, 'cv needs spacing = "gamma"'),
        ({"keys": "on_time_share = 1.0\n"}, "on_time_share"),
    ],
)
def test_a_search_that_cannot_find_anything_is_refused_with_the_fix(changes, words):
    """Each fault is one sentence that says what to change."""
    with pytest.raises(PlanError) as error:
        parse(**changes)
    assert words in str(error.value)


def test_a_load_is_a_level_whose_trial_is_one_block():
    """4 requests/s over 100 s are 400 requests in one block; the level's name is a name of a plan."""
    knee = parse("window_s = 100\n").knee
    level = knee.level(4.0, repeats=2)
    assert (level.name, level.arrivals.rps, level.concurrency) == ("knee-4", 4.0, None)
    assert (level.block_size, level.repeats) == (400, 2)
    assert name_level(4.757) == "knee-4_757"


def test_a_closed_loop_asks_enough_for_its_slots():
    """With 64 in flight a trial has ten requests for each slot."""
    knee = parse('axis = "concurrency"\n', ends="low = 1\nhigh = 64\n").knee
    level = knee.level(64.0)
    assert (level.concurrency, level.arrivals, level.block_size) == (64, None, 640)


def test_all_trials_together_have_the_plans_confidence():
    """The error that the plan allows is shared among the trials at a load."""
    assert parse("trials = 5\n").knee.trial_level(0.95) == pytest.approx(0.99)


def test_a_search_reads_back_and_leaves_the_deciding_hash_alone():
    """The verdict's thresholds are the same with and without a search."""
    plan = parse()
    assert parse_plan(render_plan(plan)) == plan
    assert thresholds_sha256(plan) == thresholds_sha256(parse_plan(HEAD.format(name="low") + DEADLINE))
