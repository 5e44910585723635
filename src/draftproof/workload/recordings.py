"""From recorded requests to items of a workload: a window of the recording, prompts, limits and labels. Pure.

A line of any known form (`formats.py`) is a recorded one by `at_s` or `timestamp`; a file has a time in every
line or in none. A trace that keeps no words gets invented ones, and its items say so in the label `prompts`:
each of 256 words is one token, with the blank before it, in the vocabularies of SmolLM2, Llama 2 and 3, Gemma
3 and GPT-4o. A byte of an extendable hash (SHAKE-256) chooses a word: the same text on every machine.
"""

import hashlib
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from draftproof.core.clock import NS_PER_S
from draftproof.core.errors import WorkloadError
from draftproof.core.manifests import EvidenceLevel
from draftproof.workload.formats import NO_LIMIT, parse_line
from draftproof.workload.items import Item, Message, check_ids
from draftproof.workload.moments import TIME_KEYS, Moment, Unit, check_forms, check_span, read_moment
from draftproof.workload.traces import TracedArrival, count_tokens

_TEXT = (
    "added allow allows along among answer area author average avoid away back birds block blue body "
    "books break build built call came card cause cell change chapter check city class close code color "
    "comes connect contact control copy core correct count cover created daily data date deep draw earth "
    "energy every example expect fact fair fall fast feature feel file final flow foot form friends front "
    "game general give glass global goal gold good greater groups growth guide hand health heart height "
    "help high history home image images impact index inside iron issue issues items journal keep kind "
    "last late later leading learn least length level levels life limit line lines little live local look "
    "looking loss main major mark math matter mean means measure members metal methods mind modern months "
    "move music name natural nature near network never news normal nothing number object open order "
    "outside page paper pattern period person picture piece place plan point popular post power present "
    "press price problem process program project quick race range read recent record reduce regular "
    "remove rest return rich right river road rock role room root rule rules science search second "
    "section seen sense sign similar sleep slow small social someone song soon source south space special "
    "speech spring staff star started stay step stop store string study surface table target task term "
    "terms then thing things time times tool topic total town track trade train travel type unit view "
    "volume walk wall warm water ways week what whole wide winter work world write year years"
)
_WORDS = tuple(_TEXT.split())


def make_filler(tokens: int, name: str, blocks: Sequence[int] = (), block_tokens: int = 1) -> str:
    """Return a text of `tokens` words that depends on its arguments alone.

    `tokens`: how many words; at least one is written. `name`: what the words are drawn by where `blocks` do
    not say: texts of two names begin differently. `blocks`: identities of the text's blocks. Two texts whose
    first blocks have the same identities begin alike for so many words, and differ from there.
    """
    tokens = max(tokens, 1)
    words: list[str] = []
    for number, count in zip(blocks, _split(tokens, block_tokens), strict=False):
        words += _draw(count, "block", number)
    words += _draw(tokens - len(words), "text", name)
    return " ".join(words)


def _split(tokens: int, block_tokens: int) -> Iterator[int]:
    """Yield the words of each block of a text, the last one as long as is left."""
    for start in range(0, tokens, block_tokens):
        yield min(block_tokens, tokens - start)


def _draw(count: int, *parts: str | int) -> Iterator[str]:
    seed = "\x1f".join(map(str, parts)).encode("utf-8", "surrogatepass")
    return map(_WORDS.__getitem__, hashlib.shake_256(seed).digest(count))


PROMPTS, FILLER = "prompts", "filler"
# Some 300 MB of text, in memory and in the run's workload.jsonl.
MOST_FILLER_TOKENS = 50_000_000
_PROMPT_EDGES = (256, 1024, 4096)
_ANSWER_EDGES = (64, 256, 1024)


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a recording that is used, in seconds from its first arrival.

    `duration_s` and `requests` bound it, both where both are given; None: to the end.
    """

    start_s: float = 0.0
    duration_s: float | None = None
    requests: int | None = None


def cut(due_ns: Sequence[int], window: Window, place: str) -> slice:
    """Return which of the arrivals a window takes, of times in order, the first at 0.

    Raises WorkloadError: no arrival lies in the window.
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
    arrival stays. Raises WorkloadError: an arrival without a length of its prompt, or more text than fits.
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


