"""A log of requests as a workload: what can be sent, how it may be split, what it seems to contain. Pure.

Every entry of a log is an item or is counted under the reason why it cannot be sent. What looks private is
counted by kind and line, and never quoted.
"""

import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from draftproof.core.clock import NS_PER_S
from draftproof.core.errors import WorkloadError
from draftproof.core.secrets import classify_secret
from draftproof.workload.calls import (
    SHAREGPT,
    TIME_UNREAD,
    VLLM_PROMPTS,
    Call,
    Facts,
    UnsendableError,
    read_call,
)
from draftproof.workload.faults import find_faults
from draftproof.workload.formats import NO_LIMIT, name_item, parse_line, parse_request
from draftproof.workload.items import Check, Item, JsonSchemaCheck, ToolCallCheck
from draftproof.workload.labels import Split, choose_split, digest_messages, label_item, name_systems
from draftproof.workload.moments import Unit, Units
from draftproof.workload.recordings import TimedItem, set_due
from draftproof.workload.segments import UNLABELLED, compute_coverage
from draftproof.workload.spans import find_spans, read_span

SHOWN_LINES = 3
MOST_LABELS = 12
_ENCODER = msgspec.json.Encoder(order="sorted")
_PATH = re.compile(r" - at `\$\.?([A-Za-z_]+)")
# A remark that says no more of a field than this.
_OF_FIELD = re.compile(r"(`[^`]+`(?: of a message)?) is (left to the plan|not used)(?:: .*)?")
_KEY = re.compile(r"[a-z_]+(?:\.[a-z_]+)?")
# What may name a person or a single request, and is no label.
_PERSONAL = re.compile(
    r"user|mail|name|phone|session|customer|account|client|trace|(^|_)(id|ip|key)($|_)", re.IGNORECASE
)
_EMAIL = re.compile(r"(?<![\w.%+-])[A-Za-z0-9._%+-]{1,64}@(?:[A-Za-z0-9-]{1,63}\.){1,5}[A-Za-z]{2,24}\b")
# An international number, or ten digits in the groups of North America.
_PHONE = re.compile(
    r"(?<![\w.+-])(?:(?:\+|00)[1-9]\d{0,2}[ .\-/()]*(?:\d[ .\-/()]{0,3}){6,11}\d"
    r"|\(?\d{3}\)?[ .-]\d{3}[.-]\d{4})(?!\w)"
)
_CARD = re.compile(
    r"(?<![\w.-])(?:[2-6]\d{3}(?:[ -]?\d{4}){2}[ -]?\d{1,7}|3[47]\d{2}[ -]?\d{6}[ -]?\d{5})(?![\w-])"
)


class Unreadable(msgspec.Struct, frozen=True):
    """A line that is no JSON value, and why; never its text."""

    reason: str


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """How often something was found in a log, and in which lines first."""

    what: str
    count: int
    first_lines: tuple[int, ...]


class Responses(msgspec.Struct, frozen=True, kw_only=True):
    """What the log says of the answers of usable requests; None: it does not say.

    `cut_share`: of the `ended` answers with a recorded end, those that ended at the limit of tokens.
    `median_output_tokens`: of the `counted` answers with recorded tokens.
    """

    ended: int
    cut_share: float | None
    counted: int
    median_output_tokens: float | None


class Log(msgspec.Struct, frozen=True, kw_only=True):
    """What a log of requests comes to.

    `items` have labels, checks and, where every one has a time, `due_ns`. `form`: in words, what was read.
    `lines`: entries of the log: its lines, a line of several spans once for each. `refused`: reasons why
    entries cannot be sent; its counts and the items are all lines. `notes`: what is not sent as it stands, a
    sentence each. `private`: what prompts seem to contain, counted in requests. `dimensions`: dimension ->
    label -> items. `span_s`, `mean_rps`: from the first arrival to the last, and arrivals per second between
    them; None: not timed.
    """

    items: tuple[Item, ...]
    form: str
    lines: int
    refused: tuple[Found, ...]
    notes: tuple[str, ...]
    private: tuple[Found, ...]
    dimensions: dict[str, dict[str, int]]
    proposed: Split
    copies: int
    responses: Responses
    span_s: float | None = None
    mean_rps: float | None = None


