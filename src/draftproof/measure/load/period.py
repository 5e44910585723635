"""What one arm does in its period of a block: the order, the requests, and the facts a record is made of.

Pure. Request ids are `load/block/repeat/arm/item`, with `+1` and so on for the later turns of a conversation,
`arm~1` where the period is taken once more, and a suffix for requests that are not counted.
"""

from typing import Any, Protocol

import msgspec

from draftproof.core.records import Phase, RequestRecord
from draftproof.measure.client.exchange import Exchange
from draftproof.services.engines import adapter_for
from draftproof.services.engines.adapter import EngineAdapter
from draftproof.services.engines.protocol import Answer
from draftproof.workload.arrivals import OpenLoop
from draftproof.workload.blocks import Block
from draftproof.workload.conversation import AnswerView, item_at_turn
from draftproof.workload.items import Item

EARLIER_FAILED = "an earlier turn of this conversation failed, so this one was not sent"
# What a record takes over under its own name.
_OF_ANSWER = [name for name in Answer.__struct_fields__ if name in RequestRecord.__struct_fields__]
_OF_EXCHANGE = [name for name in Exchange.__struct_fields__ if name != "answer"]


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """Where an arm answers and how it is asked.

    `url` is the base address, with or without /v1; `engine` names its adapter; `request` are the plan's
    further fields of every request, `accepted` the adapter's optional ones that the service accepts.
    """

    url: str
    served_model: str
    engine: str
    headers: tuple[tuple[str, str], ...] = ()
    request: dict[str, str | int | float | bool] = {}
    accepted: tuple[str, ...] = ()

    @property
    def adapter(self) -> EngineAdapter:
        """What knows the engine."""
        return adapter_for(self.engine)

    @property
    def chat_url(self) -> str:
        """Address of the chat completions."""
        return self.url.rstrip("/").removesuffix("/v1") + "/v1/chat/completions"

    def build_payload(self, item: Item, *, seed: int | None, max_tokens: int | None = None) -> dict[str, Any]:
        """Return the JSON body of the request for an item; see `EngineAdapter.build_payload`."""
        asked = self.adapter.build_payload(
            item, seed=seed, served_model=self.served_model, max_tokens=max_tokens
        )
        for name in self.accepted:
            asked |= self.adapter.optional[name]
        return asked | self.request


class Period(msgspec.Struct, frozen=True, kw_only=True):
    """One arm's period: every item of `item_ids` once.

    Closed loop: with `concurrency` requests in flight. Open loop: `concurrency` is None and each item is due
    at `due_ns`, after a ramp-up at the rate of `ramp_up`; at most `max_in_flight` requests are open.
    `think_s`: mean time of thought before the next request of a slot or a conversation. `attempt`: 1 where
    the period is taken once more, because the host disturbed it.
    """

    block: int
    load: str
    concurrency: int | None
    repeat: int
    arm: str
    order: int
    item_ids: tuple[str, ...]
    due_ns: tuple[int, ...] = ()
    ramp_up: OpenLoop | None = None
    max_in_flight: int = 4096
    think_s: float = 0.0
    attempt: int = 0

    @property
    def key(self) -> str:
        """The part that all request ids of this period share."""
        again = f"~{self.attempt}" if self.attempt else ""
        return f"{self.load}/{self.block}/{self.repeat}/{self.arm}{again}"


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One request to be sent.

    `answers` are those to the earlier turns of its conversation, in order. A blocked job is one of which an
    earlier turn failed: it is recorded as failed too and never sent.
    """

    request_id: str
    item: Item
    phase: Phase
    order_in_block: int
    seed: int | None
    conversation_turn: int = 0
    answers: tuple[AnswerView, ...] = ()
    blocked: bool = False
    token_share: float = 1.0

    @property
    def asked(self) -> Item:
        """The item as it is asked at this period."""
        return item_at_turn(self.item, self.answers)


class Sink(Protocol):
    """Takes every record as its request ends. What it raises ends the period."""

    def append(self, record: RequestRecord) -> None:
        """Keep one record."""
        ...


def periods_of(block: Block, *, think_s: float = 0.0, max_in_flight: int = 4096) -> tuple[Period, ...]:
    """Return the periods of a block in the order in which its arms take them."""
    return tuple(
        Period(
            block=block.index,
            load=block.load,
            concurrency=block.concurrency,
            repeat=block.repeat,
            arm=arm,
            order=order,
            item_ids=block.item_ids,
            due_ns=block.due_ns,
            ramp_up=block.ramp_up,
            think_s=think_s,
            max_in_flight=max_in_flight,
        )
        for order, arm in enumerate(block.arm_order)
    )


def make_record(
    period: Period, job: Job, scheduled_ns: int, exchange: Exchange, in_flight: int = 1
) -> RequestRecord:
    """Return the record of one attempted request; `in_flight` were open as it was sent, itself included."""
    said = {name: getattr(exchange.answer, name) for name in _OF_ANSWER}
    said |= {name: getattr(exchange, name) for name in _OF_EXCHANGE}
    return RequestRecord(
        request_id=job.request_id,
        arm=period.arm,
        load=period.load,
        block=period.block,
        repeat=period.repeat,
        item_id=job.item.id,
        phase=job.phase,
        order_in_block=job.order_in_block,
        concurrency=in_flight if period.concurrency is None else period.concurrency,
        seed=job.seed,
        scheduled_ns=scheduled_ns,
        conversation_turn=job.conversation_turn,
        attempt=period.attempt,
        **said,
    )


def view_exchange(exchange: Exchange) -> AnswerView:
    """Return the answer of an exchange, as the record of it will show it."""
    return msgspec.convert(exchange.answer, AnswerView, from_attributes=True)


def make_unsent(at_ns: int) -> Exchange:
    """Return the exchange of a blocked job, a failure: no conversation ends early unseen."""
    return Exchange(
        outcome="cancelled",
        sent_ns=None,
        headers_ns=None,
        end_ns=at_ns,
        http_status=None,
        error=EARLIER_FAILED,
        malformed_raw=None,
        answer=Answer(),
        warnings=(),
    )
