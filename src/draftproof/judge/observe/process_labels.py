"""Which process of its arm answered each measurement period. Pure.

A service that the run starts is known by the number of its start; one that is attached to, by its address and
by the time at which its own metrics say that its process began. Arms behind one address share a process.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from draftproof.core.records import BlockRecord, TelemetrySample
from draftproof.judge.metrics.telemetry import START_TIME
from draftproof.judge.observe.observed import RunData, TurnKey
from draftproof.plan.schema import Arm
from draftproof.services.engines.values import parse_series

Labels = Mapping[TurnKey, str | None]


def label_processes(run: RunData) -> Labels:
    """Return what tells the process of each period from others, None where nothing does.

    A period that two processes answered, since a run was resumed in it, counts as the last one's.
    """
    begun = _read_begins(run.telemetry)
    periods = sorted(run.blocks, key=lambda one: (one.completed, one.ended_ns))
    return {
        (one.load, one.block, one.arm): _label(run, one, begun.get((one.load, one.block, one.arm), ()))
        for one in periods
    }


def list_processes(labels: Labels, load: str, arm: str) -> set[str | None]:
    """Return the labels of the processes that answered for an arm at a load."""
    return {label for (at, _, who), label in labels.items() if (at, who) == (load, arm)}


def _label(run: RunData, period: BlockRecord, begun: Sequence[float]) -> str | None:
    arm = _arm_of(run, period.arm)
    if arm is not None and arm.url is not None:
        return " ".join((arm.url.rstrip("/"), *map(str, begun)))
    number = period.process or max(_list_starts(run, period), default=None)
    return None if number is None else f"{period.arm} {number}"


def _arm_of(run: RunData, name: str) -> Arm | None:
    arms = run.plan.arms
    return arms.baseline if name == "baseline_null" else getattr(arms, name, None)


def _list_starts(run: RunData, period: BlockRecord) -> Iterator[int]:
    """Yield the starts of an arm that its warm-ups tell of, up to a period: what older runs noted."""
    for one in run.warmups:
        if one.arm == period.arm and one.started_ns <= period.started_ns:
            yield one.start


def _read_begins(telemetry: Sequence[TelemetrySample]) -> dict[TurnKey, tuple[float, ...]]:
    """Return when the processes of each period's service began, replica by replica, where it says so."""
    found: defaultdict[TurnKey, dict[tuple[int, str], float]] = defaultdict(dict)
    for one in telemetry:
        load, _, block = (one.turn or "").rpartition("/")
        if one.source == "engine" and block.isdecimal():
            for series, value in one.values.items():
                if series.startswith(START_TIME) and parse_series(series)[0] == START_TIME:
                    found[load, int(block), one.arm][one.replica, series] = value
    return {key: tuple(value for _, value in sorted(own.items())) for key, own in found.items()}
