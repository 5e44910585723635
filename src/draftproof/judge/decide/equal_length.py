"""Times over the tokens that both answers of a pair have, and pairs that an arm takes out by hiding a figure.

Of a pair whose answers differ in length both are read up to the last token of the shorter one. An arm that
answers slow requests in a way that hides their times would look fast on the rest.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from operator import attrgetter

import msgspec
import numpy as np

from draftproof.core.records import RequestRecord
from draftproof.judge.decide.effects import METRICS, CellKey
from draftproof.judge.decide.guardrails import Finding, find
from draftproof.judge.observe.columns import FROM_PROMPT, Columns
from draftproof.judge.observe.pairs import Pairs
from draftproof.judge.observe.run_data import Observation, PreparedRun
from draftproof.judge.stats.resampling import Floats

WORDS = {
    "tpot_ns": "time per token",
    "ttft_from_schedule_ns": "time to first token",
    "e2e_from_schedule_ns": "end-to-end time",
    "output_tokens": "length of the answer",
}


class Coverage(msgspec.Struct, frozen=True, kw_only=True):
    """In how many answered, timed pairs of a cell the other arm has a metric, and this arm lacks it."""

    metric: str
    known: int
    hidden: int


def count_hidden(prepared: PreparedRun, pairs: Pairs) -> dict[CellKey, tuple[Coverage, ...]]:
    """Return, by cell, how often the arm hides each metric that its partner shows."""
    return {
        (segment, load): tuple(
            _cover(prepared.columns, pairs.cell(segment, load), metric) for metric in METRICS
        )
        for load in prepared.loads
        for segment in prepared.segments
    }


def judge_coverage(
    cell: CellKey, hidden: Mapping[CellKey, tuple[Coverage, ...]], margin: float
) -> tuple[Finding, ...]:
    """Return one open finding for each metric that the candidate hides in more than `margin` of the pairs."""
    return tuple(_explain(cell, one) for one in hidden.get(cell, ()) if one.hidden > margin * one.known)


def _cover(columns: Columns, pairs: Pairs, metric: str) -> Coverage:
    mine, theirs = pairs.mine, pairs.theirs
    answered = columns.is_ok & columns.timed
    if metric in FROM_PROMPT:
        answered &= ~columns.asks_again
    usable = columns.in_order & (columns.metric(metric) > 0)
    known = answered[mine] & answered[theirs] & usable[theirs]
    return Coverage(metric=metric, known=int(known.sum()), hidden=int((known & ~usable[mine]).sum()))


def _explain(cell: CellKey, one: Coverage) -> Finding:
    text = (
        f"The candidate's {WORDS[one.metric]} is not usable in {one.hidden} of {one.known} pairs in which "
        "the baseline's is, so what the others show may be chosen."
    )
    return find("open", "metric_hidden", text, f"effects {one.metric}", cell)


_REACHED = attrgetter("cumulative_tokens")


def read_at_equal_length(pairs: Pairs, metric: str) -> Floats | None:
    """Return a time of each request at the length of its pair's shorter answer, shape (observations,).

    `metric` is "tpot_ns" or "e2e_from_schedule_ns". The time itself where both answers have one length or the
    stream does not count its chunks; None where that is so of every pair.
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
