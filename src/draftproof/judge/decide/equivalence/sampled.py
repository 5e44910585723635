"""Sampled outputs of two arms as distributions, and the lengths of all answers: permutation tests.

A unit is one request as both arms answered it, with the same seed: which arm gave which of the two answers is
swapped within prompt and repeat. The same request at several loads is one unit; for lengths the prompt is.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from draftproof.judge.metrics.sequence import SequenceFeatures, describe_sequence
from draftproof.judge.observe.pairs import Pair, Pairs, is_same_output
from draftproof.judge.results.decide import EquivalenceTest, Figure
from draftproof.judge.stats.permutation import (
    DistanceBlock,
    Swaps,
    category_p_value,
    difference_p_value,
    draw_swaps,
    energy_p_value,
)
from draftproof.judge.stats.quantiles import student_quantile
from draftproof.judge.stats.resampling import Floats, Ints, index_labels
from draftproof.judge.stats.shares import share_interval

NO_SPREAD = "every prompt shows the same difference, so there is no spread to make an interval of"
NOT_COUNTED = "no prompt was answered in both arms with this known"


def assess_lengths(pairs: Pairs, *, patterns: int, seed: int, level: float) -> list[EquivalenceTest]:
    """Test the mean length in tokens and the share of answers that the limit on tokens cut."""
    answered, columns = pairs.where(pairs.is_ok), pairs.columns
    if not answered:
        return []
    prompts_of_pairs = index_labels(columns.prompts[answered.mine])
    swaps = draw_swaps(int(prompts_of_pairs.max()) + 1, patterns, seed)
    return [
        _test(
            "output_tokens",
            answered,
            columns.metric("output_tokens"),
            swaps,
            prompts_of_pairs=prompts_of_pairs,
            level=level,
        ),
        _test("cut_share", answered, columns.is_cut, swaps, prompts_of_pairs=prompts_of_pairs, level=level),
    ]


def difference_of_means(means: Floats, level: float) -> Figure:
    """Return the mean of the prompts' mean differences, shape (prompts,), with Student's t interval."""
    n = len(means)
    if n < 2:
        return Figure(
            value=float(means[0]) if n else None,
            n=n,
            needed=2 - n,
            reason="an interval over prompts needs two of them",
        )
    centre, spread = float(means.mean()), float(means.std(ddof=1))
    if spread <= 0.0:
        return Figure(value=centre, n=n, reason=NO_SPREAD)
    reach = float(student_quantile(0.5 + level / 2, n - 1) * spread) / math.sqrt(n)
    return Figure(value=centre, low=centre - reach, high=centre + reach, level=level, n=n)


def _test(
    name: str, pairs: Pairs, values: Floats, swaps: Swaps, *, prompts_of_pairs: Ints, level: float
) -> EquivalenceTest:
    """Test one value of each request, shape (observations,); `owners_of_pairs` are the pairs' prompts."""
    mine, theirs = values[pairs.mine], values[pairs.theirs]
    known = ~(np.isnan(mine) | np.isnan(theirs))
    owners, n, prompts = prompts_of_pairs[known], int(known.sum()), int(prompts_of_pairs.max()) + 1
    mine, theirs = mine[known], theirs[known]
    # Whole numbers, so that no order of adding shows.
    counts = np.bincount(owners, minlength=prompts)
    means = np.bincount(owners, weights=mine - theirs, minlength=prompts) / np.maximum(counts, 1)
    return EquivalenceTest(
        scope="length",
        statistic=name,
        arm_value=float(mine.sum()) / n if n else None,
        versus_value=float(theirs.sum()) / n if n else None,
        difference=difference_of_means(means[counts > 0], level)
        if n
        else Figure(value=None, reason=NOT_COUNTED),
        units=int((counts > 0).sum()),
        p=difference_p_value(means, swaps) if n else None,
    )


UnitKey = tuple[str, int]  # item, repeat

NUMBERS: dict[str, Callable[[SequenceFeatures], float | None]] = {
    "output_tokens": lambda one: one.output_tokens,
    "distinct_share": lambda one: one.distinct_share,
    "repeated_share": lambda one: one.repeated_share,
}
STATISTICS = (*NUMBERS, "finish_reason", "first_token", "bigram_distance")
NOT_KNOWN = "no answer tells it"
WITHHELD = "the answers are withheld"
ONE_DRAW = "every prompt was drawn once: a distance between sets of draws needs two repeats"


