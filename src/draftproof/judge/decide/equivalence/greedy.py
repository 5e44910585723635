"""Greedy outputs of an arm against the baseline's: how often they agree, and how close they part.

A prompt is what is counted: it differs if any of its repeats or appearances does. The null is the same
prompts answered by the baseline twice. Token ids are compared where both arms disclose them, else the text.
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from draftproof.judge.observe.pairs import NO_PAIRS, Pair, Pairs, PairTable
from draftproof.judge.observe.run_data import ALL_SEGMENTS, PreparedRun
from draftproof.judge.results.decide import (
    TIE_NATS,
    TIE_NATS_FLOAT32,
    EquivalenceTest,
    GreedyComparison,
    Margins,
    share_figure,
)
from draftproof.judge.results.run import Agreement, Figure
from draftproof.judge.stats.quantiles import binomial_at_least
from draftproof.judge.stats.shares import paired_share_difference, share_interval

NULL_ARM = "baseline_null"
NO_GREEDY = "no greedy item was answered in both arms"


def compute_agreements(prepared: PreparedRun, pairs: PairTable) -> tuple[Agreement, ...]:
    """Return the agreement of every arm with the baseline at every load."""
    level = prepared.plan.comparison.confidence
    return tuple(
        _compute_agreement(arm, load, pairs, level)
        for arm, versus in pairs
        if versus == "baseline"
        for load in prepared.loads
    )


def find_divergence(first: Sequence[int], second: Sequence[int]) -> int | None:
    """Return the index of the first differing token; a prefix differs where it ends; None if equal."""
    for index, (one, other) in enumerate(zip(first, second, strict=False)):
        if one != other:
            return index
    return None if len(first) == len(second) else min(len(first), len(second))


def _compute_agreement(arm: str, load: str, pairs: PairTable, level: float) -> Agreement:
    compared = _greedy(pairs[arm, "baseline"], load)
    same = int(compared.is_same.sum())
    return Agreement(
        arm=arm,
        versus="baseline",
        load=load,
        compared=len(compared),
        identical=same,
        identical_share=share_figure(same, len(compared), level, NO_GREEDY),
        first_divergence_tokens=tuple(sorted(_find_divergences(compared.where(~compared.is_same)))),
        statement=_state(arm, load, pairs, level),
    )


def _greedy(pairs: Pairs, load: str) -> Pairs:
    return pairs.cell(ALL_SEGMENTS, load).greedy


def _find_divergences(pairs: Iterable[Pair]) -> Iterable[int]:
    for pair in pairs:
        mine, theirs = pair.arm.record.token_ids, pair.versus.record.token_ids
        if mine is not None and theirs is not None:
            position = find_divergence(mine, theirs)
            if position is not None:
                yield position


def _state(arm: str, load: str, pairs: PairTable, level: float) -> str:
    """Say in words whether an arm disagrees with the baseline more often than the null arm does."""
    if arm == NULL_ARM:
        return "This is the null: the baseline against itself."
    if (NULL_ARM, "baseline") not in pairs:
        return "No null arm was run, so numerical variation cannot be told apart from a fault."
    mine, null = (_greedy(pairs[name, "baseline"], load) for name in (arm, NULL_ARM))
    # Both are paired with the same requests of the baseline.
    shared, own, other = np.intersect1d(mine.theirs, null.theirs, assume_unique=True, return_indices=True)
    if not len(shared):
        return "No greedy item was answered in the arm, the null and the baseline alike."
    differs, null_differs = ~mine.is_same[own], ~null.is_same[other]
    difference = paired_share_difference(
        int((differs & null_differs).sum()),
        int((differs & ~null_differs).sum()),
        int((~differs & null_differs).sum()),
        int((~differs & ~null_differs).sum()),
        level,
    )
    counts = (
        f"{int(differs.sum())} of {len(shared)} outputs differ from the baseline's, "
        f"{int(null_differs.sum())} of the null's"
    )
    beyond = difference.low is not None and difference.low > 0
    return f"{counts}: {'beyond' if beyond else 'not shown to be beyond'} what two equal services show."


NO_NULL = "without a null arm it is unknown what two equal services would show"


def compare_greedy(
    pairs: Pairs, null_pairs: Pairs | None, *, level: float, tie_nats: float
) -> GreedyComparison | None:
    """Return how the greedy outputs of an arm and the baseline compare; None where there are none.

    `null_pairs`: at the same loads, None without a null arm. `level` is of the exact one-sided limit; up to
    `tie_nats` a divergence is a matter of rounding.
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
    return binomial_at_least(arm_only, arm_only + null_only, 0.5)


def choose_tie_nats(precisions: Iterable[str | None]) -> float:
    """Return the tie size for the precisions that the contracts state; unknown counts as the coarse one."""
    fine = all(precision is not None and "32" in precision for precision in precisions)
    return TIE_NATS_FLOAT32 if fine else TIE_NATS


def find_margin(pair: Pair) -> float | None:
    """Return the margin of the two likeliest tokens where the outputs part, None where it is not known.

    Up to that position both arms saw the same tokens, so both tell the same margin but for rounding; of two
    the larger counts, so that a token which its arm's own scores do not support never passes for a tie.
    """
    mine, theirs = pair.arm.record, pair.versus.record
    if mine.token_ids is None or theirs.token_ids is None:
        return None
    position = find_divergence(mine.token_ids, theirs.token_ids)
    if position is None:
        return None
    known = [
        margin
        for record in (mine, theirs)
        if (margin := _margin_at(record.top_two_margins, position)) is not None
    ]
    return max(known, default=None)


def _margin_at(margins: Sequence[float | None] | None, position: int) -> float | None:
    return margins[position] if margins is not None and position < len(margins) else None


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
