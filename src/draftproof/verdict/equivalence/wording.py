"""The statement of a row of output equivalence and the sentences it rests on. Pure: words only."""

from collections.abc import Iterator, Sequence

from draftproof.verdict.equivalence.agreement import NULL_ARM
from draftproof.verdict.equivalence.cause import GUARANTEED, Evidence, Judgement, is_same_alone
from draftproof.verdict.equivalence.results import (
    ALL_LOADS,
    BoundOf,
    EquivalenceTest,
    GreedyComparison,
    Margins,
    OutputEquivalence,
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
    "How close the two likeliest tokens were is not known (logprobs = true and top_logprobs = 2 in every "
    "arm's request tell it, where the engine states token ids)"
)
NOTHING = "no output was answered in both arms"


def describe_row(
    arm: str,
    own: Evidence,
    judged: Judgement,
    *,
    null: Evidence | None,
    alone: Evidence | None,
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


def bound_mean_length(own: Evidence) -> float | None:
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


def _find_bound(own: Evidence) -> tuple[float | None, BoundOf | None, int]:
    if own.greedy is not None:
        return own.greedy.beyond_null.high, "differing_prompts", own.greedy.prompts
    if own.sampled_bound is not None:
        return own.sampled_bound, "differing_prompts", own.sampled_prompts
    length = bound_mean_length(own)
    return length, None if length is None else "mean_length", own.sampled_prompts


def _phrase(own: Evidence, judged: Judgement) -> str:
    if judged.status == "differs":
        return f"differs: {judged.cause}"
    if judged.status == "unknown":
        return f"unknown: {_why_unknown(own)}"
    return "guaranteed" if judged.status == "guaranteed" else _render_tested(own)


def _render_tested(own: Evidence) -> str:
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


def _is_tested(own: Evidence) -> bool:
    return any(test.scope == "sampled" and test.differs is not None for test in own.tests)


def _why_unknown(own: Evidence) -> str:
    if not own.is_comparable:
        return NOTHING
    needed = [one.difference.needed for one in own.tests if one.scope == "sampled" and one.difference.needed]
    more = f", at least {min(needed)} more paired draws are needed" if needed else ""
    return f"{own.sampled_draws} paired draws of sampled answers cannot show a difference{more}"


def _explain(
    arm: str,
    own: Evidence,
    judged: Judgement,
    *,
    null: Evidence | None,
    alone: Evidence | None,
    contract: str | None,
) -> Iterator[str]:
    if arm == NULL_ARM:
        yield "This is the null: the baseline against itself, by which the other arms are read"
    if own.greedy is not None:
        yield from _explain_greedy(arm, own, own.greedy, judged)
    yield from _explain_tests(own)
    if judged.status == "differs" and is_same_alone(own, alone):
        yield _explain_batching(null)
    if judged.cause == "undetermined" and own.rejected and own.may_be_rounding:
        yield (
            "More differ than in the null, but without margins rounding in the wider pass that verifies "
            "drafts cannot be told from another rule of acceptance"
        )
    if judged.cause is not None and own.load == ALL_LOADS:
        yield "The cause over all loads is the gravest of those at the single loads"
    yield from _explain_contract(judged, contract)


def _explain_greedy(arm: str, own: Evidence, greedy: GreedyComparison, judged: Judgement) -> Iterator[str]:
    said = f"{greedy.differing_prompts} of {count_prompts(greedy.prompts, 'greedy')} differ"
    if greedy.null_prompts is not None:
        said += f", {greedy.null_differing_prompts} of {greedy.null_prompts} in the null"
    elif arm != NULL_ARM:
        said += "; without a null arm the service's own variation is not known"
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
    tie = f"a tie of at most {margins.tie_nats:g} nat"
    said = f"{margins.tied} of {margins.known} divergences with a known margin lie at {tie}"
    if margins.null_largest_nats is not None and margins.null_largest_nats > margins.tie_nats:
        said += f" or of {margins.null_largest_nats:.3g} nat, as the null's do"
    return f"{said}; the largest margin is {margins.largest_nats:.3g} nat"


def _explain_tests(own: Evidence) -> Iterator[str]:
    for scope, words in (("sampled", "sampled answers"), ("length", "all answers")):
        tests = [one for one in own.tests if one.scope == scope]
        judged = [one for one in tests if one.differs is not None]
        shown = [one for one in judged if one.differs]
        if shown:
            names = ", ".join(f"{STATISTIC_WORDS[one.statistic]} (p = {one.adjusted_p:.2g})" for one in shown)
            yield f"Of {words} {len(shown)} of {len(judged)} statistics differ, corrected: {names}"
        elif judged and scope == "sampled":
            yield f"None of {len(judged)} statistics of {words} differs, corrected for their number"
        elif tests and scope == "sampled":
            yield f"Of {words} there are too few draws for any test to show a difference"


def _explain_batching(null: Evidence | None) -> str:
    said = "With one request in flight nothing differs"
    if null is None:
        return said
    return f"{said}; the null {'differs here as well' if null.greedy_differs or null.shifted else 'does not'}"


def _explain_contract(judged: Judgement, contract: str | None) -> Iterator[str]:
    if judged.is_contradicted:
        yield "The contract calls the outputs guaranteed by method, and these outputs contradict it"
    elif contract == "approximate":
        yield "The method is approximate by its contract: no test makes it lossless"
    elif contract == GUARANTEED and judged.status == "guaranteed":
        yield "The contract calls the outputs guaranteed by method, and no test contradicts it"


def _share(value: float) -> str:
    return f"{100 * value:.1f} %"
