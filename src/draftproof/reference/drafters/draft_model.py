"""An independent draft model: a smaller decoder that reads the same tokens, with a cache of its own.

(Leviathan et al. 2023, section 2; Chen et al. 2023.) Its vocabulary may be a part of the target's; tokens
outside it are never drafted.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from draftproof.reference.models.cache import CacheShape, SequenceCache
from draftproof.reference.models.decoder import Decoder
from draftproof.reference.models.ragged import RaggedBatch
from draftproof.reference.proposer import DraftContext


@dataclass(slots=True)
class _Sequence:
    cache: SequenceCache
    fed: list[int] = field(default_factory=list)  # the tokens whose keys and values are in the cache
    settled: int = 0  # of these the first, known to be committed: they are not compared again


class DraftModel:
    """Runs a decoder ahead of the target.

    Args:
        decoder: the draft model; it embeds token ids of the target.
        cache_shape: of the draft model.
        vocabulary: [draft vocab] target token ids its output rows stand for; None for all, in order.
    """

    def __init__(
        self, decoder: Decoder, cache_shape: CacheShape, vocabulary: torch.Tensor | None = None
    ) -> None:
        self._decoder, self._shape, self.vocabulary = decoder, cache_shape, vocabulary
        self._sequences: dict[str, _Sequence] = {}
        self._batch: list[_Sequence] = []

    @property
    def cache_bytes(self) -> int:
        """Bytes its caches hold."""
        return sum(sequence.cache.nbytes for sequence in self._sequences.values())

    def begin(self, contexts: Sequence[DraftContext]) -> torch.Tensor:
        """Drop what was rejected, feed what is new, and return [sequences, draft vocab] logits."""
        self._batch = [self._sequence(context) for context in contexts]
        pending = []
        for sequence, context in zip(self._batch, contexts, strict=True):
            kept = _common_prefix(sequence.fed, context.token_ids, sequence.settled)
            sequence.cache.truncate(kept)
            del sequence.fed[kept:]
            sequence.settled = kept
            pending.append(list(context.token_ids[kept:]))
        return self._feed(self._batch, pending)

    def extend(self, rows: Sequence[int], token_ids: Sequence[int]) -> torch.Tensor:
        """Feed drafts; what is accepted of them stays in the cache."""
        return self._feed([self._batch[row] for row in rows], [[token_id] for token_id in token_ids])

    def end(self) -> None:
        """Nothing to forget: the next round compares what was fed with what was committed."""
        self._batch = []

    def release(self, request_id: str) -> None:
        """Free a sequence's cache."""
        self._sequences.pop(request_id, None)

    def _sequence(self, context: DraftContext) -> _Sequence:
        return self._sequences.setdefault(context.request_id, _Sequence(SequenceCache(self._shape)))

    def _feed(self, sequences: Sequence[_Sequence], pending: Sequence[list[int]]) -> torch.Tensor:
        counts = [len(token_ids) for token_ids in pending]
        batch = RaggedBatch(list(zip([one.cache for one in sequences], counts, strict=True)))
        hidden = self._decoder.embed([token_id for token_ids in pending for token_id in token_ids])
        layers = range(len(self._decoder.layers))
        hidden = self._decoder.run(hidden, batch, layers, self._decoder.angles(batch))
        batch.advance()
        for sequence, token_ids in zip(sequences, pending, strict=True):
            sequence.fed += token_ids
        return self._decoder.logits(batch.last_rows(hidden))


def _common_prefix(fed: Sequence[int], committed: Sequence[int], settled: int) -> int:
    """Return how many fed tokens are committed; at least the last committed token is left to feed.

    The first `settled` are known to be, so that a round costs what is new and not the whole context.
    """
    most = min(len(fed), len(committed) - 1)
    return next((at for at in range(min(settled, most), most) if fed[at] != committed[at]), most)
