"""Which count of tokens an answer's chunks are given, out of those its frames state.

One source for the whole answer: counts of two sources in one answer would be neither. A source counts only if
every content chunk states it, it never falls, and it does not stay at 0.
"""

from collections.abc import Callable, Sequence
from operator import attrgetter

import msgspec

from draftproof.engines.protocol import CountTokens
from draftproof.records import TokenSource


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
    """The chosen counts, one for each content chunk; all None without a source."""

    source: TokenSource | None
    cumulative: tuple[int | None, ...]
    warnings: tuple[str, ...] = ()

    @property
    def last(self) -> int | None:
        """The answer's tokens by this source."""
        return self.cumulative[-1] if self.cumulative else None


_STATED: tuple[tuple[TokenSource, Callable[[CountedChunk], int | None]], ...] = (
    ("token_ids", attrgetter("ids")),
    ("continuous_usage", attrgetter("usage")),
    ("engine", attrgetter("engine")),
)


def choose_counts(
    chunks: Sequence[CountedChunk], generated: str, count_tokens: CountTokens | None
) -> Counted:
    """Return the counts of the first source all chunks have: ids, continuous usage, engine, tokenizer."""
    warnings: list[str] = []
    for source, count_of in _STATED:
        counts = [count for count in map(count_of, chunks) if count is not None]
        if not chunks or len(counts) < len(chunks):
            continue
        if counts != sorted(counts):
            warnings.append(f"the token count by {source} falls in mid-stream and is not used")
        elif counts[-1] == 0:
            warnings.append(f"the token count by {source} stays at 0 and is not used")
        else:
            return Counted(source, tuple(counts), tuple(warnings))
    if count_tokens is None or not chunks:
        return Counted(None, (None,) * len(chunks), tuple(warnings))
    texts = (generated[: chunk.generated_chars] for chunk in chunks)
    return Counted("tokenizer", tuple(count_tokens(text) for text in texts), tuple(warnings))
