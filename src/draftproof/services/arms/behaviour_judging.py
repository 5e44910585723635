"""What an answer to a probe shows. Pure: one `Seen` or two in, a status and a sentence out.

A status is `failed` only where the service answered and broke a rule, or broke off. What depends on a model
that did not play along is `unknown`.

Hanging up in the middle of an answer: does the service stop working, and is its place free again?

A service that goes on writes for nobody, and under speculation it may go on drafting too.

A service's own account of its work, and an answer without a stream, for the probes that need them.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import aiohttp
import msgspec

from draftproof.core.errors import EngineError
from draftproof.core.records import ProbeStatus
from draftproof.measure.load.period import view_exchange
from draftproof.services.arms.behaviour_asking import (
    Frame,
    Line,
    Seen,
    ask,
    ask_and_leave,
    choices_of,
    delta_of,
    has_content,
)
from draftproof.services.arms.service import Service, fetch_completion, fetch_totals
from draftproof.services.engines.values import first_sum, sum_parts
from draftproof.workload.checks import judge_tool_calls
from draftproof.workload.conversation import parse_json
from draftproof.workload.items import Item, ToolCallCheck, find_violation

Judged = tuple[ProbeStatus, str]
BROKEN_CHARACTER = "\N{REPLACEMENT CHARACTER}"
FEWEST_TOKENS_TO_STREAM = 8
STOP_CHARS = 5
_REFUSING = frozenset({400, 403, 404, 405, 413, 415, 422, 501})
_UNRELIABLE = frozenset({"rejected", "timeout", "cancelled"})


def judge_ending(seen: Seen) -> Judged | None:
    """Return what a request that did not end well shows, None for one that did."""
    exchange = seen.exchange
    if seen.is_ok:
        return None
    said = (exchange.error or exchange.outcome)[:200]
    if exchange.http_status in _REFUSING:
        return "unsupported", said
    unheard = exchange.outcome in _UNRELIABLE or exchange.http_status is None
    return ("unknown" if unheard else "failed"), said


def judge_streaming(seen: Seen) -> Judged:
    """Judge the shape of a stream: role, several events, one finish reason, usage, end marker."""
    bad = judge_ending(seen)
    if bad is not None:
        return bad
    faults = list(_find_stream_faults(seen))
    if faults:
        return "failed", "; ".join(faults)
    events = sum(map(has_content, seen.frames))
    return "passed", f"{events} events with content, finish reason {seen.answer.finish_reason}, usage, [DONE]"


def judge_limit(seen: Seen, limit: int) -> Judged:
    """Judge that an answer kept its token limit."""
    bad = judge_ending(seen)
    if bad is not None:
        return bad
    tokens, reason = seen.answer.output_tokens, seen.answer.finish_reason
    if tokens is None:
        return "unknown", "the service tells no token count"
    if tokens > limit:
        return "failed", f"asked for {limit} tokens at most, got {tokens}"
    if tokens < limit:
        return "unknown", f"the answer ended by itself after {tokens} of {limit} tokens ({reason})"
    return "passed", f"{tokens} tokens, finish reason {reason}"


def choose_stop(text: str) -> str | None:
    """Return a stop string out of the middle of an answer, None where the answer has no place for one.

    It spans a border of words, and so of tokens, where the text has one there.
    """
    places = range(max(len(text) // 4, 2), 3 * len(text) // 4)
    usable = [
        string
        for place in places
        if (string := text[place : place + STOP_CHARS]).strip() == string
        and len(string) == STOP_CHARS
        and string.isprintable()
        and BROKEN_CHARACTER not in string
        and text.find(string) >= 2
    ]
    return next((string for string in usable if " " in string), usable[0] if usable else None)


def judge_stop_string(whole: Seen, stopped: Seen, stop: str) -> Judged:
    """Judge that a stop string ends the answer and is not shown; `whole` is the answer without one."""
    bad = judge_ending(stopped)
    if bad is not None:
        return bad
    text, reason = stopped.answer.text, stopped.answer.finish_reason
    if stop in text:
        return "failed", f"the stop string {stop!r} is in the answer"
    expected = whole.answer.text[: whole.answer.text.index(stop)]
    return _judge_stopped(text, expected, stop, reason)


def _judge_stopped(text: str, expected: str, stop: str, reason: str | None) -> Judged:
    if reason == "stop" and text == expected:
        return "passed", f"ended before {stop!r} with finish reason stop"
    if text == expected:
        return "failed", f"ended before {stop!r} with finish reason {reason}"
    if text.startswith(expected) and stop.startswith(text[len(expected) :]):
        return "failed", f"part of the stop string {stop!r} is in the answer"
    if expected.startswith(text) and reason == "stop":
        return "failed", f"ended {len(expected) - len(text)} characters before the stop string {stop!r}"
    return "unknown", "the service did not repeat its greedy answer, so the stop string may not have come up"


def judge_tool_call(seen: Seen, check: ToolCallCheck) -> Judged:
    """Judge that a call that was asked for came, with valid arguments."""
    bad = judge_ending(seen)
    if bad is not None:
        return bad
    if seen.answer.finish_reason == "length":
        return "unknown", "the answer ran into its token limit"
    passed, detail = judge_tool_calls(check, view_exchange(seen.exchange))
    return _to_status(passed), detail


def judge_json_schema(seen: Seen, schema: dict[str, Any]) -> Judged:
    """Judge that the whole answer is a JSON value that is valid under the schema that was asked for."""
    bad = judge_ending(seen)
    if bad is not None:
        return bad
    if seen.answer.finish_reason == "length":
        return "unknown", "the answer ran into its token limit"
    found = parse_json(seen.answer.text)
    if found is None:
        return "failed", f"not JSON: {seen.answer.text[:60]!r}"
    passed, detail = find_violation(found.value, schema)
    return _to_status(passed), detail


def judge_seed(first: Seen, second: Seen) -> Judged:
    """Judge that the same request with the same seed gives the same sampled answer."""
    bad = judge_ending(first) or judge_ending(second)
    if bad is not None:
        return bad
    one, other = first.answer.text, second.answer.text
    if not one and not other:
        return "unknown", "both answers are empty"
    if one == other:
        return "passed", f"the same {len(one)} characters twice"
    pairs = zip(one, other, strict=False)
    same = next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))
    return "failed", f"the answers differ from character {same + 1} on"


def judge_unicode(streamed: Seen, whole: str | None) -> Judged:
    """Judge that no character of several bytes was torn; `whole` is the answer asked for without a stream."""
    bad = judge_ending(streamed)
    if bad is not None:
        return bad
    text = streamed.answer.text
    if BROKEN_CHARACTER not in text:
        if text.isascii():
            return "unknown", "the answer holds no character of several bytes"
        return "passed", f"{sum(not sign.isascii() for sign in text)} characters beyond ASCII, none torn"
    if whole is None or BROKEN_CHARACTER in whole:
        return "unknown", "the answer holds bytes that are no character, and so it does without a stream"
    return "failed", f"{text.count(BROKEN_CHARACTER)} characters torn that are whole without a stream"


def _to_status(passed: bool | None) -> ProbeStatus:  # noqa: FBT001 - the three values of a check
    return "unknown" if passed is None else "passed" if passed else "failed"


def _find_stream_faults(seen: Seen) -> Iterator[str]:
    choices = [choice for frame in seen.frames for choice in choices_of(frame)]
    finished = [at for at, choice in enumerate(choices) if choice.get("finish_reason")]
    if not any(delta_of(choice).get("role") == "assistant" for choice in choices):
        yield "no event names the role"
    if len(finished) != 1:
        yield f"{len(finished)} events give a finish reason"
    if finished and any(_says_more(choice) for choice in choices[finished[0] + 1 :]):
        yield "content follows the finish reason"
    if not any(isinstance(frame.get("usage"), dict) for frame in seen.frames):
        yield "no usage"
    events, tokens = sum(map(has_content, seen.frames)), seen.answer.output_tokens
    if events < 2 and (tokens is None or tokens >= FEWEST_TOKENS_TO_STREAM):
        yield f"the whole answer came in {events} event"
    empty = sum(map(_is_empty, seen.frames))
    if empty:
        yield f"{empty} empty events"


def _says_more(choice: dict[str, Any]) -> bool:
    return has_content({"choices": [choice]})


def _is_empty(frame: Frame) -> bool:
    """An event that tells nothing at all: a count that grew, an id or a role is something."""
    has_more = any(frame.get(name) for name in ("usage", "timings", "metrics", "error", "sglext"))
    choices = choices_of(frame)
    return bool(choices) and not has_more and not any(map(_tells, choices))


def _tells(choice: dict[str, Any]) -> bool:
    return bool(
        choice.get("finish_reason")
        or choice.get("token_ids")
        or delta_of(choice).get("role")
        or _says_more(choice)
    )


AFTER_CHUNKS = 2
FEWEST_TOKENS_LEFT = 16  # below that a service may be done before it hears of the end
SETTLE_S = 5.0
POLL_S = 0.2
# A request beside a full set of abandoned ones is prompt within so many times its time alone, or so many s.
PROMPT_FACTOR, PROMPT_FLOOR_S = 3.0, 1.0


class Load(msgspec.Struct, frozen=True):
    """What a service says of its own work: requests that run or wait, and tokens written so far."""

    busy: float | None
    generated: float | None


ReadLoad = Callable[[], Awaitable[Load | None]]


async def probe_stop_of_work(line: Line, item: Item, whole: Seen, read_load: ReadLoad) -> Judged:
    """Hang up early and watch by the service's own metrics whether it stops; `whole` is the full answer."""
    bad = judge_ending(whole)
    if bad is not None:
        return bad
    before = await read_load()
    if before is None or (before.busy is None and before.generated is None):
        return "unknown", "the service's metrics do not tell what it works on"
    left = await ask_and_leave(line, item, after_chunks=AFTER_CHUNKS)
    if left.is_ok:
        return "unknown", "the answer was over before it could be cancelled"
    after, is_idle = await _settle(before, read_load)
    if not is_idle:
        return "failed", f"the request was still being worked on {SETTLE_S:g} s after it was cancelled"
    return _judge_tokens(whole, left, before, after)


