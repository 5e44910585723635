"""Hanging up in the middle of an answer: does the service stop working, and is its place free again?

A service that goes on writes for nobody, and under speculation it may go on drafting too.
"""

import asyncio
from collections.abc import Awaitable, Callable

import msgspec

from draftproof.arms.behaviour.asking import Line, Seen, ask, ask_and_leave
from draftproof.arms.behaviour.judging import Judged, judge_ending
from draftproof.workload.items import Item

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
