"""What a service's counters gained over a period, and its gauges, from samples at its ends and during it.

A period's counters are used only if every replica was sampled at both ends and none fell in between. Means of
gauges are based on the samples taken during a period, because nothing runs at its ends; maxima are based on
all. What is not known is None (docs/metrics.md, "What the services say of themselves").
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise

import msgspec

from draftproof.core.records import TelemetrySample
from draftproof.judge.metrics import host_use as host
from draftproof.services.engines.facts import Series
from draftproof.services.engines.values import list_facts, parse_series, sum_by_label, sum_series

PeriodKey = tuple[str, int, str]  # load, block, arm
Values = Mapping[str, float]

# Counters that a `Series` names by quantity; the first name that is present counts.
COUNTED = (
    "spec_steps",
    "draft_tokens",
    "accepted_tokens",
    "generation_tokens",
    "prompt_tokens",
    "finished_requests",
    "engine_steps",
    "preemptions",
    "prefix_queries",
    "prefix_hits",
)
SUMMED = ("draft_seconds", "verify_seconds")
BY_POSITION = ("accepted_by_position", "drafted_by_position")
START_TIME = "process_start_time_seconds"


class Stretch(msgspec.Struct, frozen=True):
    """Samples of one source and replica in order of time, from one mark "start" to before the next."""

    samples: tuple[TelemetrySample, ...]

    @property
    def is_whole(self) -> bool:
        """Whether it was sampled at both ends of the period."""
        return self.samples[0].mark == "start" and self.samples[-1].mark == "end"

    @property
    def seconds(self) -> float:
        """Time from its first to its last sample."""
        return (self.samples[-1].at_ns - self.samples[0].at_ns) / 1e9


class PeriodSamples(msgspec.Struct, frozen=True, kw_only=True):
    """All samples of one arm's period: replica -> its stretches. A resumed period has several."""

    load: str
    block: int
    arm: str
    engine: dict[int, tuple[Stretch, ...]]
    host: dict[int, tuple[Stretch, ...]]

    @property
    def name(self) -> str:
        """The period as a sample names it: "load/block"."""
        return f"{self.load}/{self.block}"

    @property
    def seconds(self) -> float | None:
        """Time between its first and its last sample, without the pause of a resumed period."""
        longest = [
            sum(stretch.seconds for stretch in stretches)
            for stretches in (*self.engine.values(), *self.host.values())
        ]
        return max(longest, default=None)


class PeriodGains(msgspec.Struct, frozen=True, kw_only=True):
    """What a service's counters gained over one period, summed over replicas.

    `gains` has the quantities of `Series` that any sample of the period shows. `positions` is
    quantity -> draft position -> gain. `resets` names the counters that fell; `unused` says why the period
    cannot be used, None where it can.
    """

    gains: dict[str, float] = {}
    positions: dict[str, dict[int, float]] = {}
    resets: tuple[str, ...] = ()
    unused: str | None = None


def collect_periods(samples: Iterable[TelemetrySample]) -> dict[PeriodKey, PeriodSamples]:
    """Return the samples by period, in a fixed order; samples outside a period are left out."""
    parts: defaultdict[PeriodKey, dict[tuple[str, int], list[TelemetrySample]]] = defaultdict(dict)
    for sample in samples:
        key = _period_of(sample)
        if key is not None:
            parts[key].setdefault((sample.source, sample.replica), []).append(sample)
    return {key: _join(key, parts[key]) for key in sorted(parts)}


def read_gains(period: PeriodSamples, series: Series, replicas: Iterable[int]) -> PeriodGains:
    """Return what the counters of a period gained; one that lacks a replica of the arm cannot be used."""
    resets = tuple(sorted({name for stretch in _stretches(period) for name in find_resets(stretch, series)}))
    unused = _why_unused(period, tuple(replicas), resets)
    if unused is not None:
        return PeriodGains(resets=resets, unused=unused)
    ends = [(one.samples[0].values, one.samples[-1].values) for one in _stretches(period)]
    gains = {name: _sum_known(gain_of(*pair, getattr(series, name)) for pair in ends) for name in COUNTED}
    gains |= {
        name: _sum_known(gain_of_parts(*pair, getattr(series, name)) for pair in ends) for name in SUMMED
    }
    return PeriodGains(
        gains={name: gain for name, gain in gains.items() if gain is not None},
        positions={name: found for name in BY_POSITION if (found := _gain_by_position(ends, series, name))},
    )


