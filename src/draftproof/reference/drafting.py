"""The engine's side of drafting: who drafts for which sequence, and what if a drafter fails.

A sequence whose drafter raises or breaks its contract goes on by ordinary decoding; nobody else notices.
"""

import logging
from collections.abc import Mapping, Sequence

import torch

from draftproof.reference.counters import EngineCounters
from draftproof.reference.proposer import (
    Draft,
    DraftContext,
    Proposer,
    StateReader,
    collect_drafts,
    release_drafter,
)
from draftproof.reference.sequence import LiveSequence
from draftproof.reference.spans import Span

_logger = logging.getLogger(__name__)


class Drafters:
    """The loaded drafters by method.

    Args:
        proposers: by method.
        vocab_size: of the target.
        max_draft_tokens: a sequence's fixed share of a step.
        counters: told of every sequence that loses its drafter.
    """

    def __init__(
        self,
        proposers: Mapping[str, Proposer],
        *,
        vocab_size: int,
        max_draft_tokens: int,
        counters: EngineCounters,
    ) -> None:
        self.proposers = proposers
        self._vocab_size, self._max_draft_tokens = vocab_size, max_draft_tokens
        self._counters = counters

    def draft(self, decoding: Sequence[LiveSequence]) -> dict[str, Draft]:
        """Return drafts by request id for the sequences that want one."""
        drafts: dict[str, Draft] = {}
        for method, proposer in self.proposers.items():
            wanting = [one for one in decoding if one.drafting and one.request.speculation.method == method]
            contexts = [self._context(one) for one in wanting]
            contexts = [context for context in contexts if context.max_draft_tokens > 0]
            found = collect_drafts(proposer, contexts, self._vocab_size)
            drafts.update(zip([context.request_id for context in contexts], found, strict=True))
        for sequence in decoding:
            if sequence.request_id in drafts and drafts[sequence.request_id].failed:
                self._stop_drafting(sequence)
        return drafts

    def taps(self, spans: Sequence[Span]) -> tuple[int, ...]:
        """Return the layers whose states some drafter of this pass wants to see, in rising order."""
        readers = [self._reader_of(span.sequence) for span in spans]
        return tuple(sorted({tap for reader in readers if reader is not None for tap in reader.taps}))

    def observe(
        self, spans: Sequence[Span], kept: Sequence[int], taps: Sequence[int], states: torch.Tensor | None
    ) -> None:
        """Show drafters the target's states of the positions that stay.

        Args:
            spans: those of the pass.
            kept: per span how many of its first positions were committed.
            taps: as given to the pass.
            states: [tokens, taps, hidden] of the pass.
        """
        if states is None:
            return
        start = 0
        for span, count in zip(spans, kept, strict=True):
            reader = self._reader_of(span.sequence)
            if reader is not None:
                columns = [taps.index(tap) for tap in reader.taps]
                rows = states[start : start + count, columns]
                self._show(reader, span.sequence, rows)
            start += len(span.token_ids)

    def release(self, request_id: str) -> None:
        """Let every drafter forget a sequence."""
        for proposer in self.proposers.values():
            release_drafter(proposer, request_id)

    def _context(self, sequence: LiveSequence) -> DraftContext:
        return DraftContext(
            request_id=sequence.request_id,
            token_ids=sequence.token_ids,
            max_draft_tokens=min(sequence.max_draft_tokens, self._max_draft_tokens),
            sampling=sequence.request.sampling,
            generator=sequence.draft_generator,
            target_cache=sequence.cache,
        )

    def _reader_of(self, sequence: LiveSequence) -> StateReader | None:
        proposer = self.proposers.get(sequence.request.speculation.method) if sequence.drafting else None
        return proposer if isinstance(proposer, StateReader) else None

    def _show(self, reader: StateReader, sequence: LiveSequence, rows: torch.Tensor) -> None:
        try:
            reader.observe(sequence.request_id, sequence.cache.length - len(rows), rows)
        except Exception as fault:  # a drafter may raise anything, and serving must go on
            _logger.warning(
                "request %s goes on by ordinary decoding: its drafter raised %r",
                sequence.request_id,
                fault,
                exc_info=True,
            )
            self._stop_drafting(sequence)

    def _stop_drafting(self, sequence: LiveSequence) -> None:
        sequence.drafting = False
        sequence.fallbacks += 1
        self._counters.count_fallback()
