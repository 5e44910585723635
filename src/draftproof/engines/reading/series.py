"""Sums over the series of a Prometheus exposition, given as series -> value. Pure.

A series is a sample name with its labels in alphabetical order, as `telemetry.prometheus` writes it.
"""

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache

import msgspec

_LABEL = re.compile(r'([A-Za-z_][A-Za-z0-9_]*)=("(?:[^"\\]|\\.)*")')


@lru_cache(maxsize=4096)
def parse_series(series: str) -> tuple[str, dict[str, str]]:
    """Return the sample name and the labels of a series."""
    name, _, inner = series.partition("{")
    return name, {key: _unquote(value) for key, value in _LABEL.findall(inner)}


def _unquote(quoted: str) -> str:
    """Return a label's value; escapes that JSON does not know stay as they are written."""
    try:
        return msgspec.json.decode(quoted, type=str)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return quoted[1:-1]


def sum_series(values: Mapping[str, float], wanted: str) -> float | None:
    """Return the sum over all series of a name that have the labels of `wanted`, None where there is none."""
    name, labels = parse_series(wanted)
    found = [value for series, value in values.items() if _matches(series, name, labels)]
    return sum(found) if found else None


def first_sum(values: Mapping[str, float], names: Sequence[str]) -> float | None:
    """Return the sum of the first name that is present, None where none is."""
    sums = (sum_series(values, name) for name in names)
    return next((value for value in sums if value is not None), None)


def sum_parts(values: Mapping[str, float], names: Sequence[str]) -> float | None:
    """Return the sum over all names that are present, None where none is."""
    found = [value for value in (sum_series(values, name) for name in names) if value is not None]
    return sum(found) if found else None


def sum_by_label(values: Mapping[str, float], name: str, label: str) -> dict[str, float]:
    """Return value of `label` -> sum over the series of `name` that have it."""
    sums: dict[str, float] = {}
    for series, value in values.items():
        found, labels = parse_series(series)
        if found.removesuffix("_total") == name.removesuffix("_total") and label in labels:
            sums[labels[label]] = sums.get(labels[label], 0.0) + value
    return sums


def _matches(series: str, name: str, labels: Mapping[str, str]) -> bool:
    found, has = parse_series(series)
    # A counter's `_total` is the parser's where the service leaves it out, and so it may be there or not.
    same = found.removesuffix("_total") == name.removesuffix("_total")
    return same and all(has.get(key) == value for key, value in labels.items())
