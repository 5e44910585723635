"""What the scripted server does with one request: its timing, tokens and faults. Pure."""

from typing import Any, Literal

import msgspec

UsageMode = Literal["none", "final", "continuous"]


class Script(msgspec.Struct, frozen=True, kw_only=True):
    """One answer, known in advance.

    `tokens_per_chunk`: tokens of each content chunk, in order; with `endless` they repeat for ever.
    `ttft_s`: from the request to the first content chunk. `gaps_s`: pauses between content chunks, the last
    one repeats. Events named by an index come before the content chunk of that index.

    `texts`: the text of each content chunk, else words that name chunk and token. `tool_call`: the answer is
    a call instead, its name in the first chunk and a piece of its arguments in each later one.
    `after_finish`: text of a chunk behind the finish reason, where none may be.

    `linger_s`: from the last event to the end of the response, as a slow proxy would have it.

    Packets: `split_bytes` writes the stream in pieces of so many bytes, each in its own segment; `coalesce`
    writes so many events at once.
    """

    tokens_per_chunk: tuple[int, ...] = (1, 3, 2)
    ttft_s: float = 0.0
    gaps_s: tuple[float, ...] = (0.0,)
    usage: UsageMode = "continuous"
    token_ids: bool = True
    role_chunk: bool = True
    silent_chunks: tuple[int, ...] = ()
    prompt_tokens: int = 5
    finish_reason: str | None = "stop"
    metrics: dict[str, Any] | None = None
    usage_offset: int = 0
    status: int = 200
    refusal: str = "refused by the script"
    content_type: str = "text/event-stream; charset=utf-8"
    headers_delay_s: float = 0.0
    never_answer: bool = False
    raw_response: bytes | None = None
    stall_before: int | None = None
    stall_s: float = 0.0
    cut_before: int | None = None
    malformed_before: int | None = None
    malformed_frame: bytes = b'{"choices": [{"delta"'
    error_before: int | None = None
    error_text: str = "the engine gave up"
    endless: bool = False
    end_marker: bool = True
    linger_s: float = 0.0
    line_end: Literal["\n", "\r", "\r\n"] = "\n"
    comments: bool = False
    split_bytes: int | None = None
    coalesce: int = 1
    keep_alive: bool = True
    texts: tuple[str, ...] | None = None
    tool_call: tuple[str, ...] | None = None
    after_finish: str | None = None

    @property
    def total_tokens(self) -> int:
        """Tokens of the whole answer."""
        return sum(self.tokens_per_chunk)


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One event of a stream: wait, then write. `tokens`: the count after a content chunk, else None."""

    wait_s: float
    event: bytes
    tokens: int | None = None


def chunk_text(index: int, count: int) -> str:
    """Return the text of content chunk `index` with `count` tokens: words that name chunk and token."""
    return "".join(f"w{index}.{token} " for token in range(count))


def render_frame(choices: list[dict[str, Any]], **extra: Any) -> dict[str, Any]:
    """Return one chunk of a chat stream."""
    return {
        "id": "scripted",
        "object": "chat.completion.chunk",
        "model": "scripted",
        "choices": choices,
        **extra,
    }


def render_event(data: bytes, line_end: str) -> bytes:
    """Return one server-sent event; each line of the data gets its own field."""
    end = line_end.encode()
    return b"".join(b"data: " + line + end for line in data.split(b"\n")) + end
