"""Which count of tokens an answer's chunks are given, and which stated totals may be believed. Pure.

One source for the whole answer. It counts only if every content chunk states it, it never falls, and it is
that of its chunk: a chunk with content brings a token at least, so neither a first count of 0 is its own, nor
one that stays where the total lies above it. What no source counts, a tokenizer counts after the run. Of
totals the last holds, unless it is 0 for an answer with content, or content followed it.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from operator import attrgetter
from typing import Any

import msgspec

from draftproof.core.records import Chunk, TokenSource
from draftproof.services.engines.chat.frames import Usage


class CountedChunk(msgspec.Struct, frozen=True, gc=False):
    """A content chunk with the cumulative count of each source, None where the chunk states none.

    `generated_chars` is the length of all generated text (reasoning, content, tool calls) up to here.
    """

    arrival_ns: int
    ids: int | None
    usage: int | None
    engine: int | None
    generated_chars: int


class Counted(msgspec.Struct, frozen=True):
    """The chunks with the chosen counts; all None without a source."""

    source: TokenSource | None
    chunks: tuple[Chunk, ...]
    warnings: tuple[str, ...] = ()

    @property
    def last(self) -> int | None:
        """The answer's tokens by this source."""
        return self.chunks[-1].cumulative_tokens if self.chunks else None


_ARRIVAL_OF = attrgetter("arrival_ns")
_STATED: tuple[tuple[TokenSource, Callable[[CountedChunk], int | None]], ...] = (
    ("token_ids", attrgetter("ids")),
    ("continuous_usage", attrgetter("usage")),
    ("engine", attrgetter("engine")),
)


def choose_counts(
    marks: Sequence[CountedChunk], *, total: int | None = None, finish: CountedChunk | None = None
) -> Counted:
    """Return the chunks with the counts of the first source that all of them have.

    `marks`: the content chunks in order. `total`: the answer's tokens by the closing usage. `finish`: the
    event with the finish reason. Tokens beyond the last count end with it, unless it has one.
    """
    warnings: list[str] = []
    for source, count_of in _STATED:
        if not marks or count_of(marks[0]) is None:  # then it is not stated by all of them
            continue
        counts = [count for count in map(count_of, marks) if count is not None]
        if source != "token_ids" and _lacks_closing(marks, counts, count_of, finish):
            counts += [] if total is None else [total]
        if len(counts) < len(marks):
            continue
        fault = _find_fault(counts)
        if source != "token_ids":
            fault = fault or _find_halt(marks, counts, total)
        if fault is None:
            is_open = finish is not None and count_of(finish) is None
            tail = _tail(source, marks, counts, total, finish.arrival_ns if finish and is_open else None)
            return _join(source, marks, counts, tail, warnings)
        shifted = _shift(marks, counts, total, finish) if source != "token_ids" else None
        if shifted is not None:
            warnings.append(f"the token count by {source} lags by one chunk and is moved")
            return _join(source, marks, shifted, (), warnings)
        warnings.append(f"the token count by {source} {fault} and is not used")
    return Counted(None, tuple(Chunk(mark.arrival_ns, None) for mark in marks), tuple(warnings))


def list_piece_chars(marks: Sequence[CountedChunk]) -> tuple[int, ...]:
    """Return the characters that each chunk brought."""
    ends = [0, *(mark.generated_chars for mark in marks)]
    return tuple(after - before for before, after in pairwise(ends))


def _lacks_closing(
    marks: Sequence[CountedChunk],
    counts: Sequence[int],
    count_of: Callable[[CountedChunk], int | None],
    finish: CountedChunk | None,
) -> bool:
    """Tell whether only the event that ends the answer is without a count: that of it is the total."""
    is_last = len(counts) == len(marks) - 1 > 0 and count_of(marks[-1]) is None
    return is_last and finish is not None and marks[-1].arrival_ns == finish.arrival_ns


def _find_fault(counts: Sequence[int]) -> str | None:
    if counts != sorted(counts):
        return "falls in mid-stream"
    if counts[-1] == 0:
        return "stays at 0"
    return "is 0 at a chunk with content" if counts[0] == 0 else None


