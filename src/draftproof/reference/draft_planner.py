"""The engine's side of drafting: who drafts how much for which sequence, and what if a drafter fails.

Owns what is remembered between rounds: acceptance by sequence and method, times by method, one policy of each
kind by method. A sequence whose drafter raises or breaks its contract goes on by ordinary decoding.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from draftproof.reference.counters import EngineStats, StepDurations
from draftproof.reference.draft_length import (
    Acceptance,
    AdaptiveLength,
    AutoLength,
    Curve,
    DraftHistory,
    RoundCosts,
    Situation,
    check_table,
    look_up_lengths,
)
from draftproof.reference.proposer import (
    Draft,
    DraftContext,
    Proposer,
    StateReader,
    collect_drafts,
    release_drafter,
)
from draftproof.reference.scheduler import LiveSequence
from draftproof.reference.spans import Span
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
    """What is known of one method, and its policies that learn."""

    costs: RoundCosts
    acceptance: Acceptance = field(default_factory=Acceptance)
    adaptive: AdaptiveLength = field(default_factory=AdaptiveLength)
    auto: AutoLength = field(default_factory=AutoLength)

    def policy(self, name: DraftPolicy) -> AdaptiveLength | AutoLength:
        """Return the policy of this name."""
        return self.auto if name == "auto" else self.adaptive


class LengthPlanner:
    """Decides the lengths of a round and learns from its outcome.

    `table`: draft length by batch size, for the `batch` policy. Raises UsageError: the table is malformed.
    """

    def __init__(self, table: BatchTable) -> None:
        check_table(table)
        self._table = table
        self._verification = Curve()
        self._methods: dict[str, _Method] = {}
        self._histories: dict[str, DraftHistory] = {}
        self._situations: dict[tuple[str, DraftPolicy], tuple[list[Asking], int]] = {}
        self.gains: dict[str, float] = {}  # by method, as of its last round that learned

    def plan(self, asking: Sequence[Asking], decoding: int) -> dict[str, int]:
        """Return draft lengths by request id.

        `decoding`: all decoding sequences of the pass, these included.
        """
        groups: dict[tuple[str, DraftPolicy], list[Asking]] = {}
        for one in asking:
            groups.setdefault((one.method, one.policy), []).append(one)
        self._situations = {key: (group, decoding - len(group)) for key, group in groups.items()}
        lengths: dict[str, int] = {}
        for (method, policy), group in groups.items():
            chosen = self._choose(method, policy)
            lengths.update(zip([one.request_id for one in group], chosen, strict=True))
        return lengths

    def _choose(self, method: str, policy: DraftPolicy) -> list[int]:
        situation = self._situation(method, policy)
        if policy == "fixed":
            return list(situation.limits)
        if policy == "batch":
            return look_up_lengths(self._table, situation)
        return self._method(method).policy(policy).lengths(situation)

    @property
    def is_learning(self) -> bool:
        """Whether the round planned last has something to teach."""
        return any(policy in _LEARNING for _, policy in self._situations)

    def learn(self, drafted: Mapping[str, Drafted], times: RoundTimes) -> None:
        """Take in what came of the round planned last.

        `drafted`: by request id; a sequence that lost its drafter is missing.
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
            self._method(method).policy(policy).observe(gain, was_plain=was_plain)

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
            self._methods[method] = _Method(RoundCosts(self._verification))
        return self._methods[method]


_logger = logging.getLogger(__name__)


