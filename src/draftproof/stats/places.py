"""Does one arm do better in some places of a block than in others? Beside `order.position_effect`."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import scipy

MINIMUM_TURNS = 3  # of one place: with fewer the chi-square of Kruskal & Wallis is no approximation


@dataclass(frozen=True, kw_only=True)
class PlaceComparison:
    """One factor per place, the geometric mean there over that of all turns, and the test of their likeness.

    None with a `reason` where it cannot be told; `needed` more turns in the place that has fewest.
    """

    ratios: tuple[float, ...] | None
    p: float | None
    turns: int
    reason: str | None = None
    needed: int | None = None


def compare_places(values: npt.ArrayLike, positions: npt.ArrayLike) -> PlaceComparison:
    """Return how positive values of independent turns differ by place: Kruskal & Wallis (1952).

    Args:
        values: shape (n,), one per turn of the arm, freed of what the block does to every arm.
        positions: shape (n,), place labels.

    Raises:
        ValueError: shapes differ.
    """
    logs, places = np.log(np.asarray(values, dtype=np.float64)), np.asarray(positions)
    if logs.shape != places.shape:
        raise ValueError(f"one place per value is needed, got {places.shape} for {logs.shape}")
    labels, index, sizes = np.unique(places, return_inverse=True, return_counts=True)
    if len(labels) < 2:
        return PlaceComparison(ratios=None, p=None, turns=len(logs), reason="there is one place only")
    fewest = int(sizes.min())
    if fewest < MINIMUM_TURNS:
        return PlaceComparison(
            ratios=None,
            p=None,
            turns=len(logs),
            reason=f"{fewest} of at least {MINIMUM_TURNS} turns in a place",
            needed=MINIMUM_TURNS - fewest,
        )
    means = np.bincount(index, weights=logs) / sizes
    ratios = tuple(float(ratio) for ratio in np.exp(means - logs.mean()))
    groups = [logs[index == place] for place in range(len(labels))]
    p = 1.0 if np.ptp(logs) == 0 else float(scipy.stats.kruskal(*groups).pvalue)
    return PlaceComparison(ratios=ratios, p=p, turns=len(logs))