def cap_evidence(stated: EvidenceLevel, items: Iterable[Item]) -> EvidenceLevel:
    """Return what a plan may claim of its traffic: invented words are no real requests."""
    return "synthetic" if stated in ("representative", "pilot") and has_filler(items) else stated


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


_EXTRA_KEYS = (*TIME_KEYS, "class", "prompt_tokens", "output_tokens")


class TimedItem(msgspec.Struct, frozen=True):
    """An item, and when it was recorded; None: not recorded.

    `remarks`: what of its line is not sent as it stands.
    """

    item: Item
    moment: Moment | None = None
    remarks: tuple[str, ...] = ()


def parse_timed_item(value: object, number: int, position: int, unit: Unit | None = None) -> TimedItem:
    """Return the item that a decoded line states, and when it came.

    The recorded length of an answer is its limit where the line states none. `number`: which line it is; it
    names a recorded request that has no id. `position`: which item it is; it names one without time and id.
    `unit`: of a `timestamp` that is a bare number. Raises msgspec.ValidationError: a key that is not known,
    or a value that cannot be used.
    """
    if not isinstance(value, dict) or not any(value.get(key) is not None for key in TIME_KEYS):
        line = parse_line(value, position)
        return TimedItem(line.item, remarks=line.remarks)
    try:
        moment, output_tokens = read_moment(value, unit), _count(value, "output_tokens")
        labels = _make_labels(value, output_tokens)
    except (ValueError, TypeError, OverflowError) as error:
        raise msgspec.ValidationError(str(error)) from None
    rest = {key: part for key, part in value.items() if key not in _EXTRA_KEYS}
    if rest.get("id") is None and "body" not in rest:
        rest["id"] = name_line(number)
    item, remarks = parse_line(rest, position)
    if item.due_ns is not None:
        raise msgspec.ValidationError("due_ns beside another time of the request")
    item = msgspec.structs.replace(item, segments=labels | item.segments)
    if output_tokens is not None and not _states_limit(rest):
        item = msgspec.structs.replace(item, max_tokens=max(output_tokens, 1))
        remarks = tuple(one for one in remarks if one != NO_LIMIT)
    return TimedItem(item, moment, remarks)


def set_due(timed: Sequence[tuple[str, TimedItem]]) -> tuple[Item, ...]:
    """Return the items with their times from the first, in order of these; as they stand without times.

    `timed`: place of each line, and its item. Raises WorkloadError: some lines have a time and some have
    none, or times of several forms.
    """
    moments = [(one.moment, one.item, place) for place, one in timed if one.moment is not None]
    if not moments:
        return tuple(one.item for _, one in timed)
    for place, one in timed:
        if one.moment is None:
            raise WorkloadError(
                "this line has no time, and others of the file have one",
                place=place,
                fix="state at_s or timestamp in every line, or in none.",
            )
    check_forms((moment.form, place) for moment, _, place in moments)
    moments.sort(key=lambda one: one[0].ns)
    first_ns, (last, _, place) = moments[0][0].ns, moments[-1]
    check_span(last.ns - first_ns, place)
    return tuple(msgspec.structs.replace(item, due_ns=moment.ns - first_ns) for moment, item, _ in moments)


def _make_labels(value: Mapping[str, Any], output_tokens: int | None) -> dict[str, str]:
    labels = label_lengths(_count(value, "prompt_tokens"), output_tokens)
    traffic_class = value.get("class")
    if traffic_class is None:
        return labels
    if not isinstance(traffic_class, str):
        raise TypeError(f"class = {traffic_class!r} is no text")
    return labels | {"class": traffic_class}


def _count(value: Mapping[str, Any], key: str) -> int | None:
    return None if value.get(key) is None else count_tokens(value[key])


def _states_limit(value: Mapping[str, Any]) -> bool:
    body = value.get("body")
    parts = (value, body if isinstance(body, dict) else {})
    return any(part.get(key) is not None for part in parts for key in ("max_tokens", "max_completion_tokens"))
