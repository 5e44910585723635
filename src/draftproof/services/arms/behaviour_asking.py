"""One request of a probe: sent as the measured ones are, with every frame of its stream kept."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from draftproof.core.clock import Clock, monotonic_ns
from draftproof.measure.client.exchange import Ending, Exchange, ExchangeFold, Transport, WireRequest
from draftproof.measure.load.period import Endpoint
from draftproof.services.engines.protocol import Answer, AnswerFold
from draftproof.workload.items import Item

Frame = dict[str, Any]


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """How an arm is reached by a probe."""

    endpoint: Endpoint
    transport: Transport
    timeout_s: float
    clock: Clock = monotonic_ns


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """What one request brought: its exchange, and the JSON objects of its events in order."""

    exchange: Exchange
    frames: tuple[Frame, ...]

    @property
    def answer(self) -> Answer:
        """The answer, whole or not."""
        return self.exchange.answer

    @property
    def is_ok(self) -> bool:
        """Whether the answer came to its end."""
        return self.exchange.outcome == "ok"


class KeepingFold:
    """An `AnswerFold` that keeps every frame, and tells of each one that carries part of the answer.

    `on_content`: called after each such frame.
    """

    def __init__(self, inner: AnswerFold, on_content: Callable[[], None] | None = None) -> None:
        self._inner, self._on_content = inner, on_content
        self.frames: list[Frame] = []

    def add(self, frame: bytes, arrival_ns: int) -> None:
        """Take the data of one event. Raises FrameError: as the inner fold."""
        self._inner.add(frame, arrival_ns)
        self._keep(frame)

    def add_all(self, frames: Sequence[bytes], arrivals_ns: Sequence[int]) -> None:
        """Take the data of several events. Raises FrameError: as the inner fold."""
        self._inner.add_all(frames, arrivals_ns)
        for frame in frames:
            self._keep(frame)

    def _keep(self, frame: bytes) -> None:
        try:
            decoded = msgspec.json.decode(frame)
        except (msgspec.DecodeError, RecursionError):
            return  # in a field that no fold reads, such as a text that is not UTF-8: the answer is whole
        if isinstance(decoded, dict):
            self.frames.append(decoded)
            if self._on_content is not None and has_content(decoded):
                self._on_content()

    def finish(self) -> Answer:
        """Return what was said so far."""
        return self._inner.finish()


async def ask(line: Line, item: Item, *, seed: int | None = None) -> Seen:
    """Ask an item to its end, or to the end of patience."""
    folds = _make_folds(line)
    try:
        async with asyncio.timeout(line.timeout_s):
            ending = await line.transport.send(render(line, item, seed=seed), folds[1])
    except TimeoutError:
        ending = Ending(kind="timeout", at_ns=line.clock(), detail=f"no end within {line.timeout_s:g} s")
    return Seen(exchange=folds[1].close(ending), frames=tuple(folds[0].frames))


async def ask_and_leave(line: Line, item: Item, *, after_chunks: int) -> Seen:
    """Ask an item and hang up once so many events with content have come; one that ends before is whole."""
    enough, count = asyncio.Event(), iter(range(1, after_chunks))

    def hear() -> None:
        if next(count, None) is None:
            enough.set()

    kept, fold = _make_folds(line, hear)
    sending = asyncio.ensure_future(line.transport.send(render(line, item), fold))
    waiting = asyncio.ensure_future(enough.wait())
    try:
        await asyncio.wait({sending, waiting}, timeout=line.timeout_s, return_when=asyncio.FIRST_COMPLETED)
        ending = (
            sending.result()
            if sending.done()
            else Ending(kind="cancelled", at_ns=line.clock(), detail="cancelled by the client")
        )
    finally:
        for task in (sending, waiting):
            task.cancel()
        await asyncio.wait({sending, waiting})
    return Seen(exchange=fold.close(ending), frames=tuple(kept.frames))


def render(line: Line, item: Item, *, seed: int | None = None) -> WireRequest:
    """Return the request for an item, as a measured one would be."""
    payload = line.endpoint.build_payload(item, seed=seed)
    return WireRequest(
        url=line.endpoint.chat_url, body=msgspec.json.encode(payload), headers=line.endpoint.headers
    )


def choices_of(frame: Frame) -> list[dict[str, Any]]:
    """Return the parts of a frame that belong to the first choice."""
    choices = frame.get("choices")
    found = [one for one in choices if isinstance(one, dict)] if isinstance(choices, list) else []
    return [one for one in found if one.get("index", 0) == 0]


def delta_of(choice: dict[str, Any]) -> dict[str, Any]:
    """Return what a choice adds to the answer, empty for nothing."""
    delta = choice.get("delta")
    return delta if isinstance(delta, dict) else {}


def has_content(frame: Frame) -> bool:
    """Tell whether a frame carries text, thoughts or a piece of a tool call."""
    names = ("content", "reasoning", "reasoning_content", "tool_calls")
    return any(delta_of(choice).get(name) for choice in choices_of(frame) for name in names)


def _make_folds(line: Line, on_content: Callable[[], None] | None = None) -> tuple[KeepingFold, ExchangeFold]:
    kept = KeepingFold(line.endpoint.adapter.start_fold(), on_content)
    return kept, ExchangeFold(kept, may_wait=on_content is None)
