"""Recorded arrivals: reading common public trace formats into one shape.

Pure. Formats without prompts, distinguished by their first line, never by the file's name:

- Azure LLM inference traces (2023, 2024): CSV with TIMESTAMP (a date), ContextTokens, GeneratedTokens;
- BurstGPT (Wang et al. 2024): CSV with Timestamp in seconds, Request tokens, Response tokens;
- Qwen-Bailian (Wang et al. 2025): JSONL with timestamp in seconds, input_length, output_length, hash_ids of
  16 tokens each, chat_id, parent_chat_id, turn, type;
- the same four keys without the others: Mooncake (Qin et al. 2024) counts milliseconds and blocks of 512,
  vLLM's timed traces seconds and 16, GuideLLM seconds and 512, so the plan says which (`moments.Units`);
- draftproof's own: JSONL with at_s or timestamp and, as far as known, prompt_tokens, output_tokens, item_id,
  class.

A line that cannot be read ends the reading with its number: a trace with holes is another load. Recorded
requests with their prompts are items of a workload with a time (`recordings.py`).
"""

import csv
import io
import itertools
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from draftproof.core.clock import NS_PER_S
from draftproof.core.errors import WorkloadError
from draftproof.workload.moments import (
    BLOCK_KEY,
    TIME_KEYS,
    UNIT_KEY,
    Form,
    Moment,
    Units,
    check_forms,
    check_span,
    check_unit_is_used,
    decide_block_tokens,
    quote,
    read_date,
    read_moment,
    scale,
)

PROMPT_KEYS = ("messages", "conversations", "custom_id", "body")
_MOST_TOKENS = 1_000_000_000
_AZURE_KEYS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_BURSTGPT_KEYS = ("Timestamp", "Request tokens", "Response tokens", "Log Type")
_BLOCK_KEYS = (*TIME_KEYS, "input_length", "output_length", "hash_ids")
_BAILIAN_KEYS = ("chat_id", "parent_chat_id", "turn")
_UNSAID = Units()
_BAILIAN = Units(timestamp="s", block_tokens=16)
_OWN_KEYS = (*TIME_KEYS, "prompt_tokens", "output_tokens", "item_id", "class")
_FORMATS = (
    "TIMESTAMP,ContextTokens,GeneratedTokens (Azure), Timestamp,…,Request tokens,Response tokens (BurstGPT), "
    'JSON lines with "timestamp" and "input_length" (Mooncake) or with "at_s"'
)

Row = Mapping[str, Any]


