"""Gauges of a service and of its machine: mean and maximum over turns, energy, and values over time. Pure.

Means rest on the samples taken during a turn, because nothing runs at its ends; maxima rest on all samples.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise

import msgspec

from draftproof.judge.metrics import host_series as host
from draftproof.judge.metrics.telemetry import Stretch, TurnSamples
from draftproof.services.engines.values import list_facts, sum_series

Read = Callable[[Mapping[str, float]], float | None]
LONGEST_LINE = 60


class GaugeSummary(msgspec.Struct, frozen=True):
    """A gauge over turns: mean over samples taken during them, maximum over all, and how many samples."""

    mean: float | None
    maximum: float
    samples: int


class Line(msgspec.Struct, frozen=True):
    """A gauge over an arm's own time at a load, its turns laid end to end: seconds and values."""

    times_s: tuple[float, ...]
    values: tuple[float, ...]


def read_sum(names: Sequence[str]) -> Read:
    """Return a reader of the first name that is present, summed over its series."""
    return lambda values: next(
        (found for name in names if (found := scaled(values, name, sum_series)) is not None), None
    )


def read_mean(names: Sequence[str]) -> Read:
    """Return a reader of the first name that is present, averaged over its series: for shares."""
    return lambda values: next(
        (found for name in names if (found := scaled(values, name, mean_series)) is not None), None
    )


def mean_series(values: Mapping[str, float], wanted: str) -> float | None:
    """Return the mean over the series of a name with the labels of `wanted`, None where there is none."""
    found = list_facts(values, wanted)
    return sum(found) / len(found) if found else None


def scaled(
    values: Mapping[str, float], name: str, pool: Callable[[Mapping[str, float], str], float | None]
) -> float | None:
    """Return a pooled series in the unit of its quantity."""
    found = pool(values, name)
    return None if found is None else found * host.SCALES.get(name, 1.0)


def summarise_gauge(
    turns: Iterable[TurnSamples], read: Read, *, source: str = "engine", is_share: bool = False
) -> GaugeSummary | None:
    """Return mean and maximum of a gauge over turns, None where no sample has it.

    Over replicas counts are added up and shares averaged; the maximum of a share is that of any replica.
    """
    tracks = [track for turn in turns for track in _tracks(turn, source)]
    pooled = [point for track in tracks for point in _pool(track, read, is_share=is_share)]
    if not pooled:
        return None
    during = [point.value for point in pooled if point.mark == "during"]
    return GaugeSummary(
        mean=sum(during) / len(during) if during else None,
        maximum=max(point.highest if is_share else point.value for point in pooled),
        samples=len(during),
    )


def gain_of_counter(turn: TurnSamples, name: str) -> float | None:
    """Return what a counter of the machine gained over a turn, None where it is absent or fell."""
    total = 0.0
    found = False
    for stretches in turn.host.values():
        for stretch in stretches:
            values = [scaled(one.values, name, sum_series) for one in stretch.samples]
            if values[0] is None or values[-1] is None:
                continue
            if not stretch.is_whole or any(b < a for a, b in pairwise(v for v in values if v is not None)):
                return None
            total, found = total + values[-1] - values[0], True
    return total if found else None


def integrate_power(turn: TurnSamples, name: str) -> float | None:
    """Return the energy of a turn in joules from samples of power, by trapezoids; None below two."""
    total = 0.0
    found = False
    for stretches in turn.host.values():
        for stretch in stretches:
            points = [(one.at_ns, scaled(one.values, name, sum_series)) for one in stretch.samples]
            known = [(at_ns, watts) for at_ns, watts in points if watts is not None]
            if len(known) < 2:
                continue
            total += sum((b - a) / 1e9 * (v + w) / 2 for (a, v), (b, w) in pairwise(known))
            found = True
    return total if found else None


def draw_line(
    turns: Iterable[TurnSamples], read: Read, *, source: str = "engine", is_share: bool = False
) -> Line | None:
    """Return a gauge over time, at most `LONGEST_LINE` points, each the mean of its neighbours."""
    points: list[tuple[float, float]] = []
    offset_s = 0.0
    for turn in turns:
        for track in _tracks(turn, source):
            times = [sample.at_ns for stretch in track for sample in stretch.samples]
            points += [
                (offset_s + (point.at_ns - min(times)) / 1e9, point.value)
                for point in _pool(track, read, is_share=is_share)
            ]
            offset_s += (max(times) - min(times)) / 1e9
    return _thin(points) if points else None


Track = tuple[Stretch, ...]  # one stretch of each replica, of the same pass over a turn


class _Point(msgspec.Struct, frozen=True):
    """A gauge at one time: its value over all replicas, and that of the highest one."""

    at_ns: int
    mark: str | None
    value: float
    highest: float


def _tracks(turn: TurnSamples, source: str) -> list[Track]:
    """Return the passes over a turn: the first stretches of all replicas, then the second ones."""
    replicas = list((turn.engine if source == "engine" else turn.host).values())
    longest = max((len(one) for one in replicas), default=0)
    return [tuple(one[index] for one in replicas if index < len(one)) for index in range(longest)]


def _pool(track: Track, read: Read, *, is_share: bool) -> list[_Point]:
    """Pool the replicas at every time at which all that ever say the gauge said it."""
    said: defaultdict[tuple[int, str | None], dict[int, float]] = defaultdict(dict)
    for place, stretch in enumerate(track):
        for sample in stretch.samples:
            value = read(sample.values)
            if value is not None:
                said[sample.at_ns, sample.mark][place] = value
    speaking = {place for values in said.values() for place in values}
    return [
        _Point(
            at_ns,
            mark,
            sum(values.values()) / (len(values) if is_share else 1),
            max(values.values()),
        )
        for (at_ns, mark), values in sorted(said.items(), key=lambda one: one[0][0])
        if values.keys() == speaking
    ]


def _thin(points: Sequence[tuple[float, float]]) -> Line:
    size = -(-len(points) // LONGEST_LINE)
    groups = [points[start : start + size] for start in range(0, len(points), size)]
    return Line(
        tuple(sum(t for t, _ in group) / len(group) for group in groups),
        tuple(sum(v for _, v in group) / len(group) for group in groups),
    )
