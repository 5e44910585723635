"""What else changes when speculation is switched on, and what became of it in this comparison. Pure.

An engine's adapter lists the confounds it knows. One that shows in the manifests is held equal or declared,
for an undeclared difference stops the comparison; one that no manifest shows is named, with the way to pin
it.
"""

from draftproof.arms.comparability import find_differences
from draftproof.engines.adapter import EngineAdapter
from draftproof.engines.facts import Confound
from draftproof.manifests import ArmManifest


def describe_confounds(
    baseline: ArmManifest, other: ArmManifest, adapter: EngineAdapter, method: str | None
) -> tuple[str, ...]:
    """Return one sentence for each confound of the method in force, none for an arm that does not draft."""
    if method == "off":
        return ()
    concerned = [
        one for one in adapter.facts.confounds if method is None or not one.methods or method in one.methods
    ]
    return tuple(_describe(one, baseline, other) for one in concerned)


def _describe(confound: Confound, baseline: ArmManifest, other: ArmManifest) -> str:
    shown = [key for key in confound.settings if key in baseline.settings or key in other.settings]
    differing = {one.key: one for one in find_differences(baseline, other)}
    text = confound.text.rstrip(".")
    if not shown:
        pin = f"; to pin it: {confound.pin}" if confound.pin else ""
        return f"not visible here: {text}{pin}."
    changed = [differing[key] for key in shown if key in differing]
    if changed:
        values = ", ".join(f"{one.key} {one.baseline} -> {one.other}" for one in changed)
        return f"changes too: {text} ({values})."
    values = ", ".join(f"{key} = {other.settings.get(key)}" for key in shown)
    return f"held equal: {text} ({values})."
