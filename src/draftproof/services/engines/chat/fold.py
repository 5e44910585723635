"""The fold over a streamed chat completion that every OpenAI-compatible engine shares.

Owns the content-chunk rule and the order of token sources of metrics.md (Time base). What an engine adds to
its frames is gathered and read by that engine's own function.
"""

from collections.abc import Callable, Sequence
from itertools import accumulate, repeat
from typing import ClassVar

import msgspec

from draftproof.core.records import ToolCall
from draftproof.services.engines.chat.frames import (
    ChatFrame,
    Choice,
    Delta,
    EngineBlocks,
    Timings,
    ToolCallDelta,
    Usage,
    parse_frame,
    parse_frames,
    parse_plain,
)
from draftproof.services.engines.chat.metrics_block import (
    MarginFold,
    MetricsReading,
    bound_reading,
    find_disagreements,
    read_metrics,
)
from draftproof.services.engines.chat.token_counts import (
    Counted,
    CountedChunk,
    UsageFold,
    choose_counts,
    list_piece_chars,
)
from draftproof.services.engines.protocol import Answer

_ENDS = 3  # frames of an answer's end that may be others than those of its middle
_REASONING, _TEXT, _CALLS = range(3)  # the order in which a record keeps an answer's parts, calls by index


class ChatFold:
    """Folds the frames of one answer; see `AnswerFold`.

    `read_blocks`: reads what the engine adds to its frames; by default its `metrics` block.
    """

    takes_each: ClassVar[bool] = False  # whether a fold reads choices its own way, so that it is given each

    def __init__(self, read_blocks: Callable[[EngineBlocks], MetricsReading] = read_metrics) -> None:
        self._read_blocks = read_blocks
        self._marks: list[CountedChunk] = []
        self._ids: list[int] | None = None
        self._margins = MarginFold()
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._tools: dict[int, tuple[list[str], list[str]]] = {}
        self._generated_chars = 0
        self._part = _REASONING
        self._is_in_order = True
        self._usage = UsageFold()
        self._finish_reason: str | None = None
        self._finish: CountedChunk | None = None
        self._metrics: object = None
        self._sglext: object = None
        self._timings: list[Timings] = []
        self._tokens_per_iteration: float | None = None
        self._stream_error: str | None = None
        self._refused = False
        self._other_choices = 0
        self._is_plain = not self.takes_each  # what came so far in the middle of the stream

    def add(self, frame: bytes, arrival_ns: int) -> None:
        """Take the data of one event. Raises FrameError: not a frame of a chat stream."""
        self._take(parse_frame(frame), arrival_ns)

    def add_all(self, frames: Sequence[bytes], arrivals_ns: Sequence[int]) -> None:
        """Take the data of several events, each of one line.

        Raises FrameError: one is not a frame of a chat stream; none of them is taken.
        """
        ends = parse_frames(frames[-_ENDS:])
        middle, times_ns = frames[:-_ENDS], arrivals_ns[:-_ENDS]
        if middle and not self._take_plain(middle, times_ns):
            ends, times_ns = parse_frames(middle) + ends, ()
        for parsed, arrival_ns in zip(ends, arrivals_ns[len(times_ns) :], strict=True):
            self._take(parsed, arrival_ns)

    def _take_plain(self, lines: Sequence[bytes], arrivals_ns: Sequence[int]) -> bool:
        """Take frames of text and running counts in one go, as one by one would; False: they are others."""
        found = parse_plain(lines) if self._is_plain else None
        if found is None:
            self._is_plain = False
            return False
        if self._part != _TEXT:
            self._enter(_TEXT)
        chars = list(accumulate(map(len, found.texts), initial=self._generated_chars))
        ids = repeat(None) if found.ids is None else [self._take_ids(one) for one in found.ids]
        counts = repeat(None) if found.counts is None else found.counts
        self._marks.extend(map(CountedChunk, arrivals_ns, ids, counts, repeat(None), chars[1:]))
        self._text += found.texts
        self._generated_chars = chars[-1]
        if found.counts is None:
            self._usage.note_uncounted()
        else:
            self._usage.add(Usage(found.prompt_tokens, found.counts[-1], found.details))
        return True

    def _take(self, parsed: ChatFrame, arrival_ns: int) -> None:
        """Take a frame; runs for every chunk of every stream."""
        if (parsed.error is not None or parsed.object == "error") and parsed.error_text is not None:
            if self._stream_error is None:  # the first error is the one that ended the answer
                self._stream_error, self._refused = parsed.error_text, parsed.is_refusal and not self._marks
            return
        if parsed.usage is not None:
            self._usage.add(parsed.usage)
        if parsed.metrics is not None or parsed.sglext is not None or parsed.timings is not None:
            self._take_blocks(parsed)
        if not parsed.choices:
            self._take_tail(parsed, arrival_ns)
            return
        for choice in parsed.choices:
            if choice.index == 0:
                self._take_choice(choice, parsed, arrival_ns)
            else:
                self._other_choices += 1

    def finish(self) -> Answer:
        """Return what was said so far."""
        total = None if self._other_choices else self._usage.total(has_content=bool(self._marks))
        counted = choose_counts(self._own_marks(), total=total, finish=self._finish)
        output_tokens = _settle_total(total, counted)
        reading = self._read(output_tokens)
        token_ids = None if self._ids is None or self._count_without_ids() else tuple(self._ids)
        return Answer(
            chunks=counted.chunks,
            token_source=counted.source,
            prompt_tokens=self._usage.prompt_tokens,
            output_tokens=output_tokens,
            finish_reason=self._finish_reason,
            text="".join(self._text),
            reasoning_text="".join(self._reasoning),
            tool_calls=self._tool_calls(),
            token_ids=token_ids,
            speculation=reading.speculation,
            rounds=reading.rounds,
            decode_steps=reading.decode_steps,
            top_two_margins=None if token_ids is None else self._margins.finish(len(token_ids)),
            server=reading.server,
            fallbacks=reading.fallbacks,
            stream_error=self._stream_error,
            is_refused=self._refused,
            finish_ns=None if self._finish is None else self._finish.arrival_ns,
            unstreamed_tokens=self._usage.unstreamed_tokens(has_reasoning=bool(self._reasoning)),
            piece_chars=self._piece_chars(counted),
            warnings=self._warnings(reading, counted, output_tokens),
        )

    def _take_blocks(self, frame: ChatFrame) -> None:
        if frame.metrics is not None:
            self._metrics = frame.metrics
        if frame.sglext is not None:
            self._sglext = frame.sglext
        if frame.timings is not None and all(choice.index == 0 for choice in frame.choices or ()):
            self._timings.append(frame.timings)

    def _own_marks(self) -> list[CountedChunk]:
        """Beside further choices, what counts all choices together counts no chunk of the answer."""
        if not self._other_choices:
            return self._marks
        return [msgspec.structs.replace(mark, usage=None, engine=None) for mark in self._marks]

    def _count_without_ids(self) -> int:
        return sum(mark.ids is None for mark in self._marks)

    def _piece_chars(self, counted: Counted) -> tuple[int, ...] | None:
        """Return what a tokenizer needs to count the chunks that nobody counts."""
        wanted = counted.source is None and bool(self._marks) and self._is_in_order
        return list_piece_chars(self._marks) if wanted else None

    def _read(self, output_tokens: int | None) -> MetricsReading:
        blocks = EngineBlocks(
            metrics=self._metrics,
            sglext=self._sglext,
            timings=tuple(self._timings),
            tokens_per_iteration=self._tokens_per_iteration,
            output_tokens=output_tokens,
            content_chunks=len(self._marks),
        )
        return bound_reading(self._read_blocks(blocks), output_tokens)

    def _take_choice(self, choice: Choice, frame: ChatFrame, arrival_ns: int) -> None:
        """Take a chunk of the answer."""
        ids = None if choice.token_ids is None else self._take_ids(choice.token_ids)
        if choice.logprobs is not None and ids is not None:
            self._margins.add(choice.logprobs, choice.token_ids, ids)
        usage = None if frame.usage is None else frame.usage.completion_tokens
        engine = None if frame.timings is None else frame.timings.predicted_n
        spoke = choice.delta is not None and self._take_delta(choice.delta)
        if spoke and usage is None:
            self._usage.note_uncounted()
        mark = CountedChunk(arrival_ns, ids, usage, engine, self._generated_chars)
        if choice.finish_reason:  # some services state an empty one on every chunk
            self._finish_reason, self._finish = choice.finish_reason, mark
        if choice.avg_decoded_tokens_per_iter is not None:
            self._tokens_per_iteration = choice.avg_decoded_tokens_per_iter
        if spoke or choice.token_ids or self._has_grown(usage, engine):
            self._marks.append(mark)

    def _take_tail(self, frame: ChatFrame, arrival_ns: int) -> None:
        """Count the tokens that the stream held back and only the closing frame's own count tells.

        Such are the end token alone in its step, and the rest of a character or of a possible stop string.
        """
        if frame.timings is None or not self._marks or self._other_choices:
            return
        last, now = self._marks[-1].engine, frame.timings.predicted_n
        if last is not None and now is not None and now > last:
            self._marks.append(CountedChunk(arrival_ns, None, None, now, self._generated_chars))

    def _take_ids(self, token_ids: tuple[int, ...]) -> int:
        if self._ids is None:
            self._ids = []
        self._ids.extend(token_ids)
        return len(self._ids)

    def _has_grown(self, usage: int | None, engine: int | None) -> bool:
        """Whether a chunk without text carries tokens all the same.

        A count that appears for the first time after content chunks without one is a final count and no
        growth: many servers put the usage on the closing chunk only.
        """
        last = self._marks[-1] if self._marks else CountedChunk(0, 0, 0, 0, 0)
        return any(
            now is not None and before is not None and now > before
            for now, before in ((usage, last.usage), (engine, last.engine))
        )

    def _take_delta(self, delta: Delta) -> bool:
        before = self._generated_chars
        reasoning = delta.reasoning or delta.reasoning_content
        if reasoning:
            self._enter(_REASONING)
            self._reasoning.append(reasoning)
            self._generated_chars += len(reasoning)
        if content := delta.content or delta.refusal:
            if self._part != _TEXT:
                self._enter(_TEXT)
            self._text.append(content)
            self._generated_chars += len(content)
        if delta.tool_calls:
            for call in delta.tool_calls:
                self._take_tool_call(call)
        return self._generated_chars > before

    def _enter(self, part: int) -> None:
        """Note that the answer goes on in a part; parts that alternate are kept in another order."""
        self._is_in_order &= part >= self._part
        self._part = part

    def _take_tool_call(self, call: ToolCallDelta) -> None:
        if call.function is None:
            return
        name, arguments = call.function.name or "", call.function.arguments or ""
        names, pieces = self._tools.setdefault(call.index, ([], []))
        names.append(name)
        pieces.append(arguments)
        if name or arguments:
            self._enter(_CALLS + call.index)
            self._generated_chars += len(name) + len(arguments)

    def _tool_calls(self) -> tuple[ToolCall, ...]:
        return tuple(
            ToolCall("".join(names), "".join(pieces)) for _, (names, pieces) in sorted(self._tools.items())
        )

    def _warnings(
        self, reading: MetricsReading, counted: Counted, output_tokens: int | None
    ) -> tuple[str, ...]:
        found = [*counted.warnings, *reading.warnings, *find_disagreements(reading, output_tokens)]
        found += self._usage.list_faults(has_content=bool(self._marks))
        stated = self._usage.total(has_content=bool(self._marks))
        if stated is not None and counted.last is not None and counted.last > stated:
            found.append(f"usage says {stated} tokens, fewer than {counted.last} streamed, and is not used")
        elif stated is not None and counted.last not in {None, stated}:
            found.append(f"chunks carry {counted.last} tokens by {counted.source}, usage says {stated}")
        elif stated is not None and counted.source is None and stated < len(self._marks):
            found.append(f"usage says {stated} tokens for {len(self._marks)} chunks with content")
        if self._ids is not None and self._count_without_ids():
            missing, chunks = self._count_without_ids(), len(self._marks)
            found.append(f"token ids are missing from {missing} of {chunks} chunks and are not used")
        if self._other_choices:
            found.append(f"{self._other_choices} chunks of further choices are not part of the answer")
        return tuple(found)


def _settle_total(total: int | None, counted: Counted) -> int | None:
    """Return the answer's tokens: the usage's total, unless more were streamed."""
    if total is None or counted.last is None:
        return counted.last if total is None else total
    return max(total, counted.last)