def find_resets(stretch: Stretch, series: Series) -> Iterator[str]:
    """Yield every counter that fell or vanished inside a stretch, and a start time that changed.

    An engine without named series counts in whatever ends in `_total`, as Prometheus names counters.
    """
    names = list_counters(series)
    for before, after in pairwise(stretch.samples):
        for one, value in before.values.items():
            base, now = parse_series(one)[0], after.values.get(one)
            counts = base in names if names else base.endswith("_total")
            restarted = base == START_TIME and now is not None and now != value
            if restarted or (counts and (now is None or now < value)):
                yield one


def list_counters(series: Series) -> frozenset[str]:
    """Return the sample names of all counters of an engine, without labels."""
    named = [name for field in (*COUNTED, *SUMMED) for name in getattr(series, field)]
    named += [found[0] for field in BY_POSITION if (found := getattr(series, field)) is not None]
    return frozenset(parse_series(name)[0] for name in named)


def gain_of(start: Values, end: Values, names: Sequence[str]) -> float | None:
    """Return what the first counter that is present at the end gained; one absent at the start began at 0."""
    for name in names:
        after = sum_series(end, name)
        if after is not None:
            return after - (sum_series(start, name) or 0.0)
    return None


def gain_of_parts(start: Values, end: Values, names: Sequence[str]) -> float | None:
    """Return what all the counters of a sum gained together, None where none is present."""
    return _sum_known(gain_of(start, end, (name,)) for name in names)


def _gain_by_position(ends: Sequence[tuple[Values, Values]], series: Series, name: str) -> dict[int, float]:
    """Return draft position -> gain, empty where the engine does not count by position."""
    source = getattr(series, name)
    total: defaultdict[int, float] = defaultdict(float)
    for start, end in ends if source is not None else ():
        before = sum_by_label(start, *source)
        for label, after in sum_by_label(end, *source).items():
            if label.isdecimal():
                total[int(label)] += after - before.get(label, 0.0)
    return dict(sorted(total.items()))


def _why_unused(period: PeriodSamples, replicas: Sequence[int], resets: Sequence[str]) -> str | None:
    if resets:
        return f"{resets[0]} fell during it"
    missing = [one for one in replicas if one not in period.engine]
    if missing or not replicas:
        return "its service's metrics were not read" + (f" (replica {missing[0]})" if missing else "")
    if not all(stretch.is_whole for stretch in _stretches(period)):
        return "its service's metrics were not read at both ends"
    return None


def _stretches(period: PeriodSamples) -> list[Stretch]:
    return [stretch for replica in sorted(period.engine) for stretch in period.engine[replica]]


