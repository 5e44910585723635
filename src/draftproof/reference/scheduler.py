"""Who runs in the next step and how many prompt tokens each may bring: first come, first served.

Pure bookkeeping, no tensors and no clock. A sequence keeps its place until it ends; nothing is preempted.
"""

from collections import deque
from collections.abc import Sequence

from draftproof.errors import EngineError, UsageError
from draftproof.reference.sequence import LiveSequence


class QueueFullError(EngineError):
    """As many requests run and wait as the engine takes; try again later."""


class Scheduler:
    """A bounded queue in front of a bounded set of running sequences.

    Args:
        max_num_seqs: sequences that run at once.
        max_num_batched_tokens: tokens of one forward pass.
        max_queue: requests that may wait while `max_num_seqs` run.
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
