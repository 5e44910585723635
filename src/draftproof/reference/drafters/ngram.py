"""Drafting by n-gram lookup in the sequence's own prompt and output; no model.

The longest suffix of the sequence, from `ngram_max` down to `ngram_min` tokens, is looked up among its
earlier n-grams; what followed the most recent match is the draft (prompt lookup decoding, Saxena 2023).
The index grows with the sequence: each token is indexed once, each lookup is a few dictionary reads.

A request sees its own text only, unless the service shares outputs (see `suffix`): then a longer match in
what the service told others wins, and the sequence's own text among equals.
"""

from collections.abc import Sequence

from draftproof.errors import UsageError
from draftproof.reference.drafters.suffix import SharedSuffixes
from draftproof.reference.proposer import DraftContext, Drafts


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

    Args:
        ngram_min: shortest match that drafts.
        ngram_max: longest match looked for.
        shared_tokens: output tokens kept for all requests to draft from; 0 keeps them apart.

    Raises:
        UsageError: the settings do not fit.
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
