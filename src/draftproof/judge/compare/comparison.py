"""The shape of a comparison of two runs, A ("before") and B ("after"), and the change triggers of an arm.

Pure data, printed by `draftproof compare --json`. Ratios are after / before of the same statistic over the
same prompts. What a service does not disclose triggers nothing and is not called unchanged either: it is
None.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec

from draftproof.core.manifests import ArmManifest, Contract
from draftproof.judge.results.run import CellStatus, Decision, EnvelopeEntry, Figure
from draftproof.plan.limits import LoadSize, read_sizes
from draftproof.plan.tables import PLATFORM_PARTS, ChangeTrigger

Setting = str | int | float | bool | None

UNKNOWN_VERSION = "unknown"
# Where a service listens, and what it makes of its settings on the memory it finds, are no flags of it.
_NO_FLAGS = frozenset({"host", "port", "url"})
_CONSEQUENCES = "capacity."
_MODEL_KEYS = ("served_model", "model.", "tokenizer.")
_DRAFTER_KEYS = ("drafter", "drafters", "drafter.")
_CONTRACT_TRIGGERS: dict[str, ChangeTrigger] = {
    **dict.fromkeys(("target_model", "target_revision", "target_sha256"), "model_hash"),
    "tokenizer_sha256": "tokenizer",
    **dict.fromkeys(("drafter_kind", "drafter_identity", "drafter_sha256"), "drafter_hash"),
}
_WITHOUT_WEIGHTS = frozenset({"none", "ngram"})
_PORT = re.compile(r":(\d+)(?=/|$)")


class ArmFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a run keeps of one arm; a part that was not kept is None."""

    manifest: ArmManifest | None
    contract: Contract | None


class Triggers(msgspec.Struct, frozen=True, kw_only=True):
    """Whether each trigger fired: True changed, False known to be the same, None not disclosed."""

    version: bool | None
    model_hash: bool | None
    drafter_hash: bool | None
    flags: bool | None
    accelerator: bool | None = None
    driver: bool | None = None
    libraries: bool | None = None
    kernels: bool | None = None

    @property
    def fired(self) -> tuple[str, ...]:
        """Names of those that changed."""
        return tuple(name for name, value in msgspec.structs.asdict(self).items() if value)

    @property
    def unknown(self) -> tuple[str, ...]:
        """Names of those that are not known."""
        return tuple(name for name, value in msgspec.structs.asdict(self).items() if value is None)


def find_triggers(before: ArmFacts, after: ArmFacts) -> Triggers:
    """Return which of version, model, drafter, flags and parts of the platform changed in an arm."""
    return Triggers(
        version=_has_new_version(before.manifest, after.manifest),
        model_hash=_has_new_model(before, after),
        drafter_hash=_has_new_drafter(before, after),
        flags=_has_new_flags(before.manifest, after.manifest),
        **{part: _has_new_part(before, after, names) for part, names in PLATFORM_PARTS.items()},
    )


def name_trigger(group: str, key: str) -> ChangeTrigger | None:
    """Return the trigger that watches a fact of an arm, None of a fact that no trigger watches."""
    if group == "platform":
        return next((part for part, names in PLATFORM_PARTS.items() if key in names), None)
    if group == "contract":
        return _CONTRACT_TRIGGERS.get(key)
    if group == "engine":
        return "version" if key in {"engine", "engine_version"} else "flags"
    if _is_below(key, _MODEL_KEYS):
        return "model_hash"
    return "drafter_hash" if _is_below(key, _DRAFTER_KEYS) else "flags"


def list_flags(manifest: ArmManifest) -> dict[str, Setting]:
    """Return the settings that say how the service runs, without its address and what follows from memory."""
    return {
        key: value
        for key, value in manifest.settings.items()
        if key not in _NO_FLAGS and not key.startswith(_CONSEQUENCES)
    }


def normalise_command(manifest: ArmManifest) -> str | None:
    """Return the launch command as one text with {port} for its port, which is another one in every run."""
    if manifest.command is None:
        return None
    found = _PORT.search(manifest.url.partition("://")[2])
    if found is None:
        return " ".join(manifest.command)
    port = re.compile(rf"(?<!\d){found[1]}(?!\d)")
    return " ".join(port.sub("{port}", word) for word in manifest.command)


def _has_new_version(before: ArmManifest | None, after: ArmManifest | None) -> bool | None:
    if before is None or after is None:
        return None
    if before.engine != after.engine:
        return True
    if UNKNOWN_VERSION in (before.engine_version, after.engine_version):
        return None
    return before.engine_version != after.engine_version


