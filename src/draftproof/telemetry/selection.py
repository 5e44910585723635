"""Which lines of an exposition are kept, so that telemetry stays small and its parsing is not felt. Pure.

A scrape of a busy engine has thousands of lines, most of them buckets of histograms. Parsing them all takes
tens of milliseconds of the very process that times the answers, so lines are chosen before they are parsed.
"""

import math
from collections.abc import Collection, Mapping

import msgspec

from draftproof.engines.facts import Series
from draftproof.engines.reading.series import parse_series
from draftproof.metrics.host_series import DCGM_PREFIX, DCGM_SERIES
from draftproof.metrics.telemetry import START_TIME, list_counters
from draftproof.telemetry.prometheus import parse_exposition

_GAUGES = ("running", "waiting", "cache_usage")
_SKIPPED_PREFIXES = ("python_", "process_", "http_", "go_", "promhttp_")
# Of an engine whose series nobody knows, as many as a person would look through.
MOST_UNKNOWN = 200


class Selection(msgspec.Struct, frozen=True):
    """What is kept of one scrape: the engine's own series, and those of its machine."""

    engine: dict[str, float]
    host: dict[str, float]


def name_series_of(series: Series) -> frozenset[str]:
    """Return the sample names that an engine's facts name, empty for one without known series."""
    gauges = {parse_series(name)[0] for field in _GAUGES for name in getattr(series, field)}
    counters = list_counters(series)
    # Without its TYPE line a counter keeps the name under which the service writes it.
    return frozenset(counters | {name.removesuffix("_total") for name in counters} | gauges)


def select_values(text: str, names: Collection[str]) -> Selection:
    """Return the finite values of the chosen series of an exposition.

    Args:
        text: the exposition.
        names: sample names to keep; empty: all but buckets and the runtime's own, at most `MOST_UNKNOWN`.

    Raises:
        ValueError: nothing in the text is a sample, or a chosen line is not in the exposition format.
    """
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    if not any(_is_sample(line) for line in lines):
        raise ValueError("no line of it is a sample")
    host = [line for line in lines if _name(line) in DCGM_SERIES]
    engine = [line for line in lines if _is_kept(_name(line), names)]
    return Selection(
        engine=_parse(engine if names else engine[:MOST_UNKNOWN]),
        host=_parse(host),
    )


def keep_finite(values: Mapping[str, float]) -> dict[str, float]:
    """Return the values that are numbers: an undefined ratio is not known, and JSON has no word for it."""
    return {series: value for series, value in values.items() if math.isfinite(value)}


def _parse(lines: Collection[str]) -> dict[str, float]:
    return keep_finite(parse_exposition("\n".join(lines) + "\n").values)


def _is_kept(name: str, names: Collection[str]) -> bool:
    if names or name == START_TIME:
        return name in names or name == START_TIME
    skipped = name.startswith((*_SKIPPED_PREFIXES, DCGM_PREFIX)) or name.endswith(("_bucket", "_created"))
    return not skipped


def _name(line: str) -> str:
    """Return the sample name a line begins with."""
    return line.split("{", 1)[0].split(" ", 1)[0]


def _is_sample(line: str) -> bool:
    """Tell whether a line ends in a number after a name; a page of HTML has no such line."""
    name, _, rest = line.rpartition("}") if "}" in line else line.partition(" ")
    words = rest.split()
    return bool(name) and not line.lstrip().startswith("<") and bool(words) and _is_number(words[0])


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True
