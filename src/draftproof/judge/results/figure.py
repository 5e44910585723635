"""One number of a report with its interval, count and reason. Pure data, below every part of the results."""

import msgspec

from draftproof.judge.stats.bootstrap import MeanEstimate
from draftproof.judge.stats.shares import share_interval


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """One number: `value` with its interval [`low`, `high`] at `level`, from `n` samples.

    `needed`: how many more samples would help. `remedy`: what helps where no number of samples does.
    """

    value: float | None
    low: float | None = None
    high: float | None = None
    level: float | None = None
    n: int = 0
    needed: int | None = None
    reason: str | None = None
    remedy: str | None = None


def as_figure(found: MeanEstimate) -> Figure:
    """Return an estimate of a mean or of totals as a figure of the report."""
    return Figure(
        value=found.value,
        low=found.low,
        high=found.high,
        level=found.level,
        n=found.n,
        needed=found.needed,
        reason=found.reason,
    )


def describe(figure: Figure | None) -> str:
    """Return "0.62 (0.55 to 0.70)", or "unknown" where there is no value."""
    if figure is None or figure.value is None:
        return "unknown"
    if figure.low is None or figure.high is None:
        return f"{figure.value:.2f}"
    return f"{figure.value:.2f} ({figure.low:.2f} to {figure.high:.2f})"


def share_figure(count: int, n: int, level: float, reason: str) -> Figure:
    """Return count / n with its exact interval; `reason` says why there is none of nothing."""
    share = share_interval(count, n, level)
    why = None if n else reason
    return Figure(value=share.value, low=share.low, high=share.high, level=level, n=n, reason=why)
