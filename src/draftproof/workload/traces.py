"""Recorded arrivals: reading common public trace formats into one shape.

Pure. Four formats, told apart by their first line, never by the file's name:

- Azure LLM inference traces (2023, 2024): CSV with TIMESTAMP, ContextTokens, GeneratedTokens;
- BurstGPT (Wang et al. 2024): CSV with Timestamp in seconds, Request tokens, Response tokens;
- Mooncake (Qin et al. 2024): JSONL with timestamp in milliseconds, input_length, output_length, hash_ids;
- draftproof's own: JSONL with at_s and, as far as known, prompt_tokens, output_tokens, item_id, class.

A line that cannot be read ends the reading with its number: a trace with holes is another load.
"""

import csv
import io
import json
import math
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from draftproof.errors import WorkloadError

NS_PER_S = 1_000_000_000
_FRACTION_DIGITS = 9
_FORMATS = (
    "TIMESTAMP,ContextTokens,GeneratedTokens (Azure), Timestamp,…,Request tokens,Response tokens (BurstGPT), "
    'JSON lines with "timestamp" and "input_length" (Mooncake) or with "at_s"'
)

Row = Mapping[str, Any]


class TracedArrival(msgspec.Struct, frozen=True, kw_only=True):
    """One recorded arrival: `due_ns` from the first of the trace; what the trace does not tell is None.

    `shared_blocks`: identities of the prompt's blocks where the trace tells which prompts begin alike.
    """

    due_ns: int
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    item_id: str | None = None
    traffic_class: str | None = None
    shared_blocks: tuple[int, ...] = ()


def read_trace(text: str, name: str = "trace") -> tuple[TracedArrival, ...]:
    """Return the arrivals of a trace in the order of their times, the first at 0.

    Raises:
        WorkloadError: an unknown format, or a line that cannot be read, with its number.
    """
    read, rows = _choose(text, name)
    found = []
    for number, row in rows:
        try:
            found.append(read(row))
        except (KeyError, ValueError, TypeError) as error:
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
    found.sort(key=lambda arrival: arrival.due_ns)
    first_ns = found[0].due_ns
    return tuple(msgspec.structs.replace(one, due_ns=one.due_ns - first_ns) for one in found)


def compress(arrivals: tuple[TracedArrival, ...], speed: float) -> tuple[TracedArrival, ...]:
    """Return the arrivals `speed` times as fast; order and everything else stay.

    Raises:
        ValueError: the speed is not a positive number.
    """
    if not (math.isfinite(speed) and speed > 0):
        raise ValueError(f"the speed of a trace must be a positive number, got {speed}")
    return tuple(msgspec.structs.replace(one, due_ns=round(one.due_ns / speed)) for one in arrivals)


def _choose(text: str, name: str) -> tuple[Callable[[Row], TracedArrival], Iterator[tuple[int, Row]]]:
    head = text.lstrip("\ufeff").partition("\n")[0].strip()
    if head.startswith("{"):
        is_mooncake = '"input_length"' in head
        return (_read_mooncake if is_mooncake else _read_own), _json_rows(text, name)
    columns = {column.strip() for column in head.split(",")}
    if {"TIMESTAMP", "ContextTokens", "GeneratedTokens"} <= columns:
        return _read_azure, _csv_rows(text)
    if {"Timestamp", "Request tokens", "Response tokens"} <= columns:
        return _read_burstgpt, _csv_rows(text)
    raise WorkloadError(
        f"the trace begins with {head[:60]!r}, which is none of the known forms",
        place=f"{name}:1",
        fix=f"use one of: {_FORMATS}.",
    )


def _csv_rows(text: str) -> Iterator[tuple[int, Row]]:
    reader = csv.DictReader(io.StringIO(text.lstrip("\ufeff"), newline=""), skipinitialspace=True)
    for row in reader:
        yield reader.line_num, row


def _json_rows(text: str, name: str) -> Iterator[tuple[int, Row]]:
    for number, line in enumerate(text.lstrip("\ufeff").splitlines(), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise WorkloadError(
                f"this line of the trace is no JSON: {error}",
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
        prompt_tokens=_count(row["ContextTokens"]),
        output_tokens=_count(row["GeneratedTokens"]),
    )


def _read_burstgpt(row: Row) -> TracedArrival:
    return TracedArrival(
        due_ns=_seconds(row["Timestamp"]),
        prompt_tokens=_count(row["Request tokens"]),
        output_tokens=_count(row["Response tokens"]),
        traffic_class=row.get("Log Type") or None,
    )


def _read_mooncake(row: Row) -> TracedArrival:
    return TracedArrival(
        due_ns=round(_seconds(row["timestamp"]) / 1000),
        prompt_tokens=_count(row["input_length"]),
        output_tokens=_count(row["output_length"]),
        shared_blocks=tuple(int(block) for block in row.get("hash_ids", ())),
    )


def _read_own(row: Row) -> TracedArrival:
    return TracedArrival(
        due_ns=_seconds(row["at_s"]),
        prompt_tokens=None if row.get("prompt_tokens") is None else _count(row["prompt_tokens"]),
        output_tokens=None if row.get("output_tokens") is None else _count(row["output_tokens"]),
        item_id=row.get("item_id"),
        traffic_class=row.get("class"),
    )


def _seconds(value: str | float) -> int:
    """Return a number of seconds in ns; text is read digit by digit where a float would round."""
    seconds = float(value)
    if not math.isfinite(seconds):
        raise ValueError(f"{value!r} is no time")
    return round(seconds * NS_PER_S)


def _count(value: str | int) -> int:
    number = float(value)
    if not number.is_integer() or number < 0:
        raise ValueError(f"{value!r} is no number of tokens")
    return int(number)


def _parse_timestamp(value: str) -> int:
    """Return a date and time in ns; the traces write seven digits of a second and sometimes an offset."""
    whole, _, rest = value.strip().partition(".")
    digits = rest[: len(rest) - len(rest.lstrip("0123456789"))]
    moment = datetime.fromisoformat(whole + rest[len(digits) :])
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    fraction_ns = int(digits[:_FRACTION_DIGITS].ljust(_FRACTION_DIGITS, "0")) if digits else 0
    return int(moment.timestamp()) * NS_PER_S + fraction_ns
