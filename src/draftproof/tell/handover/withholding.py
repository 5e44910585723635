"""Confidential workloads: prompts and outputs leave the package, what the verdict is based on stays.

Texts become HMAC-SHA256 digests under a salt that the user keeps, so equal texts stay equal and nobody
without the salt can try guesses. Token ids become a chain: entry i stands for the salt and all tokens up to
it, so that equality, length and the first difference of two answers stay what they were, and no token can be
counted or guessed from its frequency. Answers are distinguished by item: "yes" is another digest in each.
Checks are judged before the text goes. Pure.

The last look before a package leaves the house: is there a text in it that looks like a secret?

Journals and manifests are masked when they are written. What is found here is refused by file and line, never
quoted.
"""

import hashlib
import hmac
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from draftproof.core.errors import StoreError, UsageError
from draftproof.core.records import (
    Judgement,
    RequestRecord,
    ToolCall,
    Withheld,
    WithheldCheck,
    WithheldSequence,
)
from draftproof.core.secrets import classify_secret
from draftproof.judge.inform.diagnosis.remedies import measure_overlaps
from draftproof.judge.metrics.delivery import count_characters
from draftproof.judge.metrics.request import count_first_bytes
from draftproof.judge.metrics.sequence import describe_sequence
from draftproof.judge.observe.levels import prompt_of
from draftproof.judge.observe.run_data import index_judgements, judge_answer
from draftproof.workload.clusters import find_near_copies
from draftproof.workload.items import FollowUp, Item, Message

MIN_SALT_BYTES = 16
# Sixteen drawn bytes have fewer different ones less than once in 10^9.
MIN_DISTINCT_BYTES = 8
# An integer of JSON and of Parquet that every reader holds exactly.
_CHAIN_BITS = 53
_STRAY_LINE = "line outside the event-stream format: "
_REASON = re.compile("[A-Za-z_]{1,32}")
_KEPT_CHECK_FIELDS = frozenset({"critical"})