class Entry(msgspec.Struct, frozen=True):
    """A usable call of a log, the item that it becomes, and its line."""

    line: int
    call: Call
    item: Item
    remarks: tuple[str, ...]


def survey_log(values: Iterable[tuple[int, object]], units: Units, place: str) -> Log:
    """Return what a log comes to.

    `values`: number and decoded value of each line, or `Unreadable`. Raises WorkloadError: none can be sent.
    """
    entries, refused = list[Entry](), defaultdict[str, list[int]](list)
    lines = 0
    for number, read in _read_calls(values, units.timestamp):
        lines += 1
        try:
            entries.append(_make_entry(read, number, lines))
        except UnsendableError as error:
            refused[str(error)].append(number)
    reasons = _count(refused)
    if not entries:
        raise _nothing_usable(reasons, lines, place)
    items = _label(entries)
    private = find_private(items, [entry.line for entry in entries])
    items, time_note = _set_times(items, entries)
    proposed = choose_split(items)
    items = tuple(_rename(item, proposed.renamed) for item in items)
    copies = len(items) - len({digest_messages(item.messages) for item in items})
    span_s = max(item.due_ns or 0 for item in items) / NS_PER_S
    return Log(
        items=items,
        form=" and ".join(dict.fromkeys(entry.call.form for entry in entries)),
        lines=lines,
        refused=reasons,
        notes=(*_list_notes(entries), *time_note),
        private=private,
        dimensions=compute_coverage(items, ()).by_dimension,
        proposed=proposed,
        copies=copies,
        responses=_sum_up_responses([entry.call.facts for entry in entries]),
        span_s=span_s or None,
        mean_rps=(len(items) - 1) / span_s if span_s else None,
    )


def _read_calls(
    values: Iterable[tuple[int, object]], unit: Unit | None
) -> Iterator[tuple[int, Call | UnsendableError]]:
    """Yield the calls of each line, or why there is none, with the line's number."""
    for number, value in values:
        if isinstance(value, Unreadable):
            yield number, UnsendableError(value.reason)
            continue
        spans = find_spans(value)
        if spans is None:
            yield number, _attempt(partial(read_call, value, unit))
        elif not spans:
            yield number, UnsendableError("telemetry without a span")
        for span in spans or ():
            yield number, _attempt(partial(read_span, span, unit))


def _attempt(read: Callable[[], Call]) -> Call | UnsendableError:
    try:
        return read()
    except UnsendableError as error:
        return error


def _make_entry(read: Call | UnsendableError, line: int, position: int) -> Entry:
    if isinstance(read, UnsendableError):
        raise read
    try:
        parsed = (parse_line if read.form == SHAREGPT else parse_request)(read.request, position)
    except (msgspec.ValidationError, WorkloadError) as error:
        found = _PATH.search(str(error))
        raise UnsendableError(
            f"`{found[1]}` has a value that cannot be sent" if found else "a field cannot be sent"
        ) from None
    item, remarks = parsed
    if item.max_tokens < 1:
        raise UnsendableError("`max_tokens` has a value that cannot be sent")
    for fault in find_faults(item):
        key = _KEY.match(fault)
        raise UnsendableError(
            f"`{key[0]}` has a value that cannot be sent" if key else "a field cannot be sent"
        )
    checks = item.checks or propose_checks(item)
    item = msgspec.structs.replace(item, id=name_item(position, read.request), checks=checks, due_ns=None)
    if NO_LIMIT in remarks:
        tokens = read.facts.output_tokens
        # What the service would have written: an answer of another run may be longer than the recorded one.
        limit = max(_LEAST_LIMIT, 2 * tokens) if tokens else _UNKNOWN_LIMIT
        item = msgspec.structs.replace(item, max_tokens=limit)
        said = LIMIT_RECORDED if tokens else LIMIT_UNKNOWN
        remarks = (*(one for one in remarks if one != NO_LIMIT), said)
    return Entry(line, read, item, (*read.remarks, *remarks))


