"""A service that behaves as an application expects, or breaks exactly one rule: scripts from payloads. Pure.

Its answers are words with known places, so that what a probe must find is known.
"""

from typing import Any

import msgspec
from tests.builders.playback import render_json_response
from tests.builders.scripts import Script

NATURAL_TOKENS = 80
ARGUMENTS = ('{"city": ', '"Bergen", ', '"days": 2}')
OBJECT = ('{"colour": ', '"red", ', '"heavy": true}')
UNICODE = ("Grüße ", "東", "🙂")
TORN = "�"


class Behaviour(msgspec.Struct, frozen=True, kw_only=True):
    """How a scripted service answers; every default is right. `refuses` are payload keys that get HTTP 400.

    `gap_s`: pause between the tokens of an answer.
    """

    leaks_stop: bool = False
    ignores_limit: bool = False
    calls_wrongly: bool = False
    ignores_schema: bool = False
    forgets_seed: bool = False
    tears_characters: bool = False
    names_no_role: bool = False
    speaks_after_end: bool = False
    refuses: tuple[str, ...] = ()
    gap_s: float = 0.0
    natural_tokens: int = NATURAL_TOKENS


class BehavingService:
    """Chooses the script of each request for a `ScriptedServer`.

    Args:
        behaviour: the rules it keeps and breaks.
    """

    def __init__(self, behaviour: Behaviour | None = None) -> None:
        self.behaviour = behaviour or Behaviour()
        self._asked = 0

    def __call__(self, payload: dict[str, Any]) -> Script:
        """Return the script for a payload."""
        self._asked += 1
        own = self.behaviour
        if any(key in payload for key in own.refuses):
            return Script(status=400, refusal="a field is not supported")
        if not payload.get("stream"):
            message = {"role": "assistant", "content": "".join(UNICODE)}
            body = {"choices": [{"index": 0, "message": message}]}
            return Script(raw_response=render_json_response(200, body))
        return self._shape(*self._answer(payload))

    def _answer(self, payload: dict[str, Any]) -> tuple[tuple[str, ...], str, bool]:
        """Return the chunks of an answer, its finish reason, and whether it is a tool call."""
        own = self.behaviour
        if payload.get("tools"):
            name = "delete_all" if own.calls_wrongly else payload["tools"][0]["function"]["name"]
            return (name, *ARGUMENTS), "tool_calls", True
        if payload.get("response_format"):
            return (("Red, and yes.",) if own.ignores_schema else OBJECT), "stop", False
        words = self._words(payload)
        return (*self._cut(words, payload), False)

    def _words(self, payload: dict[str, Any]) -> tuple[str, ...]:
        own, asked = self.behaviour, payload["messages"][-1]["content"]
        if "東" in asked:
            return (TORN, TORN, TORN) if own.tears_characters else UNICODE
        drawn = self._asked if own.forgets_seed else payload.get("seed", 0)
        name = f"s{drawn}" if payload.get("temperature") else "w"
        return tuple(f"{name}{number} " for number in range(own.natural_tokens))

    def _cut(self, words: tuple[str, ...], payload: dict[str, Any]) -> tuple[tuple[str, ...], str]:
        own, reason = self.behaviour, "stop"
        if len(words) > payload["max_tokens"] and not own.ignores_limit:
            words, reason = words[: payload["max_tokens"]], "length"
        text = "".join(words)
        for stop in payload.get("stop", ()):
            if stop in text:
                end = text.index(stop) + (len(stop) if own.leaks_stop else 0)
                return _rejoin(words, text[:end]), "stop"
        return words, reason

    def _shape(self, chunks: tuple[str, ...], reason: str, is_call: bool) -> Script:  # noqa: FBT001
        own = self.behaviour
        return Script(
            tokens_per_chunk=(1,) * len(chunks),
            texts=None if is_call else chunks,
            tool_call=chunks if is_call else None,
            finish_reason=reason,
            role_chunk=not own.names_no_role,
            after_finish="more" if own.speaks_after_end else None,
            gaps_s=(own.gap_s,),
        )


def _rejoin(words: tuple[str, ...], text: str) -> tuple[str, ...]:
    """Return the words as far as the text goes."""
    kept: list[str] = []
    for word in words:
        rest = text[len("".join(kept)) :]
        if not rest:
            break
        kept.append(word[: len(rest)])
    return tuple(kept)