async def probe_freed_slots(line: Line, item: Item, short: Item, concurrency: int) -> Judged:
    """Fill every place with long answers, hang up on all, and ask for a short one at once."""
    alone = await ask(line, short)
    bad = judge_ending(alone)
    if bad is not None:
        return bad
    left = await asyncio.gather(
        *(ask_and_leave(line, item, after_chunks=AFTER_CHUNKS) for _ in range(concurrency))
    )
    cut = sum(one.exchange.outcome == "cancelled" for one in left)
    if cut < concurrency:
        return "unknown", f"only {cut} of {concurrency} answers were long enough to be cancelled"
    beside = await ask(line, short)
    bad = judge_ending(beside)
    if bad is not None:
        return ("failed" if bad[0] == "unknown" else bad[0]), f"after {cut} cancelled requests: {bad[1]}"
    return judge_promptness(_wait_s(alone), _wait_s(beside), cut)


def judge_promptness(alone_s: float | None, beside_s: float | None, cancelled: int) -> Judged:
    """Judge the time to the first token right after cancelled requests against the time alone."""
    if alone_s is None or beside_s is None:
        return "unknown", "a time to first token is missing"
    limit_s = max(PROMPT_FACTOR * alone_s, PROMPT_FLOOR_S)
    text = f"first token after {beside_s:.2f} s beside {cancelled} cancelled requests, {alone_s:.2f} s alone"
    return ("passed" if beside_s <= limit_s else "failed"), text


