"""What the scripted server does with one request: its timing, tokens and faults. Pure.

Turns a script into the steps the server walks through. Pure.
"""

import itertools
from collections.abc import Iterator
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


def render_steps(script: Script) -> Iterator[Step]:
    """Yield the steps of an answer; the iterator ends early where the script cuts the stream."""
    writer = _Writer(script)
    if script.role_chunk:
        yield writer.frame([{"index": 0, "delta": {"role": "assistant", "content": ""}}], counted=False)
    for index, count in enumerate(_token_counts(script)):
        if script.comments:
            yield Step(wait_s=0.0, event=b": keep-alive" + script.line_end.encode() * 2)
        if index == script.cut_before:
            return
        if index == script.malformed_before:
            yield Step(wait_s=0.0, event=render_event(script.malformed_frame, script.line_end))
        if index == script.error_before:
            yield writer.error()
        yield writer.content(index, count)
    yield from _render_end(script, writer)


def _render_end(script: Script, writer: "_Writer") -> Iterator[Step]:
    if script.finish_reason is not None:
        closing = {"index": 0, "delta": {}, "finish_reason": script.finish_reason}
        yield writer.frame([closing], counted=False)
    if script.after_finish is not None:
        yield writer.frame([{"index": 0, "delta": {"content": script.after_finish}}], counted=False)
    if script.usage != "none" or script.metrics is not None:
        yield writer.closing()
    if script.end_marker:
        yield Step(wait_s=0.0, event=render_event(b"[DONE]", script.line_end))


def _token_counts(script: Script) -> Iterator[int]:
    if script.endless:
        return itertools.cycle(script.tokens_per_chunk)
    return iter(script.tokens_per_chunk)


class _Writer:
    """Renders the frames of one answer; holds the count of tokens so far."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._tokens = 0

    def content(self, index: int, count: int) -> Step:
        """Return the step of a content chunk."""
        choice: dict[str, Any] = {"index": 0, "delta": self._delta(index, count), "finish_reason": None}
        if self._script.token_ids:
            choice["token_ids"] = list(range(self._tokens, self._tokens + count))
        self._tokens += count
        return self.frame([choice], counted=True, wait_s=self._wait_s(index))

    def _delta(self, index: int, count: int) -> dict[str, Any]:
        script = self._script
        if script.tool_call is not None:
            key = "arguments" if index else "name"
            return {"tool_calls": [{"index": 0, "function": {key: script.tool_call[index]}}]}
        if index in script.silent_chunks:
            return {"content": ""}
        return {"content": chunk_text(index, count) if script.texts is None else script.texts[index]}

    def frame(self, choices: list[dict[str, Any]], *, counted: bool, wait_s: float = 0.0) -> Step:
        """Return the step of any chunk with choices."""
        extra = {"usage": self._usage()} if self._script.usage == "continuous" else {}
        return self._step(render_frame(choices, **extra), wait_s, self._tokens if counted else None)

    def closing(self) -> Step:
        """Return the step of the chunk that carries the whole usage and the metrics block."""
        extra: dict[str, Any] = {}
        if self._script.usage != "none":
            extra["usage"] = self._usage(self._script.usage_offset)
        if self._script.metrics is not None:
            extra["metrics"] = self._script.metrics
        return self._step(render_frame([], **extra), 0.0, None)

    def error(self) -> Step:
        """Return the step of an error event."""
        body = {"error": {"message": self._script.error_text, "type": "server_error", "code": 500}}
        return self._step(body, 0.0, None)

    def _usage(self, offset: int = 0) -> dict[str, int]:
        prompt, completion = self._script.prompt_tokens, self._tokens + offset
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
        }

    def _wait_s(self, index: int) -> float:
        script = self._script
        wait_s = script.ttft_s if index == 0 else script.gaps_s[min(index, len(script.gaps_s)) - 1]
        return wait_s + (script.stall_s if index == script.stall_before else 0.0)

    def _step(self, body: dict[str, Any], wait_s: float, tokens: int | None) -> Step:
        event = render_event(msgspec.json.encode(body), self._script.line_end)
        return Step(wait_s=wait_s, event=event, tokens=tokens)
