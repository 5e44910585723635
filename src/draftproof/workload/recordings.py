"""From recorded arrivals to items of a workload: a window of the recording, prompts, limits and labels.

Pure. A trace that keeps no words gets invented ones of the recorded length (`filler.py`), and its items say
so in the label `prompts`: the arrivals and the lengths of such a run are recorded, the words are not.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from draftproof.errors import WorkloadError
from draftproof.workload.filler import make_filler
from draftproof.workload.ids import check_ids
from draftproof.workload.items import Item, Message
from draftproof.workload.moments import NS_PER_S
from draftproof.workload.traces import TracedArrival

PROMPTS, FILLER = "prompts", "filler"
# Some 300 MB of text, in memory and in the run's workload.jsonl.
MOST_FILLER_TOKENS = 50_000_000
_PROMPT_EDGES = (256, 1024, 4096)
_ANSWER_EDGES = (64, 256, 1024)

Evidence = Literal["representative", "synthetic", "smoke"]


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a recording that is used, in seconds from its first arrival.

    `duration_s` and `requests` bound it, both where both are given; None: to the end.
    """

    start_s: float = 0.0
    duration_s: float | None = None
    requests: int | None = None


def cut(due_ns: Sequence[int], window: Window, place: str) -> slice:
    """Return which of the arrivals a window takes, of times in order, the first at 0.

    Raises:
        WorkloadError: no arrival lies in the window.
    """
    start_ns = round(window.start_s * NS_PER_S)
    first, end = bisect_left(due_ns, start_ns), len(due_ns)
    if window.duration_s is not None:
        end = bisect_left(due_ns, start_ns + round(window.duration_s * NS_PER_S))
    if window.requests is not None:
        end = min(end, first + window.requests)
    if first >= end:
        last_s = due_ns[-1] / NS_PER_S if due_ns else 0.0
        raise WorkloadError(
            f"no request was recorded in the window; the last one came at {last_s:g} s",
            place=f"{place}, workload.window",
            fix="choose an earlier start_s or a longer duration_s.",
        )
    return slice(first, end)


def make_items(arrivals: Sequence[TracedArrival], place: str) -> tuple[Item, ...]:
    """Return an item for each arrival, its prompt invented and its limit the recorded length of the answer.

    An answer of no token, which some traces write for a failed request, is asked for one token, so that the
    arrival stays.

    Raises:
        WorkloadError: an arrival without a length of its prompt, or more text than fits.
    """
    for arrival in arrivals:
        if arrival.prompt_tokens is None:
            raise WorkloadError(
                "this line has neither a prompt nor prompt_tokens",
                place=f"{place}:{arrival.line}",
                fix="state prompt_tokens, or write every request with its messages.",
            )
    _check_names(arrivals, place)
    wanted = sum(arrival.prompt_tokens or 0 for arrival in arrivals)
    if wanted > MOST_FILLER_TOKENS:
        raise WorkloadError(
            f"the {len(arrivals):,} recorded prompts have {wanted:,} tokens together, and at most "
            f"{MOST_FILLER_TOKENS:,} can be made up",
            place=place,
            fix="take a part of the recording: workload.window.duration_s or workload.window.requests.",
        )
    return tuple(map(_make_item, arrivals))


def name_line(number: int) -> str:
    """Return the id of a recorded request that has none of its own: its line, padded to sort as a number."""
    return f"r{number:08}"


def label_lengths(prompt_tokens: int | None, output_tokens: int | None) -> dict[str, str]:
    """Return the labels of recorded lengths: the range each lies in; what is not recorded has none."""
    labels = {}
    if prompt_tokens is not None:
        labels["prompt_length"] = _name_range(prompt_tokens, _PROMPT_EDGES)
    if output_tokens is not None:
        labels["answer_length"] = _name_range(output_tokens, _ANSWER_EDGES)
    return labels


def has_filler(items: Iterable[Item]) -> bool:
    """Tell whether any prompt was invented."""
    return any(item.segments.get(PROMPTS) == FILLER for item in items)


def cap_evidence(stated: Evidence, items: Iterable[Item]) -> Evidence:
    """Return what a plan may claim of its traffic: invented words are no representative sample."""
    return "synthetic" if stated == "representative" and has_filler(items) else stated


def _check_names(arrivals: Sequence[TracedArrival], place: str) -> None:
    lines: dict[str, int] = {}
    for arrival in arrivals:
        name = _name(arrival)
        if name in lines:
            raise WorkloadError(
                f"the id {name!r} is already used at line {lines[name]}",
                place=f"{place}:{arrival.line}",
                fix="give each request its own item_id, or none.",
            )
        lines[name] = arrival.line
    check_ids(lines, place)


def _name(arrival: TracedArrival) -> str:
    return arrival.item_id or name_line(arrival.line)


def _make_item(arrival: TracedArrival) -> Item:
    name = _name(arrival)
    text = make_filler(arrival.prompt_tokens or 0, name, arrival.shared_blocks, arrival.block_tokens or 1)
    labels = {"task": "recorded"} | label_lengths(arrival.prompt_tokens, arrival.output_tokens)
    if arrival.traffic_class:
        labels["class"] = arrival.traffic_class
    item = Item(
        id=name,
        messages=(Message(role="user", content=text),),
        segments=labels | {PROMPTS: FILLER},
        due_ns=arrival.due_ns,
    )
    if arrival.output_tokens is None:
        return item
    return msgspec.structs.replace(item, max_tokens=max(arrival.output_tokens, 1))


def _name_range(value: int, edges: Sequence[int]) -> str:
    lower = 0
    for edge in edges:
        if value < edge:
            return f"{lower}-{edge - 1}"
        lower = edge
    return f"{lower}+"