class Draw(NamedTuple):
    """One request as both arms answered it."""

    unit: int
    prompt: tuple[str, str]  # load, prompt
    arm: SequenceFeatures
    versus: SequenceFeatures


class DrawSet(NamedTuple):
    """All draws of a comparison, the number of units and of prompts, and whether any two answers differ."""

    draws: tuple[Draw, ...]
    units: int
    prompts: int
    any_differs: bool


def collect_draws(pairs: Pairs, *, by_ids: bool) -> DrawSet:
    """Return the sampled pairs that both arms answered.

    Where both arms repeat themselves word for word in every repeat of a prompt, its repeats are no new draws
    and the first stands for all: a service that ignores the seed shows one draw, however often it is asked.
    """
    sampled = pairs.where(pairs.is_ok & ~pairs.columns.is_greedy[pairs.mine])
    names = pairs.columns.cluster_names(None)
    groups: defaultdict[tuple[str, str], list[Pair]] = defaultdict(list)
    for pair in sampled:
        groups[pair.load, names[pair.item_id]].append(pair)
    kept = [pair for group in groups.values() for pair in (group[:1] if _is_repeated(group) else group)]
    keys = sorted({_unit_key(pair) for pair in kept})
    index_of = {key: index for index, key in enumerate(keys)}
    draws = tuple(
        Draw(
            index_of[_unit_key(pair)],
            (pair.load, names[pair.item_id]),
            describe_sequence(pair.arm.record, by_ids=by_ids),
            describe_sequence(pair.versus.record, by_ids=by_ids),
        )
        for pair in kept
    )
    any_differs = not bool(sampled.is_same.all())
    return DrawSet(draws, len(keys), len({names[key[0]] for key in keys}), any_differs)


def assess_sequences(drawn: DrawSet, *, patterns: int, seed: int, level: float) -> list[EquivalenceTest]:
    """Return one test for each statistic of the draws, by `patterns` of swaps; none without draws."""
    if not drawn.units:
        return []
    swaps = draw_swaps(drawn.units, patterns, seed)
    return [
        *(_test_number(name, drawn, swaps, level) for name in NUMBERS),
        _test_finish(drawn, swaps),
        _test_distance("first_token", drawn, swaps, _first_distance),
        _test_distance("bigram_distance", drawn, swaps, _bigram_distance),
    ]


def bound_equal_draws(drawn: DrawSet, level: float) -> float | None:
    """Return the exact one-sided limit of the share of prompts that differ, if none does; None else."""
    return None if drawn.any_differs else share_interval(0, drawn.prompts, 2 * level - 1).high


def _unit_key(pair: Pair) -> UnitKey:
    return (pair.item_id, pair.arm.record.repeat)


def _is_repeated(group: Sequence[Pair]) -> bool:
    mine, theirs = group[0].arm.record, group[0].versus.record
    return all(
        is_same_output(mine, other.arm.record) and is_same_output(theirs, other.versus.record)
        for other in group[1:]
    )


def _test_number(name: str, drawn: DrawSet, swaps: Swaps, level: float) -> EquivalenceTest:
    read = NUMBERS[name]
    known = [
        (draw, mine, theirs)
        for draw in drawn.draws
        if (mine := read(draw.arm)) is not None and (theirs := read(draw.versus)) is not None
    ]
    if not known:
        return _untested(name, _why_unknown(drawn))
    differences, by_prompt = np.zeros(drawn.units), defaultdict(list)
    for draw, mine, theirs in known:
        differences[draw.unit] += mine - theirs
        by_prompt[draw.prompt[1]].append(mine - theirs)
    means = np.array([np.mean(by_prompt[key]) for key in sorted(by_prompt)])
    return EquivalenceTest(
        scope="sampled",
        statistic=name,
        arm_value=sum(mine for _, mine, _ in known) / len(known),
        versus_value=sum(theirs for _, _, theirs in known) / len(known),
        difference=difference_of_means(means, level),
        units=len({draw.unit for draw, _, _ in known}),
        p=difference_p_value(differences, swaps),
    )


