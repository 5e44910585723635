"""The devices of each arm: what a plan grants, and that arms are compared within one budget. Pure."""

from draftproof.errors import IncompatibleError
from draftproof.plan.schema import Arm, Plan


def list_budgets(plan: Plan) -> dict[str, int]:
    """Return the devices of every arm that the plan describes."""
    return {name: arm.devices for name, arm in plan.arms if isinstance(arm, Arm)}


def check_budgets(plan: Plan) -> None:
    """Do nothing if the arms have one budget, or the plan declares that they have not.

    Raises:
        IncompatibleError: names the devices of every arm.
    """
    budgets = list_budgets(plan)
    if plan.comparison.unequal_budgets or len(set(budgets.values())) == 1:
        return
    listed = ", ".join(f"{name} {count}" for name, count in budgets.items())
    raise IncompatibleError(
        f"the arms have unequal budgets (devices: {listed}): a faster answer on more devices is no gain.",
        place="arms",
        fix="give every arm the same number of devices, or write comparison.unequal_budgets = true: figures "
        "per device then decide.",
    )


def describe_topology(arm: Arm, *, has_drafter: bool) -> str:
    """Return the devices of an arm in words, and where its drafter runs."""
    devices = f"{arm.devices} device{'s' if arm.devices > 1 else ''}"
    if not has_drafter:
        return devices
    if not arm.drafter_devices:
        return f"{devices}, the drafter on the target's"
    return f"{devices}, {arm.drafter_devices} of them for the drafter alone"
