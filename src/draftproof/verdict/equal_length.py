"""Times over the tokens that both answers of a pair have: no arm gains by the length of its answers. Pure.

Of a pair whose answers differ in length, both are read up to the last token of the shorter one. What the
longer answer took after that is in neither, however slow or fast it was.
"""

from bisect import bisect_left, bisect_right
from operator import attrgetter

import numpy as np

from draftproof.records import RequestRecord
from draftproof.stats.resampling import Floats
from draftproof.verdict.pairs import Pairs
from draftproof.verdict.run_data import Observation

_REACHED = attrgetter("cumulative_tokens")


def read_at_equal_length(pairs: Pairs, metric: str) -> Floats | None:
    """Return a time of each request at the length of its pair's shorter answer, shape (observations,).

    The time itself where both answers have one length, or where the stream does not count the tokens of its
    chunks. None where that is so of every pair: there is nothing else to read then.

    Args:
        pairs: of one comparison; a request is in one pair at most.
        metric: "tpot_ns" or "e2e_from_schedule_ns".
    """
    columns = pairs.columns
    values, tokens = columns.metric(metric), columns.metric("output_tokens")
    mine, theirs = tokens[pairs.mine], tokens[pairs.theirs]
    differing = np.flatnonzero(~np.isnan(mine) & ~np.isnan(theirs) & (mine != theirs))
    found, read = values.copy(), _READERS[metric]
    for place in differing.tolist():
        shorter = int(min(mine[place], theirs[place]))
        ends = [int(pairs.mine[place]), int(pairs.theirs[place])]
        times = [read(columns.observations[end], shorter) for end in ends]
        if None not in times:
            found[ends] = times
    return None if np.array_equal(found, values, equal_nan=True) else found


def read_rate(seen: Observation, tokens: int) -> float | None:
    """Return the time per token after the first chunk up to so many tokens, ns; None where it has none."""
    counts = _count(seen.record)
    if counts is None:
        return None
    last = max(1, bisect_right(counts, tokens) - 1)
    if last >= len(counts) or counts[last] == counts[0]:
        return None
    chunks = seen.record.chunks
    return (chunks[last].arrival_ns - chunks[0].arrival_ns) / (counts[last] - counts[0])


def read_arrival(seen: Observation, tokens: int) -> float | None:
    """Return the time from the schedule to the arrival of so many tokens, ns; None without counts."""
    counts = _count(seen.record)
    if counts is None:
        return None
    place = min(bisect_left(counts, tokens), len(counts) - 1)
    return float(seen.record.chunks[place].arrival_ns - seen.record.scheduled_ns)


_READERS = {"tpot_ns": read_rate, "e2e_from_schedule_ns": read_arrival}


def _count(record: RequestRecord) -> list[int] | None:
    """Return the cumulative tokens of the chunks, None where one is not known or there is none."""
    counts = [*map(_REACHED, record.chunks)]
    return None if not counts or None in counts else counts
