"""Turns a script into the steps the server walks through. Pure."""

import itertools
from collections.abc import Iterator
from typing import Any

import msgspec

from draftproof.testing.scripts import Script, Step, chunk_text, render_event, render_frame


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
