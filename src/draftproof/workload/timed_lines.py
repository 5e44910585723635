"""Recorded requests with their prompts: lines of a workload that also say when they came.

Pure. A line of any known form (`formats.py`) becomes one by `at_s` or `timestamp`; beside these it may have
`class`, `prompt_tokens` and `output_tokens`, and it needs no id and no labels. A file has a time in every
line or in none.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from draftproof.errors import WorkloadError
from draftproof.workload.formats import NO_LIMIT, parse_line
from draftproof.workload.items import Item
from draftproof.workload.moments import TIME_KEYS, Moment, Unit, check_forms, check_span, read_moment
from draftproof.workload.recordings import label_lengths, name_line
from draftproof.workload.traces import count_tokens

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

    The recorded length of an answer is its limit where the line states none.

    Args:
        value: the line, decoded.
        number: which line it is; it names a recorded request that has no id.
        position: which item it is; it names one without time and id.
        unit: of a `timestamp` that is a bare number.

    Raises:
        msgspec.ValidationError: a key that is not known, or a value that cannot be used.
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

    Args:
        timed: place of each line, and its item.

    Raises:
        WorkloadError: some lines have a time and some have none, or times of several forms.
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
