"""What a row of output equivalence comes to (guaranteed, tested, differs, unknown), and its sentences.

Nothing here is a new test: it reads the tests, the margins, the same arm with one request in flight, and the
null at the same load (docs/equivalence.md).
"""

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from draftproof.judge.decide.equivalence.greedy import NULL_ARM
from draftproof.judge.results.decide import (
    ALL_LOADS,
    TIE_NATS_FLOAT32,
    BoundOf,
    Cause,
    EquivalenceTest,
    GreedyComparison,
    Margins,
    OutputEquivalence,
    Status,
)

GUARANTEED = "guaranteed by method"
# From the one that asks for most to the one that asks for least.
CAUSE_ORDER: tuple[Cause, ...] = ("algorithm", "undetermined", "batching", "numerics")


class OutputComparison(msgspec.Struct, frozen=True, kw_only=True):
    """What was compared of one arm at one load or at all of them (`concurrency` None, as in an open loop).

    `sampled_bound`: where every sampled answer is the baseline's word for word, the exact one-sided limit of
    the share of prompts that differ.
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


def evaluate_load(
    own: OutputComparison,
    *,
    alone: OutputComparison | None,
    null: OutputComparison | None,
    contract: str | None,
    drafts: bool,
    is_null: bool = False,
) -> Judgement:
    """Return where an arm stands at one load.

    `alone`: its evidence with one request in flight; `null`: that of the null arm at the load; `contract`:
    equivalence as stated there. Without `drafts` there is no algorithm that could be at fault; `is_null`: it
    is the null itself.
    """
    if own.greedy_differs or own.shifted:
        cause = _narrow_null(own, alone) if is_null else _narrow(own, alone, null, drafts=drafts)
        at_fault = contract == GUARANTEED and drafts and not is_null and _exceeds_rounding(own, null)
        return Judgement(status="differs", cause=cause, is_contradicted=at_fault)
    if own.greedy is None and not _was_tested(own):
        return Judgement(status="unknown")
    return Judgement(status="guaranteed" if contract == GUARANTEED and not is_null else "tested")


def evaluate_overall(
    own: OutputComparison,
    loads: Iterable[Judgement],
    *,
    null: OutputComparison | None,
    contract: str | None,
    drafts: bool,
    is_null: bool = False,
) -> Judgement:
    """Return where an arm stands over all loads: its own pooled evidence, the causes those of the loads."""
    pooled = evaluate_load(own, alone=None, null=null, contract=contract, drafts=drafts, is_null=is_null)
    single = list(loads)
    causes = [one.cause for one in single if one.cause is not None]
    contradicted = pooled.is_contradicted or any(one.is_contradicted for one in single)
    if pooled.status != "differs" and not causes:
        return pooled
    worst = min(causes, key=CAUSE_ORDER.index, default=pooled.cause)
    if pooled.status == "differs" and worst == "numerics" and _exceeds_rounding(own, null):
        worst = "undetermined"
    return Judgement(status="differs", cause=worst, is_contradicted=contradicted)


def is_same_alone(own: OutputComparison, alone: OutputComparison | None) -> bool:
    """Return whether, with one request in flight, nothing differs of all that differs here."""
    if alone is None or own.concurrency is None or own.concurrency <= 1 or alone.greedy_differs:
        return False
    if own.greedy_differs and alone.greedy is None:
        return False
    passed = {(test.scope, test.statistic) for test in alone.tests if test.differs is False}
    return not alone.rejected and all((one.scope, one.statistic) in passed for one in own.shifted)


def _narrow(
    own: OutputComparison, alone: OutputComparison | None, null: OutputComparison | None, *, drafts: bool
) -> Cause:
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


def _narrow_null(own: OutputComparison, alone: OutputComparison | None) -> Cause:
    """Two equal arms have no algorithm between them; a shift of their distributions is no rounding either."""
    if own.shifted:
        return "undetermined"
    return "batching" if is_same_alone(own, alone) else "numerics"


def _exceeds_rounding(own: OutputComparison, null: OutputComparison | None) -> bool:
    """Return whether the outputs differ by more than rounding and equal arms explain."""
    if own.has_large_margin:
        return True
    if own.shifted:
        return not _is_null_shifted(own, null)
    return bool(own.rejected) and not own.is_all_ties and not own.may_be_rounding


def _is_null_shifted(own: OutputComparison, null: OutputComparison | None) -> bool:
    """Return whether every shift that the arm shows is one that two equal arms show as well."""
    if null is None or not own.shifted:
        return False
    seen = {(test.scope, test.statistic) for test in null.shifted}
    return all((test.scope, test.statistic) in seen for test in own.shifted)


def _was_tested(own: OutputComparison) -> bool:
    """Return whether sampled outputs were compared so that a difference could have shown."""
    return own.sampled_bound is not None or any(
        test.differs is False for test in own.tests if test.scope == "sampled"
    )


STATISTIC_WORDS: dict[str, str] = {
    "differing_prompts": "greedy prompts that differ",
    "output_tokens": "mean length",
    "cut_share": "share cut by the token limit",
    "distinct_share": "share of distinct tokens",
    "repeated_share": "share of repeated runs of three tokens",
    "finish_reason": "finish reason",
    "first_token": "first token",
    "bigram_distance": "bigrams",
}
NO_MARGINS = (
    "How close the two most likely tokens were is unknown (to record it, set logprobs = true and "
    "top_logprobs = 2 in every arm's request; the engine must state token ids)"
)
NOTHING = "no prompt was answered in both arms"


def describe_row(
    arm: str,
    own: OutputComparison,
    judged: Judgement,
    *,
    null: OutputComparison | None,
    alone: OutputComparison | None,
    contract: str | None,
) -> OutputEquivalence:
    """Return the finished row."""
    bound, bound_of, n = _find_bound(own)
    return OutputEquivalence(
        arm=arm,
        versus="baseline",
        load=own.load,
        status=judged.status,
        cause=judged.cause,
        phrase=_phrase(own, judged),
        why=tuple(
            f"{text}." for text in _explain(arm, own, judged, null=null, alone=alone, contract=contract)
        ),
        contract=contract,
        is_contradicted=judged.is_contradicted,
        difference_bound=bound,
        bound_of=bound_of,
        n=n,
        greedy=own.greedy,
        sampled_prompts=own.sampled_prompts,
        sampled_draws=own.sampled_draws,
        tests=own.tests,
    )


def bound_mean_length(own: OutputComparison) -> float | None:
    """Return the largest shift of the sampled answers' mean length inside its interval, as a share."""
    test = find_test(own.tests, "sampled", "output_tokens")
    if test is None or test.difference.low is None or test.difference.high is None or not test.versus_value:
        return None
    return max(abs(test.difference.low), abs(test.difference.high)) / test.versus_value