def _sum_known(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _period_of(sample: TelemetrySample) -> PeriodKey | None:
    load, slash, block = (sample.period or "").rpartition("/")
    return (load, int(block), sample.arm) if slash and block.isdecimal() else None


def _join(key: PeriodKey, parts: Mapping[tuple[str, int], list[TelemetrySample]]) -> PeriodSamples:
    def of(source: str) -> dict[int, tuple[Stretch, ...]]:
        found = {replica: samples for (kind, replica), samples in sorted(parts.items()) if kind == source}
        return {replica: tuple(_split(samples)) for replica, samples in found.items()}

    return PeriodSamples(load=key[0], block=key[1], arm=key[2], engine=of("engine"), host=of("host"))


def _split(samples: Iterable[TelemetrySample]) -> Iterator[Stretch]:
    """Cut at every mark "start": a resumed period is sampled from its start again."""
    part: list[TelemetrySample] = []
    for sample in sorted(samples, key=lambda one: one.at_ns):
        if sample.mark == "start" and part:
            yield Stretch(tuple(part))
            part = []
        part.append(sample)
    yield Stretch(tuple(part))


Read = Callable[[Mapping[str, float]], float | None]
LONGEST_LINE = 60


class GaugeSummary(msgspec.Struct, frozen=True):
    """A gauge over periods: mean over samples taken during them, maximum over all, and how many samples."""

    mean: float | None
    maximum: float
    samples: int


class Line(msgspec.Struct, frozen=True):
    """A gauge over an arm's own time at a load, its periods laid end to end: seconds and values."""

    times_s: tuple[float, ...]
    values: tuple[float, ...]


def read_sum(names: Sequence[str]) -> Read:
    """Return a reader of the first name that is present, summed over its series."""
    return partial(_read_first, names, pool=sum_series)


def read_mean(names: Sequence[str]) -> Read:
    """Return a reader of the first name that is present, averaged over its series: for shares."""

    def mean(values: Values, wanted: str) -> float | None:
        found = list_facts(values, wanted)
        return sum(found) / len(found) if found else None

    return partial(_read_first, names, pool=mean)


def _read_first(
    names: Sequence[str], values: Values, *, pool: Callable[[Values, str], float | None]
) -> float | None:
    found = (scaled(values, name, pool) for name in names)
    return next((one for one in found if one is not None), None)


def scaled(
    values: Mapping[str, float], name: str, pool: Callable[[Mapping[str, float], str], float | None]
) -> float | None:
    """Return a pooled series in the unit of its quantity."""
    found = pool(values, name)
    return None if found is None else found * host.SCALES.get(name, 1.0)


def summarise_gauge(
    periods: Iterable[PeriodSamples], read: Read, *, source: str = "engine", is_share: bool = False
) -> GaugeSummary | None:
    """Return mean and maximum of a gauge over periods, None where no sample has it.

    Over replicas counts are added up and shares averaged; the maximum of a share is that of any replica.
    """
    tracks = [track for period in periods for track in _tracks(period, source)]
    pooled = [point for track in tracks for point in _pool(track, read, is_share=is_share)]
    if not pooled:
        return None
    during = [point.value for point in pooled if point.mark == "during"]
    return GaugeSummary(
        mean=sum(during) / len(during) if during else None,
        maximum=max(point.highest if is_share else point.value for point in pooled),
        samples=len(during),
    )


def gain_of_counter(period: PeriodSamples, name: str) -> float | None:
    """Return what a counter of the machine gained over a period, None where it is absent or fell."""
    total = 0.0
    found = False
    for stretches in period.host.values():
        for stretch in stretches:
            values = [scaled(one.values, name, sum_series) for one in stretch.samples]
            if values[0] is None or values[-1] is None:
                continue
            if not stretch.is_whole or any(b < a for a, b in pairwise(v for v in values if v is not None)):
                return None
            total, found = total + values[-1] - values[0], True
    return total if found else None


def integrate_power(period: PeriodSamples, name: str) -> float | None:
    """Return the energy of a period in joules from samples of power, by trapezoids; None below two."""
    total = 0.0
    found = False
    for stretches in period.host.values():
        for stretch in stretches:
            points = [(one.at_ns, scaled(one.values, name, sum_series)) for one in stretch.samples]
            known = [(at_ns, watts) for at_ns, watts in points if watts is not None]
            if len(known) < 2:
                continue
            total += sum((b - a) / 1e9 * (v + w) / 2 for (a, v), (b, w) in pairwise(known))
            found = True
    return total if found else None


def draw_line(
    periods: Iterable[PeriodSamples], read: Read, *, source: str = "engine", is_share: bool = False
) -> Line | None:
    """Return a gauge over time, at most `LONGEST_LINE` points, each the mean of its neighbours."""
    points: list[tuple[float, float]] = []
    offset_s = 0.0
    for period in periods:
        for track in _tracks(period, source):
            times = [sample.at_ns for stretch in track for sample in stretch.samples]
            points += [
                (offset_s + (point.at_ns - min(times)) / 1e9, point.value)
                for point in _pool(track, read, is_share=is_share)
            ]
            offset_s += (max(times) - min(times)) / 1e9
    return _thin(points) if points else None


Track = tuple[Stretch, ...]  # one stretch of each replica, of the same pass over a period


class _Point(msgspec.Struct, frozen=True):
    """A gauge at one time: its value over all replicas, and that of the highest one."""

    at_ns: int
    mark: str | None
    value: float
    highest: float


def _tracks(period: PeriodSamples, source: str) -> list[Track]:
    """Return the passes over a period: the first stretches of all replicas, then the second ones."""
    replicas = list((period.engine if source == "engine" else period.host).values())
    longest = max((len(one) for one in replicas), default=0)
    return [tuple(one[index] for one in replicas if index < len(one)) for index in range(longest)]


def _pool(track: Track, read: Read, *, is_share: bool) -> list[_Point]:
    """Pool the replicas at every time at which all that ever say the gauge said it."""
    said: defaultdict[tuple[int, str | None], dict[int, float]] = defaultdict(dict)
    for index, stretch in enumerate(track):
        for sample in stretch.samples:
            value = read(sample.values)
            if value is not None:
                said[sample.at_ns, sample.mark][index] = value
    speaking = {index for values in said.values() for index in values}
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
