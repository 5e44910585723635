"""The prices table: amounts and ranges, refusals that name the key, and what prices leave alone."""

import pytest

from draftproof.core.errors import PlanError
from draftproof.plan.loading import parse_plan, render_plan, thresholds_sha256

PLAN = """
name = "priced"
[[load]]
name = "low"
concurrency = 1
[arms.baseline]
[arms.candidate]
devices = 2
"""


def test_a_value_is_a_range_of_no_width_and_a_range_stays_one():
    """One number or [low, high]: both read as a range."""
    prices = parse_plan(PLAN + "[prices]\ndevice_hour = [2, 3.5]\nengineer_hour = 90\n").prices
    assert prices.device_hour == (2.0, 3.5)
    assert prices.engineer_hour == (90.0, 90.0)
    assert not prices.is_empty


def test_without_a_table_nothing_is_priced():
    """The table is optional, and so is each key of it."""
    assert parse_plan(PLAN).prices.is_empty
    assert parse_plan(PLAN + "[prices]\ntokens_per_month = 1e9\n").prices.is_empty


def test_a_priced_plan_survives_being_written_anew():
    """The text that a run keeps reads back as the same plan."""
    text = PLAN + '[prices]\ncurrency = "EUR"\ndevice_hour = [2, 3]\n[prices.candidate]\none_off_hours = 40\n'
    plan = parse_plan(text)
    assert parse_plan(render_plan(plan)) == plan
    assert plan.arms.candidate.devices == 2


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("device_hour = [3, 2]", "written [low, high]"),
        ("device_hour = -1", "0 or more"),
        ("device_hour = " + 400 * "9", "0 or more"),
        ("device_hour = [1, 2, 3]", "or a range"),
        ('device_hour = "cheap"', "is a number"),
        ("device_hour = true", "is a number"),
        ("device_hour = inf", "is a number"),
    ],
)
def test_what_is_no_amount_is_refused_by_name(line, words):
    """One sentence that names the key and says what an amount is."""
    with pytest.raises(PlanError, match=r"prices\.device_hour") as caught:
        parse_plan(f"{PLAN}[prices]\n{line}\n")
    assert words in str(caught.value)


def test_prices_decide_nothing():
    """The hash of what decides is the same with and without prices."""
    priced = parse_plan(PLAN + "[prices]\ndevice_hour = 2\n")
    assert thresholds_sha256(priced) == thresholds_sha256(parse_plan(PLAN))
