"""Prometheus text to numbers, and what counters gained between two scrapes. Pure."""

from collections.abc import Mapping

import msgspec
from prometheus_client.parser import text_string_to_metric_families

_COUNTING_KINDS = frozenset({"counter", "histogram", "summary"})


class Exposition(msgspec.Struct, frozen=True):
    """One scrape: series -> value. `counting` are the series that only grow until the service restarts.

    A series is the sample's name with its labels in order, e.g. `requests_total{model="m",status="ok"}`.
    """

    values: dict[str, float]
    counting: frozenset[str]


def parse_exposition(text: str) -> Exposition:
    """Return the samples of a Prometheus text; timestamps and exemplars are dropped.

    Raises:
        ValueError: the text is not in the exposition format.
    """
    values: dict[str, float] = {}
    counting: set[str] = set()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            series = name_series(sample.name, sample.labels)
            values[series] = float(sample.value)
            if family.type in _COUNTING_KINDS and not sample.name.endswith("_created"):
                counting.add(series)
    return Exposition(values, frozenset(counting))


def name_series(name: str, labels: Mapping[str, str]) -> str:
    """Return the sample's name with its labels in alphabetical order."""
    if not labels:
        return name
    inner = ",".join(f"{key}={msgspec.json.encode(value).decode()}" for key, value in sorted(labels.items()))
    return f"{name}{{{inner}}}"


def compute_deltas(before: Exposition, after: Exposition) -> dict[str, float | None]:
    """Return what each counting series gained; None where it fell, i.e. the service started anew.

    A series that appears only in `after` started from zero; one that vanished is None.
    """
    deltas: dict[str, float | None] = {}
    for series in sorted(before.counting | after.counting):
        start, end = before.values.get(series, 0.0), after.values.get(series)
        deltas[series] = None if end is None or end < start else end - start
    return deltas
