"""The shape of a comparison of two runs, A ("before") and B ("after").

Pure data, made by `compare_runs`, printed by `draftproof compare --json`. Ratios are after / before of the
same statistic over the same prompts.
"""

from typing import Literal

import msgspec

from draftproof.verdict.comparing.triggers import Triggers
from draftproof.verdict.load_size import LoadSize, read_sizes
from draftproof.verdict.results import CellStatus, Decision, EnvelopeEntry, Figure

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
    """A reason of the verdict that only one run gives, with the row it rests on there."""

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