def _has_new_model(before: ArmFacts, after: ArmFacts) -> bool | None:
    settings = [_pick(one, _MODEL_KEYS) for one in (before, after)]
    if settings[0] != settings[1]:
        return True
    old, new = before.contract, after.contract
    if old is None or new is None:
        return None
    if (old.target_model, old.target_revision) != (new.target_model, new.target_revision):
        return True
    hashes = [
        _differ(old.target_sha256, new.target_sha256),
        _differ(old.tokenizer_sha256, new.tokenizer_sha256),
    ]
    return True if any(hashes) else hashes[0]


def _has_new_drafter(before: ArmFacts, after: ArmFacts) -> bool | None:
    old, new = before.contract, after.contract
    if _pick(before, _DRAFTER_KEYS) != _pick(after, _DRAFTER_KEYS):
        return True
    if old is None or new is None:
        return None
    if (old.drafter_kind, old.drafter_identity) != (new.drafter_kind, new.drafter_identity):
        return True
    if old.drafter_kind in _WITHOUT_WEIGHTS:
        return False
    return _differ(old.drafter_sha256, new.drafter_sha256)


def _has_new_flags(before: ArmManifest | None, after: ArmManifest | None) -> bool | None:
    if before is None or after is None:
        return None
    if normalise_command(before) != normalise_command(after):
        return True
    old, new = _plain_flags(before), _plain_flags(after)
    return None if not old and not new and before.command is None else old != new


def _plain_flags(manifest: ArmManifest) -> dict[str, Setting]:
    return {
        key: value
        for key, value in list_flags(manifest).items()
        if not _is_below(key, (*_MODEL_KEYS, *_DRAFTER_KEYS))
    }


def _pick(facts: ArmFacts, keys: Iterable[str]) -> Mapping[str, Setting]:
    if facts.manifest is None:
        return {}
    return {key: value for key, value in facts.manifest.settings.items() if _is_below(key, keys)}


def _is_below(key: str, keys: Iterable[str]) -> bool:
    return any(key == one or (one.endswith(".") and key.startswith(one)) for one in keys)


def _has_new_part(before: ArmFacts, after: ArmFacts, names: Iterable[str]) -> bool | None:
    """Return whether a part of the platform changed, None where no fact of it is known on both sides."""
    platforms = [{} if one.manifest is None else one.manifest.platform for one in (before, after)]
    common = [name for name in names if name in platforms[0] and name in platforms[1]]
    return any(platforms[0][name] != platforms[1][name] for name in common) if common else None


def _differ(before: str | None, after: str | None) -> bool | None:
    """Return None where both are unknown; a value that came or went is a change."""
    return None if before is None and after is None else before != after


Conclusion = Literal["unchanged", "changed", "not_comparable", "invalid"]
FactGroup = Literal[
    "arms",
    "engine",
    "settings",
    "platform",
    "contract",
    "confounds",
    "workload",
    "thresholds",
    "load",
    "host",
    "findings",
    "measurement",
]
Reading = Literal["changed", "changed_noise_unknown", "within_noise", "known_in_one_run", "not_compared"]
NoiseSource = Literal["both", "before", "after", "none"]
Scalar = str | int | float | bool

EXIT_CODES: dict[Conclusion, int] = {"unchanged": 0, "changed": 10, "not_comparable": 30, "invalid": 40}
CHANGES: frozenset[Reading] = frozenset({"changed", "changed_noise_unknown", "known_in_one_run"})


class RunIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """Which run it is and what was decided in it. `started_wall_ns` counts from 1970 (UTC)."""

    name: str
    started_wall_ns: int
    draftproof_version: str
    evidence: str
    plan_sha256: str
    thresholds_sha256: str
    workload_sha256: str
    decision: Decision
    sentence: str


class CommonPrompts(msgspec.Struct, frozen=True, kw_only=True):
    """How the prompts of two runs overlap. `common` have the same id and ask for exactly the same.

    `other_content` have the same id and ask for something else; they are left out like the rest.
    """

    common: int
    other_content: int
    only_before: int
    only_after: int


class FactChange(msgspec.Struct, frozen=True, kw_only=True):
    """One fact that differs. None stands for absent or not known; `arm` is None for a fact of the run."""

    arm: str | None
    group: FactGroup
    key: str
    before: Scalar | None
    after: Scalar | None