def find_test(tests: Sequence[EquivalenceTest], scope: str, statistic: str) -> EquivalenceTest | None:
    """Return one test of a row."""
    return next((one for one in tests if (one.scope, one.statistic) == (scope, statistic)), None)


def count_prompts(number: int, kind: str = "") -> str:
    """Return "1 prompt" or "24 greedy prompts"."""
    return f"{number} {kind}{' ' if kind else ''}prompt{'' if number == 1 else 's'}"


def _find_bound(own: OutputComparison) -> tuple[float | None, BoundOf | None, int]:
    if own.greedy is not None:
        return own.greedy.beyond_null.high, "differing_prompts", own.greedy.prompts
    if own.sampled_bound is not None:
        return own.sampled_bound, "differing_prompts", own.sampled_prompts
    length = bound_mean_length(own)
    return length, None if length is None else "mean_length", own.sampled_prompts


def _phrase(own: OutputComparison, judged: Judgement) -> str:
    if judged.status == "differs":
        return f"differs: {judged.cause}"
    if judged.status == "unknown":
        return f"unknown: {_why_unknown(own)}"
    return "guaranteed" if judged.status == "guaranteed" else _render_tested(own)


def _render_tested(own: OutputComparison) -> str:
    """Return "tested: no difference larger than d seen at n", for greedy and for sampled answers."""
    greedy, length = own.greedy, bound_mean_length(own)
    parts = []
    if greedy is not None:
        high = greedy.beyond_null.high or 0.0
        parts.append(f"{_share(high)} of greedy prompts seen at {count_prompts(greedy.prompts)}")
    if own.sampled_bound is not None:
        seen = count_prompts(own.sampled_prompts)
        parts.append(f"{_share(own.sampled_bound)} of sampled prompts seen at {seen}, every answer the same")
    elif length is not None and _is_tested(own):
        kind = f"{count_prompts(own.sampled_prompts)} with {own.sampled_draws} paired draws"
        parts.append(f"{_share(length)} in the mean length of sampled answers seen at {kind}")
    if not parts:
        return f"tested: no difference seen at {count_prompts(own.sampled_prompts)}, its largest size unknown"
    return f"tested: no difference larger than {', nor than '.join(parts)}"


