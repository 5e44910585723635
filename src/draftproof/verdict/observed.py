"""What a run directory holds for a verdict, and one request of it as every later step sees it. Pure."""

import msgspec

from draftproof.manifests import Manifest
from draftproof.metrics.request import RequestMetrics, is_answered
from draftproof.plan.schema import Plan
from draftproof.records import (
    BehaviourProbe,
    BlockRecord,
    Judgement,
    Notice,
    RequestRecord,
    TelemetrySample,
    Warmup,
)
from draftproof.verdict.client_limits import ClientFault
from draftproof.workload.checks import CheckResult
from draftproof.workload.conversation import checks_at_turn
from draftproof.workload.items import Check, Item

TurnKey = tuple[str, int, str]  # load, block, arm
PairKey = tuple[str, int, int, str, int]  # load, block, repeat, item, turn of the conversation


class RunData(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a run directory holds that a verdict depends on. `items` are the selected ones."""

    plan: Plan
    manifest: Manifest
    records: tuple[RequestRecord, ...]
    blocks: tuple[BlockRecord, ...]
    items: tuple[Item, ...]
    telemetry: tuple[TelemetrySample, ...] = ()
    judgements: tuple[Judgement, ...] = ()
    behaviours: tuple[BehaviourProbe, ...] = ()
    warmups: tuple[Warmup, ...] = ()
    notices: tuple[Notice, ...] = ()


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """One arm's turn in one block: whether it was finished, and how the client itself behaved in it.

    `lag_max_ns` is the worst lateness of the client's event loop. `lagged`: the client did something beyond
    its limits, so that the turn's times are not the service's; `faults` say what. `late_by_itself`: it did so
    while the run's own processes filled the host. `left_out`: the host disturbed every attempt at it.
    """

    load: str
    block: int
    arm: str
    completed: bool
    lag_max_ns: int | None
    lagged: bool
    faults: tuple[ClientFault, ...] = ()
    late_by_itself: bool = False
    left_out: bool = False

    @property
    def is_timed(self) -> bool:
        """Whether its times are the service's, and not those of a late client or a disturbed host."""
        return not (self.lagged or self.left_out)


class Observation(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One measured request with its item, segment, metrics and judged checks.

    `timed` is False where the client itself was too late in that turn or the host disturbed it, or where a
    run that records its turns has no record of this one: its outcome counts, its times do not.
    `in_order` is False where the record's times run backwards.
    """

    record: RequestRecord
    item: Item
    segment: str
    metrics: RequestMetrics
    checks: tuple[CheckResult, ...]
    timed: bool
    in_order: bool

    @property
    def is_ok(self) -> bool:
        """Whether the request was answered to the end, and with content."""
        return is_answered(self.record)

    @property
    def key(self) -> PairKey:
        """What the request shares with its partner in another arm."""
        return find_place(self.record)

    @property
    def is_passed(self) -> bool | None:
        """Whether every check passed; a failed request passes none; None where one could not be judged."""
        if not self.wanted_checks:
            return None
        found = [check.passed for check in self.checks]
        if not self.is_ok or False in found:
            return False
        return None if None in found or not found else True

    @property
    def wanted_checks(self) -> tuple[Check, ...]:
        """The checks of the turn that was asked."""
        return checks_at_turn(self.item, self.record.conversation_turn)


def find_place(record: RequestRecord) -> PairKey:
    """Return what a request shares with its partner in another arm."""
    return (record.load, record.block, record.repeat, record.item_id, record.conversation_turn)
