"""A transport without a network: it tells the listener a fixed story.

For tests of what stands above the wire: times are those of the script, nothing waits.
"""

import asyncio
from collections.abc import Callable

import msgspec

from draftproof.measure.client.exchange import Ending, EndKind, Listener, WireRequest


class Story(msgspec.Struct, frozen=True, kw_only=True):
    """One exchange: offsets in ns from `start_ns` of the transport at which things happen.

    `status` None: no response begins. `body` holds (offset, bytes). `hangs`: nothing more comes until the
    request is cancelled.
    """

    sent_ns: int | None = 0
    status: int | None = 200
    content_type: str = "text/event-stream"
    headers_ns: int = 0
    body: tuple[tuple[int, bytes], ...] = ()
    end: EndKind = "complete"
    end_ns: int = 0
    detail: str | None = None
    hangs: bool = False


class FakeTransport:
    """Plays the story of each request.

    Attributes:
        requests: what was sent, in order.
        closed: whether `close` was called.
    """

    def __init__(self, story: Story | Callable[[WireRequest], Story], *, start_ns: int = 0) -> None:
        self._story = story
        self._start_ns = start_ns
        self.requests: list[WireRequest] = []
        self.closed = False

    async def send(self, request: WireRequest, listener: Listener) -> Ending:
        """Tell the whole story; gives way to other tasks once, as a socket would."""
        self.requests.append(request)
        story = self._story if isinstance(self._story, Story) else self._story(request)
        await asyncio.sleep(0)
        self._tell(story, listener)
        if story.hangs:
            await asyncio.Event().wait()
        return Ending(kind=story.end, at_ns=self._start_ns + story.end_ns, detail=story.detail)

    async def close(self) -> None:
        """Note the call."""
        self.closed = True

    def _tell(self, story: Story, listener: Listener) -> None:
        if story.sent_ns is not None:
            listener.on_sent(self._start_ns + story.sent_ns)
        if story.status is not None:
            listener.on_headers(story.status, story.content_type, self._start_ns + story.headers_ns)
        for offset_ns, data in story.body:
            if not listener.finished:
                listener.on_body(data, self._start_ns + offset_ns)
