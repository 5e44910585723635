"""Figures to twelve significant digits, so that two machines write the same bytes.

Sums, logarithms and exponentials may differ in their last bits between processors; no figure of a
measurement has twelve digits to lose.
"""

from typing import Any, TypeVar

import msgspec

SIGNIFICANT_DIGITS = 12
Figures = TypeVar("Figures", bound=msgspec.Struct)


def round_figures(figures: Figures) -> Figures:
    """Return the struct with every float in it rounded to `SIGNIFICANT_DIGITS` significant digits."""
    return msgspec.convert(_round(figures), type(figures))


def _round(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{SIGNIFICANT_DIGITS}g}")
    if isinstance(value, msgspec.Struct):
        value = msgspec.structs.asdict(value)
    if isinstance(value, dict):
        return {key: _round(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_round(one) for one in value]
    return value