class Drafters:
    """The loaded drafters by method.

    `max_draft_tokens`: a sequence's fixed share of a step. `length_by_batch`: table of the draft-length
    policy `batch`. `counters`: get draft lengths and of every sequence that loses its drafter. `planned`:
    by request id the draft length of this round, 0 where its policy pauses drafting; sequences that do not
    draft or have no room for a draft are missing.
    """

    def __init__(
        self,
        proposers: Mapping[str, Proposer],
        *,
        vocab_size: int,
        max_draft_tokens: int,
        length_by_batch: BatchTable,
        counters: EngineStats,
    ) -> None:
        self.proposers = proposers
        self.planned: dict[str, int] = {}
        self._planner = LengthPlanner(length_by_batch)
        self._vocab_size, self._max_draft_tokens = vocab_size, max_draft_tokens
        self._counters = counters

    def draft(self, decoding: Sequence[LiveSequence]) -> dict[str, Draft]:
        """Return drafts by request id for the sequences that want one."""
        self._plan_lengths(decoding)
        drafts: dict[str, Draft] = {}
        for method, proposer in self.proposers.items():
            wanting = [one for one in decoding if one.drafting and one.request.speculation.method == method]
            contexts = [self._context(one) for one in wanting if self.planned.get(one.request_id)]
            found = collect_drafts(proposer, contexts, self._vocab_size)
            drafts.update(zip([context.request_id for context in contexts], found, strict=True))
        for sequence in decoding:
            if sequence.request_id in drafts and drafts[sequence.request_id].failed:
                self._stop_drafting(sequence)
        return drafts

    def taps(self, spans: Sequence[Span]) -> tuple[int, ...]:
        """Return the layers whose states some drafter of this pass wants to see, in rising order."""
        readers = [self._reader_of(span.sequence) for span in spans]
        return tuple(sorted({tap for reader in readers if reader is not None for tap in reader.taps}))

    def observe(
        self, spans: Sequence[Span], kept: Sequence[int], taps: Sequence[int], states: torch.Tensor | None
    ) -> None:
        """Show drafters the target's states of the positions that stay.

        `kept`: per span how many of its first positions were committed. `states`: [tokens, taps, hidden] of
        the pass.
        """
        if states is None:
            return
        start = 0
        for span, count in zip(spans, kept, strict=True):
            reader = self._reader_of(span.sequence)
            if reader is not None:
                columns = [taps.index(tap) for tap in reader.taps]
                rows = states[start : start + count, columns]
                self._show(reader, span.sequence, rows)
            start += len(span.token_ids)

    def learn(self, spans: Sequence[Span], chosen: Sequence[Sequence[int]], durations: StepDurations) -> None:
        """Let the draft-length policies learn from a round.

        `chosen`: per span the tokens verification gave, accepted drafts and one of the target's own.
        """
        if not self._planner.is_learning:
            return
        drafted: dict[str, Drafted] = {}
        for span, tokens in zip(spans, chosen, strict=True):
            asked = self.planned.get(span.sequence.request_id)
            if asked is not None and not span.is_prefill and span.sequence.drafting:
                proposed = len(span.draft.token_ids)
                drafted[span.sequence.request_id] = Drafted(asked, proposed, max(0, len(tokens) - 1))
        times = RoundTimes(
            rows=sum(len(span.token_ids) for span in spans),
            draft_ns=durations.draft_ns,
            rest_ns=durations.verify_ns + durations.sample_ns + durations.schedule_ns,
            has_prefill=any(span.is_prefill for span in spans),
        )
        self._planner.learn(drafted, times)
        self._counters.draft_gains.update(self._planner.gains)

    def release(self, request_id: str) -> None:
        """Let every drafter and policy forget a sequence."""
        self._planner.release(request_id)
        for proposer in self.proposers.values():
            release_drafter(proposer, request_id)

    def _plan_lengths(self, decoding: Sequence[LiveSequence]) -> None:
        asking = []
        for one in decoding:
            speculation, limit = one.request.speculation, min(one.max_draft_tokens, self._max_draft_tokens)
            if one.drafting and limit > 0 and speculation.method in self.proposers:
                asking.append(Asking(one.request_id, speculation.method, speculation.policy, limit))
        self.planned = self._planner.plan(asking, len(decoding))
        self._counters.count_lengths([(one.policy, self.planned[one.request_id]) for one in asking])

    def _context(self, sequence: LiveSequence) -> DraftContext:
        return DraftContext(
            request_id=sequence.request_id,
            token_ids=sequence.token_ids,
            max_draft_tokens=self.planned[sequence.request_id],
            sampling=sequence.request.sampling,
            stop_below=sequence.request.speculation.stop_below,
            generator=sequence.draft_generator,
            target_cache=sequence.cache,
        )

    def _reader_of(self, sequence: LiveSequence) -> StateReader | None:
        proposer = self.proposers.get(sequence.request.speculation.method) if sequence.drafting else None
        return proposer if isinstance(proposer, StateReader) else None

    def _show(self, reader: StateReader, sequence: LiveSequence, rows: torch.Tensor) -> None:
        try:
            reader.observe(sequence.request_id, sequence.cache.length - len(rows), rows)
        except Exception as fault:  # a drafter may raise anything, and serving must go on
            _logger.warning(
                "request %s goes on by ordinary decoding: its drafter raised %r",
                sequence.request_id,
                fault,
                exc_info=True,
            )
            self._stop_drafting(sequence)

    def _stop_drafting(self, sequence: LiveSequence) -> None:
        sequence.drafting = False
        release_drafter(self.proposers[sequence.request.speculation.method], sequence.request_id)
        sequence.fallbacks += 1
        self._counters.fallbacks += 1
