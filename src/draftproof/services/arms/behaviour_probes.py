"""The probes in their order: what is asked, how often, and what is kept of it.

Every request is greedy but for the one about seeds, so that arms are asked the same and answer comparably.
A probe that fails is asked once more: what happens once of two times is `unknown`, not a property.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Collection

import msgspec

from draftproof.core.records import BehaviourProbe
from draftproof.services.arms.behaviour_asking import Line, Seen, ask
from draftproof.services.arms.behaviour_judging import (
    BROKEN_CHARACTER,
    Judged,
    ReadLoad,
    choose_stop,
    judge_json_schema,
    judge_limit,
    judge_seed,
    judge_stop_string,
    judge_streaming,
    judge_tool_call,
    judge_unicode,
    probe_freed_slots,
    probe_stop_of_work,
)
from draftproof.workload.items import Item, Message, Sampling, ToolCallCheck

LIMIT_TOKENS = 8
LONG_TOKENS = 64
LAST_PROBE = "cancel_frees_slots"
_SEED = 20_240_229
_PLACES = ("Bergen", "Oslo")
_ARGUMENTS = {
    "type": "object",
    "properties": {"city": {"enum": list(_PLACES)}, "days": {"enum": [1, 2, 3]}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
_TOOL = {
    "type": "function",
    "function": {"name": "get_weather", "description": "Weather forecast", "parameters": _ARGUMENTS},
}
_CALL = ToolCallCheck(names=("get_weather",), schema=_ARGUMENTS, calls=1)
_SCHEMA = {
    "type": "object",
    "properties": {"colour": {"enum": ["red", "blue"]}, "heavy": {"type": "boolean"}},
    "required": ["colour", "heavy"],
    "additionalProperties": False,
}
_UNICODE = "Grüße aus 東京 🙂 naïve café ☕ Ωμέγα سلام"

Probe = Callable[[], Awaitable[tuple[Judged, Seen | None]]]
FetchWhole = Callable[[Item], Awaitable[str | None]]


class Bench(msgspec.Struct, frozen=True, kw_only=True):
    """What the probes of one arm work with.

    `read_load`: the service's own account of its work. `fetch_whole`: the text of an answer asked for without
    a stream, None where the service gives none. `concurrency`: requests that the plan keeps in flight.
    """

    line: Line
    read_load: ReadLoad
    fetch_whole: FetchWhole
    concurrency: int


def _item(content: str, **fields: object) -> Item:
    given = {"id": "behaviour", "segments": {}, "messages": (Message(role="user", content=content),)}
    return Item(**(given | {"max_tokens": 32} | fields))  # type: ignore[arg-type]


LONG = _item("Tell me a long story about a ship, its captain and a storm at sea.", max_tokens=LONG_TOKENS)
SHORT = _item("Say yes.", max_tokens=4)
_LIMITED = msgspec.structs.replace(LONG, max_tokens=LIMIT_TOKENS)
_TOOL_CALL = _item(
    "What will the weather be in Bergen for two days?", tools=(_TOOL,), tool_choice="required", max_tokens=64
)
_JSON = _item("Describe a brick as JSON: its colour, and whether it is heavy.", response_schema=_SCHEMA)
_SAMPLED = _item("Write a line about the sea.", max_tokens=16, sampling=Sampling(temperature=1.0))
_COPY = _item(f"Copy this line word for word, twice:\n\n{_UNICODE}\n\n{_UNICODE}", max_tokens=48)


async def run_probes(arm: str, bench: Bench, *, skip: Collection[str] = ()) -> AsyncIterator[BehaviourProbe]:
    """Yield what every probe but those of `skip` showed of an arm, one after the other."""
    line, long = bench.line, await ask(bench.line, LONG)
    probes: tuple[tuple[str, Probe], ...] = (
        ("streaming_shape", lambda: _asked(line, LONG, judge_streaming)),
        ("max_tokens", lambda: _asked(line, _LIMITED, lambda seen: judge_limit(seen, LIMIT_TOKENS))),
        ("stop_string", lambda: _stop(line, long)),
        ("tool_call", lambda: _asked(line, _TOOL_CALL, lambda seen: judge_tool_call(seen, _CALL))),
        ("json_schema", lambda: _asked(line, _JSON, lambda seen: judge_json_schema(seen, _SCHEMA))),
        ("seed_repeats", lambda: _seed(line)),
        ("unicode", lambda: _unicode(bench)),
        ("cancel_stops_work", lambda: _unheard(probe_stop_of_work(line, LONG, long, bench.read_load))),
        (LAST_PROBE, lambda: _unheard(probe_freed_slots(line, LONG, SHORT, bench.concurrency))),
    )
    for name, probe in probes:
        if name in skip:
            continue
        (status, detail), seen = await _ask_twice_if_failed(probe)
        yield BehaviourProbe(
            arm=arm,
            probe=name,
            status=status,
            detail=detail,
            at_ns=line.clock(),
            http_status=None if seen is None else seen.exchange.http_status,
        )


async def _ask_twice_if_failed(probe: Probe) -> tuple[Judged, Seen | None]:
    first, seen = await probe()
    if first[0] != "failed":
        return first, seen
    second, again = await probe()
    if second[0] == "failed":
        return second, again
    return ("unknown", f"failed once of two times: {first[1]}"), again


async def _asked(line: Line, item: Item, judge: Callable[[Seen], Judged]) -> tuple[Judged, Seen | None]:
    seen = await ask(line, item)
    return judge(seen), seen


async def _stop(line: Line, long: Seen) -> tuple[Judged, Seen | None]:
    stop = choose_stop(long.answer.text) if long.is_ok else None
    if stop is None:
        return ("unknown", "the answer without a stop string offers none to choose"), None
    seen = await ask(line, msgspec.structs.replace(LONG, stop=(stop,)))
    return judge_stop_string(long, seen, stop), seen


async def _seed(line: Line) -> tuple[Judged, Seen | None]:
    seen = await ask(line, _SAMPLED, seed=_SEED)
    return judge_seed(seen, await ask(line, _SAMPLED, seed=_SEED)), seen


async def _unicode(bench: Bench) -> tuple[Judged, Seen | None]:
    seen = await ask(bench.line, _COPY)
    torn = seen.is_ok and BROKEN_CHARACTER in seen.answer.text
    return judge_unicode(seen, await bench.fetch_whole(_COPY) if torn else None), seen


async def _unheard(probe: Awaitable[Judged]) -> tuple[Judged, Seen | None]:
    return await probe, None
