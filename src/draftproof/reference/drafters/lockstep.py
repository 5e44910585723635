"""Drafting with a network, token by token, for all sequences of a batch at once.

Three families share this loop and differ in the network: an independent model, a head on the target's hidden
states, or the target's own first layers. Each token is drawn from the network's distribution under the
request's temperature and truncation, and that distribution goes to the verifier; a greedy request takes the
likeliest token, of which the drafter is certain.
"""

from collections.abc import Sequence
from typing import Protocol

import torch

from draftproof.reference.proposer import DraftContext, Drafts
from draftproof.reference.sampling import compute_probs, draw, draw_uniforms


class DraftNetwork(Protocol):
    """A model that continues each sequence of a batch provisionally."""

    vocabulary: torch.Tensor | None  # [draft vocab] token ids of the target; None where both agree

    def begin(self, contexts: Sequence[DraftContext]) -> torch.Tensor:
        """Catch up with what was committed; return [sequences, draft vocab] logits of each first draft."""
        ...

    def extend(self, rows: Sequence[int], token_ids: Sequence[int]) -> torch.Tensor:
        """Feed one drafted token to some of the sequences; return [rows, draft vocab] logits of the next."""
        ...

    def end(self) -> None:
        """Forget what was fed provisionally; called after every round, also one that failed."""
        ...

    def release(self, request_id: str) -> None:
        """Forget a sequence; unknown ids are fine."""
        ...


class TappedNetwork(DraftNetwork, Protocol):
    """A network that reads the target's hidden states."""

    taps: tuple[int, ...]

    def observe(self, request_id: str, start: int, states: torch.Tensor) -> None:
        """Take [tokens, taps, hidden] of committed positions from `start` on."""
        ...


class LockstepProposer:
    """A proposer around a network.

    Args:
        network: the network.
        vocab_size: of the target.
    """

    def __init__(self, network: DraftNetwork, vocab_size: int) -> None:
        self.network = network
        self._vocab_size = vocab_size

    def propose(self, contexts: Sequence[DraftContext]) -> Drafts:
        """Draft until every sequence has as many tokens as it may."""
        drafted: list[list[int]] = [[] for _ in contexts]
        drawn_from: list[list[torch.Tensor]] = [[] for _ in contexts]
        active = list(range(len(contexts)))
        try:
            logits = self.network.begin(contexts)  # [active, draft vocab]
            while True:
                for index, token_id, probs in self._choose(contexts, active, logits):
                    drafted[index].append(token_id)
                    if probs is not None:
                        drawn_from[index].append(probs)
                active = [i for i in active if len(drafted[i]) < contexts[i].max_draft_tokens]
                if not active:
                    break
                logits = self.network.extend(active, [drafted[i][-1] for i in active])
        finally:
            self.network.end()
        return Drafts(drafted, [torch.stack(rows) if rows else None for rows in drawn_from])

    def release(self, request_id: str) -> None:
        """Forget a sequence."""
        self.network.release(request_id)

    def _choose(
        self, contexts: Sequence[DraftContext], active: Sequence[int], logits: torch.Tensor
    ) -> list[tuple[int, int, torch.Tensor | None]]:
        """Return (sequence, token, [vocab] distribution it was drawn from or None if certain) for each."""
        likeliest = logits.argmax(dim=-1)
        if self.network.vocabulary is not None:
            likeliest = self.network.vocabulary[likeliest]
        chosen: list[tuple[int, int, torch.Tensor | None]] = []
        for row, (index, token_id) in enumerate(zip(active, likeliest.tolist(), strict=True)):
            context = contexts[index]
            if context.sampling.temperature == 0.0:
                chosen.append((index, token_id, None))
                continue
            probs = self._widen(compute_probs(logits[row : row + 1], context.sampling)[0])
            uniform = float(draw_uniforms(context.generator, 1))
            chosen.append((index, draw(probs, uniform), probs))
        return chosen

    def _widen(self, probs: torch.Tensor) -> torch.Tensor:
        """Return [vocab] from [draft vocab]: tokens the drafter does not know have probability zero."""
        if self.network.vocabulary is None:
            return probs
        wide = probs.new_zeros(self._vocab_size)
        return wide.index_copy_(0, self.network.vocabulary, probs)


class TappedProposer(LockstepProposer):
    """A proposer around a network that reads the target's hidden states."""

    network: "TappedNetwork"

    @property
    def taps(self) -> Sequence[int]:
        """The layers it reads."""
        return self.network.taps

    def observe(self, request_id: str, start: int, states: torch.Tensor) -> None:
        """Hand [tokens, taps, hidden] on to the network."""
        self.network.observe(request_id, start, states)
