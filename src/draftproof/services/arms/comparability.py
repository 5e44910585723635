"""What may be compared: arms that differ only where the plan declares it. Pure.

What else changes when speculation is switched on, and what became of it in this comparison. Pure.

An engine's adapter lists the confounds it knows. One that shows in the manifests is equal or declared, for an
undeclared difference stops the comparison; one that no manifest shows is named. What the method forces stays
as it is in the baseline, which is today's service, and is charged to the arm that drafts.
"""

import contextlib
from collections.abc import Callable, Mapping, Sequence

import msgspec

from draftproof.core.errors import IncompatibleError
from draftproof.core.manifests import ArmManifest
from draftproof.plan.schema import Arm, Comparison, Scalar
from draftproof.services.arms.request_fit import METHOD_KEY, find_method
from draftproof.services.engines.adapter import EngineAdapter
from draftproof.services.engines.facts import PLATFORM, Confound, Settings

# Where a service listens says nothing about how fast it is.
_NEVER_COMPARED = frozenset({"host", "port", "url"})
# What a service made of its settings, such as the blocks of its cache, follows from them.
_CONSEQUENCES = "capacity."
# With this value a plan leaves a setting to the service, which states what it chose.
_LEFT_TO_SERVICE = frozenset({("kernels", "auto")})
# The plan names a drafter; the reference engine states the list of those it was given, as JSON text.
_DRAFTER, _DRAFTERS = "drafter", "drafters"
_SHOWN_CHARS = 60
# Settings that are fields of every request, and variables of the launched command.
REQUEST_PREFIX, ENVIRONMENT_PREFIX = "request.", "env."
UNKNOWN = "unknown"  # a version that a service does not tell
_ABSENT = "absent"


class SettingDifference(msgspec.Struct, frozen=True):
    """One key in which an arm differs from the baseline, with both values as text."""

    key: str
    baseline: str
    other: str

    @property
    def is_stated(self) -> bool:
        """Whether the other arm states a value at all."""
        return self.other not in {_ABSENT, UNKNOWN}


def find_differences(baseline: ArmManifest, other: ArmManifest) -> tuple[SettingDifference, ...]:
    """Return every difference of engine, version, settings and platform, by key.

    Address and memory are left out, and what of the platform only one of the two tells.
    """
    left, right = _facts(baseline), _facts(other)
    return tuple(
        SettingDifference(key, _show(left, key), _show(right, key))
        for key in sorted(left.keys() | right.keys())
        if key not in _NEVER_COMPARED
        and not key.startswith(_CONSEQUENCES)
        and not _same(left, right, key)
        # What a service is attached to tells less of its host than one that is started here.
        and not (key.startswith(PLATFORM) and not (key in left and key in right))
    )


def find_undeclared(
    baseline: ArmManifest, other: ArmManifest, comparison: Comparison
) -> tuple[SettingDifference, ...]:
    """Return the differences that the plan does not declare for this arm."""
    declared = list_declared(other.arm, comparison)
    return tuple(found for found in find_differences(baseline, other) if not _covers(declared, found.key))


def list_declared(arm: str, comparison: Comparison) -> tuple[str, ...]:
    """Return the setting keys in which an arm may differ from the baseline; none for the null arm.

    A key stands for itself and for all below it: `drafter` also for `drafter.attached.sha256`.
    """
    chosen = {"candidate": comparison.candidate_may_differ, "alternative": comparison.alternative_may_differ}
    return (*chosen.get(arm, ()), *list_forced(arm, comparison))


def list_forced(arm: str, comparison: Comparison) -> dict[str, str]:
    """Return the setting keys that an arm's method forces by the plan's word, each with its reason."""
    forced = comparison.forced_by_method
    return {"candidate": forced.candidate, "alternative": forced.alternative}.get(arm, {})


def describe_forced(baseline: ArmManifest, other: ArmManifest, comparison: Comparison) -> tuple[str, ...]:
    """Return what the arm's method forces and how it differs from the baseline, a phrase for each key."""
    found, kept = find_differences(baseline, other), []
    for key, why in list_forced(other.arm, comparison).items():
        shown = [f"{one.baseline} -> {_short(one.other)}" for one in found if _covers([key], one.key)]
        kept.append(f"{key} ({', '.join(shown) or 'no difference shows'}): {why.rstrip('.')}")
    return tuple(kept)


def check_comparable(
    manifests: Sequence[ArmManifest],
    comparison: Comparison,
    known_forced: Mapping[str, Mapping[str, str]] | None = None,
) -> None:
    """Do nothing if every arm differs from the baseline only where declared.

    `comparison`: what the plan declares. `known_forced`: arm -> keys that its engine is known to set by
    itself for its method, for the remedy. Raises IncompatibleError: names the arm, every undeclared key and
    both values.
    """
    baseline = next(manifest for manifest in manifests if manifest.arm == "baseline")
    for other in manifests:
        undeclared = find_undeclared(baseline, other, comparison)
        if undeclared:
            pairs = ", ".join(f"{d.key} ({_short(d.baseline)} / {_short(d.other)})" for d in undeclared)
            raise IncompatibleError(
                f"it differs from arms.baseline in what the plan does not declare: {pairs}.",
                place=f"arms.{other.arm}",
                fix=_suggest(
                    other.arm,
                    [difference.key for difference in undeclared],
                    (known_forced or {}).get(other.arm, {}),
                ),
            )