class TracedArrival(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One recorded arrival: `due_ns` from the first of the trace; what the trace does not tell is None.

    `line`: where it stands in the file, from 1. `shared_blocks`: identities of the prompt's blocks where the
    trace tells which prompts begin alike, each of `block_tokens` tokens.
    """

    due_ns: int
    line: int = 0
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    item_id: str | None = None
    traffic_class: str | None = None
    shared_blocks: tuple[int, ...] = ()
    block_tokens: int | None = None


class Trace(NamedTuple):
    """The arrivals of a trace in the order of their times, the first at 0, and the keys that are not used."""

    arrivals: tuple[TracedArrival, ...]
    unused: tuple[str, ...] = ()


class _Format(NamedTuple):
    """How the rows of a format are read, which keys are, and what the format says of its units."""

    read: Callable[[Row, Units], tuple[Form, TracedArrival]]
    keys: tuple[str, ...]
    units: Units = _UNSAID


def is_trace(head: str) -> bool:
    """Tell whether a file that begins with this line is a trace without prompts."""
    if head.startswith("{"):
        try:
            row = json.loads(head)
        except (ValueError, RecursionError):
            return False
        return choose_format(row) is not None
    return _choose_columns(head) is not None


def read_trace(text: str, name: str = "trace", units: Units = _UNSAID) -> Trace:
    """Return the arrivals of a trace.

    `units`: what the plan says of it. Raises WorkloadError: an unknown format, a line that cannot be read,
    with its number, or a unit that neither the file nor the plan says.
    """
    form, rows = _choose(text, name)
    return read_rows(form, rows, name, units)


def read_rows(form: _Format, rows: Iterable[tuple[int, Row]], name: str, units: Units) -> Trace:
    """Return the arrivals of numbered rows; see `read_trace`."""
    known = Units(
        timestamp=units.timestamp or form.units.timestamp,
        block_tokens=units.block_tokens or form.units.block_tokens,
    )
    found, keys = [], dict.fromkeys(form.keys)
    for number, row in rows:
        if row.keys() - keys.keys():
            keys |= dict.fromkeys(row)
        found.append((*_read_row(form, row, known, name, number), number))
    if not found:
        raise WorkloadError(
            "the trace has no arrival", place=name, fix="give a trace with one line a request."
        )
    first: dict[Form, int] = {}
    for written, _, number in found:
        first.setdefault(written, number)
    check_forms((written, f"{name}:{number}") for written, number in first.items())
    check_unit_is_used(units.timestamp, first, name)
    if units.timestamp is None and form.units.timestamp is not None:
        _check_fractions([one.due_ns for _, one, _ in found], name)
    prompts = ((one.prompt_tokens, len(one.shared_blocks), number) for _, one, number in found)
    block_tokens = decide_block_tokens(known.block_tokens, prompts, name)
    if units.block_tokens is not None and block_tokens is None:
        raise WorkloadError(
            "the plan states a block size, and this trace has no hash_ids",
            place=f"{name}, {BLOCK_KEY}",
            fix=f"leave {BLOCK_KEY} out.",
        )
    found.sort(key=lambda numbered: numbered[1].due_ns)
    first_ns = found[0][1].due_ns
    check_span(found[-1][1].due_ns - first_ns, f"{name}:{found[-1][2]}")
    arrivals = tuple(
        msgspec.structs.replace(one, due_ns=one.due_ns - first_ns, line=number, block_tokens=block_tokens)
        for _, one, number in found
    )
    return Trace(arrivals, tuple(key for key in keys if key not in form.keys))


def _check_fractions(times_ns: Sequence[int], name: str) -> None:
    """Refuse times of a format in seconds that may as well be of a copy of it in milliseconds."""
    if max(times_ns) > min(times_ns) and not any(one_ns % NS_PER_S for one_ns in times_ns):
        raise WorkloadError(
            "these columns are of a trace in seconds, and no timestamp has a part of one: it may be in a "
            "smaller unit",
            place=f"{name}, {UNIT_KEY}",
            fix=f'state {UNIT_KEY} in the plan: "s", "ms", "us" or "ns" (init: --timestamp-unit).',
        )


def choose_format(row: Row) -> _Format | None:
    """Return the format of a trace by the keys of its first row, None for no known one."""
    if _has(row, ("TIMESTAMP",)) and row.keys() >= set(_AZURE_KEYS):
        return _Format(_read_azure, _AZURE_KEYS)
    if row.keys() >= set(_BURSTGPT_KEYS[:3]):
        return _Format(_read_burstgpt, _BURSTGPT_KEYS)
    if _has(row, PROMPT_KEYS) or not _has(row, TIME_KEYS):
        return None
    if "input_length" not in row:
        return _Format(_read_own, _OWN_KEYS)
    if row.keys() >= set(_BAILIAN_KEYS):
        return _Format(_read_blocks_of_tokens, (*_BLOCK_KEYS, "type"), _BAILIAN)
    return _Format(_read_blocks_of_tokens, _BLOCK_KEYS)


def _has(row: Row, keys: Iterable[str]) -> bool:
    return any(row.get(key) is not None for key in keys)


def _read_row(form: _Format, row: Row, units: Units, name: str, number: int) -> tuple[Form, TracedArrival]:
    try:
        return form.read(row, units)
    except WorkloadError as error:
        error.place = f"{name}:{number}"
        raise
    except (KeyError, ValueError, TypeError, OverflowError) as error:
        what = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else str(error)
        raise WorkloadError(
            f"this line of the trace cannot be read: {what}",
            place=f"{name}:{number}",
            fix="correct the line or remove it.",
        ) from None


def _choose(text: str, name: str) -> tuple[_Format, Iterator[tuple[int, Row]]]:
    head = text.lstrip("\ufeff \t\r\n").partition("\n")[0].strip()
    if head.startswith("{"):
        rows = _json_rows(text, name)
        number, first = next(rows)
        return choose_format(first) or _Format(_read_own, _OWN_KEYS), itertools.chain([(number, first)], rows)
    form = _choose_columns(head)
    if form is None:
        raise WorkloadError(
            f"the trace begins with {head[:60]!r}, which is none of the known forms",
            place=f"{name}:1",
            fix=f"use one of: {_FORMATS}.",
        )
    return form, _csv_rows(text, name)


def _choose_columns(head: str) -> _Format | None:
    return choose_format({column.strip().strip('"'): "" for column in head.split(",")})


def _csv_rows(text: str, name: str) -> Iterator[tuple[int, Row]]:
    reader = csv.reader(io.StringIO(text.lstrip("\ufeff"), newline=""), skipinitialspace=True)
    columns: list[str] = []
    try:
        for row in reader:
            if columns and row:
                _check_width(row, columns)
                yield reader.line_num, dict(zip(columns, row, strict=False))
            elif any(map(str.strip, row)):
                columns = [column.strip() for column in row]
                _check_width(columns, tuple(set(columns)))
    except csv.Error as error:
        raise WorkloadError(
            f"this line of the trace is no CSV: {error}",
            place=f"{name}:{reader.line_num}",
            fix="correct the table; a quote may not be closed.",
        ) from None


def _check_width(row: Sequence[str], columns: Sequence[str]) -> None:
    if len(row) > len(columns):
        raise csv.Error("it has more cells than columns with names of their own")


def _json_rows(text: str, name: str) -> Iterator[tuple[int, Row]]:
    for number, line in enumerate(text.lstrip("\ufeff").split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = _DECODER.decode(line)
        except (ValueError, RecursionError) as error:
            what = str(error) if isinstance(error, ValueError) else "it is nested too deeply"
            raise WorkloadError(
                f"this line of the trace is no JSON: {what}",
                place=f"{name}:{number}",
                fix="correct the line.",
            ) from None
        if not isinstance(row, dict):
            raise WorkloadError(
                "this line of the trace is no JSON object", place=f"{name}:{number}", fix="correct the line."
            )
        yield number, row


def refuse_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of JSON, if none of its keys stands twice: a decoder would drop the first.

    Raises ValueError: names the key.
    """
    whole = dict(pairs)
    if len(whole) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"the key {quote(next(key for key in keys if keys.count(key) > 1))} stands twice")
    return whole


