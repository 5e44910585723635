"""Greedy agreement: how often two arms gave the same output, against what two equal arms do.

Pure. Greedy items only, because sampled outputs of two arms may differ and both be right. Token ids are
compared where both arms disclose them, else the text.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from draftproof.stats.shares import paired_share_difference, share_interval
from draftproof.verdict.pairs import Pair, Pairs, PairTable
from draftproof.verdict.results import Agreement, Figure
from draftproof.verdict.run_data import ALL_SEGMENTS, PreparedRun

NULL_ARM = "baseline_null"


def compute_agreements(prepared: PreparedRun, pairs: PairTable) -> tuple[Agreement, ...]:
    """Return the agreement of every arm with the baseline at every load."""
    level = prepared.plan.comparison.confidence
    return tuple(
        _compute_agreement(arm, load, pairs, level)
        for arm, versus in pairs
        if versus == "baseline"
        for load in prepared.loads
    )


def is_greedy(pair: Pair) -> bool:
    """Return whether both outputs were asked for without any chance in them."""
    return pair.arm.item.sampling.temperature == 0


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
        identical_share=_to_share(same, len(compared), level),
        first_divergence_tokens=tuple(sorted(_find_divergences(compared.where(~compared.is_same)))),
        statement=_state(arm, load, pairs, level),
    )


def _greedy(pairs: Pairs, load: str) -> Pairs:
    return pairs.cell(ALL_SEGMENTS, load).greedy


def _to_share(count: int, n: int, level: float) -> Figure:
    share = share_interval(count, n, level)
    reason = None if n else "no greedy item was answered in both arms"
    return Figure(value=share.value, low=share.low, high=share.high, level=level, n=n, reason=reason)


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
    return f"{counts}: {'beyond' if beyond else 'not shown to be beyond'} what two equal arms show."
