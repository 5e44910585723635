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

from draftproof.reference.kernels import Kernels, Linear
from draftproof.reference.models.decoder import Decoder, DecoderLayer, run_layer
from draftproof.reference.models.ragged import CacheShape, RaggedBatch, SequenceCache
from draftproof.reference.proposer import DraftContext


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
    first: int = 0  # the position of the cache's first entry
    states: list[torch.Tensor] = field(default_factory=list)  # [tokens, taps, hidden] not fed yet
    last: torch.Tensor | None = None  # [1, taps, hidden] the last of those fed
    state: torch.Tensor | None = None  # [hidden] the head's last output
    committed: int = 0  # positions of the cache that stay

    @property
    def fed_until(self) -> int:
        """The first position whose true state is not in the cache."""
        return self.first + self.committed

    @property
    def known_until(self) -> int:
        """The first position whose true state never came."""
        return self.fed_until + sum(len(rows) for rows in self.states)

    def pending(self) -> torch.Tensor:
        """Return what is to be fed, [tokens, taps, hidden]: at least the last position, again."""
        if not self.states and self.last is not None:
            self.committed -= 1
            self.cache.truncate(self.committed)
            self.states.append(self.last)
        return torch.cat(self.states)

    def settle(self) -> None:
        """Take note that everything pending was fed."""
        self.committed = self.known_until - self.first
        self.last = self.states[-1][-1:].clone()  # not a view that holds a whole prompt's states
        self.states.clear()


class AttachedHead:
    """The head over its target.

    `target`: whose embedding and rotary angles it uses. `taps`: the target's layers whose states it reads,
    counted from 1. `vocabulary`: [draft vocab] target token ids of its output rows.
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
        """Keep the target's states [tokens, taps, hidden] of committed positions from `start` on.

        Where positions were left out, the head begins anew behind the gap: its attention sees distances only.
        Raises ValueError: a position comes twice.
        """
        sequence = self._sequences.get(request_id)
        if sequence is None or start > sequence.known_until:
            sequence = self._sequences[request_id] = _Sequence(self.new_cache(), first=start)
        if start < sequence.known_until:
            raise ValueError(f"states from position {start} on where {sequence.known_until} was next")
        sequence.states.append(states)

    def begin(self, contexts: Sequence[DraftContext]) -> torch.Tensor:
        """Feed the true states of newly committed positions and return [sequences, draft vocab] logits.

        Nothing is taken note of before all was fed, so that a batch that fails can be tried again in parts.
        """
        self._batch = [self._sequence(context) for context in contexts]
        states = [sequence.pending() for sequence in self._batch]  # each [tokens, taps, hidden]
        following: list[int] = []  # the token behind each of these positions
        for sequence, context in zip(self._batch, contexts, strict=True):
            following += context.token_ids[sequence.fed_until + 1 :]
        fused = self._fuse(torch.cat(states))
        logits = self._feed(self._batch, [len(rows) for rows in states], fused, following)
        for sequence in self._batch:
            sequence.settle()
        return logits

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

    def _sequence(self, context: DraftContext) -> _Sequence:
        """Return a sequence whose states are known up to the last committed token, which follows them."""
        sequence = self._sequences.get(context.request_id)
        known = 0 if sequence is None else sequence.known_until
        if sequence is None or known != len(context.token_ids) - 1:
            raise ValueError(f"states of {known} positions for {len(context.token_ids)} tokens")
        return sequence

    def new_cache(self) -> SequenceCache:
        """Return an empty cache of one text."""
        return SequenceCache(self._shape)

    def read(self, batch: RaggedBatch, states: torch.Tensor, token_ids: Sequence[int]) -> torch.Tensor:
        """Return the head's outputs [tokens, hidden] at new positions of texts; their caches grow by them.

        `states`: the target's at these positions, [tokens, taps, hidden]. `token_ids`: the token behind each.
        """
        return self._run(batch, self._fuse(states), token_ids)

    def follow(
        self, caches: Sequence[SequenceCache], states: torch.Tensor, token_ids: Sequence[int]
    ) -> torch.Tensor:
        """Return the head's outputs [rows, hidden] behind its own states [rows, hidden], one token each."""
        return self._run(RaggedBatch([(cache, 1) for cache in caches]), states, token_ids)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return [rows, draft vocab] from the head's outputs [rows, hidden]."""
        kernels, weights = self._kernels, self._weights
        return kernels.linear(kernels.rms_norm(hidden, weights.final_norm, weights.eps), weights.output)

    def _feed(
        self,
        sequences: Sequence[_Sequence],
        counts: Sequence[int],
        states: torch.Tensor,
        token_ids: Sequence[int],
    ) -> torch.Tensor:
        batch = RaggedBatch(list(zip([one.cache for one in sequences], counts, strict=True)))
        last = batch.last_rows(self._run(batch, states, token_ids))
        for sequence, row in zip(sequences, last, strict=True):
            sequence.state = row
        return self.logits(last)

    def _fuse(self, states: torch.Tensor) -> torch.Tensor:
        return self._kernels.linear(states.flatten(1), self._weights.fuse)

    def _run(self, batch: RaggedBatch, states: torch.Tensor, token_ids: Sequence[int]) -> torch.Tensor:
        kernels, weights = self._kernels, self._weights
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
        return hidden
