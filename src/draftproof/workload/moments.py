"""Times of recorded requests, and tokens of the blocks that a trace names: what says their unit. Pure.

A number says its unit by its key (`at_s`), by its size (seconds since 1970), or not at all: then the plan has
to say it (`workload.timestamp_unit`). The size of a block shows by the lengths of prompts, where only one
power of two fits them. A unit is never guessed.
"""

import math
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import msgspec

from draftproof.core.clock import NS_PER_S
from draftproof.core.errors import WorkloadError

TIME_KEYS = ("at_s", "timestamp")
LONGEST_SPAN_S = 1_000_000_000  # of a recording, some 30 years: what workload.window can name
UNIT_KEY = "workload.timestamp_unit"
_LATEST_S = 1e11  # a time in seconds beyond it, some 3,000 years on, is one in milliseconds
# The least sizes of times from 2001 to 2286 in a unit; no likely ones in another.
_SINCE_1970 = {"milliseconds": 1e12, "microseconds": 1e15, "nanoseconds": 1e18}
_FRACTION_DIGITS = 9
_SHOWN = 60  # characters of a value that a sentence quotes
_DATE_AND_TIME = re.compile(
    r"(?P<day>\d{4}-\d\d-\d\d|\d{8})[Tt ]+"
    r"(?P<time>\d\d:\d\d|(?:\d\d:\d\d:\d\d|\d{6})(?:[.,](?P<fraction>\d+))?)"
    r" *(?P<zone>[Zz]|UTC|GMT|[+-]\d\d(?::?\d\d){0,2})?",
    re.ASCII,
)

Unit = Literal["s", "ms", "us", "ns"]
# "at_s" and "number" both count seconds, "zoned" and "local" are dates.
Form = Literal["at_s", "number", "zoned", "local"]
NS_PER: dict[Unit, int] = {"s": NS_PER_S, "ms": 1_000_000, "us": 1000, "ns": 1}
_WRITTEN: dict[Form, str] = {
    "at_s": "a number of seconds",
    "number": "a number",
    "zoned": "a date and time with its offset from UTC",
    "local": "a date and time without an offset from UTC",
}


class Moment(NamedTuple):
    """When a request came, in ns from an origin of its file, and the form in which the file says so."""

    ns: int
    form: Form


class Units(msgspec.Struct, frozen=True, kw_only=True):
    """What the plan says of a recording because its file does not; None: nothing.

    `timestamp`: the unit of a bare number. `block_tokens`: tokens of the prompt for each entry of `hash_ids`.
    """

    timestamp: Unit | None = None
    block_tokens: int | None = None


def read_moment(row: Mapping[str, Any], unit: Unit | None) -> Moment | None:
    """Return when a request was recorded; None: its row does not say.

    `row`: `at_s` counts seconds; `timestamp` is a date and time, or a number. `unit`: of such a number; None:
    seconds since 1970, if its size says so. Raises WorkloadError: a number whose unit is not known; its place
    is for the caller to fill in; ValueError: two times of one request; TypeError: a value of another kind.
    """
    given = [key for key in TIME_KEYS if row.get(key) is not None]
    if not given:
        return None
    if len(given) > 1:
        raise ValueError(f"{' and '.join(given)} are two times of one request")
    key, value = given[0], row[given[0]]
    if isinstance(value, str) and key == "timestamp":
        return read_date(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{key} = {quote(value)} is no time")
    if key == "timestamp":
        return Moment(scale(value, unit or _tell_unit(value)), "number")
    if abs(value) > _LATEST_S:
        raise ValueError(f"{key} = {quote(value)} seems to be in milliseconds, and seconds are read")
    return Moment(scale(value, "s"), "at_s")


def read_date(value: str) -> Moment:
    """Return a date and time in ns since 1970; a fraction of a second may have any number of digits.

    Raises ValueError: it is none, or lacks the time of day.
    """
    found = _DATE_AND_TIME.fullmatch(value.strip())
    if found is None:
        raise ValueError(f"{quote(value)} is no date and time, such as 2026-01-02T03:04:05.678Z")
    fraction, zone = found["fraction"] or "", found["zone"] or ""
    time = found["time"].removesuffix(fraction).rstrip(".,")
    offset = "+00:00" if zone in {"", "Z", "z", "UTC", "GMT"} else zone
    try:
        second = _read_second(f"{found['day']}T{time}", offset)
    except ValueError as error:
        raise ValueError(f"{quote(value)} is no date and time: {error}") from None
    part_ns = int(fraction[:_FRACTION_DIGITS].ljust(_FRACTION_DIGITS, "0"))
    return Moment(second * NS_PER_S + part_ns, "zoned" if zone else "local")


def scale(value: str | float, unit: Unit) -> int:
    """Return a time in ns, a whole number exactly, seconds since 1970 to a microsecond."""
    number = value if isinstance(value, int) else float(value)
    if not math.isfinite(number) or math.isinf(float(number) * NS_PER[unit]):
        raise ValueError(f"{quote(value)} is no time")
    return round(number * NS_PER[unit])


def check_forms(forms: Iterable[tuple[Form, str]]) -> None:
    """Refuse a file whose times have no common origin.

    `forms`: each form in which a time is written, with its place. Raises WorkloadError: dates beside numbers,
    or dates with and without an offset from UTC.
    """
    first: Form | None = None
    for form, place in forms:
        first = first or form
        if _origin(form) != _origin(first):
            raise WorkloadError(
                f"this time is {_WRITTEN[form]}, and the first of the file is {_WRITTEN[first]}",
                place=place,
                fix="write all times of a file in one form.",
            )


def check_unit_is_used(unit: Unit | None, forms: Iterable[Form], place: str) -> None:
    """Refuse a unit that the plan states and no time of the file needs.

    Raises WorkloadError: no time is a bare number.
    """
    if unit is not None and "number" not in forms:
        raise WorkloadError(
            f"the times of this file say their unit, and the plan states {unit!r}",
            place=f"{place}, {UNIT_KEY}",
            fix=f"leave {UNIT_KEY} out.",
        )


def check_span(span_ns: int, place: str) -> None:
    """Refuse a recording so long that one of its times must be wrong.

    Raises WorkloadError: it spans more than `LONGEST_SPAN_S`.
    """
    if span_ns > LONGEST_SPAN_S * NS_PER_S:
        raise WorkloadError(
            f"this request came {span_ns / NS_PER_S:.3g} s after the first, and a recording spans "
            f"{LONGEST_SPAN_S:,} s at most",
            place=place,
            fix="correct the first or the last time, or state all in one unit.",
        )


def quote(value: object) -> str:
    """Return a value as a sentence shows it."""
    shown = ascii(value) if isinstance(value, str) else repr(value)
    return shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}…"


