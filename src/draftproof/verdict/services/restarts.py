"""Services that somebody else runs and that were started anew between two turns. Pure.

A restart inside a turn shows in its counters and makes them useless (services/faults.py). One between two
turns leaves every counter in order and yet a cold service: empty caches, graphs to capture.
"""

from collections.abc import Iterator
from itertools import pairwise

from draftproof.engines.reading.series import parse_series
from draftproof.metrics.telemetry import START_TIME, Stretch
from draftproof.verdict.run_data import PreparedRun
from draftproof.verdict.services.compute import ServiceReadings, arm_of


def list_restarts(prepared: PreparedRun, readings: ServiceReadings) -> Iterator[str]:
    """Yield a warning for each arm that is only attached to and whose process began anew between turns."""
    for arm in prepared.arms:
        if arm_of(prepared, arm).url is None:
            continue
        found = list(_find_restarts(readings, arm))
        if found:
            before, after = found[0]
            more = f" and {len(found) - 1} times more" if len(found) > 1 else ""
            yield (
                f"The service of {arm} was started anew between its turns {before} and {after}{more}, as its "
                f"{START_TIME} shows; it may have been cold in the later one."
            )


def _find_restarts(readings: ServiceReadings, arm: str) -> Iterator[tuple[str, str]]:
    """Yield the names of neighbouring turns between which a replica's start time changed."""
    turns = sorted((key[1], one.samples) for key, one in readings.turns.items() if key[2] == arm)
    replicas = sorted({replica for _, turn in turns for replica in turn.engine})
    for replica in replicas:
        own = [(turn.name, turn.engine[replica]) for _, turn in turns if replica in turn.engine]
        for (before, earlier), (after, later) in pairwise(own):
            ended, began = _read_start(earlier[-1], -1), _read_start(later[0], 0)
            if ended is not None and began is not None and ended != began:
                yield before, after


def _read_start(stretch: Stretch, place: int) -> float | None:
    values = stretch.samples[place].values
    times = [value for series, value in values.items() if parse_series(series)[0] == START_TIME]
    return max(times, default=None)