_LEAST_LIMIT, _UNKNOWN_LIMIT = 64, 512
LIMIT_RECORDED = (
    f"no limit is stated, and twice the recorded length of the answer is sent ({_LEAST_LIMIT} at least)"
)
LIMIT_UNKNOWN = f"no limit is stated, and max_tokens = {_UNKNOWN_LIMIT} is sent"


def propose_checks(item: Item) -> tuple[Check, ...]:
    """Return the checks that a request itself states: the form of its answer, or the call that it forces."""
    schema = _find_schema(item)
    checks: tuple[Check, ...] = () if schema is None else (JsonSchemaCheck(schema=schema),)
    call = _propose_call(item)
    checks += () if call is None else (call,)
    # A request may be sent with a schema that our own reader of schemas refuses.
    return () if any(find_faults(msgspec.structs.replace(item, checks=checks))) else checks


def _find_schema(item: Item) -> dict[str, Any] | None:
    asked = item.request.get("response_format")
    structured = item.request.get("structured_outputs")
    stated = (
        item.response_schema,
        item.request.get("guided_json"),
        structured.get("json") if isinstance(structured, dict) else None,
        {"type": "object"} if isinstance(asked, dict) and asked.get("type") == "json_object" else None,
    )
    return next((one for one in stated if isinstance(one, dict)), None)


def _propose_call(item: Item) -> ToolCallCheck | None:
    """Return the check of a forced call; where any of several tools may be called, no schema is asked for."""
    schemas = dict(_list_tools(item))
    if item.tool_choice == "required" and schemas:
        return ToolCallCheck(schema=next(iter(schemas.values())) if len(schemas) == 1 else None)
    chosen = item.tool_choice.get("function") if isinstance(item.tool_choice, dict) else None
    name = chosen.get("name") if isinstance(chosen, dict) else None
    return (
        ToolCallCheck(names=(name,), schema=schemas[name])
        if isinstance(name, str) and name in schemas
        else None
    )


def _list_tools(item: Item) -> Iterator[tuple[str, dict[str, Any] | None]]:
    for tool in item.tools:
        function = tool.get("function")
        if isinstance(function, dict) and isinstance(function.get("name"), str):
            schema = function.get("parameters")
            yield function["name"], schema if isinstance(schema, dict) else None


def _label(entries: Sequence[Entry]) -> tuple[Item, ...]:
    offered = _choose_offered([entry.call.labels for entry in entries])
    systems = name_systems(entry.item for entry in entries)
    return tuple(_label_entry(entry, system, offered) for entry, system in zip(entries, systems, strict=True))


def _label_entry(entry: Entry, system: str, offered: Sequence[str]) -> Item:
    facts, labels = entry.call.facts, entry.call.labels
    told = label_item(entry.item, facts.prompt_tokens, facts.output_tokens, system)
    given = {name: labels[name] for name in offered if name in labels and name not in told}
    own = {name: label for name, label in entry.item.segments.items() if label != UNLABELLED}
    return msgspec.structs.replace(entry.item, segments=told | given | own)


def _choose_offered(labels: Sequence[Mapping[str, str]]) -> tuple[str, ...]:
    """Return the names in a log that may be dimensions: of two to twelve labels, on half of the requests.

    Names and labels that may be those of a person are left out.
    """
    values: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for one in labels:
        for name, label in one.items():
            values[name][label] += 1
    return tuple(
        name
        for name, counts in values.items()
        if 2 <= len(counts) <= MOST_LABELS
        and 2 * counts.total() >= len(labels)
        and not _PERSONAL.search(name)
        and not any(classify_secret(label.encode()) for label in counts)
        and not any(True for label in counts for _ in _find_kinds(label))
    )


def _rename(item: Item, renamed: Mapping[str, Mapping[str, str]]) -> Item:
    changed = {
        name: new
        for name, names in renamed.items()
        if (new := names.get(item.segments.get(name, ""))) is not None
    }
    return msgspec.structs.replace(item, segments=item.segments | changed) if changed else item


