"""Reads the payload fixtures and plays them through the client's fold, whole, by event or cut anywhere."""

import re
from pathlib import Path

from draftproof.measure.client.exchange import Ending, Exchange, ExchangeFold
from draftproof.services.engines.adapter import EngineAdapter
from draftproof.services.engines.values import first_sum
from draftproof.services.telemetry.scrape import parse_exposition

_BLANK_LINE = re.compile(rb"\r?\n\r?\n")
PAYLOADS = Path(__file__).parents[3] / "fixtures" / "payloads"


def read_payload(engine: str, name: str) -> bytes:
    return (PAYLOADS / engine / name).read_bytes()


def list_streams(engine: str) -> list[str]:
    return sorted(path.name for path in (PAYLOADS / engine).glob("*.sse"))


def read_series(engine: str, name: str) -> dict[str, float]:
    return parse_exposition(read_payload(engine, name).decode())


def read_bodies(engine: str, **paths: str) -> dict[str, bytes]:
    """Return address -> body; `server_info="x.json"` stands for /server_info."""
    return {"/" + path.replace("__", "/"): read_payload(engine, name) for path, name in paths.items()}


def play(adapter: EngineAdapter, pieces: list[tuple[bytes, int]], *, status: int = 200) -> Exchange:
    """Return the exchange of a response whose pieces arrive at the given times."""
    fold = ExchangeFold(adapter.start_fold())
    fold.on_sent(0)
    fold.on_headers(status, "text/event-stream" if status == 200 else "application/json", 0)
    for piece, at_ns in pieces:
        fold.on_body(piece, at_ns)
    return fold.close(Ending(kind="complete", at_ns=99))


def play_by_event(adapter: EngineAdapter, body: bytes) -> Exchange:
    """Return the exchange of a stream whose event number i, counted from 0, arrives at i ns."""
    events = [event + b"\n\n" for event in body.split(b"\n\n") if event]
    return play(adapter, [(event, at_ns) for at_ns, event in enumerate(events)])


def find_cuts_that_matter(adapter: EngineAdapter, body: bytes) -> list[int]:
    """Return the offsets at which cutting every event changes what is understood; none, if all is well.

    Over all offsets each byte of the stream is a cut once, and the pieces span the ends of events.
    """
    whole = play(adapter, [(body, 1)])
    starts = [0, *(found.end() for found in _BLANK_LINE.finditer(body[:-1]) if found.end() < len(body))]
    ends = [*starts[1:], len(body)]
    return [
        offset
        for offset in range(max(end - start for start, end in zip(starts, ends, strict=True)))
        if play(
            adapter, _cut(body, [a + offset for a, b in zip(starts, ends, strict=True) if a + offset < b])
        )
        != whole
    ]


def _cut(body: bytes, cuts: list[int]) -> list[tuple[bytes, int]]:
    return [
        (body[start:end], 1) for start, end in zip([0, *cuts], [*cuts, len(body)], strict=True) if start < end
    ]


def counts(exchange: Exchange) -> list[tuple[int, int | None]]:
    return [(chunk.arrival_ns, chunk.cumulative_tokens) for chunk in exchange.answer.chunks]


def gain(before: dict[str, float], after: dict[str, float], *names: str) -> float:
    """Return what the first of the names that is present gained."""
    start, end = first_sum(before, names), first_sum(after, names)
    assert start is not None, names
    assert end is not None, names
    return end - start
