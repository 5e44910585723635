"""The off-off null as a noise floor: what two equal arms show at each load, metric by metric. Pure."""

from draftproof.stats.multiplicity import simultaneous_intervals
from draftproof.stats.null import compare_with_null, null_difference
from draftproof.verdict.effects import (
    METRICS,
    EffectIndex,
    estimate_load,
    statistic_of,
    to_figure,
)
from draftproof.verdict.order.results import NoiseRow
from draftproof.verdict.pairs import Comparison, PairTable
from draftproof.verdict.run_data import ALL_SEGMENTS, PreparedRun

NULL: Comparison = ("baseline_null", "baseline")


def state_noise(prepared: PreparedRun, pairs: PairTable, effects: EffectIndex) -> tuple[NoiseRow, ...]:
    """Return one row per load and metric; none without a null arm."""
    if NULL not in pairs:
        return ()
    keys = [(load, metric) for load in prepared.loads for metric in METRICS]
    estimates = []
    for load, metric in keys:
        estimates.append(estimate_load(prepared, pairs[NULL], NULL, metric, load))
    joint = simultaneous_intervals(estimates, 1 - prepared.plan.comparison.confidence)
    rows = []
    for (load, metric), estimate, held in zip(keys, estimates, joint, strict=True):
        effect = effects[(metric, "candidate", "baseline", ALL_SEGMENTS, load)].ratio
        against = compare_with_null(effect, estimate)
        rows.append(
            NoiseRow(
                load=load,
                metric=metric,
                statistic=statistic_of(metric, prepared.plan.comparison.statistic),
                null=to_figure(estimate, low=estimate.low, high=estimate.high, level=estimate.level),
                joint=to_figure(estimate, low=held.low, high=held.high, level=held.level),
                covers_one=None if held.low is None or held.high is None else held.low <= 1 <= held.high,
                noise_floor=against.noise_floor,
                null_difference=null_difference(estimate.value, estimate.standard_error),
                effect_beyond=against.beyond_noise,
            )
        )
    return tuple(rows)