def _test_finish(drawn: DrawSet, swaps: Swaps) -> EquivalenceTest:
    """Test how answers ended; the values are the shares that the limit on tokens cut."""
    known = [draw for draw in drawn.draws if draw.arm.finish_reason and draw.versus.finish_reason]
    if not known:
        return _untested("finish_reason", NOT_KNOWN)
    kinds = sorted({one.finish_reason or "" for draw in known for one in (draw.arm, draw.versus)})
    differences = np.zeros((drawn.units, len(kinds)))
    for draw in known:
        differences[draw.unit, kinds.index(draw.arm.finish_reason or "")] += 1
        differences[draw.unit, kinds.index(draw.versus.finish_reason or "")] -= 1
    mine, theirs = (sum(bool(one.is_cut) for one in side) / len(known) for side in _sides(known))
    return EquivalenceTest(
        scope="sampled",
        statistic="finish_reason",
        arm_value=mine,
        versus_value=theirs,
        difference=Figure(value=mine - theirs, n=len(known)),
        units=len({draw.unit for draw in known}),
        p=category_p_value(differences, swaps),
    )


def _sides(draws: Sequence[Draw]) -> tuple[list[SequenceFeatures], list[SequenceFeatures]]:
    return [draw.arm for draw in draws], [draw.versus for draw in draws]


def _test_distance(
    name: str,
    drawn: DrawSet,
    swaps: Swaps,
    distance: Callable[[SequenceFeatures, SequenceFeatures], float | None],
) -> EquivalenceTest:
    """Test the energy distance between the arms' sets of draws of each prompt, summed over prompts."""
    groups: defaultdict[tuple[str, str], list[Draw]] = defaultdict(list)
    for draw in drawn.draws:
        if distance(draw.arm, draw.versus) is not None:
            groups[draw.prompt].append(draw)
    several = [group for group in groups.values() if len(group) > 1]
    if not several:
        return _untested(name, ONE_DRAW if groups else _why_unknown(drawn))
    blocks = [_measure_block(group, distance) for group in several]
    return EquivalenceTest(
        scope="sampled",
        statistic=name,
        arm_value=None,
        versus_value=None,
        difference=Figure(value=None, n=sum(map(len, several)), reason="a distance has no sign"),
        units=len({draw.unit for group in several for draw in group}),
        p=energy_p_value(blocks, swaps),
    )


def _measure_block(
    group: Sequence[Draw], distance: Callable[[SequenceFeatures, SequenceFeatures], float | None]
) -> DistanceBlock:
    mine, theirs = _sides(group)

    def measure(rows: Sequence[SequenceFeatures], columns: Sequence[SequenceFeatures]) -> Floats:
        return np.array([[distance(one, other) or 0.0 for other in columns] for one in rows])

    return DistanceBlock(
        units=np.array([draw.unit for draw in group], dtype=np.intp),
        within_first=measure(mine, mine),
        within_second=measure(theirs, theirs),
        across=measure(mine, theirs),
    )


def _first_distance(one: SequenceFeatures, other: SequenceFeatures) -> float | None:
    """Return 0 for the same first token, 1 for another."""
    if one.first is None or other.first is None:
        return None
    return float(one.first != other.first)


def _bigram_distance(one: SequenceFeatures, other: SequenceFeatures) -> float | None:
    """Return Jaccard's distance of two sets of bigrams, 0 where both are empty.

    It is of negative type, as an energy distance needs: Jaccard's similarity is positive definite (Gower
    1971, Biometrics 27, 857-871).
    """
    if one.bigrams is None or other.bigrams is None:
        return None
    union = len(one.bigrams | other.bigrams)
    return 1 - len(one.bigrams & other.bigrams) / union if union else 0.0


def _why_unknown(drawn: DrawSet) -> str:
    hidden = any(one.bigrams is None for draw in drawn.draws for one in (draw.arm, draw.versus))
    return WITHHELD if hidden else NOT_KNOWN


def _untested(name: str, reason: str) -> EquivalenceTest:
    return EquivalenceTest(
        scope="sampled",
        statistic=name,
        arm_value=None,
        versus_value=None,
        difference=Figure(value=None, reason=reason),
        units=0,
        p=None,
    )