def _tell_unit(value: float) -> Unit:
    if 1e9 <= value < 1e10:
        return "s"
    sizes = [name for name, least in _SINCE_1970.items() if least <= value < 10 * least]
    hint = f" (as a time since 1970 it would be in {sizes[0]})" if sizes else ""
    raise WorkloadError(
        f"timestamp = {quote(value)} does not say its unit{hint}",
        fix=f'state {UNIT_KEY} in the plan: "s", "ms", "us" or "ns" (init: --timestamp-unit).',
    )


def _origin(form: Form) -> Form:
    return "at_s" if form == "number" else form


@lru_cache(maxsize=1024)  # requests of one second stand together
def _read_second(value: str, offset: str) -> int:
    moment = datetime.fromisoformat(value + offset)
    return int(moment.astimezone(UTC).timestamp())


BLOCK_KEY = "workload.block_tokens"
_SIZES = tuple(1 << power for power in range(13))  # 1 to 4,096: engines keep blocks of powers of two


def decide_block_tokens(
    stated: int | None, prompts: Iterable[tuple[int | None, int, int]], name: str
) -> int | None:
    """Return the tokens of a block, None for a trace without blocks.

    `stated`: what the plan or the format says. `prompts`: tokens, blocks and line of each prompt. Raises
    WorkloadError: a prompt that is not made of blocks of the stated size, or several sizes that fit.
    """
    stated_prompts = [
        (tokens, blocks, line) for tokens, blocks, line in prompts if tokens is not None and blocks
    ]
    if not stated_prompts:
        return None
    if stated is not None:
        _check(stated, stated_prompts, name)
        return stated
    fitting = [size for size in _SIZES if _fits(size, stated_prompts)]
    if len(fitting) != 1:
        which = f"{', '.join(map(str, fitting))} tokens fit" if fitting else "no power of two fits"
        raise WorkloadError(
            f"the trace does not say of how many tokens its blocks are: {which} its lengths",
            place=f"{name}, {BLOCK_KEY}",
            fix=f"state the tokens of an entry of hash_ids: {BLOCK_KEY} in the plan (init: --block-tokens).",
        )
    return fitting[0]


def _fits(size: int, prompts: list[tuple[int, int, int]]) -> bool:
    """A trace names the last, shorter block of every prompt, or of none."""
    whole = all(tokens // size == blocks for tokens, blocks, _ in prompts)
    return whole or all(-(-tokens // size) == blocks for tokens, blocks, _ in prompts)


def _check(stated: int, prompts: list[tuple[int, int, int]], name: str) -> None:
    if _fits(stated, prompts):
        return
    tokens, blocks, line = next(
        (one for one in prompts if one[1] not in {one[0] // stated, -(-one[0] // stated)}), prompts[0]
    )
    raise WorkloadError(
        f"a prompt of {tokens:,} tokens has {-(-tokens // stated):,} blocks of {stated}, and hash_ids names "
        f"{blocks:,}",
        place=f"{name}:{line}",
        fix=f"state the tokens of one entry of hash_ids as {BLOCK_KEY} in the plan, or remove hash_ids.",
    )
