"""What a row of output equivalence comes to: guaranteed, tested, differs with its cause narrowed, or unknown.

Pure. Nothing here is a new test: it reads the tests, the margins, the same arm with one request in flight,
and the null at the same load (docs/equivalence.md).
"""

from collections.abc import Iterable

import msgspec

from draftproof.verdict.equivalence.results import (
    TIE_NATS_FLOAT32,
    Cause,
    EquivalenceTest,
    GreedyComparison,
    Status,
)

GUARANTEED = "guaranteed by method"
# From the one that asks for most to the one that asks for least.
CAUSE_ORDER: tuple[Cause, ...] = ("algorithm", "undetermined", "batching", "numerics")


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """What was compared of one arm at one load or at all of them.

    `concurrency` is None at all loads together and in an open loop.

    `sampled_bound`: where every sampled answer is the baseline's word for word, as a shared seed makes them,
    the exact one-sided limit of the share of prompts that differ.
    """

    load: str
    concurrency: int | None
    greedy: GreedyComparison | None
    tests: tuple[EquivalenceTest, ...]
    sampled_prompts: int
    sampled_draws: int
    sampled_bound: float | None = None

    @property
    def is_comparable(self) -> bool:
        """Whether any output was answered in both arms."""
        return self.greedy is not None or self.sampled_draws > 0

    @property
    def greedy_differs(self) -> bool:
        """Whether any greedy output differs."""
        return self.greedy is not None and self.greedy.differing_prompts > 0

    @property
    def rejected(self) -> tuple[EquivalenceTest, ...]:
        """The tests that show a difference."""
        return tuple(test for test in self.tests if test.differs)

    @property
    def shifted(self) -> tuple[EquivalenceTest, ...]:
        """The tests of length and of sampled sequences that show a difference."""
        return tuple(test for test in self.rejected if test.scope != "greedy")

    @property
    def has_large_margin(self) -> bool:
        """Whether a greedy output parts where rounding could not have parted it."""
        return self.greedy is not None and self.greedy.margins.known > self.greedy.margins.tied

    @property
    def is_all_ties(self) -> bool:
        """Whether greedy outputs part, and every time at a known tie."""
        if self.greedy is None or not self.greedy.margins.divergences:
            return False
        return self.greedy.margins.tied == self.greedy.margins.divergences

    @property
    def may_be_rounding(self) -> bool:
        """Whether a margin is unknown, none is large, and ties are common: coarser than float32."""
        if self.greedy is None or self.has_large_margin:
            return False
        margins = self.greedy.margins
        return margins.known < margins.divergences and margins.tie_nats > TIE_NATS_FLOAT32


class Judgement(msgspec.Struct, frozen=True, kw_only=True):
    """Where a row stands; `is_contradicted` that the outputs contradict a guarantee of the contract."""

    status: Status
    cause: Cause | None = None
    is_contradicted: bool = False


def judge_load(
    own: Evidence,
    *,
    alone: Evidence | None,
    null: Evidence | None,
    contract: str | None,
    drafts: bool,
    is_null: bool = False,
) -> Judgement:
    """Return where an arm stands at one load.

    Args:
        own: the arm's evidence at the load.
        alone: the arm's evidence with one request in flight; None if there is no such load.
        null: the null's evidence at the load; None without a null arm.
        contract: equivalence as the contract states it.
        drafts: whether the arm speculates: ordinary decoding has no algorithm that could be at fault.
        is_null: whether the arm is the null itself.
    """
    if own.greedy_differs or own.shifted:
        cause = _narrow_null(own, alone) if is_null else _narrow(own, alone, null, drafts=drafts)
        at_fault = contract == GUARANTEED and drafts and not is_null and _exceeds_rounding(own, null)
        return Judgement(status="differs", cause=cause, is_contradicted=at_fault)
    if own.greedy is None and not _was_tested(own):
        return Judgement(status="unknown")
    return Judgement(status="guaranteed" if contract == GUARANTEED and not is_null else "tested")


def judge_overall(
    own: Evidence,
    loads: Iterable[Judgement],
    *,
    null: Evidence | None,
    contract: str | None,
    drafts: bool,
    is_null: bool = False,
) -> Judgement:
    """Return where an arm stands over all loads: its own pooled evidence, the causes those of the loads."""
    pooled = judge_load(own, alone=None, null=null, contract=contract, drafts=drafts, is_null=is_null)
    single = list(loads)
    causes = [one.cause for one in single if one.cause is not None]
    contradicted = pooled.is_contradicted or any(one.is_contradicted for one in single)
    if pooled.status != "differs" and not causes:
        return pooled
    worst = min(causes, key=CAUSE_ORDER.index, default=pooled.cause)
    if pooled.status == "differs" and worst == "numerics" and _exceeds_rounding(own, null):
        worst = "undetermined"
    return Judgement(status="differs", cause=worst, is_contradicted=contradicted)


def is_same_alone(own: Evidence, alone: Evidence | None) -> bool:
    """Return whether, with one request in flight, nothing differs of all that differs here."""
    if alone is None or own.concurrency is None or own.concurrency <= 1 or alone.greedy_differs:
        return False
    if own.greedy_differs and alone.greedy is None:
        return False
    passed = {(test.scope, test.statistic) for test in alone.tests if test.differs is False}
    return not alone.rejected and all((one.scope, one.statistic) in passed for one in own.shifted)


def _narrow(own: Evidence, alone: Evidence | None, null: Evidence | None, *, drafts: bool) -> Cause:
    if own.has_large_margin and drafts:
        return "algorithm"
    if own.is_all_ties and not own.shifted:
        return "numerics"
    if is_same_alone(own, alone) and not own.has_large_margin:
        return "batching"
    if _is_null_shifted(own, null) or (own.rejected and not own.shifted and own.may_be_rounding):
        return "undetermined"
    if own.rejected:
        is_alone = own.concurrency == 1 or (alone is not None and bool(alone.rejected))
        return "algorithm" if is_alone and drafts else "undetermined"
    return "numerics" if null is not None and null.greedy_differs else "undetermined"


def _narrow_null(own: Evidence, alone: Evidence | None) -> Cause:
    """Two equal arms have no algorithm between them; a shift of their distributions is no rounding either."""
    if own.shifted:
        return "undetermined"
    return "batching" if is_same_alone(own, alone) else "numerics"


def _exceeds_rounding(own: Evidence, null: Evidence | None) -> bool:
    """Return whether the outputs differ by more than rounding and equal arms explain."""
    if own.has_large_margin:
        return True
    if own.shifted:
        return not _is_null_shifted(own, null)
    return bool(own.rejected) and not own.is_all_ties and not own.may_be_rounding


def _is_null_shifted(own: Evidence, null: Evidence | None) -> bool:
    """Return whether every shift that the arm shows is one that two equal arms show as well."""
    if null is None or not own.shifted:
        return False
    seen = {(test.scope, test.statistic) for test in null.shifted}
    return all((test.scope, test.statistic) in seen for test in own.shifted)


def _was_tested(own: Evidence) -> bool:
    """Return whether sampled outputs were compared so that a difference could have shown."""
    return own.sampled_bound is not None or any(
        test.differs is False for test in own.tests if test.scope == "sampled"
    )
