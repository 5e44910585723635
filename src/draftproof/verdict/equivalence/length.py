"""Whether answers got shorter or longer, or are cut more often: paired over every answered prompt.

Pure. Greedy and sampled answers alike; a prompt is the unit, all its answers are swapped together.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
from scipy.stats import t as student

from draftproof.metrics.request import count_output_tokens
from draftproof.records import RequestRecord
from draftproof.stats.permutation import Swaps, difference_p_value, draw_swaps
from draftproof.verdict.equivalence.results import EquivalenceTest
from draftproof.verdict.figure import Figure
from draftproof.verdict.pairs import Pair

NO_SPREAD = "every prompt shows the same difference, so there is no spread to make an interval of"
NOT_COUNTED = "no prompt was answered in both arms with this known"


def assess_lengths(pairs: Iterable[Pair], *, patterns: int, seed: int, level: float) -> list[EquivalenceTest]:
    """Test the mean length in tokens and the share of answers that the limit on tokens cut."""
    answered = [pair for pair in pairs if pair.is_ok]
    prompts = sorted({pair.item_id for pair in answered})
    if not prompts:
        return []
    swaps = draw_swaps(len(prompts), patterns, seed)
    return [
        _test("output_tokens", answered, _length, swaps, prompts=prompts, level=level),
        _test("cut_share", answered, _cut, swaps, prompts=prompts, level=level),
    ]


def mean_difference(by_prompt: Mapping[str, Sequence[float]], level: float) -> Figure:
    """Return the mean over prompts of the mean difference of each, Student's t interval over prompts."""
    means = np.array([np.mean(by_prompt[key]) for key in sorted(by_prompt)])
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
    reach = float(student.ppf(0.5 + level / 2, n - 1) * spread) / math.sqrt(n)
    return Figure(value=centre, low=centre - reach, high=centre + reach, level=level, n=n)


def _test(
    name: str,
    pairs: Iterable[Pair],
    read: Callable[[RequestRecord], float | None],
    swaps: Swaps,
    *,
    prompts: Sequence[str],
    level: float,
) -> EquivalenceTest:
    by_prompt: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
    for pair in pairs:
        mine, theirs = read(pair.arm.record), read(pair.versus.record)
        if mine is not None and theirs is not None:
            by_prompt[pair.item_id].append((mine, theirs))
    gaps = {key: [mine - theirs for mine, theirs in both] for key, both in by_prompt.items()}
    known = [both for key in prompts for both in by_prompt.get(key, ())]
    differences = np.array([float(np.mean(gaps[key])) if key in gaps else 0.0 for key in prompts])
    return EquivalenceTest(
        scope="length",
        statistic=name,
        arm_value=sum(mine for mine, _ in known) / len(known) if known else None,
        versus_value=sum(theirs for _, theirs in known) / len(known) if known else None,
        difference=mean_difference(gaps, level) if known else Figure(value=None, reason=NOT_COUNTED),
        units=len(gaps),
        p=difference_p_value(differences, swaps) if known else None,
    )


def _length(record: RequestRecord) -> float | None:
    return count_output_tokens(record)


def _cut(record: RequestRecord) -> float | None:
    return None if record.finish_reason is None else float(record.finish_reason == "length")
