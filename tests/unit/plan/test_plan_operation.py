"""The tables `[rollback]` and `[approval]`: strict, with defaults, and no part of the verdict."""

from datetime import date

import pytest

from draftproof.core.errors import PlanError
from draftproof.plan.loading import load_builtin_plan, parse_plan, plan_sha256, render_plan, thresholds_sha256

MINIMAL = """
name = "minimal"
[arms.baseline]
[arms.candidate]
[[load]]
name = "alone"
concurrency = 1
"""


def test_plan_without_them_leaves_owner_open_and_every_trigger_on():
    """A plan that says nothing has no owner, no end, and is voided by any change."""
    plan = parse_plan(MINIMAL)
    assert plan.approval.owner is None
    assert plan.approval.valid_until is None
    assert plan.approval.early_response == "unknown"
    assert plan.approval.change_triggers == (
        *("version", "model_hash", "drafter_hash", "flags", "tokenizer"),
        *("accelerator", "driver", "libraries", "kernels"),
    )
    assert plan.rollback.max_tpot_ms is None


@pytest.mark.parametrize("written", ["2027-01-31", '"2027-01-31"'])
def test_day_is_a_toml_date_or_its_text(written):
    """The last day may be written as a date or as a text, and a rendered plan states the same day."""
    plan = parse_plan(f"{MINIMAL}\n[approval]\nvalid_until = {written}")
    assert plan.approval.valid_until == date(2027, 1, 31)
    assert parse_plan(render_plan(plan)) == plan


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[approval]\nvalid_until = 20270131", "approval.valid_until: a date is written as 2027-01-31"),
        ("[approval]\nvalid_until = 2027-01-31T10:00:00Z", "approval.valid_until: a date is written as"),
        ('[approval]\nvalid_until = "soon"', "approval.valid_until is 'soon', allowed is a date such as"),
        ('[approval]\nchange_triggers = ["weather"]', "approval.change_triggers[0] is 'weather'"),
        ("[approval]\nchange_triggers = []", "approval.change_triggers is [], allowed is at least 1 entry"),
        ('[approval]\nearly_response = "maybe"', "one of not_used, used, unknown"),
        ("[rollback]\nwindow_s = 10", "rollback.window_s is 10, allowed is at least 120"),
        ("[rollback]\nnet_slowdown_ratio = 0.9", "rollback.net_slowdown_ratio is 0.9, allowed is at least 1"),
        ("[rollback]\nholdout_share = 0.0", "rollback.holdout_share is 0.0, allowed is above 0"),
        ("[rollback]\nmax_tpot_ms = 0", "rollback.max_tpot_ms is 0, allowed is above 0"),
        ("[rollback]\nmax_tpot = 5", "unknown key rollback.max_tpot"),
    ],
)
def test_value_out_of_range_is_named(text, said):
    """A value that cannot be meant is refused with its key."""
    with pytest.raises(PlanError) as error:
        parse_plan(MINIMAL + "\n" + text)
    assert said in str(error.value)


def test_they_do_not_decide_the_verdict():
    """Another owner or trigger leaves the hash of the thresholds as it is and changes that of the plan."""
    other = f'{MINIMAL}\n[approval]\nowner = "someone"\n[rollback]\nmax_tpot_ms = 5'
    assert thresholds_sha256(parse_plan(other)) == thresholds_sha256(parse_plan(MINIMAL))
    assert plan_sha256(other) != plan_sha256(MINIMAL)


def test_demo_names_no_owner_and_no_early_response():
    """The demo has nobody to call and does not prepare answers early."""
    plan, _ = load_builtin_plan("demo")
    assert plan.approval.owner is None
    assert plan.approval.early_response == "not_used"
