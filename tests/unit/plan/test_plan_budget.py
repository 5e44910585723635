"""Arms are compared within one budget of devices, unless the plan declares that they are not."""

import pytest

from draftproof.core.errors import IncompatibleError, PlanError
from draftproof.plan.limits import check_budgets, describe_topology, list_budgets
from draftproof.plan.loading import parse_plan, thresholds_sha256
from draftproof.plan.schema import Arm


def plan(*devices, extra=""):
    arms = zip(("baseline", "candidate", "alternative"), devices, strict=False)
    sections = "".join(f"[arms.{name}]\ndevices = {count}\n" for name, count in arms)
    return parse_plan(f'name = "t"\n[[load]]\nname = "a"\nconcurrency = 1\n{sections}{extra}')


@pytest.mark.parametrize("devices", [(1, 8), (1, 1, 3), (2, 1, 2)])
def test_unequal_budgets_stop_the_comparison(devices):
    """More devices in any arm, the alternative included, are an error of its own with exit code 2."""
    with pytest.raises(IncompatibleError) as caught:
        check_budgets(plan(*devices))
    assert caught.value.exit_code == 2
    assert f"baseline {devices[0]}, candidate {devices[1]}" in str(caught.value)
    assert "comparison.unequal_budgets = true" in str(caught.value)


def test_equal_or_declared_budgets_pass():
    """Equal numbers need no word; unequal ones need the plan's."""
    check_budgets(plan(1, 1))
    check_budgets(plan(8, 8, 8))
    declared = plan(1, 8, 3, extra="[comparison]\nunequal_budgets = true\n")
    check_budgets(declared)
    assert list_budgets(declared) == {"baseline": 1, "candidate": 8, "alternative": 3}


def test_the_declaration_is_a_criterion_of_the_run():
    """It is hashed with the thresholds; a plan that leaves it out keeps the hash that it had."""
    declared = plan(1, 1, extra="[comparison]\nunequal_budgets = true\n")
    assert thresholds_sha256(declared) != thresholds_sha256(plan(1, 1))
    assert thresholds_sha256(
        plan(1, 1, extra="[comparison]\nunequal_budgets = false\n")
    ) == thresholds_sha256(plan(1, 1))


@pytest.mark.parametrize(
    ("arm", "has_drafter", "words"),
    [
        (Arm(), False, "1 device"),
        (Arm(devices=2), True, "2 devices, the drafter on the target's"),
        (Arm(devices=2, drafter_devices=1), True, "2 devices, 1 of them for the drafter alone"),
        (Arm(devices=2, drafter_devices=1), False, "2 devices"),
    ],
)
def test_the_topology_of_a_drafter_is_in_words(arm, has_drafter, words):
    """Where the drafter runs: beside the target, or on devices of its own that count in the budget."""
    assert describe_topology(arm, has_drafter=has_drafter) == words


def test_a_drafter_cannot_take_every_device():
    """The target needs one."""
    with pytest.raises(PlanError, match=r"drafter_devices is 1 of 1 devices: the target needs one"):
        plan(1, 1, extra="drafter_devices = 1\n")
