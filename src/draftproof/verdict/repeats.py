"""What a journal holds twice, left out: what was measured once is counted once.

A run writes every counted request once, and every other line at a time of its own. A line that stands there
again was copied, by a tool that joined files or by hand. Pure.
"""

from collections import defaultdict
from collections.abc import Hashable, Iterable
from typing import TypeVar

import msgspec

from draftproof.records import BlockRecord, RequestRecord
from draftproof.verdict.observed import RunData

_Line = TypeVar("_Line", RequestRecord, BlockRecord)


def without_repeats(run: RunData) -> RunData:
    """Return a run in which every counted request, every other request and every turn's line is once.

    Of counted requests with one id the one that ended first is kept, whatever the order on disk; equal ends
    are told apart by content.
    """
    records, blocks = _keep_first(run.records), _keep_first(run.blocks)
    if len(records) == len(run.records) and len(blocks) == len(run.blocks):
        return run
    return msgspec.structs.replace(run, records=records, blocks=blocks)


def count_counted(records: Iterable[RequestRecord]) -> int:
    """Return how many records are of counted requests."""
    return sum(record.phase == "measure" for record in records)


def warn_about_lines(before: RunData, after: RunData) -> tuple[str, ...]:
    """Say how many lines beside those of counted requests, which have a count of their own, were left out."""
    uncounted = [len(run.records) - count_counted(run.records) + len(run.blocks) for run in (before, after)]
    lost = uncounted[0] - uncounted[1]
    return (f"{lost} lines of turns or uncounted requests repeat another; each counts once.",) if lost else ()


def identify(line: RequestRecord | BlockRecord) -> Hashable:
    """Return what no two lines of a run share.

    A request that was stopped is asked again under its id; its own record says when it was asked. A turn that
    was broken off and gone on with has several lines, each with its own times.
    """
    if isinstance(line, BlockRecord):
        own = (line.attempt, line.boot, line.started_ns, line.ended_ns, line.completed)
        return (line.load, line.block, line.arm, *own)
    if line.phase == "measure":
        return line.request_id
    return (line.request_id, line.phase, line.scheduled_ns, line.end_ns)


def _keep_first(lines: tuple[_Line, ...]) -> tuple[_Line, ...]:
    names = [identify(line) for line in lines]
    if len(set(names)) == len(names):
        return lines
    same: defaultdict[Hashable, list[_Line]] = defaultdict(list)
    for name, line in zip(names, lines, strict=True):
        same[name].append(line)
    return tuple(found[0] if len(found) == 1 else min(found, key=_rank) for found in same.values())


def _rank(line: RequestRecord | BlockRecord) -> tuple[int, bytes]:
    ended_ns = line.end_ns if isinstance(line, RequestRecord) else line.ended_ns
    return ended_ns, msgspec.json.encode(line)