def _find_halt(marks: Sequence[CountedChunk], counts: Sequence[int], total: int | None) -> str | None:
    """Find a chunk with content that brings no token, in a count that ends below the total.

    Without such a total a token may have come in several chunks, as one of a tool call does.
    """
    if total is None or total <= counts[-1]:
        return None
    chars = list_piece_chars(marks)[1:]
    steps = zip(pairwise(counts), chars, strict=False)
    halts = (number for (before, number), has_content in steps if has_content and before == number)
    return next((f"stays at {number} at a chunk with content" for number in halts), None)


def _shift(
    marks: Sequence[CountedChunk], counts: Sequence[int], total: int | None, finish: CountedChunk | None
) -> list[int] | None:
    """Return each chunk's count from the next one's, the last from the total; None where that is none either.

    A service that states the tokens before a chunk begins at 0 and never states those of the last chunk.
    Where the answer ends long after that, the total has tokens that came behind it.
    """
    span_ns = marks[-1].arrival_ns - marks[0].arrival_ns
    if finish is not None and (finish.arrival_ns - marks[-1].arrival_ns) * 2 * (len(marks) - 1) > span_ns:
        return None
    moved = [*counts[1:], total or 0]
    last = max((at for at, chars in enumerate(list_piece_chars(marks)) if chars), default=0)
    brings = moved[last] - (moved[last - 1] if last else 0)
    return moved if counts[0] == 0 and _find_fault(moved) is None and brings > 0 else None


def _tail(
    source: TokenSource,
    marks: Sequence[CountedChunk],
    counts: Sequence[int],
    total: int | None,
    finish_ns: int | None,
) -> tuple[Chunk, ...]:
    """Return the tokens that only the closing usage reports, at the event that ended them.

    A running count that stops short of the total says that they came after it. Token ids do not: what has no
    id may have come at any time, and stays out of tokens and time alike, and so does what lies above the
    finish event's own count.
    """
    is_late = finish_ns is not None and finish_ns >= marks[-1].arrival_ns
    if source == "token_ids" or not is_late or total is None or total <= counts[-1]:
        return ()
    return (Chunk(finish_ns or 0, total),)


def _join(
    source: TokenSource,
    marks: Sequence[CountedChunk],
    counts: Sequence[int],
    tail: tuple[Chunk, ...],
    warnings: Sequence[str],
) -> Counted:
    chunks = tuple(map(Chunk, map(_ARRIVAL_OF, marks), counts))
    return Counted(source, chunks + tail, tuple(warnings))


class UsageFold:
    """Gathers the usage of one answer; `prompt_tokens` and `unstreamed_tokens` are what it says besides.

    `stated` is the last total as it stands, 0 included.
    """

    def __init__(self) -> None:
        self.prompt_tokens: int | None = None
        self.stated: int | None = None
        self._total: int | None = None
        self._is_followed = False
        self._says_no_prompt = False
        self._details: Any = None

    def add(self, usage: Usage) -> None:
        """Take the usage of a frame; runs for every chunk of a stream that counts."""
        if usage.prompt_tokens:
            self.prompt_tokens = usage.prompt_tokens
        elif usage.prompt_tokens == 0:
            self._says_no_prompt = True
        if usage.completion_tokens is None:
            return
        self.stated, self._details = usage.completion_tokens, usage.completion_tokens_details
        if self.stated:
            self._total, self._is_followed = self.stated, False

    def note_uncounted(self) -> None:
        """Content came without a usage: what was stated before is not the answer's total."""
        self._is_followed = True

    def total(self, *, has_content: bool) -> int | None:
        """Return the answer's tokens, None where no believable total was stated."""
        if not has_content and self._total is None:
            return self.stated
        return None if self._is_followed else self._total

    def unstreamed_tokens(self, *, has_reasoning: bool) -> int:
        """Return the tokens of the total that the service says are in no chunk.

        Hidden reasoning, unless reasoning was streamed as such, and rejected tokens of a prediction.
        """
        names = ["rejected_prediction_tokens", *(() if has_reasoning else ("reasoning_tokens",))]
        details = self._details if isinstance(self._details, dict) else {}
        counts = [value for name in names if isinstance(value := details.get(name), int) and value > 0]
        return sum(counts)

    def list_faults(self, *, has_content: bool) -> list[str]:
        """Return one sentence for each total that is none."""
        found = []
        if self.stated == 0 and has_content:
            found.append("usage says 0 tokens for an answer with content and is not used")
        if self._says_no_prompt and self.prompt_tokens is None:
            found.append("usage says 0 tokens for the prompt and is not used")
        return found
