"""Drafting by n-gram lookup in the sequence's own prompt and output; no model.

The longest suffix, from `ngram_max` down to `ngram_min` tokens, is looked up among earlier n-grams; what
followed the most recent match is the draft (prompt lookup decoding, Saxena 2023). Sequences share nothing.
Other engines take the earliest match (vLLM, `v1/spec_decode/ngram_proposer.py`).
"""

from collections.abc import Sequence

from draftproof.core.errors import UsageError
from draftproof.reference.proposer import DraftContext, Drafts


class NgramIndex:
    """Where each n-gram of one growing sequence last ended; first, if the `earliest` match is wanted."""

    def __init__(self, ngram_min: int, ngram_max: int, *, earliest: bool = False) -> None:
        if not 1 <= ngram_min <= ngram_max:
            raise UsageError(
                f"ngram_min {ngram_min} and ngram_max {ngram_max} do not fit together",
                fix="use 1 <= ngram_min <= ngram_max",
            )
        self._lengths = range(ngram_max, ngram_min - 1, -1)
        self._end: dict[tuple[int, ...], int] = {}
        self._earliest = earliest
        self._indexed_tokens = 0

    def extend(self, token_ids: Sequence[int]) -> None:
        """Index the n-grams that have a token after them; `token_ids` is the whole sequence so far."""
        for end in range(self._indexed_tokens + 1, len(token_ids)):
            for length in self._lengths:
                if length <= end:
                    ngram = tuple(token_ids[end - length : end])
                    self._end[ngram] = self._end.get(ngram, end) if self._earliest else end
        self._indexed_tokens = max(self._indexed_tokens, len(token_ids) - 1)

    def lookup(self, token_ids: Sequence[int], max_draft_tokens: int) -> list[int]:
        """Return up to `max_draft_tokens` that followed the longest match; none if no match."""
        for length in self._lengths:
            if length >= len(token_ids):
                continue
            end = self._end.get(tuple(token_ids[-length:]))
            if end is not None:
                return list(token_ids[end : end + max_draft_tokens])
        return []


class NgramProposer:
    """A proposer that keeps one index per sequence.

    `ngram_max`: longest match looked for. Raises UsageError: the settings do not fit.
    """

    def __init__(self, *, ngram_min: int, ngram_max: int) -> None:
        NgramIndex(ngram_min, ngram_max)  # bad bounds are refused at start, not at the first request
        self._bounds = (ngram_min, ngram_max)
        self._indexes: dict[str, NgramIndex] = {}

    def propose(self, contexts: Sequence[DraftContext]) -> Drafts:
        """Return the lookup result of each sequence."""
        return Drafts(token_ids=[self._draft(context) for context in contexts])

    def release(self, request_id: str) -> None:
        """Drop the sequence's index."""
        self._indexes.pop(request_id, None)

    def _draft(self, context: DraftContext) -> list[int]:
        index = self._indexes.setdefault(context.request_id, NgramIndex(*self._bounds))
        index.extend(context.token_ids)
        return index.lookup(context.token_ids, context.max_draft_tokens)
