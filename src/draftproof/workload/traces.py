"""Recorded arrivals: reading common public trace formats into one shape.

Pure. Four formats without prompts, told apart by their first line, never by the file's name:

- Azure LLM inference traces (2023, 2024): CSV with TIMESTAMP, ContextTokens, GeneratedTokens;
- BurstGPT (Wang et al. 2024): CSV with Timestamp in seconds, Request tokens, Response tokens;
- Mooncake (Qin et al. 2024): JSONL with timestamp in milliseconds, input_length, output_length, hash_ids;
- draftproof's own: JSONL with at_s or timestamp and, as far as known, prompt_tokens, output_tokens, item_id,
  class.

A line that cannot be read ends the reading with its number: a trace with holes is another load. Recorded
requests with their prompts are items of a workload with a time (`timed_lines.py`).
"""

import csv
import io
import json
import math
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

import msgspec

from draftproof.errors import WorkloadError

NS_PER_S = 1_000_000_000
TIME_KEYS = ("at_s", "timestamp")
PROMPT_KEYS = ("messages", "conversations", "custom_id")
_FRACTION_DIGITS = 9
_LATEST_S = 1e11  # a time in seconds beyond it, some 3,000 years on, is one in milliseconds
LONGEST_SPAN_S = 1_000_000_000  # of a recording, some 30 years: what workload.window can name
_MOST_TOKENS = 1_000_000_000
_SHOWN = 60  # characters of a value that a sentence quotes
_OWN_KEYS = frozenset({*TIME_KEYS, "prompt_tokens", "output_tokens", "item_id", "class"})
_FORMATS = (
    "TIMESTAMP,ContextTokens,GeneratedTokens (Azure), Timestamp,…,Request tokens,Response tokens (BurstGPT), "
    'JSON lines with "timestamp" and "input_length" (Mooncake) or with "at_s"'
)

Row = Mapping[str, Any]


