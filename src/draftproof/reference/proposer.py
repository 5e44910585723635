"""The seam between the engine and whatever drafts: one small protocol, and drafting that survives its faults.

A proposer reads committed tokens and answers with token ids. It never touches the scheduler, a request's
own random numbers, or what the target's cache holds of committed tokens.
"""

import logging
import operator
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import torch

from draftproof.reference.models.ragged import SequenceCache
from draftproof.reference.types import SamplingParams

_logger = logging.getLogger(__name__)
_GREEDY = SamplingParams(max_tokens=1)
_MASS_TOLERANCE = 1e-3  # a drafter may compute in float32; a row that was never normalised is far off


@dataclass(frozen=True, slots=True)
class DraftContext:
    """One sequence that wants a draft.

    Attributes:
        token_ids: its committed tokens, prompt and output; not to be changed.
        max_draft_tokens: the most it may draft, at least 1.
        sampling: how the request draws its tokens.
        stop_below: a drafter that knows its own probabilities drafts no further once the product of its
            largest ones is below this.
        generator: source of the drafter's random numbers for this sequence, apart from the target's.
        target_cache: the target's keys and values of all tokens but the last; a drafter may write beyond its
            length and must leave the length as it found it.
    """

    request_id: str
    token_ids: Sequence[int]
    max_draft_tokens: int
    sampling: SamplingParams = _GREEDY
    stop_below: float = 0.0
    generator: torch.Generator = field(default_factory=torch.Generator)
    target_cache: SequenceCache | None = None


@dataclass(frozen=True, slots=True)
class Drafts:
    """What a proposer answers, in the order it was asked.

    `token_ids` is ragged: each list holds up to the allowed number of tokens and may be empty. `draft_probs`
    holds for each sequence [drafts, vocab], the distribution each token was truly drawn from, or None where
    the proposer is certain of its tokens; None as a whole says so of all sequences. `failed` holds the places
    of sequences whose drafting a fault ended: what they had drafted before it stands, because a draft dropped
    for what it led to would shift the output's distribution.
    """

    token_ids: list[list[int]]
    draft_probs: Sequence[torch.Tensor | None] | None = None
    failed: Collection[int] = ()


class Proposer(Protocol):
    """Drafts tokens for sequences of one batch."""

    def propose(self, contexts: Sequence[DraftContext]) -> Drafts:
        """Return a draft for each context, in the same order."""
        ...

    def release(self, request_id: str) -> None:
        """Forget what is kept for a sequence; unknown ids are fine."""
        ...


@runtime_checkable
class StateReader(Protocol):
    """A proposer that reads the target's hidden states."""

    taps: Sequence[int]  # layers, counted from 1 in rising order, whose output it reads

    def observe(self, request_id: str, start: int, states: torch.Tensor) -> None:
        """Take [tokens, taps, hidden] of committed positions from `start` on, each position once."""
        ...


@dataclass(frozen=True, slots=True)
class Draft:
    """The checked draft of one sequence; `failed` says that its proposer raised or broke its contract.

    A failed draft may hold the tokens drawn before the fault.
    """

    token_ids: list[int]
    draft_probs: torch.Tensor | None = None
    failed: bool = False


def collect_drafts(proposer: Proposer, contexts: Sequence[DraftContext], vocab_size: int) -> list[Draft]:
    """Ask a proposer for the whole batch; if it raises, ask per sequence, so that one fault stays with one.

    The proposer is trusted with nothing: token ids must be below `vocab_size`. Returns one draft per context;
    a failed one is empty or ends where the fault came.
    """
    if not contexts:
        return []
    try:
        return _check_drafts(proposer.propose(contexts), contexts, vocab_size)
    except Exception as fault:  # a proposer may raise anything, and serving must go on
        if len(contexts) == 1:
            _logger.warning(
                "request %s goes on by ordinary decoding: its drafter raised %r",
                contexts[0].request_id,
                fault,
                exc_info=True,
            )
            return [Draft(token_ids=[], failed=True)]
    return [draft for context in contexts for draft in collect_drafts(proposer, [context], vocab_size)]


def release_drafter(proposer: Proposer, request_id: str) -> None:
    """Let a proposer forget a sequence; one that raises over it harms nobody else."""
    try:
        proposer.release(request_id)
    except Exception as fault:  # a proposer may raise anything, and serving must go on
        _logger.warning("the drafter of request %s raised %r on release", request_id, fault, exc_info=True)


def _check_drafts(drafts: Drafts, contexts: Sequence[DraftContext], vocab_size: int) -> list[Draft]:
    checked = []
    for index, context in enumerate(contexts):
        token_ids = [operator.index(token_id) for token_id in drafts.token_ids[index]]
        if len(token_ids) > context.max_draft_tokens:
            raise ValueError(f"{len(token_ids)} drafts where {context.max_draft_tokens} were allowed")
        if any(not 0 <= token_id < vocab_size for token_id in token_ids):
            raise ValueError(f"a drafted token id lies outside the vocabulary of {vocab_size}")
        rows = None if drafts.draft_probs is None else drafts.draft_probs[index]
        if rows is not None:
            _check_probs(token_ids, rows, vocab_size)
        checked.append(Draft(token_ids=token_ids, draft_probs=rows, failed=index in drafts.failed))
    return checked


def _check_probs(token_ids: Sequence[int], rows: torch.Tensor, vocab_size: int) -> None:
    if rows.shape != (len(token_ids), vocab_size):
        raise ValueError(f"draft_probs has shape {tuple(rows.shape)} for {len(token_ids)} drafts")
    if not bool((rows >= 0).all()):
        raise ValueError("draft_probs holds a number that is no probability")
    if not bool(((rows.sum(dim=-1) - 1.0).abs() < _MASS_TOLERANCE).all()):
        raise ValueError("a row of draft_probs is no distribution: its sum is not 1")
    drawn = rows.gather(1, torch.tensor(token_ids, dtype=torch.long, device=rows.device)[:, None])
    if not bool((drawn > 0).all()):
        raise ValueError("draft_probs says that a drafted token is impossible")
