"""Load levels and knees that nobody can run: refused in one sentence before anything is started."""

import pytest
from tests.builders.records import build_item

from draftproof.core.errors import PlanError, UsageError
from draftproof.measure.run.load_findings import find_load_findings
from draftproof.plan.loading import parse_plan

ARMS = """
[objectives]
e2e_ms = 3000
[arms.baseline]
[arms.candidate]
settings = { "speculation.method" = "ngram" }
"""
ITEMS = tuple(build_item(f"i{number}") for number in range(8))


def parse(level: str, rest: str = ""):
    """Return a plan with one level of these keys."""
    return parse_plan(f'name = "hard"\n[[load]]\nname = "l"\n{level}\n{rest}{ARMS}')


@pytest.mark.parametrize(
    ("level", "said"),
    [
        ("arrivals = { rps = 1e-300 }", "rps is 1e-300, allowed is at least 1e-06"),
        ("arrivals = { rps = true }", "rps is True"),
        ('arrivals = { rps = "5" }', "rps is '5'"),
        ('arrivals = { rps = 5, spacing = "gamma", cv = 1e-200 }', "cv is 1e-200"),
        ("arrivals.ramp = { from_rps = 5, to_rps = 1e-300, over_s = 1 }", "to_rps is 1e-300"),
        ("arrivals.ramp = { from_rps = 1e-9, to_rps = 1, over_s = 1 }", "from_rps: 1e-09 requests"),
        ("arrivals.bursts = { on_rps = 1, on_s = 1e-300, off_s = 1e-300 }", "raise on_rps or on_s"),
        ("arrivals.bursts = { on_rps = 1e-6, on_s = 1, off_s = 86400 }", "raise on_rps or on_s"),
        ("replay = { speed = 1e-300 }", "speed is 1e-300"),
        ("replay = {}\nclasses = { chat = 1 }", "classes have no effect in load level 'l'"),
        ("concurrency = 1\nclasses = { chat = 1e-320 }", "classes.chat"),
        ("concurrency = 1\nmax_in_flight = 1", "load level 'l' is closed: leave it out"),
    ],
)
def test_a_level_that_never_ends_or_contradicts_itself_is_refused(level, said):
    """The sentence names the key, or says which key has no effect."""
    with pytest.raises(PlanError, match=said):
        parse(level)


def test_one_slip_is_one_error():
    """A list whose only entry is wrong is not also called too short."""
    with pytest.raises(PlanError) as refused:
        parse("arrivals = { rps = -1 }")
    assert "further" not in str(refused.value)


@pytest.mark.parametrize(
    ("level", "said"),
    [
        (
            "block_size = 8\narrivals = { rps = 2e-6 }",
            "load level l: the 8 requests of a period come over .* days",
        ),
        ("concurrency = 1\nrepeats = 1000000000", "load level l: 8 items, 1000000000 times"),
    ],
)
def test_a_plan_of_months_or_of_billions_is_refused_before_it_is_made(level, said):
    """Each value is allowed, and all together are not: found from the items, without making the plan."""
    with pytest.raises(UsageError, match=said):
        find_load_findings(parse(level), ITEMS)


@pytest.mark.parametrize(
    ("knee", "said"),
    [
        ('axis = "concurrency"\nlow = 1\nhigh = 100000', "high = 100000 in flight is more than 20000"),
        ("low = 100\nhigh = 100000\nwindow_s = 86400", "high = 100000 takes 8,640,000,000 requests"),
        ("low = 1e-5\nhigh = 2e-5", "take longer than a day"),
        ("low = 1e-300\nhigh = 2e-300", "knee.low is 1e-300"),
    ],
)
def test_a_knee_search_that_cannot_be_made_is_refused(knee, said):
    """Before the search, not at the trial that would be it."""
    with pytest.raises(PlanError, match=said):
        parse("concurrency = 1", f"[knee]\n{knee}\n")