class ArmChange(msgspec.Struct, frozen=True, kw_only=True):
    """One arm of both runs: its change triggers and whether either run's mechanism is undisclosed."""

    arm: str
    triggers: Triggers
    undisclosed: bool


class DeliveryChange(msgspec.Struct, frozen=True, kw_only=True):
    """One quantity of one arm at one load in both runs, over the same prompts.

    `before` and `after` are the statistic in either run, times in ns. `ratio` has the interval of this one
    comparison, `simultaneous` the one that holds over all of them. `noise` is the factor, 1 or more, by which
    equal arms may differ, from the null arms of `noise_from`; None where no run tells. `known_before` and
    `known_after` count the answers that have the quantity, of `answered_before` and `answered_after`.
    """

    arm: str
    load: str
    quantity: str
    statistic: str
    before: float | None
    after: float | None
    ratio: Figure
    simultaneous: Figure
    prompts: int
    noise: float | None
    noise_from: NoiseSource
    known_before: int
    known_after: int
    answered_before: int
    answered_after: int
    reading: Reading


class FailureChange(msgspec.Struct, frozen=True, kw_only=True):
    """The share of failed requests of one arm at one load. `difference` is after − before over equal prompts.

    Its interval holds jointly with those of the ratios. `noise` is the larger difference of the null arms.
    """

    arm: str
    load: str
    before: float | None
    after: float | None
    difference: Figure
    noise: float | None
    noise_from: NoiseSource
    reading: Reading


class EffectChange(msgspec.Struct, frozen=True, kw_only=True):
    """The effect candidate / baseline of one cell in both runs, each over its own prompts.

    `is_apart`: the two intervals do not overlap; None where one has none. A status of None: no such cell.
    """

    segment: str
    load: str
    status_before: CellStatus | None
    status_after: CellStatus | None
    before: Figure | None
    after: Figure | None
    is_apart: bool | None


class EnvelopeChange(msgspec.Struct, frozen=True, kw_only=True):
    """A segment whose envelope differs; None where speculation may not run at all.

    A limit on the load, or on a context beyond which harm was shown, makes a difference. How long the
    measured contexts happened to be does not: it moves with every sampled answer.
    """

    segment: str
    before: EnvelopeEntry | None
    after: EnvelopeEntry | None


class ReasonChange(msgspec.Struct, frozen=True, kw_only=True):
    """A reason of the verdict that only one run gives, with the row it is based on there."""

    code: str
    evidence: str
    before: str | None
    after: str | None


class RunComparison(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that changed from run A to run B. `not_compared` says in sentences what was left out.

    `only_arm` names the arm that was asked for, None for all; effects, envelope, decision and
    its reasons are then shown for the candidate alone.
    """

    schema_version: int
    draftproof_version: str
    only_arm: str | None
    before: RunIdentity
    after: RunIdentity
    prompts: CommonPrompts
    loads: tuple[tuple[str, int | None], ...]
    confidence: float
    arms: tuple[ArmChange, ...]
    facts: tuple[FactChange, ...]
    deliveries: tuple[DeliveryChange, ...]
    failures: tuple[FailureChange, ...]
    effects: tuple[EffectChange, ...]
    envelope: tuple[EnvelopeChange, ...]
    decision_changed: bool
    not_compared: tuple[str, ...]
    conclusion: Conclusion
    reasons: tuple[ReasonChange, ...] = ()
    load_sizes: dict[str, LoadSize] = {}

    @property
    def sizes(self) -> dict[str, LoadSize]:
        """How large every load is that is compared, in order."""
        return read_sizes(self.loads, self.load_sizes)


class Uncompared(NamedTuple):
    """`effects`: no cell has one in both runs; `invalid`: a cell is so in one run; `delivery`: all of an arm.

    `name` is the cell's segment or the arm, "" where all are meant.
    """

    kind: Literal["effects", "invalid", "delivery"]
    name: str = ""
    load: str = ""


def find_uncompared(
    deliveries: Sequence[DeliveryChange], effects: Sequence[EffectChange]
) -> Iterator[Uncompared]:
    """Yield what could not be compared and may have changed."""
    if effects and all(one.is_apart is None for one in effects):
        yield Uncompared("effects")
    for one in effects:
        if (one.status_before == "invalid") != (one.status_after == "invalid"):
            yield Uncompared("invalid", one.segment, one.load)
    compared = {(one.arm, one.load) for one in deliveries if one.reading != "not_compared"}
    for arm, load in dict.fromkeys((one.arm, one.load) for one in deliveries):
        if (arm, load) not in compared:
            yield Uncompared("delivery", arm, load)
