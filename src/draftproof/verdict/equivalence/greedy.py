"""Greedy outputs of an arm against the baseline's: how many prompts differ, beyond the null, and how close.

Pure. A prompt is what is counted: its repeats, and its appearances at several loads, rise and fall together,
so a prompt differs if any of them does. The null is the same prompts answered by the baseline twice.
"""

from collections.abc import Iterable, Mapping, Sequence

import scipy

from draftproof.stats.shares import share_interval
from draftproof.verdict.equivalence.agreement import find_divergence
from draftproof.verdict.equivalence.results import (
    TIE_NATS,
    TIE_NATS_FLOAT32,
    EquivalenceTest,
    GreedyComparison,
    Margins,
)
from draftproof.verdict.figure import Figure
from draftproof.verdict.pairs import NO_PAIRS, Pair, Pairs

NO_NULL = "without a null arm there is no telling what two equal arms would show"


def compare_greedy(
    pairs: Pairs, null_pairs: Pairs | None, *, level: float, tie_nats: float
) -> GreedyComparison | None:
    """Return how the greedy outputs compare; None where there are none.

    Args:
        pairs: of the arm with the baseline, at one load or at all.
        null_pairs: of the null with the baseline, at the same loads; None without a null arm.
        level: coverage of the exact one-sided limit.
        tie_nats: margin up to which a divergence is a matter of rounding.
    """
    compared = pairs.greedy
    if not compared:
        return None
    null = None if null_pairs is None else null_pairs.greedy
    states, null_states = compared.differing_prompts, None if null is None else null.differing_prompts
    shared = states.keys() & null_states.keys() if null_states else set()
    return GreedyComparison(
        pairs=len(compared),
        prompts=len(states),
        differing_pairs=int((~compared.is_same).sum()),
        differing_prompts=sum(states.values()),
        null_prompts=len(shared) if null_states else None,
        null_differing_prompts=sum(null_states[key] for key in shared) if null_states else None,
        beyond_null=_bound(states, null_states, level),
        margins=_measure_margins(compared, null or NO_PAIRS, tie_nats),
    )


def assess_beyond_null(pairs: Pairs, null_pairs: Pairs | None, level: float) -> EquivalenceTest | None:
    """Test whether more prompts differ in the arm than in the null, on the prompts of both.

    McNemar's test in its exact form, one-sided: of the prompts that differ in one of the two only, more than
    half differ in the arm. None without greedy outputs.
    """
    states = pairs.greedy.differing_prompts
    if not states:
        return None
    null_states = {} if null_pairs is None else null_pairs.greedy.differing_prompts
    shared = sorted(states.keys() & null_states.keys())
    arm_only = sum(states[key] and not null_states[key] for key in shared)
    null_only = sum(null_states[key] and not states[key] for key in shared)
    n = len(shared)
    reason = None if n else NO_NULL
    return EquivalenceTest(
        scope="greedy",
        statistic="differing_prompts",
        arm_value=sum(states[key] for key in shared) / n if n else None,
        versus_value=sum(null_states[key] for key in shared) / n if n else None,
        difference=Figure(value=(arm_only - null_only) / n if n else None, n=n, level=level, reason=reason),
        units=n,
        p=exact_one_sided(arm_only, null_only) if n else None,
    )


def exact_one_sided(arm_only: int, null_only: int) -> float:
    """Return P(at least `arm_only` of the discordant | each falls either way alike); 1 if there are none."""
    if not arm_only + null_only:
        return 1.0
    return float(scipy.stats.binomtest(arm_only, arm_only + null_only, 0.5, alternative="greater").pvalue)


def choose_tie_nats(precisions: Iterable[str | None]) -> float:
    """Return the tie size for the precisions that the contracts state; unknown counts as the coarse one."""
    fine = all(precision is not None and "32" in precision for precision in precisions)
    return TIE_NATS_FLOAT32 if fine else TIE_NATS


def find_margin(pair: Pair) -> float | None:
    """Return the margin of the two likeliest tokens where the outputs part, None where it is not known.

    Up to that place both arms saw the same tokens, so both tell the same margin but for rounding; of two the
    larger counts, so that a token which its arm's own scores do not support never passes for a tie.
    """
    mine, theirs = pair.arm.record, pair.versus.record
    if mine.token_ids is None or theirs.token_ids is None:
        return None
    place = find_divergence(mine.token_ids, theirs.token_ids)
    if place is None:
        return None
    known = [
        margin
        for record in (mine, theirs)
        if (margin := _margin_at(record.top_two_margins, place)) is not None
    ]
    return max(known, default=None)


def _margin_at(margins: Sequence[float | None] | None, place: int) -> float | None:
    return margins[place] if margins is not None and place < len(margins) else None


def _bound(states: Mapping[str, bool], null_states: Mapping[str, bool] | None, level: float) -> Figure:
    """Return the share of prompts that differ and not in the null, with Clopper-Pearson's one-sided limit.

    A prompt that the null did not answer counts as one that would not differ there.
    """
    null = null_states or {}
    count = sum(differs and not null.get(key, False) for key, differs in states.items())
    limit = share_interval(count, len(states), 2 * level - 1)
    return Figure(value=limit.value, high=limit.high, level=level, n=len(states))


def _measure_margins(pairs: Pairs, null_pairs: Pairs, tie_nats: float) -> Margins:
    parted, null_parted = pairs.where(~pairs.is_same), null_pairs.where(~null_pairs.is_same)
    known = [margin for pair in parted if (margin := find_margin(pair)) is not None]
    null = [margin for pair in null_parted if (margin := find_margin(pair)) is not None]
    null_largest = max(null, default=None)
    allowed = max(tie_nats, null_largest or 0.0)
    return Margins(
        tie_nats=tie_nats,
        divergences=len(parted),
        known=len(known),
        tied=sum(margin <= allowed for margin in known),
        largest_nats=max(known, default=None),
        null_largest_nats=null_largest,
    )