class Withholder:
    """Replaces the texts of items and records under one salt of `MIN_SALT_BYTES` or more, never stored.

    `judgements` are what functions and judge models said of the answers. Raises UsageError: the salt is too
    short to keep anybody from guessing.
    """

    def __init__(self, salt: bytes, items: Iterable[Item], judgements: Iterable[Judgement] = ()) -> None:
        fault = None
        if len(salt) < MIN_SALT_BYTES:
            fault = f"the salt has {len(salt)} bytes, at least {MIN_SALT_BYTES} are needed."
        elif len(set(salt)) < MIN_DISTINCT_BYTES:
            fault = f"the salt has only {len(set(salt))} different bytes, so it can be guessed."
        if fault is not None:
            fix = "make one: head -c 32 /dev/urandom > salt, and keep it secret."
            raise UsageError(fault, place="--salt", fix=fix)
        self._salt = salt
        self._items = {item.id: item for item in items}
        self._judged = index_judgements(judgements)
        self._overlaps = measure_overlaps(self._items.values())
        self._near_copies = find_near_copies(self._items.values())

    def digest(self, kind: str, text: str) -> str:
        """Return the digest that stands for a text; "" stays "", for an empty answer is no secret."""
        if not text:
            return ""
        message = kind.encode() + b"\0" + text.encode("utf-8", "surrogatepass")
        return "withheld:" + hmac.new(self._salt, message, hashlib.sha256).hexdigest()

    def chain(self, token_ids: Iterable[int], item_id: str = "") -> tuple[int, ...]:
        """Return one integer below 2^53 for every prefix of some token ids; another one in every item."""
        start = b"token_ids" + item_id.encode("utf-8", "surrogatepass")
        state, chained = hmac.new(self._salt, start, hashlib.sha256).digest(), []
        for token in token_ids:
            width = max(8, token.bit_length() // 8 + 1)
            state = hmac.new(
                self._salt, state + token.to_bytes(width, "big", signed=True), hashlib.sha256
            ).digest()
            chained.append(int.from_bytes(state[:8], "big") >> (64 - _CHAIN_BITS))
        return tuple(chained)

    def record(self, record: RequestRecord) -> RequestRecord:
        """Return a record without texts, its checks judged; one that is withheld already stays as it is."""
        if record.withheld is not None:
            return record
        item = self._items.get(record.item_id) or self._items.get(prompt_of(record.item_id))
        ids, own = record.token_ids, f" of {record.item_id}"
        return msgspec.structs.replace(
            record,
            text=self.digest("text" + own, record.text),
            reasoning_text=self.digest("reasoning" + own, record.reasoning_text),
            tool_calls=tuple(self._tool_call(call) for call in record.tool_calls),
            finish_reason=self._reason(record.finish_reason),
            token_ids=None if ids is None else self.chain(ids, record.item_id),
            error=None if record.error is None else self.digest("error", record.error),
            piece_chars=None,  # the lengths of single tokens tell the text
            malformed_raw=None if record.malformed_raw is None else self.digest("raw", record.malformed_raw),
            warnings=tuple(self._warning(text) for text in record.warnings),
            withheld=Withheld(
                checks=() if item is None else tuple(self._outcomes(item, record)),
                characters=count_characters(record),
                sequence=self._sequence(record),
                first_bytes=count_first_bytes(record),
            ),
        )

    def item(self, item: Item) -> Item:
        """Return an item that keeps what statistics need: labels, limits, sampling, kinds of checks."""
        schema = item.response_schema
        return msgspec.structs.replace(
            item,
            messages=tuple(self._message(one) for one in item.messages),
            checks=tuple(_blank(check) for check in item.checks),
            stop=self._texts("stop", item.stop),
            tools=tuple(self._document("tool", tool) for tool in item.tools),
            response_schema=None if schema is None else self._document("schema", schema),
            tool_choice=self._choice(item.tool_choice),
            request=self._document("request", item.request) if item.request else {},
            follow_ups=tuple(self._follow_up(one) for one in item.follow_ups),
            withheld_prompt=self._overlaps.get(item.id),
            withheld_like=self._near_copies.get(item.id),
        )

    def _message(self, message: Message) -> Message:
        call, name = message.tool_call_id, message.name
        return msgspec.structs.replace(
            message,
            content=None if message.content is None else self.digest("message", message.text),
            name=None if name is None else self.digest("name", name),
            tool_calls=tuple(self._document("call", one) for one in message.tool_calls),
            tool_call_id=None if call is None else self.digest("call", call),
        )

    def _follow_up(self, turn: FollowUp) -> FollowUp:
        return msgspec.structs.replace(
            turn,
            content=self.digest("message", turn.content),
            tool_results=self._texts("message", turn.tool_results),
            checks=tuple(_blank(check) for check in turn.checks),
            stop=None if turn.stop is None else self._texts("stop", turn.stop),
            tool_choice=self._choice(turn.tool_choice),
        )

    def _choice(self, choice: str | dict[str, Any] | None) -> str | dict[str, Any] | None:
        return self._document("choice", choice) if isinstance(choice, dict) else choice

    def _texts(self, kind: str, texts: Iterable[str]) -> tuple[str, ...]:
        return tuple(self.digest(kind, text) for text in texts)

    def _sequence(self, record: RequestRecord) -> WithheldSequence | None:
        """Return the answer's features; what stands for a token is another integer in every item."""
        if record.outcome != "ok":
            return None
        found = describe_sequence(record, by_ids=record.token_ids is not None)
        return WithheldSequence(
            first=None if found.first is None else self._number(record.item_id, "first", found.first),
            distinct_share=found.distinct_share,
            repeated_share=found.repeated_share,
            bigrams=tuple(sorted({self._number(record.item_id, *pair) for pair in _pairs(found.bigrams)})),
        )

    def _number(self, *parts: str | int) -> int:
        """Return an integer below 2^53 for some parts, the kind of each distinguished."""
        digest = hmac.new(self._salt, b"number" + msgspec.json.encode(parts), hashlib.sha256).digest()
        return int.from_bytes(digest[:8], "big") >> (64 - _CHAIN_BITS)

    def judgement(self, judgement: Judgement) -> Judgement:
        """Return a judgement that keeps what was said of which answer, and no word or plain hash of it.

        A function is named by the hash of its code alone: its own name tells what it looks for.
        """
        return msgspec.structs.replace(
            judgement,
            by=judgement.source_sha256 if judgement.kind == "python" else judgement.by,
            detail=self.digest("detail", judgement.detail),
            answer_sha256=self.digest("answer", judgement.answer_sha256),
        )

    def _outcomes(self, item: Item, record: RequestRecord) -> Iterator[WithheldCheck]:
        for one in judge_answer(item, record, self._judged.get(record.request_id)):
            yield WithheldCheck(one.kind, one.passed, one.critical)

    def _reason(self, reason: str | None) -> str | None:
        """A reason is a word of the protocol; anything else may be what the answer stopped at."""
        return reason if reason is None or _REASON.fullmatch(reason) else self.digest("reason", reason)

    def _tool_call(self, call: ToolCall) -> ToolCall:
        return ToolCall(
            name=self.digest("tool", call.name), arguments=self.digest("arguments", call.arguments)
        )

    def _document(self, kind: str, document: dict[str, Any]) -> dict[str, Any]:
        return {"withheld": self.digest(kind, msgspec.json.encode(document, order="sorted").decode())}

    def _warning(self, text: str) -> str:
        """Warnings are the client's own sentences, but for one that quotes the stream."""
        if not text.startswith(_STRAY_LINE):
            return text
        return _STRAY_LINE + self.digest("warning", text)


def _pairs(bigrams: Iterable[Any] | None) -> Iterator[tuple[str | int, str | int]]:
    """Yield the pairs of an answer that is not withheld yet."""
    for pair in bigrams or ():
        yield pair[0], pair[1]


def _blank(check: Any) -> Any:
    """Return a check of the same kind that keeps whether it is critical and nothing of what it looks for."""
    kept = {name: getattr(check, name) for name in _KEPT_CHECK_FIELDS}
    blanks = {
        field.encode_name: _blank_value(getattr(check, field.name))
        for field in msgspec.structs.fields(check)
        if field.required
    }
    return msgspec.convert({"type": check.__struct_config__.tag} | blanks | kept, type(check))


def _blank_value(value: Any) -> Any:
    return type(value)() if isinstance(value, str | int | float | dict | list | tuple) else None


_SHOWN = 5


class SecretPlace(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """Where something looks like a secret: the member, its line from 1, and what it looks like."""

    member: str
    line: int
    kind: str

    @property
    def place(self) -> str:
        """Member and line, as `--allow-secret-like` takes it."""
        return f"{self.member}:{self.line}"


def find_secret_places(members: Mapping[str, Path], values: Collection[str] = ()) -> tuple[SecretPlace, ...]:
    """Return every place of some files that looks like a secret.

    Raises StoreError: a file cannot be read. `values` are secrets that are known, such as those the plan
    refers to in the environment.
    """
    known = _known_patterns(values)
    return tuple(place for name, path in sorted(members.items()) for place in _search_file(name, path, known))


def refuse_secrets(places: Collection[SecretPlace], allowed: Collection[str]) -> None:
    """Do nothing if every place was allowed by name.

    Raises UsageError: names the first places, or an allowed place at which nothing was found.
    """
    left = sorted(one for one in places if one.place not in allowed)
    if left:
        shown = ", ".join(f"{one.kind} at {one.place}" for one in left[:_SHOWN])
        more = f", and {len(left) - _SHOWN} more" if len(left) > _SHOWN else ""
        raise UsageError(
            f"the package would hold what looks like a secret: {shown}{more}.",
            fix="measure again with the secret in the environment, use --withhold, or, where it is none, add "
            f"--allow-secret-like {left[0].place}",
        )
    unused = sorted(set(allowed) - {one.place for one in places})
    if unused:
        raise UsageError(
            f"nothing at {unused[0]} looks like a secret.", place="--allow-secret-like", fix="leave it away."
        )


def _known_patterns(values: Collection[str]) -> tuple[tuple[str, re.Pattern[bytes]], ...]:
    """A value stands in a document as it is, or as JSON writes it."""
    forms = {form for value in values for form in (value.encode(), msgspec.json.encode(value)[1:-1])}
    return tuple(("the value of a secret of the plan", re.compile(re.escape(form))) for form in sorted(forms))


def _search_file(
    name: str, path: Path, known: tuple[tuple[str, re.Pattern[bytes]], ...]
) -> Iterator[SecretPlace]:
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                kind = classify_secret(line, known)
                if kind is not None:
                    yield SecretPlace(member=name, line=number, kind=kind)
    except OSError as error:
        raise StoreError(f"cannot be read ({error.strerror}).", place=str(path)) from error
