"""Draft lengths for the sequences of a round, and what each round teaches the policies. Pure.

Owns what is remembered between rounds: acceptance by sequence and method, times by method, one policy of each
kind by method.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from draftproof.reference.draft_costs import Acceptance, Curve, RoundCosts
from draftproof.reference.draft_length import (
    AdaptiveLength,
    AutoLength,
    BatchLength,
    DraftHistory,
    DraftLength,
    FixedLength,
    Situation,
)
from draftproof.reference.types import BatchTable, DraftPolicy

_LEARNING: tuple[DraftPolicy, ...] = ("adaptive", "auto")


@dataclass(frozen=True, slots=True)
class Asking:
    """A sequence that could draft: whose, how, under which policy, and at most how many tokens (above 0)."""

    request_id: str
    method: str
    policy: DraftPolicy
    limit: int


@dataclass(frozen=True, slots=True)
class Drafted:
    """What came of it: tokens asked for, drafted, and accepted by verification."""

    asked: int
    drafted: int
    accepted: int


@dataclass(frozen=True, slots=True)
class RoundTimes:
    """A round as timed: its rows, ns of drafting, ns of all the rest; `has_prefill` makes them unusable."""

    rows: int
    draft_ns: int
    rest_ns: int
    has_prefill: bool


@dataclass(slots=True)
class _Method:
    """What is known of one method, and its policies."""

    costs: RoundCosts
    policies: dict[DraftPolicy, DraftLength]
    acceptance: Acceptance = field(default_factory=Acceptance)


class LengthPlanner:
    """Decides the lengths of a round and learns from its outcome.

    Args:
        table: draft length by batch size, for the `batch` policy.

    Raises:
        UsageError: the table is malformed.
    """

    def __init__(self, table: BatchTable) -> None:
        self._batch = BatchLength(table)
        self._verification = Curve()
        self._methods: dict[str, _Method] = {}
        self._histories: dict[str, DraftHistory] = {}
        self._situations: dict[tuple[str, DraftPolicy], tuple[list[Asking], int]] = {}
        self.gains: dict[str, float] = {}  # by method, as of its last round that learned

    def plan(self, asking: Sequence[Asking], decoding: int) -> dict[str, int]:
        """Return draft lengths by request id.

        Args:
            asking: the sequences that could draft.
            decoding: all decoding sequences of the pass, these included.
        """
        groups: dict[tuple[str, DraftPolicy], list[Asking]] = {}
        for one in asking:
            groups.setdefault((one.method, one.policy), []).append(one)
        self._situations = {key: (group, decoding - len(group)) for key, group in groups.items()}
        lengths: dict[str, int] = {}
        for (method, policy), group in groups.items():
            chosen = self._method(method).policies[policy].lengths(self._situation(method, policy))
            lengths.update(zip([one.request_id for one in group], chosen, strict=True))
        return lengths

    @property
    def is_learning(self) -> bool:
        """Whether the round planned last has something to teach."""
        return any(policy in _LEARNING for _, policy in self._situations)

    def learn(self, drafted: Mapping[str, Drafted], times: RoundTimes) -> None:
        """Take in what came of the round planned last.

        Args:
            drafted: by request id; a sequence that lost its drafter is missing.
            times: of the whole round.
        """
        learning = {key for key in self._situations if key[1] in _LEARNING}
        if not learning:
            return
        self._learn_times(drafted, times)
        for request_id, outcome in drafted.items():
            self._learn_acceptance(request_id, outcome)
        was_plain = not times.has_prefill and not any(one.drafted for one in drafted.values())
        for method, policy in learning:
            gain = self._situation(method, policy).gain()
            if gain is not None:
                self.gains[method] = gain
            self._method(method).policies[policy].observe(gain, was_plain=was_plain)

    def release(self, request_id: str) -> None:
        """Forget a sequence."""
        self._histories.pop(request_id, None)

    def _learn_times(self, drafted: Mapping[str, Drafted], times: RoundTimes) -> None:
        if times.has_prefill:
            return
        self._verification.observe(times.rows, times.rest_ns)
        asked = {request_id: one.asked for request_id, one in drafted.items() if one.asked}
        methods = {
            method
            for (method, _), (group, _) in self._situations.items()
            if any(one.request_id in asked for one in group)
        }
        # A drafter that joins or comes back first reads what it missed, which is no price of a draft token.
        caught_up = all(self._histories[request_id].caught_up for request_id in asked)
        if asked and len(methods) == 1 and caught_up:
            costs = self._method(next(iter(methods))).costs
            costs.observe_drafting(len(asked), max(asked.values()), times.draft_ns)

    def _learn_acceptance(self, request_id: str, outcome: Drafted) -> None:
        history = self._histories[request_id]
        history.caught_up = outcome.asked > 0
        history.paused = 0 if outcome.asked else history.paused + 1
        if outcome.asked:
            history.acceptance.observe(
                asked=outcome.asked, drafted=outcome.drafted, accepted=outcome.accepted
            )

    def _situation(self, method: str, policy: DraftPolicy) -> Situation:
        group, others = self._situations[method, policy]
        known = self._method(method)
        return Situation(
            histories=[self._history(one) for one in group],
            limits=[one.limit for one in group],
            others=others,
            coverage=known.acceptance.coverage,
            costs=known.costs,
        )

    def _history(self, one: Asking) -> DraftHistory:
        if one.request_id not in self._histories:
            self._histories[one.request_id] = DraftHistory(Acceptance(self._method(one.method).acceptance))
        return self._histories[one.request_id]

    def _method(self, method: str) -> _Method:
        if method not in self._methods:
            policies: dict[DraftPolicy, DraftLength] = {
                "fixed": FixedLength(),
                "batch": self._batch,
                "adaptive": AdaptiveLength(),
                "auto": AutoLength(),
            }
            self._methods[method] = _Method(RoundCosts(self._verification), policies)
        return self._methods[method]