class TracedArrival(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One recorded arrival: `due_ns` from the first of the trace; what the trace does not tell is None.

    `line`: where it stands in the file, from 1. `shared_blocks`: identities of the prompt's blocks where the
    trace tells which prompts begin alike.
    """

    due_ns: int
    line: int = 0
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    item_id: str | None = None
    traffic_class: str | None = None
    shared_blocks: tuple[int, ...] = ()


def is_trace(head: str) -> bool:
    """Tell whether a file that begins with this line is a trace without prompts."""
    if head.startswith("{"):
        try:
            row = json.loads(head)
        except (ValueError, RecursionError):
            return False
        return any(key in row for key in TIME_KEYS) and not any(key in row for key in PROMPT_KEYS)
    return _choose_columns(head) is not None


def read_trace(text: str, name: str = "trace") -> tuple[TracedArrival, ...]:
    """Return the arrivals of a trace in the order of their times, the first at 0.

    Raises:
        WorkloadError: an unknown format, or a line that cannot be read, with its number.
    """
    read, rows = _choose(text, name)
    found = []
    for number, row in rows:
        try:
            found.append((read(row), number))
        except (KeyError, ValueError, TypeError, OverflowError) as error:
            what = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else str(error)
            raise WorkloadError(
                f"this line of the trace cannot be read: {what}",
                place=f"{name}:{number}",
                fix="correct the line or remove it.",
            ) from None
    if not found:
        raise WorkloadError(
            "the trace has no arrival", place=name, fix="give a trace with one line a request."
        )
    found.sort(key=lambda numbered: numbered[0].due_ns)
    first_ns = found[0][0].due_ns
    check_span(found[-1][0].due_ns - first_ns, f"{name}:{found[-1][1]}")
    return tuple(
        msgspec.structs.replace(one, due_ns=one.due_ns - first_ns, line=number) for one, number in found
    )


def check_span(span_ns: int, place: str) -> None:
    """Refuse a recording so long that one of its times must be wrong.

    Raises:
        WorkloadError: it spans more than `LONGEST_SPAN_S`.
    """
    if span_ns > LONGEST_SPAN_S * NS_PER_S:
        raise WorkloadError(
            f"this request came {span_ns / NS_PER_S:.3g} s after the first, and a recording spans "
            f"{LONGEST_SPAN_S:,} s at most",
            place=place,
            fix="correct the first or the last time, or state all in one unit.",
        )


def compress(arrivals: tuple[TracedArrival, ...], speed: float) -> tuple[TracedArrival, ...]:
    """Return the arrivals `speed` times as fast; order and everything else stay.

    Raises:
        ValueError: the speed is not a positive number.
    """
    if not (math.isfinite(speed) and speed > 0):
        raise ValueError(f"the speed of a trace must be a positive number, got {speed}")
    return tuple(msgspec.structs.replace(one, due_ns=round(one.due_ns / speed)) for one in arrivals)


def read_moment_ns(row: Row) -> int | None:
    """Return when a line of our own form was recorded, in ns from an origin of its file; None: not said.

    `at_s` counts seconds. `timestamp` is a date and time, or seconds.

    Raises:
        ValueError: two times, or one in milliseconds.
        TypeError: a value of another kind.
    """
    given = [key for key in TIME_KEYS if row.get(key) is not None]
    if not given:
        return None
    if len(given) > 1:
        raise ValueError(f"{' and '.join(given)} are two times of one request")
    value = row[given[0]]
    if isinstance(value, str) and given[0] == "timestamp":
        return _parse_timestamp(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{given[0]} = {_quote(value)} is no time")
    if abs(value) > _LATEST_S:
        raise ValueError(f"{given[0]} = {_quote(value)} seems to be in milliseconds, and seconds are read")
    return _seconds(value)


def _choose(text: str, name: str) -> tuple[Callable[[Row], TracedArrival], Iterator[tuple[int, Row]]]:
    head = text.lstrip("\ufeff \t\r\n").partition("\n")[0].strip()
    if head.startswith("{"):
        is_mooncake = '"input_length"' in head
        return (_read_mooncake if is_mooncake else _read_own), _json_rows(text, name)
    read = _choose_columns(head)
    if read is None:
        raise WorkloadError(
            f"the trace begins with {head[:60]!r}, which is none of the known forms",
            place=f"{name}:1",
            fix=f"use one of: {_FORMATS}.",
        )
    return read, _csv_rows(text, name)


def _choose_columns(head: str) -> Callable[[Row], TracedArrival] | None:
    columns = {column.strip().strip('"') for column in head.split(",")}
    if {"TIMESTAMP", "ContextTokens", "GeneratedTokens"} <= columns:
        return _read_azure
    if {"Timestamp", "Request tokens", "Response tokens"} <= columns:
        return _read_burstgpt
    return None


def _csv_rows(text: str, name: str) -> Iterator[tuple[int, Row]]:
    reader = csv.reader(io.StringIO(text.lstrip("\ufeff"), newline=""), skipinitialspace=True)
    columns: list[str] = []
    try:
        for row in reader:
            if columns and row:
                yield reader.line_num, dict(zip(columns, row, strict=False))
            elif any(map(str.strip, row)):
                columns = [column.strip() for column in row]
    except csv.Error as error:
        raise WorkloadError(
            f"this line of the trace is no CSV: {error}",
            place=f"{name}:{reader.line_num}",
            fix="correct the line; a quote may not be closed.",
        ) from None


def _json_rows(text: str, name: str) -> Iterator[tuple[int, Row]]:
    for number, line in enumerate(text.lstrip("\ufeff").split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
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


def _read_azure(row: Row) -> TracedArrival:
    return TracedArrival(
        due_ns=_parse_timestamp(row["TIMESTAMP"]),
        prompt_tokens=count_tokens(row["ContextTokens"]),
        output_tokens=count_tokens(row["GeneratedTokens"]),
    )


def _read_burstgpt(row: Row) -> TracedArrival:
    return TracedArrival(
        due_ns=_seconds(row["Timestamp"]),
        prompt_tokens=count_tokens(row["Request tokens"]),
        output_tokens=count_tokens(row["Response tokens"]),
        traffic_class=row.get("Log Type") or None,
    )


def _read_mooncake(row: Row) -> TracedArrival:
    return TracedArrival(
        due_ns=round(_seconds(row["timestamp"]) / 1000),
        prompt_tokens=count_tokens(row["input_length"]),
        output_tokens=count_tokens(row["output_length"]),
        shared_blocks=_read_blocks(row.get("hash_ids", [])),
    )


def _read_own(row: Row) -> TracedArrival:
    if unknown := sorted(row.keys() - _OWN_KEYS):
        where = "; a file whose first line has no prompt has none" if unknown[0] in PROMPT_KEYS else ""
        raise ValueError(f"{unknown[0]!r} is not one of {', '.join(sorted(_OWN_KEYS))}{where}")
    due_ns = read_moment_ns(row)
    if due_ns is None:
        raise KeyError("at_s")
    item_id, traffic_class = row.get("item_id"), row.get("class")
    if not isinstance(traffic_class, str | None):
        raise TypeError(f"class = {_quote(traffic_class)} is no text")
    if isinstance(item_id, bool) or not isinstance(item_id, str | int | None):
        raise TypeError(f"item_id = {_quote(item_id)} is no text")
    for text in (traffic_class, item_id):
        _check_text(text)
    return TracedArrival(
        due_ns=due_ns,
        prompt_tokens=None if row.get("prompt_tokens") is None else count_tokens(row["prompt_tokens"]),
        output_tokens=None if row.get("output_tokens") is None else count_tokens(row["output_tokens"]),
        item_id=None if item_id is None else str(item_id),
        traffic_class=traffic_class,
    )


def _read_blocks(blocks: object) -> tuple[int, ...]:
    if not isinstance(blocks, list):
        raise TypeError(f"hash_ids = {_quote(blocks)} is no list")
    return tuple(map(int, blocks))


def _check_text(text: object) -> None:
    """Refuse half of a surrogate pair, which JSON can state and no file can hold."""
    try:
        str(text).encode()
    except UnicodeEncodeError:
        raise ValueError(f"{_quote(text)} is no valid text") from None


def _quote(value: object) -> str:
    shown = ascii(value) if isinstance(value, str) else repr(value)
    return shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}…"


def _seconds(value: str | float) -> int:
    """Return a number of seconds in ns, exact to a microsecond for times since 1970."""
    seconds = float(value)
    if not math.isfinite(seconds * NS_PER_S):
        raise ValueError(f"{_quote(value)} is no time")
    return round(seconds * NS_PER_S)


def count_tokens(value: str | float) -> int:
    """Return a number of tokens.

    Raises:
        ValueError: it is no whole number from 0 to a thousand million.
    """
    number = math.nan if isinstance(value, bool) else float(value)
    if not (number.is_integer() and 0 <= number <= _MOST_TOKENS):
        raise ValueError(f"{_quote(value)} is no number of tokens")
    return int(number)


def _parse_timestamp(value: str) -> int:
    """Return a date and time in ns; the traces write seven digits of a second and sometimes an offset."""
    whole, _, rest = value.strip().partition(".")
    digits = rest[: len(rest) - len(rest.lstrip("0123456789"))]
    fraction_ns = int(digits[:_FRACTION_DIGITS].ljust(_FRACTION_DIGITS, "0")) if digits else 0
    return _parse_second(whole + rest[len(digits) :]) * NS_PER_S + fraction_ns


@lru_cache(maxsize=1024)  # requests of one second stand together
def _parse_second(value: str) -> int:
    moment = datetime.fromisoformat(value)
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp())
