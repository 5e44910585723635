"""Drafting by n-gram lookup in the sequence's own prompt and output; no model.

The longest suffix, from `ngram_max` down to `ngram_min` tokens, is looked up among earlier n-grams; what
followed the most recent match is the draft (prompt lookup decoding, Saxena 2023). Off by default, a service
may share the outputs of all requests (REST, He et al. 2023; SuffixDecoding, Oliaro et al. 2024). Every output
is still exactly the target's, and sharing leaks all the same: the pace of an answer tells whether another
request was given the same words. Seeds are not honoured then, for two requests of one seed would judge drafts
by the numbers that made them. Prompts, which users wrote, are never taken in.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from draftproof.core.errors import UsageError
from draftproof.reference.proposer import DraftContext, Drafts

_BLOCK_TOKENS = 128
_OCCURRENCES = (
    8  # the latest of an n-gram that are remembered: they bound the work of a token and of a lookup
)


@dataclass(slots=True)
class _Block:
    """A piece of an output: up to `ngram_max` tokens of the piece before it, then its own from `start`."""

    token_ids: list[int]
    start: int


@dataclass(slots=True)
class _Stream:
    """An output that grows: the sequence it ends, how many of its tokens are dealt with, its latest block."""

    token_ids: Sequence[int]
    taken: int
    block: int = -1


class SharedSuffixes:
    """Outputs of a service, found again by their n-grams.

    `ngram_max`: longest match. `max_tokens`: output tokens that are kept, at least 1. `num_tokens`: output
    tokens that are kept now. Raises UsageError: `max_tokens` is below 1.
    """

    def __init__(self, ngram_min: int, ngram_max: int, max_tokens: int) -> None:
        if max_tokens < 1:
            raise UsageError(f"{max_tokens} shared tokens are no memory", fix="use 0 to share nothing")
        self.num_tokens = 0
        self._lengths = range(ngram_max, ngram_min - 1, -1)
        self._max_tokens, self._block_tokens = max_tokens, min(max_tokens, _BLOCK_TOKENS)
        self._places: dict[tuple[int, ...], list[int]] = {}  # n-gram -> what followed it, latest last
        self._blocks: dict[int, _Block] = {}  # least recently used first
        self._streams: dict[str, _Stream] = {}
        self._made_blocks = 0

    def observe(self, request_id: str, token_ids: Sequence[int]) -> None:
        """Take in what a sequence grew by since it was seen last.

        `token_ids`: prompt and at least one token of output. All but the last may be prompt when a sequence
        is first seen, and is left out.
        """
        stream = self._streams.setdefault(request_id, _Stream(token_ids, len(token_ids) - 1))
        stream.token_ids = token_ids
        self._take(stream)

    def lookup(self, token_ids: Sequence[int], max_draft_tokens: int, *, above: int = 0) -> list[int]:
        """Return what followed the longest match, up to the end of its block; nothing if there is none.

        Of the latest eight occurrences those decide whose next token is the most frequent among them, and of
        these the latest is followed. `token_ids`: the sequence that wants a draft. `above`: matches up to
        this length are not wanted.
        """
        for length in self._lengths:
            if length <= above:
                return []
            places = self._places.get(tuple(token_ids[-length:])) if length <= len(token_ids) else None
            if places:
                return self._follow(places, max_draft_tokens)
        return []

    def release(self, request_id: str) -> None:
        """Take in the rest of an output that ended and let go of its sequence; its text stays."""
        stream = self._streams.pop(request_id, None)
        if stream is not None:
            self._take(stream)

    def _take(self, stream: _Stream) -> None:
        for index in range(stream.taken, len(stream.token_ids)):
            self._add(self._growing_block(stream), stream.token_ids[index])
            while self.num_tokens > self._max_tokens:
                self._evict()
        stream.taken = max(stream.taken, len(stream.token_ids))

    def _growing_block(self, stream: _Stream) -> int:
        """Return the block the next token goes to, now the most recently used one."""
        block = self._blocks.get(stream.block)
        if block is not None and len(block.token_ids) - block.start < self._block_tokens:
            self._touch(stream.block)
            return stream.block
        before = [] if block is None else block.token_ids[-self._lengths[0] :]
        stream.block = self._made_blocks
        self._made_blocks += 1
        self._blocks[stream.block] = _Block(before, len(before))
        return stream.block

    def _add(self, number: int, token_id: int) -> None:
        block = self._blocks[number]
        known = block.token_ids
        place = number * _BLOCK_TOKENS + len(known) - block.start
        for length in self._lengths:
            if length <= len(known):
                places = self._places.setdefault(tuple(known[-length:]), [])
                if len(places) == _OCCURRENCES:
                    del places[0]
                places.append(place)
        known.append(token_id)
        self.num_tokens += 1

    def _evict(self) -> None:
        """Forget the least recently used block and every n-gram that leads into it."""
        number = next(iter(self._blocks))
        block = self._blocks.pop(number)
        for end in range(block.start, len(block.token_ids)):
            place = number * _BLOCK_TOKENS + end - block.start
            for length in self._lengths:
                if length <= end:
                    self._forget(tuple(block.token_ids[end - length : end]), place)
        self.num_tokens -= len(block.token_ids) - block.start

    def _forget(self, ngram: tuple[int, ...], place: int) -> None:
        places = self._places.get(ngram, [])
        if place in places:
            places.remove(place)
        if not places:
            self._places.pop(ngram, None)

    def _follow(self, places: Sequence[int], max_draft_tokens: int) -> list[int]:
        starts = [(self._blocks[place // _BLOCK_TOKENS], place % _BLOCK_TOKENS) for place in places]
        following = [block.token_ids[block.start + offset] for block, offset in starts]
        votes = Counter(following)
        best = max(range(len(places)), key=lambda index: (votes[following[index]], index))
        self._touch(places[best] // _BLOCK_TOKENS)
        block, offset = starts[best]
        return block.token_ids[block.start + offset :][:max_draft_tokens]

    def _touch(self, number: int) -> None:
        self._blocks[number] = self._blocks.pop(number)


class NgramIndex:
    """Where each n-gram of one growing sequence last ended."""

    def __init__(self, ngram_min: int, ngram_max: int) -> None:
        if not 1 <= ngram_min <= ngram_max:
            raise UsageError(
                f"ngram_min {ngram_min} and ngram_max {ngram_max} do not fit together",
                fix="use 1 <= ngram_min <= ngram_max",
            )
        self._lengths = range(ngram_max, ngram_min - 1, -1)
        self._last_end: dict[tuple[int, ...], int] = {}
        self._indexed_tokens = 0

    def extend(self, token_ids: Sequence[int]) -> None:
        """Index the n-grams that have a token after them; `token_ids` is the whole sequence so far."""
        for end in range(self._indexed_tokens + 1, len(token_ids)):
            for length in self._lengths:
                if length <= end:
                    self._last_end[tuple(token_ids[end - length : end])] = end
        self._indexed_tokens = max(self._indexed_tokens, len(token_ids) - 1)

    def lookup(self, token_ids: Sequence[int], max_draft_tokens: int) -> list[int]:
        """Return up to `max_draft_tokens` that followed the longest, most recent match; none if no match."""
        _, end = self.find(token_ids)
        return list(token_ids[end : end + max_draft_tokens])

    def find(self, token_ids: Sequence[int]) -> tuple[int, int]:
        """Return the longest match's length and the end of its last occurrence; 0 and the end if no match."""
        for length in self._lengths:
            if length >= len(token_ids):
                continue
            end = self._last_end.get(tuple(token_ids[-length:]))
            if end is not None:
                return length, end
        return 0, len(token_ids)


