"""What is said between a load worker and whoever conducts it, and how a message is written as bytes.

The messages fit any carrier that keeps their order: here a pipe each way, where a message is its length in
four bytes and then msgpack. Pure.
"""

import struct
from collections.abc import Iterator
from typing import Protocol

import msgspec

from draftproof.core.errors import DraftproofError
from draftproof.core.records import BlockRecord
from draftproof.measure.load.period import Endpoint, Period
from draftproof.measure.load.request_runner import LoadSettings
from draftproof.measure.load.schedule import Share
from draftproof.workload.conversation import AnswerView
from draftproof.workload.items import Item

_LENGTH = struct.Struct(">I")


class Setup(msgspec.Struct, frozen=True, kw_only=True, tag="setup"):
    """What holds for all periods of a worker; secrets come this way and no other."""

    index: int
    items: tuple[Item, ...]
    journal: str
    secrets: tuple[str, ...] = ()


class PeriodOrder(msgspec.Struct, frozen=True, kw_only=True, tag="period"):
    """A period and the part of it that is this worker's.

    `answered`: request id -> answer of what is recorded of the period already, None for a failure.
    """

    period: Period
    endpoint: Endpoint
    settings: LoadSettings
    share: Share
    answered: dict[str, AnswerView | None] = {}


class Start(msgspec.Struct, frozen=True, tag="start"):
    """Begin at `start_ns`, the same time for every worker."""

    start_ns: int


class Count(msgspec.Struct, frozen=True, tag="count"):
    """The load stands: due times of counted requests count from `base_ns`."""

    base_ns: int


class Finish(msgspec.Struct, frozen=True, tag="finish"):
    """Every counted request of every worker has ended."""


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    """End the period now; what is in flight is interrupted."""


class Prepared(msgspec.Struct, frozen=True, tag="prepared"):
    """The schedule is made: the period may start."""


class ShardProgress(msgspec.Struct, frozen=True, tag="standing"):
    """How far a worker's shard is; `is_over` once each of its counted requests has ended.

    `ended_ns`: what the requests that have ended took together, in an open loop.
    """

    ended: int = 0
    in_flight: int = 0
    is_over: bool = False
    ended_ns: int = 0


class Done(msgspec.Struct, frozen=True, tag="done"):
    """The part has ended, and its records are on the device."""

    block: BlockRecord


class Failed(msgspec.Struct, frozen=True, kw_only=True, tag="failed"):
    """The part ended with an error of this program or its disk; `kind` is the error's class."""

    kind: str
    message: str
    place: str | None = None
    fix: str | None = None


Word = Setup | PeriodOrder | Start | Count | Finish | Stop
Reply = Prepared | ShardProgress | Done | Failed
WORDS = msgspec.msgpack.Decoder(Word)
REPLIES = msgspec.msgpack.Decoder(Reply)


def encode_message(message: Word | Reply) -> bytes:
    """Return a message as bytes, its length in front."""
    body = msgspec.msgpack.encode(message)
    return _LENGTH.pack(len(body)) + body


class Unframer:
    """Cuts a stream of bytes into messages, wherever the pieces end."""

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the body of every message that is whole by now."""
        self._held += data
        while len(self._held) >= _LENGTH.size:
            end = _LENGTH.size + _LENGTH.unpack_from(self._held)[0]
            if len(self._held) < end:
                return
            body = bytes(self._held[_LENGTH.size : end])
            del self._held[:end]
            yield body


class WorkerDiedError(DraftproofError):
    """A load worker is gone: a fault of the client, never of a service."""


class Worker(Protocol):
    """One load worker as its coordinator sees it."""

    @property
    def name(self) -> str:
        """What it is called in a sentence."""
        ...

    async def start(self) -> None:
        """Make it ready for its first period. Raises DraftproofError: it cannot be had."""
        ...

    def tell(self, word: Word) -> None:
        """Send a word; one that does not arrive shows in `hear`."""
        ...

    async def hear(self) -> Reply:
        """Return the next reply. Raises WorkerDiedError: the worker is gone."""
        ...

    async def close(self, *, at_once: bool = False) -> None:
        """End the worker and wait until it is gone; `at_once`: it gets no time to write down what it has."""
        ...
