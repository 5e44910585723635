"""An attached speculator: a small trained head that continues the target's own hidden states.

The target's state after token i, together with the embedding of token i + 1, predicts token i + 2; from
then on the head feeds on its own output (EAGLE, Li et al. 2024; states of several layers and training on
its own outputs as in EAGLE-3, Li et al. 2025). The head is one decoder layer with a cache of its own, which
holds committed positions only: what it drafted is dropped after each round and computed again from true
states.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from draftproof.reference.cache import CacheShape, SequenceCache
from draftproof.reference.decoder import Decoder, DecoderLayer, run_layer
from draftproof.reference.kernels import Kernels, Linear
from draftproof.reference.proposer import DraftContext
from draftproof.reference.ragged import RaggedBatch


@dataclass(frozen=True, slots=True)
class HeadWeights:
    """The trained parts; `fuse` joins the tapped states, `mix` joins state and embedding."""

    fuse: Linear  # [hidden, taps * hidden]
    state_norm: torch.Tensor  # [hidden]
    embedding_norm: torch.Tensor  # [hidden]
    mix: Linear  # [hidden, 2 * hidden]
    layer: DecoderLayer
    final_norm: torch.Tensor  # [hidden]
    output: Linear  # [draft vocab, hidden]
    eps: float


@dataclass(slots=True)
class _Sequence:
    cache: SequenceCache
    states: list[torch.Tensor] = field(default_factory=list)  # [tokens, taps, hidden] not fed yet
    state: torch.Tensor | None = None  # [hidden] the head's last output
    committed: int = 0  # positions of the cache that stay


class AttachedHead:
    """The head over its target.

    Args:
        target: whose embedding and rotary angles it uses.
        weights: the trained parts.
        cache_shape: one layer.
        taps: the target's layers whose states it reads, counted from 1.
        vocabulary: [draft vocab] target token ids of its output rows.
    """

    def __init__(
        self,
        target: Decoder,
        weights: HeadWeights,
        cache_shape: CacheShape,
        taps: Sequence[int],
        vocabulary: torch.Tensor | None,
    ) -> None:
        self.taps, self.vocabulary = tuple(taps), vocabulary
        self._target, self._weights, self._shape = target, weights, cache_shape
        self._kernels: Kernels = target.kernels
        self._sequences: dict[str, _Sequence] = {}
        self._batch: list[_Sequence] = []

    @property
    def cache_bytes(self) -> int:
        """Bytes its caches hold."""
        return sum(sequence.cache.nbytes for sequence in self._sequences.values())

    def observe(self, request_id: str, start: int, states: torch.Tensor) -> None:
        """Keep the target's states [tokens, taps, hidden] of committed positions from `start` on."""
        sequence = self._sequences.setdefault(request_id, _Sequence(SequenceCache(self._shape)))
        known = sequence.committed + sum(len(rows) for rows in sequence.states)
        if start != known:
            raise ValueError(f"states from position {start} on where {known} was next")
        sequence.states.append(states)

    def begin(self, contexts: Sequence[DraftContext]) -> torch.Tensor:
        """Feed the true states of newly committed positions and return [sequences, draft vocab] logits."""
        self._batch = [self._sequences[context.request_id] for context in contexts]
        following: list[int] = []
        for sequence, context in zip(self._batch, contexts, strict=True):
            following += context.token_ids[sequence.committed + 1 :]
        counts = [sum(len(rows) for rows in sequence.states) for sequence in self._batch]
        states = torch.cat([rows for sequence in self._batch for rows in sequence.states]).flatten(1)
        fused = self._kernels.linear(states, self._weights.fuse)
        for sequence, count in zip(self._batch, counts, strict=True):
            sequence.states.clear()
            sequence.committed += count
        return self._feed(self._batch, counts, fused, following)

    def extend(self, rows: Sequence[int], token_ids: Sequence[int]) -> torch.Tensor:
        """Feed drafts with the head's own outputs in place of states."""
        sequences = [self._batch[row] for row in rows]
        states = torch.stack([sequence.state for sequence in sequences if sequence.state is not None])
        return self._feed(sequences, [1] * len(sequences), states, token_ids)

    def end(self) -> None:
        """Drop drafted positions."""
        for sequence in self._batch:
            sequence.cache.truncate(sequence.committed)
        self._batch = []

    def release(self, request_id: str) -> None:
        """Free a sequence's cache and states."""
        self._sequences.pop(request_id, None)

    def _feed(
        self,
        sequences: Sequence[_Sequence],
        counts: Sequence[int],
        states: torch.Tensor,
        token_ids: Sequence[int],
    ) -> torch.Tensor:
        kernels, weights = self._kernels, self._weights
        batch = RaggedBatch(list(zip([one.cache for one in sequences], counts, strict=True)))
        state = kernels.rms_norm(states, weights.state_norm, weights.eps)
        embedding = kernels.rms_norm(self._target.embed(token_ids), weights.embedding_norm, weights.eps)
        hidden = kernels.linear(torch.cat((embedding, state), dim=-1), weights.mix)  # [tokens, hidden]
        hidden = run_layer(
            kernels,
            weights.layer,
            hidden,
            batch=batch,
            cache_layer=0,
            angles=self._target.angles(batch),
            eps=weights.eps,
        )
        batch.advance()
        last = batch.last_rows(hidden)
        for sequence, row in zip(sequences, last, strict=True):
            sequence.state = row
        return kernels.linear(kernels.rms_norm(last, weights.final_norm, weights.eps), weights.output)
