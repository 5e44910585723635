"""What the review calls a rollback trigger is an alert of the rules, on every engine and in every plan."""

from itertools import product

import pytest
from watched_runs import ENGINES, MANIFEST, RESULTS, ROLLBACK, make_plan

from draftproof.judge.inform.rollback import list_triggers
from draftproof.tell.monitoring import watch_run

ALERTS = {
    "tail_ttft_s": "DraftproofFirstTokenTail",
    "tail_tpot_s": "DraftproofTokenTail",
    "slowdown": "DraftproofNetSlowdown",
    "failed_share": "DraftproofFailures",
    "failed_excess": "DraftproofFailures",
    "cache_usage": "DraftproofCachePressure",
    "preemptions": "DraftproofPreemptions",
    "acceptance_length": "DraftproofLowAcceptance",
}
PLANS = ("", "holdout_share = 0.05", "holdout_share = 0.05\nmax_failed_share = 0.02")


@pytest.mark.parametrize(("engine", "extra"), list(product((*ENGINES, "generic"), PLANS)))
def test_a_trigger_is_watched_exactly_where_the_rules_have_its_alert(engine, extra):
    """Limit for limit: the review's list and the rule file agree, and no alert of a limit is left out."""
    plan = make_plan(engine, rollback=f"{ROLLBACK}\n{extra}")
    alerts = {alert.name: alert for alert in watch_run(RESULTS, plan, MANIFEST).alerts}
    triggers = {one.limit: one for one in list_triggers(plan)}
    watched = {ALERTS[name] for name, one in triggers.items() if name in ALERTS and not one.unwatched}
    assert watched == alerts.keys() & set(ALERTS.values())
    for name, one in triggers.items():
        if name in ALERTS and not one.unwatched:
            assert alerts[ALERTS[name]].rolls_back is one.rolls_back
    assert triggers["critical_errors"].unwatched


def test_two_engines_are_not_compared_by_anyone():
    """With another engine as hold-out neither the rules nor the review count on a slowdown."""
    plan = make_plan("vllm", rollback="holdout_share = 0.05", baseline="sglang")
    alerts = {alert.name for alert in watch_run(RESULTS, plan, MANIFEST).alerts}
    (slowdown,) = [one for one in list_triggers(plan) if one.limit == "slowdown"]
    assert "DraftproofNetSlowdown" not in alerts
    assert slowdown.unwatched
