"""The rows of `results.json` on order, drift and the null difference. Pure data, a part of `results.Results`.

A figure that cannot be told is None with the reason and, below the sample floor, how many more are `needed`.
`adjusted_p` is Holm's over every test of place and drift in the run.
"""

import msgspec

from draftproof.judge.results.figure import Figure


class PlaceRow(msgspec.Struct, frozen=True, kw_only=True):
    """How the places in a block differ at one load: one factor per place, first position first.

    `arm` is "all" for the comparison over all arms (Friedman), else one arm's own periods (Kruskal & Wallis).
    """

    arm: str
    load: str
    metric: str
    ratios: tuple[float, ...] | None
    p: float | None
    adjusted_p: float | None
    blocks: int
    reason: str | None = None
    needed: int | None = None


class DriftRow(msgspec.Struct, frozen=True, kw_only=True):
    """Change over the blocks of one load: of an arm, or of the effect `arm` / `versus`.

    `factor_per_hour` is the Theil-Sen slope; `change` the factor over the `hours` from first to last block.
    """

    arm: str
    versus: str | None
    load: str
    metric: str
    factor_per_hour: float | None
    change: float | None
    hours: float | None
    p: float | None
    adjusted_p: float | None
    blocks: int
    reason: str | None = None
    needed: int | None = None


class NoiseRow(msgspec.Struct, frozen=True, kw_only=True):
    """What two equal arms show at one load over all segments: baseline_null / baseline.

    `null` has the interval of one comparison, `joint` the one that holds over all loads and metrics;
    `covers_one` is that of `joint`. `noise_floor` is how far `null` reaches from 1, as a factor;
    `null_difference` what it differs from 1 by beyond chance, which counts against gain and harm;
    `effect_beyond` whether the candidate's pooled effect lies wholly outside it.
    """

    load: str
    metric: str
    statistic: str
    null: Figure
    joint: Figure
    covers_one: bool | None
    noise_floor: float | None
    effect_beyond: bool | None
    null_difference: float | None = None


class BlockPoint(msgspec.Struct, frozen=True, kw_only=True):
    """`arm` / baseline in one block, geometric mean over its pairs; `hours` since the run's first block."""

    arm: str
    load: str
    block: int
    hours: float
    ratio: float
    pairs: int


class PrecedingRow(msgspec.Struct, frozen=True, kw_only=True):
    """What preceded the measurement periods of one arm at one load.

    `follows` counts its periods by the arm that was measured before; `after_pause` counts those before which
    the host was idle for longer than `preceding.PAUSE_S`. The first period of the run is left out.
    """

    arm: str
    load: str
    periods: int
    after_pause: int
    idle_median_s: float
    idle_max_s: float
    follows: dict[str, int]


class ProcessSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Which processes answered, and how far they lie apart in the deciding metric.

    `counts` has the fewest processes that answered for each arm at a load, None where that is not known.
    `spread` is the standard deviation between processes of an arm as a factor, pooled over arms and loads,
    with its degrees of freedom; None where blocks tell it as well as processes, or one process answered all.
    """

    metric: str
    counts: dict[str, int | None]
    spread: float | None
    degrees: float | None


class OrderSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Order and drift of the deciding metric, and the null difference of every metric."""

    places: tuple[PlaceRow, ...]
    drifts: tuple[DriftRow, ...]
    noise: tuple[NoiseRow, ...]
    points: tuple[BlockPoint, ...]
    preceding: tuple[PrecedingRow, ...] = ()
    processes: ProcessSummary | None = None