_DECODER = json.JSONDecoder(object_pairs_hook=refuse_twins)


def _read_azure(row: Row, _units: Units) -> tuple[Form, TracedArrival]:
    moment = read_date(str(row["TIMESTAMP"]))
    return moment.form, TracedArrival(
        due_ns=moment.ns,
        prompt_tokens=count_tokens(row["ContextTokens"]),
        output_tokens=count_tokens(row["GeneratedTokens"]),
    )


def _read_burstgpt(row: Row, _units: Units) -> tuple[Form, TracedArrival]:
    return "at_s", TracedArrival(
        due_ns=scale(row["Timestamp"], "s"),
        prompt_tokens=count_tokens(row["Request tokens"]),
        output_tokens=count_tokens(row["Response tokens"]),
        traffic_class=row.get("Log Type") or None,
    )


def _read_blocks_of_tokens(row: Row, units: Units) -> tuple[Form, TracedArrival]:
    moment = _read_time(row, units)
    return moment.form, TracedArrival(
        due_ns=moment.ns,
        prompt_tokens=count_tokens(row["input_length"]),
        output_tokens=count_tokens(row["output_length"]),
        traffic_class=_read_text(row, "type"),
        shared_blocks=_read_blocks(row.get("hash_ids")),
    )


def _read_own(row: Row, units: Units) -> tuple[Form, TracedArrival]:
    if unknown := sorted(key for key, value in row.items() if key not in _OWN_KEYS and value is not None):
        where = "; a file whose first line has no prompt has none" if unknown[0] in PROMPT_KEYS else ""
        raise ValueError(f"{unknown[0]!r} is not one of {', '.join(sorted(_OWN_KEYS))}{where}")
    moment, item_id = _read_time(row, units), row.get("item_id")
    if isinstance(item_id, bool) or not isinstance(item_id, str | int | None):
        raise TypeError(f"item_id = {quote(item_id)} is no text")
    _check_text(item_id)
    return moment.form, TracedArrival(
        due_ns=moment.ns,
        prompt_tokens=None if row.get("prompt_tokens") is None else count_tokens(row["prompt_tokens"]),
        output_tokens=None if row.get("output_tokens") is None else count_tokens(row["output_tokens"]),
        item_id=None if item_id is None else str(item_id),
        traffic_class=_read_text(row, "class"),
    )


def _read_time(row: Row, units: Units) -> Moment:
    moment = read_moment(row, units.timestamp)
    if moment is None:
        raise KeyError("at_s")
    return moment


def _read_text(row: Row, key: str) -> str | None:
    text = row.get(key)
    if not isinstance(text, str | None):
        raise TypeError(f"{key} = {quote(text)} is no text")
    _check_text(text)
    return text


def _read_blocks(blocks: object) -> tuple[int, ...]:
    if blocks is None:
        return ()
    if not isinstance(blocks, list) or not all(type(one) is int for one in blocks):
        raise TypeError(f"hash_ids = {quote(blocks)} is no list of whole numbers")
    return tuple(blocks)


def _check_text(text: object) -> None:
    """Refuse half of a surrogate pair, which JSON can state and no file can hold."""
    try:
        str(text).encode()
    except UnicodeEncodeError:
        raise ValueError(f"{quote(text)} is no valid text") from None


def count_tokens(value: str | float) -> int:
    """Return a number of tokens. Raises ValueError: it is no whole number from 0 to a thousand million."""
    number = math.nan if isinstance(value, bool) else float(value)
    if not (number.is_integer() and 0 <= number <= _MOST_TOKENS):
        raise ValueError(f"{quote(value)} is no number of tokens")
    return int(number)