def _is_tested(own: OutputComparison) -> bool:
    return any(test.scope == "sampled" and test.differs is not None for test in own.tests)


def _why_unknown(own: OutputComparison) -> str:
    if not own.is_comparable:
        return NOTHING
    needed = [one.difference.needed for one in own.tests if one.scope == "sampled" and one.difference.needed]
    more = f", at least {min(needed)} more paired draws are needed" if needed else ""
    return f"{own.sampled_draws} paired draws of sampled answers cannot show a difference{more}"


def _explain(
    arm: str,
    own: OutputComparison,
    judged: Judgement,
    *,
    null: OutputComparison | None,
    alone: OutputComparison | None,
    contract: str | None,
) -> Iterator[str]:
    if arm == NULL_ARM:
        yield "This is the null: the baseline against itself, with which the other arms are compared"
    if own.greedy is not None:
        yield from _explain_greedy(arm, own, own.greedy, judged)
    yield from _explain_tests(own)
    if judged.status == "differs" and is_same_alone(own, alone):
        yield _explain_batching(null)
    if judged.cause == "undetermined" and own.rejected and own.may_be_rounding:
        yield (
            "More differ than in the null; without token margins the cause may be rounding in the "
            "verification pass or the acceptance rule"
        )
    if judged.cause is not None and own.load == ALL_LOADS:
        yield "The cause over all loads is that of the worst single load"
    yield from _explain_contract(judged, contract)


def _explain_greedy(
    arm: str, own: OutputComparison, greedy: GreedyComparison, judged: Judgement
) -> Iterator[str]:
    said = f"{greedy.differing_prompts} of {count_prompts(greedy.prompts, 'greedy')} differ"
    if greedy.null_prompts is not None:
        said += f", {greedy.null_differing_prompts} of {greedy.null_prompts} in the null"
    elif arm != NULL_ARM:
        said += "; without a null arm the service's own variation is unknown"
    yield said
    test = find_test(own.tests, "greedy", "differing_prompts")
    if test is not None and test.adjusted_p is not None and test.arm_value:
        beyond = "More differ than in the null" if test.differs else "No more than in the null is shown"
        yield f"{beyond} (p = {test.adjusted_p:.2g}, corrected)"
    limit = greedy.beyond_null.high
    if arm != NULL_ARM and judged.status != "tested" and limit is not None:
        beyond = "beyond the null " if greedy.null_prompts is not None else ""
        yield f"At most {_share(limit)} of prompts differ {beyond}(exact one-sided limit)"
    if greedy.margins.divergences:
        yield _explain_margins(greedy.margins)


def _explain_margins(margins: Margins) -> str:
    if not margins.known:
        return NO_MARGINS
    tie = f"a margin of at most {margins.tie_nats:g} nat"
    said = f"{margins.tied} of {margins.known} divergences with a known margin are ties ({tie}"
    if margins.null_largest_nats is not None and margins.null_largest_nats > margins.tie_nats:
        said += f", or {margins.null_largest_nats:.3g} nat as in the null"
    return f"{said}); the largest margin is {margins.largest_nats:.3g} nat"


def _explain_tests(own: OutputComparison) -> Iterator[str]:
    for scope, words in (("sampled", "sampled answers"), ("length", "all answers")):
        tests = [one for one in own.tests if one.scope == scope]
        judged = [one for one in tests if one.differs is not None]
        shown = [one for one in judged if one.differs]
        if shown:
            names = ", ".join(f"{STATISTIC_WORDS[one.statistic]} (p = {one.adjusted_p:.2g})" for one in shown)
            yield f"{len(shown)} of {len(judged)} statistics of {words} differ, corrected: {names}"
        elif judged and scope == "sampled":
            yield f"None of {len(judged)} statistics of {words} differs, corrected for their number"
        elif tests and scope == "sampled":
            yield f"There are too few draws of {words} for any test to show a difference"


def _explain_batching(null: OutputComparison | None) -> str:
    said = "With one request in flight nothing differs"
    if null is None:
        return said
    return f"{said}; the null {'differs here as well' if null.greedy_differs or null.shifted else 'does not'}"


def _explain_contract(judged: Judgement, contract: str | None) -> Iterator[str]:
    if judged.is_contradicted:
        yield "The contract says that the method guarantees the outputs, and these outputs contradict it"
    elif contract == "approximate":
        yield "The method is approximate by its contract: no test makes it lossless"
    elif contract == GUARANTEED and judged.status == "guaranteed":
        yield "The contract says that the method guarantees the outputs, and no test contradicts it"


def _share(value: float) -> str:
    return f"{100 * value:.1f} %"