def check_devices(manifest: ArmManifest, granted: int, used: int | None) -> None:
    """Do nothing if a service takes no more devices than its budget, or does not tell how many.

    Raises IncompatibleError: names both numbers.
    """
    if used is not None and used > granted:
        raise IncompatibleError(
            f"the service takes {used} devices by its settings, and its budget is {granted}.",
            place=f"arms.{manifest.arm}.devices",
            fix=f"state devices = {used}, or start the service on {granted}.",
        )


def check_settings_applied(
    wanted: Mapping[str, Scalar], manifest: ArmManifest, name_method: Callable[[str], str] = str
) -> None:
    """Do nothing if the service runs with the settings that the plan states.

    `manifest`: what the service is. `name_method`: a method to the name that the engine maps it to. Raises
    IncompatibleError: names every setting that is in force otherwise, with both values.
    """
    in_force = _in_plan_names(manifest.settings)
    other = [
        f"{key} (plan {value}, service {in_force.get(key, _ABSENT)})"
        for key, value in wanted.items()
        if in_force.get(key) not in {value, name_method(str(value)) if key == METHOD_KEY else value}
        and (key, value) not in _LEFT_TO_SERVICE
    ]
    if other:
        raise IncompatibleError(
            f"the service does not run with the plan's settings: {', '.join(other)}.",
            place=f"arms.{manifest.arm}",
            fix="start the service with the plan's settings, or correct the plan.",
        )


def _facts(manifest: ArmManifest) -> dict[str, Scalar | None]:
    platform = {f"{PLATFORM}{key}": value for key, value in manifest.platform.items()}
    return (
        _in_plan_names(manifest.settings)
        | platform
        | {"engine": manifest.engine, "engine_version": manifest.engine_version}
    )


def _in_plan_names(settings: Mapping[str, Scalar | None]) -> dict[str, Scalar | None]:
    """Return the settings with the list of drafters, where there are any, as the plan's one name."""
    renamed = {key: value for key, value in settings.items() if key != _DRAFTERS}
    listed = settings.get(_DRAFTERS)
    with contextlib.suppress(msgspec.MsgspecError):  # else the service states something else
        names = msgspec.json.decode(listed, type=list[str]) if isinstance(listed, str) else []
        if names:
            renamed.setdefault(_DRAFTER, ", ".join(names))
    return renamed


def _covers(declared: Sequence[str], key: str) -> bool:
    return any(key == one or key.startswith(f"{one}.") for one in declared)


def _same(left: Mapping[str, Scalar | None], right: Mapping[str, Scalar | None], key: str) -> bool:
    return key in left and key in right and left[key] == right[key] and type(left[key]) is type(right[key])


def _show(facts: Mapping[str, Scalar | None], key: str) -> str:
    return str(facts[key]) if key in facts else _ABSENT


def _short(value: str) -> str:
    return value if len(value) <= _SHOWN_CHARS else value[:_SHOWN_CHARS] + "…"


def _suggest(arm: str, keys: Sequence[str], known_forced: Mapping[str, str]) -> str:
    """Return the remedy: what the method forces is declared and not taken from the baseline."""
    if arm not in {"candidate", "alternative"}:
        return "start both services the same way: this arm is the baseline once more."
    forced = [key for key in keys if key in known_forced]
    others = dict.fromkeys(
        _DRAFTER if _covers([_DRAFTER], key) else key for key in keys if key not in known_forced
    )
    parts = [f'write {key} = "{known_forced[key]}" into comparison.forced_by_method.{arm}' for key in forced]
    if others:
        listed = ", ".join(f'"{key}"' for key in others)
        parts.append(f"make them equal, or add {listed} to comparison.{arm}_may_differ")
    return "; ".join(parts) + "."


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
    """Return what the baseline is set to give up because the other arm's method does, with the reason.

    Such a baseline is slower than today's service, so an arm that beats it need not beat the service. What
    the service chooses by itself is no pin: only the command, its environment and the plan's settings are
    read. `baseline`: the manifest of the baseline. `stated`: the plan's section of the baseline. `other`: the
    manifest of an arm that drafts. `adapter`: the engine of that arm.
    """
    requested: Settings = {f"{ENVIRONMENT_PREFIX}{key}": value for key, value in stated.env.items()}
    requested |= adapter.read_flags(baseline.command or ()) | stated.settings
    return {
        key: one.text.rstrip(".")
        for one in list_confounds(adapter, find_method(other))
        for key, value in one.forces.items()
        if value is not None and key in requested and requested[key] == value
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
