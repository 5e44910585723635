"""One number of a report with its interval, count and reason. Pure data, below every part of the results."""

import msgspec


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """One number: `value` with its interval [`low`, `high`] at `level`, from `n` samples."""

    value: float | None
    low: float | None = None
    high: float | None = None
    level: float | None = None
    n: int = 0
    needed: int | None = None
    reason: str | None = None
