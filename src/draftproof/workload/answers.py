"""An answer as the checks see it, and finding a JSON value or numbers in its free text. Pure."""

import hashlib
import json
import re
from typing import Any, NoReturn

import msgspec

from draftproof.records import RequestRecord, ToolCall

_FENCED = re.compile(r"```[A-Za-z]*\n?(.*?)```", re.DOTALL)
_DIGITS = str.maketrans(
    "٠١٢٣٤٥٦٧٨٩۰۱۲۳۴۵۶۷۸۹０１２３４５６７８９\N{ARABIC DECIMAL SEPARATOR}\N{MINUS SIGN}",
    "0123456789" * 3 + ".-",
)
# Grouping needs three digits after each separator and no fourth: "1,250" is one number, "1,5" are two.
_GROUPING = "[,'’\u066c\u00a0\u202f\u2009]"
_NUMBER = re.compile(rf"(?:(?<![\w.])-)?(?:\d{{1,3}}(?:{_GROUPING}\d{{3}})+(?!\d)|\d+)(?:\.\d+)?")


class AnswerView(msgspec.Struct, frozen=True, kw_only=True):
    """What an answer said and how it ended; times and the arm are left out on purpose."""

    text: str = ""
    reasoning_text: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    finish_reason: str | None = None
    output_tokens: int | None = None

    @property
    def sha256(self) -> str:
        """Hash of all that the answer said: binds a judgement to it."""
        return hashlib.sha256(msgspec.json.encode(self, order="sorted")).hexdigest()


def view_answer(record: RequestRecord) -> AnswerView:
    """Return the answer of a record."""
    return AnswerView(
        text=record.text,
        reasoning_text=record.reasoning_text,
        tool_calls=record.tool_calls,
        finish_reason=record.finish_reason,
        output_tokens=record.output_tokens,
    )


class FoundJson(msgspec.Struct, frozen=True):
    """A JSON value that was found; the wrapper tells JSON null from nothing found."""

    value: Any


def find_numbers(text: str) -> list[float]:
    """Return the numbers written in digits, in order: thousands separators, decimals and minus understood.

    Arabic-Indic, Persian and full-width digits count as digits. A minus counts only where no word or number
    stands directly before it, so "2019-2021" gives two positive numbers. A decimal comma is not understood.
    """
    return [
        float(re.sub(r"[^\d.-]", "", found.group())) for found in _NUMBER.finditer(text.translate(_DIGITS))
    ]


def find_json(text: str, opener: str = "{") -> FoundJson | None:
    """Return the JSON value of an answer: the whole text, else a fenced block, else the first braced block.

    A block whose braces never close is a cut answer: nothing inside it counts, so None.

    Args:
        text: the answer.
        opener: "{" or "[", the bracket with which the wanted value begins when it stands inside prose.
    """
    for candidate in (text, *_FENCED.findall(text)):
        found = parse_json(candidate)
        if found is not None:
            return found
    return _find_bracketed(text, opener)


def _find_bracketed(text: str, opener: str) -> FoundJson | None:
    start = text.find(opener)
    while start >= 0:
        end = _find_close(text, start)
        if end is None:
            return None
        found = parse_json(text[start:end])
        if found is not None:
            return found
        start = text.find(opener, end)
    return None


def _find_close(text: str, start: int) -> int | None:
    """Return the index after the bracket that closes the one at `start`; brackets in strings do not count."""
    depth, quoted, escaped = 0, False, False
    for index in range(start, len(text)):
        char = text[index]
        if escaped:
            escaped = False
        elif quoted:
            escaped, quoted = char == "\\", char != '"'
        elif char == '"':
            quoted = True
        elif char in "{[":
            depth += 1
        elif char in "}]":
            depth -= 1
            if depth == 0:
                return index + 1
    return None


def parse_json(text: str) -> FoundJson | None:
    """Return the JSON value that a text is, None where it is none."""
    try:
        return FoundJson(json.loads(text, parse_constant=_refuse_constant))
    except (ValueError, RecursionError):
        return None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")