class NgramProposer:
    """A proposer that keeps one index per sequence, and shares outputs between sequences only if told to.

    `ngram_max`: longest match looked for. `shared_tokens`: output tokens kept for all requests to draft from;
    0 keeps them apart. Raises UsageError: the settings do not fit.
    """

    def __init__(self, *, ngram_min: int, ngram_max: int, shared_tokens: int = 0) -> None:
        NgramIndex(ngram_min, ngram_max)  # bad bounds are refused at start, not at the first request
        self._bounds = (ngram_min, ngram_max)
        self._indexes: dict[str, NgramIndex] = {}
        self._shared = SharedSuffixes(ngram_min, ngram_max, shared_tokens) if shared_tokens else None

    def propose(self, contexts: Sequence[DraftContext]) -> Drafts:
        """Return the lookup result of each sequence."""
        return Drafts(token_ids=[self._draft(context) for context in contexts])

    def release(self, request_id: str) -> None:
        """Drop the sequence's index; what it gave to a shared structure stays there."""
        self._indexes.pop(request_id, None)
        if self._shared is not None:
            self._shared.release(request_id)

    def _draft(self, context: DraftContext) -> list[int]:
        token_ids, limit = context.token_ids, context.max_draft_tokens
        index = self._indexes.setdefault(context.request_id, NgramIndex(*self._bounds))
        index.extend(token_ids)
        length, end = index.find(token_ids)
        shared: list[int] = []
        if self._shared is not None:
            self._shared.observe(context.request_id, token_ids)
            shared = self._shared.lookup(token_ids, limit, above=length)
        return shared or list(token_ids[end : end + limit])
