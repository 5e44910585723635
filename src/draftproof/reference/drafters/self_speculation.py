"""Self-speculation: some of the target's own layers draft, all of them verify.

Early exit stops after the first layers and lets a small trained adapter say what the rest would (LayerSkip,
Elhoushi et al. 2024); plain layer skipping leaves out layers anywhere and needs no training (Draft &
Verify, Zhang et al. 2024). Drafting reads the target's own cache, which holds the true keys and values of
every committed position, and writes only beyond them; the verification pass writes those positions again.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from draftproof.reference.kernels import Linear
from draftproof.reference.models.cache import SequenceCache
from draftproof.reference.models.decoder import Decoder
from draftproof.reference.models.ragged import RaggedBatch
from draftproof.reference.proposer import DraftContext


@dataclass(frozen=True, slots=True)
class ExitAdapter:
    """A gated feed-forward on the exit's state, then its own final norm and output rows."""

    norm: torch.Tensor  # [hidden]
    gate_up: Linear
    down: Linear
    final_norm: torch.Tensor  # [hidden]
    output: Linear  # [draft vocab, hidden]
    eps: float


class SelfSpeculation:
    """Drafts with a subset of the target's layers.

    Args:
        target: the target's decoder.
        layers: indices of the layers that draft, in order.
        adapter: what turns their state into logits; None for the target's own norm and output layer.
        vocabulary: [draft vocab] target token ids of the adapter's output rows.
    """

    def __init__(
        self,
        target: Decoder,
        layers: Sequence[int],
        adapter: ExitAdapter | None = None,
        vocabulary: torch.Tensor | None = None,
    ) -> None:
        self._target, self.layers, self._adapter = target, tuple(layers), adapter
        self.vocabulary = vocabulary
        self._batch: list[tuple[SequenceCache, int]] = []

    def begin(self, contexts: Sequence[DraftContext]) -> torch.Tensor:
        """Run the layers over the tokens the target has not seen: its last committed one."""
        self._batch, pending = [], []
        for context in contexts:
            cache = context.target_cache
            if cache is None:
                raise ValueError("self-speculation needs the target's cache")
            self._batch.append((cache, cache.length))
            pending.append(list(context.token_ids[cache.length :]))
        return self._feed([cache for cache, _ in self._batch], pending)

    def extend(self, rows: Sequence[int], token_ids: Sequence[int]) -> torch.Tensor:
        """Run the layers over one draft of each sequence."""
        return self._feed([self._batch[row][0] for row in rows], [[token_id] for token_id in token_ids])

    def end(self) -> None:
        """Give the target's caches back as they were."""
        for cache, length in self._batch:
            cache.truncate(length)
        self._batch = []

    def release(self, request_id: str) -> None:
        """Nothing is kept for a sequence."""

    def _feed(self, caches: Sequence[SequenceCache], pending: Sequence[list[int]]) -> torch.Tensor:
        target = self._target
        batch = RaggedBatch([(cache, len(ids)) for cache, ids in zip(caches, pending, strict=True)])
        hidden = target.embed([token_id for token_ids in pending for token_id in token_ids])
        hidden = target.run(hidden, batch, self.layers, target.angles(batch))
        batch.advance()
        return self._logits(batch.last_rows(hidden))

    def _logits(self, hidden: torch.Tensor) -> torch.Tensor:
        adapter, kernels = self._adapter, self._target.kernels
        if adapter is None:
            return self._target.logits(hidden)
        gate_up = kernels.linear(kernels.rms_norm(hidden, adapter.norm, adapter.eps), adapter.gate_up)
        hidden = kernels.linear(kernels.silu_mul(gate_up), adapter.down, add_to=hidden)
        return kernels.linear(kernels.rms_norm(hidden, adapter.final_norm, adapter.eps), adapter.output)
