"""How long the rest of a run may take, from the turns that have ended. Pure.

A level that has not been run yet is priced by its own due times (open loop), or by the requests per second of
another closed loop, in proportion to the requests in flight. Starts, warm-ups and probes are left out.
"""

from collections import defaultdict
from collections.abc import Mapping

import msgspec

Place = tuple[str, str]  # load, arm


class LevelFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a level says of its pace: requests in flight, or seconds between requests that are due."""

    concurrency: int | None
    due_s_per_request: float | None = None


class Pace:
    """Adds up turns that have ended and prices what is left."""

    def __init__(self, levels: Mapping[str, LevelFacts]) -> None:
        self._levels = levels
        self._requests: defaultdict[Place, int] = defaultdict(int)
        self._seconds: defaultdict[Place, float] = defaultdict(float)

    def add(self, load: str, arm: str, requests: int, seconds: float) -> None:
        """Count a turn that has ended."""
        self._requests[load, arm] += requests
        self._seconds[load, arm] += seconds

    def estimate_s(self, left: Mapping[Place, int]) -> float | None:
        """Return the seconds that the requests left at each level and arm may take, None where unknown."""
        total_s = 0.0
        for (load, arm), requests in left.items():
            pace_s = self._seconds_per_request(load, arm) if requests > 0 else 0.0
            if pace_s is None:
                return None
            total_s += requests * pace_s
        return total_s

    def _seconds_per_request(self, load: str, arm: str) -> float | None:
        seen = self._seen({(load, arm)}) or self._seen({place for place in self._places if place[0] == load})
        return seen or self._levels[load].due_s_per_request or self._from_other_levels(load)

    def _from_other_levels(self, load: str) -> float | None:
        """Return what another closed loop took, as if each answer took as long at this one."""
        wanted = self._levels[load].concurrency
        if wanted is None:
            return None
        for other in sorted({place[0] for place in self._places}):
            concurrency = self._levels[other].concurrency
            seen = self._seen({place for place in self._places if place[0] == other})
            if concurrency is not None and seen is not None:
                return seen * concurrency / wanted
        return None

    @property
    def _places(self) -> tuple[Place, ...]:
        return tuple(self._requests)

    def _seen(self, places: set[Place]) -> float | None:
        requests = sum(self._requests.get(place, 0) for place in places)
        return sum(self._seconds.get(place, 0.0) for place in places) / requests if requests else None


def format_duration(seconds: float) -> str:
    """Write a duration roughly: seconds below a minute and a half, then minutes, then hours."""
    if seconds < 90:
        return f"{max(round(seconds), 0)} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"
