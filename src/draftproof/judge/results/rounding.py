"""Figures to twelve significant digits, so that two machines write the same bytes.

Sums, logarithms and exponentials may differ in their last bits between processors; no figure of a
measurement has twelve digits to lose.
"""

from typing import Any

import msgspec

from draftproof.judge.results.run import Results

SIGNIFICANT_DIGITS = 12


def round_figures(results: Results) -> Results:
    """Return the results with every float rounded to `SIGNIFICANT_DIGITS` significant digits."""
    return msgspec.convert(_round(msgspec.to_builtins(results)), Results)


def _round(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{SIGNIFICANT_DIGITS}g}")
    if isinstance(value, dict):
        return {key: _round(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_round(one) for one in value]
    return value
