"""One request while it lives, and who runs in the next step: first come, first served, nothing is preempted.

`LiveSequence.commit` is the single place that decides which tokens are delivered, so an accepted prefix is
cut exactly where ordinary decoding would have stopped.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from draftproof.core.errors import EngineError, UsageError
from draftproof.reference.detokenize import Decode, TextStream
from draftproof.reference.models.ragged import CacheShape, SequenceCache
from draftproof.reference.processors import Constraint, changes_logits
from draftproof.reference.types import FinishReason, GenerationRequest

_STREAM_STRIDE = 0x9E3779B97F4A7C15  # odd and far from any seed a user would choose beside another


@dataclass(frozen=True, slots=True)
class SequenceOutput:
    """What one round delivers: final tokens, the text they allow to show, and whether the output ended."""

    token_ids: tuple[int, ...]
    text: str
    finish_reason: FinishReason | None


class LiveSequence:
    """A request from its arrival to its end.

    `eos_ids`: token ids that end the output. `max_model_len`: prompt and output together stay within it.
    `cache_shape`: what a cached token looks like. `constraint`: at its start, for a request with a schema.
    """

    def __init__(
        self,
        request: GenerationRequest,
        *,
        arrival_ns: int,
        eos_ids: frozenset[int],
        max_model_len: int,
        cache_shape: CacheShape,
        decode: Decode,
        constraint: Constraint | None = None,
    ) -> None:
        self.request = request
        self.token_ids = list(request.prompt_token_ids)
        self.cache = SequenceCache(cache_shape)
        self.arrival_ns = arrival_ns
        self.scheduled_ns: int | None = None
        self.first_token_ns: int | None = None
        self.fallbacks = 0
        self.drafting = request.speculation.method != "off" and request.speculation.num_spec_tokens > 0
        self.generator = _seeded_generator(request.sampling.seed, stream=0)
        self.draft_generator = _seeded_generator(request.sampling.seed, stream=1)
        stop_ids = frozenset(request.sampling.stop_token_ids)
        self.changes_logits = changes_logits(request.sampling)
        self.constraint = constraint
        self.end_ids = eos_ids | stop_ids  # what `min_tokens` holds back, ended by or not
        self._ending_ids = stop_ids if request.sampling.ignore_eos else self.end_ids
        self._max_len = min(max_model_len, len(self.token_ids) + request.sampling.max_tokens)
        self._text = TextStream(decode, request.sampling.stop)

    @property
    def request_id(self) -> str:
        """The request's id."""
        return self.request.request_id

    @property
    def prefill_left(self) -> int:
        """Prompt tokens that are not in the cache yet; 0 once the sequence decodes."""
        return max(0, len(self.request.prompt_token_ids) - self.cache.length)

    @property
    def max_draft_tokens(self) -> int:
        """Drafts that could be delivered: the target's own token always takes one place."""
        left = self._max_len - len(self.token_ids) - 1
        return max(0, min(self.request.speculation.num_spec_tokens, left))

    @property
    def failure(self) -> str | None:
        """What ended the output in an error of its own, None for nothing."""
        return None if self.constraint is None else self.constraint.failure

    def commit(self, token_ids: Sequence[int]) -> SequenceOutput:
        """Append tokens up to and including the first that ends the output.

        An end-of-sequence or stop token is delivered and its text is not; the token that completes a stop
        string is delivered and the text from the stop string on is not. An output that a constraint cannot
        follow ends in an error.
        """
        delivered: list[int] = []
        text = ""
        reason: FinishReason | None = None
        for token_id in token_ids:
            delivered.append(token_id)
            self.token_ids.append(token_id)
            is_end = token_id in self._ending_ids
            text += "" if is_end else self._text.push(token_id)
            reason = self._end_reason(token_id, is_end=is_end)
            if reason is not None:
                text += self._text.flush()
                break
        return SequenceOutput(tuple(delivered), text, reason)

    def _end_reason(self, token_id: int, *, is_end: bool) -> FinishReason | None:
        if self.constraint is not None:
            self.constraint.commit(token_id)
        if self.failure is not None:
            return "error"
        if is_end or self._text.stopped:
            return "stop"
        return "length" if len(self.token_ids) >= self._max_len else None