async def _settle(before: Load, read_load: ReadLoad) -> tuple[Load | None, bool]:
    """Return the last reading, and whether the service is as idle as before or its count stands still."""
    last: Load | None = None
    for _ in range(max(round(SETTLE_S / POLL_S), 1)):
        await asyncio.sleep(POLL_S)
        now = await read_load()
        if now is None:
            continue
        if now.busy is not None and before.busy is not None:
            if now.busy <= before.busy:
                return now, True
        elif last is not None and now.generated == last.generated:
            return now, True
        last = now
    return last, False


def _judge_tokens(whole: Seen, left: Seen, before: Load, after: Load | None) -> Judged:
    """Judge by the tokens written: idle again also holds for a service that wrote its answer to the end."""
    full, had = whole.answer.output_tokens, left.answer.output_tokens
    if after is None or after.generated is None or before.generated is None or full is None:
        return "unknown", "it is idle again; whether it wrote the answer to its end is not told"
    written, seen = after.generated - before.generated, had or AFTER_CHUNKS
    if full - seen < FEWEST_TOKENS_LEFT:
        return "unknown", f"an answer of {full} tokens is too short to tell"
    text = f"{written:.0f} of {full} tokens were written, {seen} had been read"
    return ("passed" if written < seen + (full - seen) / 2 else "failed"), text


def _wait_s(seen: Seen) -> float | None:
    sent, chunks = seen.exchange.sent_ns, seen.answer.chunks
    return None if sent is None or not chunks else (chunks[0].arrival_ns - sent) / 1e9


async def read_load(session: aiohttp.ClientSession, service: Service) -> Load | None:
    """Return what a service says of its own work, None where its metrics cannot be read."""
    try:
        values = await fetch_totals(session, service)
    except EngineError:
        return None
    if values is None:
        return None
    series = service.adapter.facts.series
    return Load(
        busy=sum_parts(values, (*series.running[:1], *series.waiting[:1])) if series.running else None,
        generated=first_sum(values, series.generation_tokens),
    )


async def fetch_whole(session: aiohttp.ClientSession, line: Line, item: Item) -> str | None:
    """Return the text of an answer asked for without a stream, None where the service gives none."""
    payload = line.endpoint.build_payload(item, seed=None) | {"stream": False}
    payload.pop("stream_options", None)
    try:
        async with asyncio.timeout(line.timeout_s):
            return await fetch_completion(session, line.endpoint.chat_url, payload, line.endpoint.headers)
    except (EngineError, TimeoutError):
        return None
