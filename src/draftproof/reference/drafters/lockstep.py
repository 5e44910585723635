"""Drafting with a network, token by token, for all sequences of a batch at once.

Three families share this loop: an independent model (here; Leviathan et al. 2023, section 2; Chen et al.
2023), a head on the target's hidden states, and the target's own first layers. Each token is drawn from the
network's distribution under the request's sampling, and that distribution goes to the verifier. A draft may
end early where the network is unsure: that depends on the tokens before only, so it changes no distribution.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch

from draftproof.reference.models.decoder import Decoder
from draftproof.reference.models.ragged import CacheShape, RaggedBatch, SequenceCache
from draftproof.reference.processors import compute_probs, draw, draw_uniforms
from draftproof.reference.proposer import DraftContext, Drafts

_logger = logging.getLogger(__name__)


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


@dataclass(slots=True)
class _Draft:
    """One sequence's draft while it grows."""

    context: DraftContext
    token_ids: list[int] = field(default_factory=list)
    drawn_from: list[torch.Tensor] = field(default_factory=list)  # each [vocab]; empty for a greedy request
    failed: bool = False
    confidence: float = 1.0  # product of the largest probabilities so far, where anybody asks for it

    @property
    def wants_more(self) -> bool:
        """Whether the sequence goes on drafting."""
        context = self.context
        is_sure = self.confidence >= context.stop_below
        return not self.failed and is_sure and len(self.token_ids) < context.max_draft_tokens


class LockstepProposer:
    """A proposer around a network.

    A fault ends the drafting of the sequences it touches and keeps what they drew before: which drafts are
    verified must never depend on what followed from them.
    """

    def __init__(self, network: DraftNetwork, vocab_size: int) -> None:
        self.network = network
        self._vocab_size = vocab_size

    def propose(self, contexts: Sequence[DraftContext]) -> Drafts:
        """Draft until every sequence has as many tokens as it may; raises only before anything is drawn."""
        drafts = [_Draft(context) for context in contexts]
        active = list(range(len(contexts)))
        try:
            self._choose(drafts, active, self.network.begin(contexts))
            while active := [row for row in active if drafts[row].wants_more]:
                self._lengthen(drafts, active)
        finally:
            self.network.end()
        return Drafts(
            [draft.token_ids for draft in drafts],
            [torch.stack(draft.drawn_from) if draft.drawn_from else None for draft in drafts],
            failed=[row for row, draft in enumerate(drafts) if draft.failed],
        )

    def release(self, request_id: str) -> None:
        """Forget a sequence."""
        self.network.release(request_id)

    def _lengthen(self, drafts: Sequence[_Draft], rows: Sequence[int]) -> None:
        """Draw one more token for each of some sequences; if the network raises, one sequence at a time."""
        try:
            logits = self.network.extend(rows, [drafts[row].token_ids[-1] for row in rows])
        except Exception as fault:  # noqa: BLE001 - a network may raise anything, and serving must go on
            if len(rows) == 1:
                _fail(drafts[rows[0]], fault)
                return
            for row in rows:
                self._lengthen(drafts, [row])
        else:
            self._choose(drafts, rows, logits)

    def _choose(self, drafts: Sequence[_Draft], rows: Sequence[int], logits: torch.Tensor) -> None:
        """Append a token to each of some sequences, from logits [rows, draft vocab]."""
        largest, likeliest = logits.max(dim=-1)
        if self.network.vocabulary is not None:
            likeliest = self.network.vocabulary[likeliest]
        usable = largest.isfinite().tolist()  # one NaN in a row makes its largest NaN
        for at, (row, token_id) in enumerate(zip(rows, likeliest.tolist(), strict=True)):
            draft = drafts[row]
            if not usable[at]:
                _fail(draft, ValueError("the logits are not finite"))
                continue
            if draft.context.stop_below > 0.0:
                draft.confidence *= float((largest[at] - logits[at].logsumexp(-1)).exp())
            if draft.context.sampling.temperature == 0.0:
                draft.token_ids.append(token_id)
            else:
                self._draw(draft, logits[at : at + 1])

    def _draw(self, draft: _Draft, logits: torch.Tensor) -> None:
        """Append a token drawn from logits [1, draft vocab], and the distribution it was drawn from."""
        try:
            probs = self._widen(compute_probs(logits, draft.context.sampling)[0])
            token_id = draw(probs, float(draw_uniforms(draft.context.generator, 1)))
        except Exception as fault:  # noqa: BLE001 - whatever harms one sequence stays with it
            _fail(draft, fault)
            return
        draft.token_ids.append(token_id)
        draft.drawn_from.append(probs)

    def _widen(self, probs: torch.Tensor) -> torch.Tensor:
        """Return [vocab] from [draft vocab]: tokens the drafter does not know have probability zero."""
        if self.network.vocabulary is None:
            return probs
        wide = probs.new_zeros(self._vocab_size)
        return wide.index_copy_(0, self.network.vocabulary, probs)


def _fail(draft: _Draft, fault: Exception) -> None:
    draft.failed = True
    _logger.warning("the drafter of request %s raised %r", draft.context.request_id, fault, exc_info=fault)


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


@dataclass(slots=True)
class _Sequence:
    cache: SequenceCache
    fed: list[int] = field(default_factory=list)  # the tokens whose keys and values are in the cache
    settled: int = 0  # of these the first, known to be committed: they are not compared again


class DraftModel:
    """Runs a decoder ahead of the target.

    `decoder`: the draft model; it embeds token ids of the target. `vocabulary`: [draft vocab] target token
    ids its output rows stand for; None for all, in order.
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
        self._batch = [
            self._sequences.setdefault(context.request_id, _Sequence(self.new_cache()))
            for context in contexts
        ]
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

    def new_cache(self) -> SequenceCache:
        """Return an empty cache of one text."""
        return SequenceCache(self._shape)

    def read(self, batch: RaggedBatch, token_ids: Sequence[int]) -> torch.Tensor:
        """Return [tokens, hidden] of the new tokens of some texts; their caches grow by them."""
        hidden = self._decoder.embed(token_ids)
        layers = range(len(self._decoder.layers))
        hidden = self._decoder.run(hidden, batch, layers, self._decoder.angles(batch))
        batch.advance()
        return hidden

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return [rows, draft vocab] from [rows, hidden]."""
        return self._decoder.logits(hidden)

    def _feed(self, sequences: Sequence[_Sequence], pending: Sequence[list[int]]) -> torch.Tensor:
        counts = [len(token_ids) for token_ids in pending]
        batch = RaggedBatch(list(zip([one.cache for one in sequences], counts, strict=True)))
        hidden = self.read(batch, [token_id for token_ids in pending for token_id in token_ids])
        for sequence, token_ids in zip(sequences, pending, strict=True):
            sequence.fed += token_ids
        return self.logits(batch.last_rows(hidden))


def _common_prefix(fed: Sequence[int], committed: Sequence[int], settled: int) -> int:
    """Return how many fed tokens are committed; at least the last committed token is left to feed.

    The first `settled` are known to be, so that a round costs what is new and not the whole context.
    """
    most = min(len(fed), len(committed) - 1)
    return next((at for at in range(min(settled, most), most) if fed[at] != committed[at]), most)
