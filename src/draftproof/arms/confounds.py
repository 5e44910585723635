"""What else changes when speculation is switched on, and what became of it in this comparison. Pure.

An engine's adapter lists the confounds it knows. One that shows in the manifests is equal or declared, for an
undeclared difference stops the comparison; one that no manifest shows is named. What the method forces stays
as it is in the baseline, which is today's service, and is charged to the arm that drafts.
"""

from draftproof.arms.comparability import find_differences
from draftproof.arms.features import find_method
from draftproof.engines.adapter import EngineAdapter
from draftproof.engines.facts import Confound, Settings
from draftproof.manifests import ArmManifest
from draftproof.plan.schema import Arm

ENVIRONMENT_PREFIX = "env."


def list_confounds(adapter: EngineAdapter, method: str | None) -> tuple[Confound, ...]:
    """Return the confounds of the method in force, of all methods where it is not disclosed."""
    if method == "off":
        return ()
    return tuple(
        one for one in adapter.facts.confounds if method is None or not one.methods or method in one.methods
    )


def describe_confounds(baseline: ArmManifest, other: ArmManifest, adapter: EngineAdapter) -> tuple[str, ...]:
    """Return one sentence for each confound of the method in force, none for an arm that does not draft."""
    return tuple(_describe(one, baseline, other) for one in list_confounds(adapter, find_method(other)))


def find_known_forced(adapter: EngineAdapter, method: str | None) -> dict[str, str]:
    """Return the settings that a method is known to set by itself, each with the reason.

    What it makes of its environment is no setting of its own: a variable is a way to pin one.
    """
    return {
        key: one.text.rstrip(".")
        for one in list_confounds(adapter, method)
        for key in one.forces
        if not key.startswith(ENVIRONMENT_PREFIX)
    }


def find_pinned(
    baseline: ArmManifest, stated: Arm, other: ArmManifest, adapter: EngineAdapter
) -> dict[str, str]:
    """Return what the baseline is told to give up because the other arm's method does, with the reason.

    Such a baseline is slower than today's service, so an arm that beats it need not beat the service. What
    the service chooses by itself is no pin: only the command, its environment and the plan's settings are
    read.

    Args:
        baseline: the manifest of the baseline.
        stated: the plan's section of the baseline.
        other: the manifest of an arm that drafts.
        adapter: the engine of that arm.
    """
    told: Settings = {f"{ENVIRONMENT_PREFIX}{key}": value for key, value in stated.env.items()}
    told |= adapter.read_flags(baseline.command or ()) | stated.settings
    return {
        key: one.text.rstrip(".")
        for one in list_confounds(adapter, find_method(other))
        for key, value in one.forces.items()
        if value is not None and key in told and told[key] == value
    }


def _describe(confound: Confound, baseline: ArmManifest, other: ArmManifest) -> str:
    shown = [key for key in confound.settings if key in baseline.settings or key in other.settings]
    differing = {one.key: one for one in find_differences(baseline, other)}
    text = confound.text.rstrip(".")
    if not shown:
        return f"not visible here: {text}{_name_control(confound)}."
    changed = [differing[key] for key in shown if key in differing]
    if changed:
        values = ", ".join(f"{one.key} {one.baseline} -> {one.other}" for one in changed)
        return f"changes too: {text} ({values}){_name_control(confound)}."
    values = ", ".join(f"{key} = {other.settings.get(key)}" for key in shown)
    return f"held equal: {text} ({values})."


def _name_control(confound: Confound) -> str:
    how = "a copy of the baseline shows it alone" if confound.forces else "to hold it still"
    return f"; {how}: {confound.pin}" if confound.pin else ""
