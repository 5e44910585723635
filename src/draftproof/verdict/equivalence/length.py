"""Whether answers got shorter or longer, or are cut more often: paired over every answered prompt.

Pure. Greedy and sampled answers alike; a prompt is the unit, all its answers are swapped together.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from draftproof.stats.laws import student_quantile
from draftproof.stats.permutation import Swaps, difference_p_value, draw_swaps
from draftproof.stats.resampling import Floats, Ints, index_labels
from draftproof.verdict.equivalence.results import EquivalenceTest
from draftproof.verdict.figure import Figure
from draftproof.verdict.pairs import Pairs

NO_SPREAD = "every prompt shows the same difference, so there is no spread to make an interval of"
NOT_COUNTED = "no prompt was answered in both arms with this known"


def assess_lengths(pairs: Pairs, *, patterns: int, seed: int, level: float) -> list[EquivalenceTest]:
    """Test the mean length in tokens and the share of answers that the limit on tokens cut."""
    answered, columns = pairs.where(pairs.is_ok), pairs.columns
    if not answered:
        return []
    places = index_labels(columns.prompts[answered.mine])
    swaps = draw_swaps(int(places.max()) + 1, patterns, seed)
    return [
        _test("output_tokens", answered, columns.metric("output_tokens"), swaps, places=places, level=level),
        _test("cut_share", answered, columns.is_cut, swaps, places=places, level=level),
    ]


def mean_difference(by_prompt: Mapping[str, Sequence[float]], level: float) -> Figure:
    """Return the mean over prompts of the mean difference of each, Student's t interval over prompts."""
    return difference_of_means(np.array([np.mean(by_prompt[key]) for key in sorted(by_prompt)]), level)


def difference_of_means(means: Floats, level: float) -> Figure:
    """Return the mean of the prompts' mean differences, shape (prompts,), as `mean_difference` does."""
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
    name: str, pairs: Pairs, values: Floats, swaps: Swaps, *, places: Ints, level: float
) -> EquivalenceTest:
    """Test one value of each request, shape (observations,); `places` are the pairs' prompts."""
    mine, theirs = values[pairs.mine], values[pairs.theirs]
    known = ~(np.isnan(mine) | np.isnan(theirs))
    owners, n, prompts = places[known], int(known.sum()), int(places.max()) + 1
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
