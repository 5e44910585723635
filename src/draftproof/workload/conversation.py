"""The turns of a conversation: what is asked at each, given the answers before it.

Pure. A later turn carries the service's own earlier answers, not written ones, so two arms that answered
differently ask differently from there on.

An answer as the checks see it, and finding a JSON value or numbers in its free text. Pure.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

import msgspec

from draftproof.core.records import RequestRecord, ToolCall
from draftproof.workload.items import Check, FollowUp, Item, Message

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

    A block whose braces never close is a cut answer: nothing inside it counts, so None. `opener`: "{" or "[",
    the bracket with which the wanted value begins when it stands inside prose.
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


NO_RESULT = "(no result)"


def item_at_turn(item: Item, answers: Sequence[AnswerView]) -> Item:
    """Return the item as it is asked after `answers`, the answers to its earlier turns in order.

    The result has no follow-ups; its checks, limits and stop strings are those of the turn. What a model
    thought aloud is not part of the history, as the protocol has it. Raises IndexError: the conversation has
    no such turn.
    """
    if not answers:
        return msgspec.structs.replace(item, follow_ups=()) if item.follow_ups else item
    turns = zip(answers, item.follow_ups, strict=False)
    history = [
        message for turn, (answer, asked) in enumerate(turns) for message in _continue(turn, answer, asked)
    ]
    asked = item.follow_ups[len(answers) - 1]
    return msgspec.structs.replace(
        item,
        messages=(*item.messages, *history),
        checks=asked.checks,
        max_tokens=asked.max_tokens or item.max_tokens,
        stop=item.stop if asked.stop is None else asked.stop,
        tool_choice=asked.tool_choice or item.tool_choice,
        follow_ups=(),
    )


def checks_at_turn(item: Item, turn: int) -> tuple[Check, ...]:
    """Return the checks of the answer at a turn, counted from 0."""
    return item.checks if turn == 0 else item.follow_ups[turn - 1].checks


def stop_at_turn(item: Item, turn: int) -> tuple[str, ...]:
    """Return the stop strings that are sent at a turn."""
    own = None if turn == 0 else item.follow_ups[turn - 1].stop
    return item.stop if own is None else own


def _continue(turn: int, answer: AnswerView, asked: FollowUp) -> Iterator[Message]:
    """Yield the answer, a result for each of its tool calls, and what is asked next."""
    ids = [f"call_{turn}_{index}" for index in range(len(answer.tool_calls))]
    yield Message(
        role="assistant",
        content=answer.text,
        tool_calls=tuple(
            {"id": name, "type": "function", "function": msgspec.to_builtins(call)}
            for name, call in zip(ids, answer.tool_calls, strict=True)
        ),
    )
    for index, name in enumerate(ids):
        result = asked.tool_results[index] if index < len(asked.tool_results) else NO_RESULT
        yield Message(role="tool", content=result, tool_call_id=name)
    # A request must end with something to answer: results that no call wanted go in the person's words.
    content = asked.content or ("" if ids else "\n".join(asked.tool_results))
    if content:
        yield Message(role=asked.role, content=content)