def _seeded_generator(seed: int | None, *, stream: int) -> torch.Generator:
    """Return a source of random numbers; streams of one seed are as unrelated as two seeds."""
    generator = torch.Generator()
    if seed is None:
        generator.seed()
    else:
        generator.manual_seed((seed + stream * _STREAM_STRIDE) % (1 << 64))
    return generator


class QueueFullError(EngineError):
    """As many requests run and wait as the engine takes; try again later."""


class Scheduler:
    """A bounded queue in front of a bounded set of running sequences.

    `max_num_batched_tokens`: tokens of one forward pass. `max_queue`: requests that may wait while
    `max_num_seqs` run.
    """

    def __init__(self, *, max_num_seqs: int, max_num_batched_tokens: int, max_queue: int) -> None:
        if not 1 <= max_num_seqs <= max_num_batched_tokens:
            raise UsageError(
                f"max_num_batched_tokens {max_num_batched_tokens} cannot hold {max_num_seqs} sequences",
                place="max_num_batched_tokens",
                fix="use 1 <= max_num_seqs <= max_num_batched_tokens",
            )
        self._max_num_seqs = max_num_seqs
        self._max_num_batched_tokens = max_num_batched_tokens
        self._capacity = max_num_seqs + max_queue
        self.waiting: deque[LiveSequence] = deque()
        self.running: list[LiveSequence] = []

    @property
    def max_draft_tokens(self) -> int:
        """Drafts per sequence that always fit.

        A fixed share, so that a sequence's drafts, and with them its random draws, never depend on how many
        neighbours it has.
        """
        return self._max_num_batched_tokens // self._max_num_seqs - 1

    def check_room(self, present: int) -> None:
        """Raise QueueFullError if no request may come in beside `present` others."""
        if present >= self._capacity:
            raise QueueFullError(
                f"the queue is full: {present} requests run or wait", fix="retry later, or raise max_queue"
            )

    def enqueue(self, sequence: LiveSequence) -> None:
        """Append a sequence to the queue, or raise QueueFullError."""
        self.check_room(len(self.running) + len(self.waiting))
        self.waiting.append(sequence)

    def remove(self, request_id: str) -> LiveSequence | None:
        """Take a sequence out, wherever it is; None if it is not here."""
        for place in (self.running, self.waiting):
            for sequence in place:
                if sequence.request_id == request_id:
                    place.remove(sequence)
                    return sequence
        return None

    def plan_prefill(self, decode_tokens: int) -> list[tuple[LiveSequence, int]]:
        """Share out what decoding leaves of the step's budget: running prompts first, then newcomers.

        Args:
            decode_tokens: tokens the decoding sequences bring to this step, drafts included.

        Returns:
            (sequence, prompt tokens) pairs; newcomers among them are running from now on.
        """
        budget = self._max_num_batched_tokens - decode_tokens
        begun = [sequence for sequence in self.running if sequence.prefill_left]
        chunks = share_budget([sequence.prefill_left for sequence in begun], budget)
        planned = [(sequence, chunk) for sequence, chunk in zip(begun, chunks, strict=True) if chunk]
        budget -= sum(chunks)
        while self.waiting and budget > 0 and len(self.running) < self._max_num_seqs:
            sequence = self.waiting.popleft()
            self.running.append(sequence)
            chunk = min(sequence.prefill_left, budget)
            planned.append((sequence, chunk))
            budget -= chunk
        return planned


def share_budget(wanted: Sequence[int], budget: int) -> list[int]:
    """Return how much each gets when served in order until `budget` is used up."""
    shares = []
    for amount in wanted:
        share = min(amount, budget)
        shares.append(share)
        budget -= share
    return shares
