"""Interim analyses: whether a load of a run goes on, from what it has shown so far. Pure.

A load ends where each of its cells is settled or futile. Its intervals hold at every analysis at once, so
they hold whatever ends it. Futility is not binding: who goes on all the same errs no more often.
"""

import math
from collections.abc import Sequence

import scipy

from draftproof.core.records import Analysis
from draftproof.judge.decide.decision import DecidedRun, decide_run
from draftproof.judge.decide.effects import EffectIndex, index_effects, margin_at
from draftproof.judge.decide.outcome import NO_GAIN
from draftproof.judge.observe.pairs import DECISIVE
from draftproof.judge.observe.run_data import PreparedRun, RunData
from draftproof.judge.results.run import Cell
from draftproof.judge.stats.quantiles import normal_quantile
from draftproof.judge.stats.spending import repeated_level

SETTLED = NO_GAIN | {"gain"}


def analyse(run: RunData, load: str, *, at_ns: int = 0, is_over: bool = False) -> Analysis:
    """Return the analysis of a load as a run stands; `is_over`: its budget of time is spent.

    Raises ValueError: the plan asks for none, or the load has not had enough blocks for one.
    """
    decided = decide_run(run)
    prepared = decided.evidence.prepared
    times = prepared.analysis_times.get(load, ())
    if not times:
        raise ValueError(f"load {load} has no analysis to be made")
    cells = [cell for cell in decided.cells if cell.load == load]
    undecided = [cell for cell in cells if cell.status not in SETTLED]
    futile = _list_futile(decided, undecided)
    is_ended = all(cell.segment in futile for cell in undecided)
    planned = len(prepared.planned_blocks[load])
    return Analysis(
        load=load,
        blocks=round(times[-1] * planned),
        planned=planned,
        segments=tuple(cell.segment for cell in cells),
        statuses=tuple(cell.status for cell in cells),
        futile=futile,
        ended=("futile" if undecided else "settled") if is_ended else "budget" if is_over else None,
        at_ns=at_ns,
    )


def _list_futile(decided: DecidedRun, undecided: Sequence[Cell]) -> tuple[str, ...]:
    prepared = decided.evidence.prepared
    sequential, effects = prepared.plan.sequential, index_effects(decided.evidence.effects)
    assert sequential is not None  # noqa: S101 - who analyses has a sequential plan
    chances = {cell.segment: chance_to_settle(prepared, effects, cell) for cell in undecided}
    return tuple(
        name for name, chance in chances.items() if chance is not None and chance < sequential.futility
    )


def chance_to_settle(prepared: PreparedRun, effects: EffectIndex, cell: Cell) -> float | None:
    """Return the predictive chance that all blocks of the plan settle the effect of a cell.

    Of an estimate that is the truth but for its own error (Spiegelhalter, Freedman & Blackburn 1986); its
    error shrinks as the root of the blocks. None where there is no estimate, or the effect is settled.
    """
    metric, plan = prepared.plan.comparison.metric, prepared.plan
    effect = effects[(metric, *DECISIVE, cell.segment, cell.load)]
    times = prepared.analysis_times[cell.load]
    if not effect.ratio.value or not effect.standard_error or cell.reasons[0].code != "effect_inconclusive":
        return None
    now, error, at = math.log(effect.ratio.value), effect.standard_error, times[-1]
    last = error * math.sqrt(at)
    spread = math.sqrt((1 - at) * last**2 + ((1 - at) * error) ** 2)
    reach = last * normal_quantile(0.5 + _last_level(prepared, effects, cell.load) / 2)
    apart = math.log(margin_at(effects, metric, cell.load))
    least = math.log(1 - plan.thresholds.minimum_gain)
    gains, does_not = least - reach - apart, least + reach + apart
    return float(scipy.special.ndtr((gains - now) / spread) + scipy.special.ndtr((now - does_not) / spread))


def _last_level(prepared: PreparedRun, effects: EffectIndex, load: str) -> float:
    """Return the level of a joint interval after all analyses of a load."""
    sequential, choice = prepared.plan.sequential, prepared.plan.comparison
    assert sequential is not None  # noqa: S101 - who analyses has a sequential plan
    known = [
        one
        for key, one in effects.items()
        if key[:3] == (choice.metric, *DECISIVE) and one.simultaneous.low is not None
    ]
    times = (*prepared.analysis_times[load], 1.0)
    return repeated_level((1 - choice.confidence) / max(1, len(known)), times, sequential.spending)