def _set_times(items: tuple[Item, ...], entries: Sequence[Entry]) -> tuple[tuple[Item, ...], tuple[str, ...]]:
    """Return the items with their times, and a note where some have none or times cannot be compared."""
    timed = sum(entry.call.moment is not None for entry in entries)
    if timed < len(entries):
        unread = any(TIME_UNREAD in entry.remarks for entry in entries)
        partly = (
            f"the times are not used: {timed} of {len(entries)} requests have one, and a load is replayed "
            "where all have."
        )
        return items, (partly,) if timed or unread else ()
    moments = [
        (f"line {entry.line}", TimedItem(item, entry.call.moment))
        for item, entry in zip(items, entries, strict=True)
    ]
    try:
        return set_due(moments), ()
    except WorkloadError as error:
        return items, (f"the times are not used: {error.message}.",)


def _list_notes(entries: Sequence[Entry]) -> Iterator[str]:
    """Yield what is not sent as it stands: what changes an answer first, with the number of requests."""
    remarks = Counter(remark for entry in entries for remark in dict.fromkeys(entry.remarks))
    named: defaultdict[str, list[str]] = defaultdict(list)
    for text, count in remarks.items():
        field = _OF_FIELD.fullmatch(text)
        if field is not None:
            named[field[2]].append(field[1])
        elif text != TIME_UNREAD:
            yield f"in {count} of {len(entries)} requests {text}."
    for what, fields in named.items():
        yield f"{what}: {', '.join(fields)}."


def _sum_up_responses(facts: Sequence[Facts]) -> Responses:
    ends = [one.finish_reason for one in facts if one.finish_reason is not None]
    tokens = [one.output_tokens for one in facts if one.output_tokens is not None]
    return Responses(
        ended=len(ends),
        cut_share=ends.count("length") / len(ends) if ends else None,
        counted=len(tokens),
        median_output_tokens=float(statistics.median(tokens)) if tokens else None,
    )


def find_private(items: Iterable[Item], lines: Iterable[int]) -> tuple[Found, ...]:
    """Return what the items seem to contain, most frequent first: secrets, addresses, numbers of people.

    `lines`: where each item stands. Patterns are a net with meshes: what is not found may still be there.
    """
    found: defaultdict[str, list[int]] = defaultdict(list)
    for item, line in zip(items, lines, strict=True):
        encoded = _ENCODER.encode(msgspec.structs.replace(item, id=""))
        if (secret := classify_secret(encoded)) is not None:
            found[secret].append(line)
        for kind in _find_kinds("\n".join(_list_texts(msgspec.to_builtins(item)))):
            found[kind].append(line)
    return _count(found)


def _list_texts(value: object) -> Iterator[str]:
    """Yield all texts of an item, the arguments of tool calls and schemas among them."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, part in value.items():
            if key != "id":
                yield from _list_texts(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _list_texts(part)


def _find_kinds(text: str) -> Iterator[str]:
    if _EMAIL.search(text):
        yield "an e-mail address"
    if any(_is_card(one[0]) for one in _CARD.finditer(text)):
        yield "a card-like number"
    if _PHONE.search(text):
        yield "a phone-like number"


def _is_card(text: str) -> bool:
    """Tell whether digits satisfy Luhn's check, as card numbers do and one in ten other numbers does."""
    digits = [int(one) for one in text if one.isdecimal()]
    doubled = [2 * one - 9 * (one > 4) if at % 2 else one for at, one in enumerate(reversed(digits))]
    return 13 <= len(digits) <= 19 and sum(doubled) % 10 == 0


def _count(found: Mapping[str, Sequence[int]]) -> tuple[Found, ...]:
    ordered = sorted(found.items(), key=lambda one: (-len(one[1]), one[0]))
    return tuple(
        Found(what=what, count=len(lines), first_lines=tuple(dict.fromkeys(lines))[:SHOWN_LINES])
        for what, lines in ordered
    )


def _nothing_usable(refused: Sequence[Found], lines: int, place: str) -> WorkloadError:
    shown = "; ".join(f"{one.what} ({one.count})" for one in refused[:SHOWN_LINES])
    fix = "give a log that has the messages of chat requests (docs/workloads.md, Logs)."
    if any(one.what == VLLM_PROMPTS for one in refused):
        fix = "log the requests at the gateway (LiteLLM, OpenTelemetry) or in the client, as chat messages."
    what = f"none of its {lines} lines can be sent: {shown}" if lines else "the file holds no line"
    return WorkloadError(what, place=place, fix=fix)
