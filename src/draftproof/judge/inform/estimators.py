"""How far the ways in which other tools compute 'inter-token latency' disagree on this very run. Pure."""

from draftproof.judge.metrics.estimators import EstimatorValue, rival_estimators
from draftproof.judge.observe.run_data import PreparedRun
from draftproof.judge.results.run import EstimatorRow


def compute_estimator_rows(prepared: PreparedRun) -> tuple[EstimatorRow, ...]:
    """Return one row per load and estimator, in the order in which the estimators are listed."""
    return tuple(row for load in prepared.loads for row in _compute_rows(prepared, load))


def _compute_rows(prepared: PreparedRun, load: str) -> list[EstimatorRow]:
    baseline, candidate, null = (
        _estimate(prepared, arm, load) for arm in ("baseline", "candidate", "baseline_null")
    )
    return [_to_row(load, name, baseline[name], candidate.get(name), null.get(name)) for name in baseline]


def _estimate(prepared: PreparedRun, arm: str, load: str) -> dict[str, EstimatorValue]:
    records = [one.record for one in prepared.of_arm(arm, load) if one.is_ok and one.timed]
    return {value.estimator: value for value in rival_estimators(records)}


def _to_row(
    load: str,
    name: str,
    baseline: EstimatorValue,
    candidate: EstimatorValue | None,
    null: EstimatorValue | None,
) -> EstimatorRow:
    return EstimatorRow(
        load=load,
        estimator=name,
        used_by=baseline.used_by,
        baseline_mean_ns=baseline.mean_ns,
        candidate_mean_ns=candidate.mean_ns if candidate else None,
        ratio_mean=_divide(candidate.mean_ns if candidate else None, baseline.mean_ns),
        ratio_p50=_divide(candidate.p50_ns if candidate else None, baseline.p50_ns),
        ratio_p99=_divide(candidate.p99_ns if candidate else None, baseline.p99_ns),
        null_ratio_mean=_divide(null.mean_ns if null else None, baseline.mean_ns),
    )


def _divide(numerator: float | None, denominator: float | None) -> float | None:
    return numerator / denominator if numerator is not None and denominator else None
