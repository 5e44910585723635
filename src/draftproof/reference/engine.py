"""The engine: one forward pass a step over decode rounds and prompt chunks together, timed part by part.

Synchronous and single-threaded. Who runs is the scheduler's matter, which tokens come out is decided by
`spans` and `verify`, where an output ends by `sequence`; this file puts them in order and keeps the clock.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec
import torch

from draftproof.clock import Clock, monotonic_ns
from draftproof.errors import UsageError
from draftproof.reference.counters import EngineCounters, EngineStats, StepDurations
from draftproof.reference.drafters.ngram import NgramProposer
from draftproof.reference.drafting import Drafters
from draftproof.reference.model import TargetModel, load_target
from draftproof.reference.proposer import Draft, Proposer
from draftproof.reference.requests import check_request
from draftproof.reference.scheduler import Scheduler
from draftproof.reference.sequence import Delivery, LiveSequence
from draftproof.reference.spans import NO_DRAFT, Span, choose_tokens, decode_span, prefill_span, wanted_rows
from draftproof.reference.types import EngineConfig, GenerationRequest, RoundOutput, RoundStats

Outputs = list[tuple[str, RoundOutput]]


class Engine:
    """Speculative decoding with continuous batching.

    Args:
        target: the model.
        config: limits and defaults.
        proposers: drafters by method; n-gram lookup unless given.
        clock: monotonic ns.
    """

    def __init__(
        self,
        target: TargetModel,
        config: EngineConfig,
        *,
        proposers: Mapping[str, Proposer] | None = None,
        clock: Clock = monotonic_ns,
    ) -> None:
        self.target, self.config = target, config
        self._scheduler = Scheduler(
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
            max_queue=config.max_queue,
        )
        self._clock = clock
        self._counters = EngineCounters()
        self._drafters = Drafters(
            default_proposers(config) if proposers is None else proposers,
            vocab_size=target.vocab_size,
            max_draft_tokens=self._scheduler.max_draft_tokens,
            counters=self._counters,
        )
        self._live_ids: set[str] = set()

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return bool(self._live_ids)

    def check_room(self, present: int) -> None:
        """Raise QueueFullError if no request may come in beside `present` others."""
        self._scheduler.check_room(present)

    def check(self, request: GenerationRequest) -> None:
        """Raise UsageError if a request could never run here."""
        check_request(request, vocab_size=self.target.vocab_size, max_model_len=self.config.max_model_len)
        method = request.speculation.method
        if method != "off" and method not in self._drafters.proposers:
            raise UsageError(
                f"this engine has no drafter for method {method!r}",
                place="speculation.method",
                fix=f"use off or {', '.join(sorted(self._drafters.proposers))}",
            )

    def add_request(self, request: GenerationRequest, *, arrival_ns: int | None = None) -> None:
        """Queue a request.

        Raises:
            UsageError: it can never run here, or its id is in use.
            QueueFullError: too many run and wait already.
        """
        self.check(request)
        if request.request_id in self._live_ids:
            raise UsageError(f"request id {request.request_id!r} is in use", fix="use an id once at a time")
        sequence = LiveSequence(
            request,
            arrival_ns=self._clock() if arrival_ns is None else arrival_ns,
            eos_ids=self.target.eos_ids,
            max_model_len=self.config.max_model_len,
            cache_shape=self.target.cache_shape,
            decode=self.target.decode,
        )
        self._scheduler.enqueue(sequence)
        self._live_ids.add(request.request_id)

    def cancel(self, request_id: str) -> bool:
        """Drop a request with its slot and cache; False if it is not here (any more)."""
        return self._remove(request_id, "cancelled")

    def fail_running(self, error: str) -> Outputs:
        """End every running request with `error`: what a step that raised leaves behind cannot be trusted.

        If none runs, the step failed before it began, and the waiting requests end.
        """
        affected = self._scheduler.running or self._scheduler.waiting
        failed = [_failure_output(sequence, error) for sequence in affected]
        for request_id, _ in failed:
            self._remove(request_id, "error")
        return failed

    def stats(self) -> EngineStats:
        """Return totals and gauges as of the last step."""
        caches = [sequence.cache for sequence in self._scheduler.running]
        return self._counters.snapshot(
            running=len(self._scheduler.running),
            waiting=len(self._scheduler.waiting),
            kv_tokens=sum(cache.length for cache in caches),
            kv_bytes=sum(cache.nbytes for cache in caches),
        )

    @torch.inference_mode()
    def step(self) -> Outputs:
        """Run one forward pass and return what it delivered, at most one output per request."""
        if not self.has_work:
            return []
        timer = _LapTimer(self._clock)
        decoding = [sequence for sequence in self._scheduler.running if not sequence.prefill_left]
        timer.lap("schedule")
        drafts = self._drafters.draft(decoding)
        timer.lap("draft")
        spans = self._plan(decoding, drafts)
        taps = self._drafters.taps(spans)
        timer.lap("schedule")
        logits, states = self.target.forward(
            [token_id for span in spans for token_id in span.token_ids],
            [(span.sequence.cache, len(span.token_ids)) for span in spans],
            wanted_rows(spans),
            taps,
        )
        timer.lap("verify")
        chosen = choose_tokens(spans, logits)
        timer.lap("sample")
        rounds = [self._commit(span, tokens) for span, tokens in zip(spans, chosen, strict=True)]
        timer.lap("schedule")
        self._drafters.observe(spans, [round_.kept for round_ in rounds], taps, states)
        timer.lap("draft")
        return self._report(rounds, timer.durations())

    def _plan(self, decoding: Sequence[LiveSequence], drafts: Mapping[str, Draft]) -> list[Span]:
        spans = [decode_span(s, drafts.get(s.request_id, NO_DRAFT)) for s in decoding]
        now_ns = self._clock()
        for sequence, chunk in self._scheduler.plan_prefill(sum(len(span.token_ids) for span in spans)):
            if sequence.scheduled_ns is None:
                sequence.scheduled_ns = now_ns
            spans.append(prefill_span(sequence, chunk))
        return spans

    def _commit(self, span: Span, tokens: Sequence[int]) -> "_Round":
        """Drop rejected positions from the cache and append what is delivered."""
        sequence = span.sequence
        rejected = span.logit_rows - len(tokens)
        sequence.cache.truncate(sequence.cache.length - rejected)
        delivery = sequence.commit(tokens)
        if tokens and sequence.first_token_ns is None:
            sequence.first_token_ns = self._clock()
        accepted = min(len(tokens) - 1, len(delivery.token_ids))
        return _Round(span, delivery, accepted, kept=len(span.token_ids) - rejected)

    def _report(self, rounds: Sequence["_Round"], durations: StepDurations) -> Outputs:
        """Turn deliveries into outputs, count them, and free what ended."""
        prefill_tokens = sum(len(round_.span.token_ids) for round_ in rounds if round_.span.is_prefill)
        outputs: Outputs = []
        for span, delivery, accepted, _ in rounds:
            if not delivery.token_ids:
                continue
            stats = None
            if not span.is_prefill:
                stats = RoundStats(
                    proposed=len(span.draft.token_ids),
                    accepted=accepted,
                    committed=len(delivery.token_ids),
                    batch_size=len(rounds),
                    prefill_tokens=prefill_tokens,
                    **msgspec.structs.asdict(durations),
                )
            outputs.append((span.sequence.request_id, _round_output(span.sequence, delivery, stats)))
            if delivery.finish_reason is not None:
                self._remove(span.sequence.request_id, delivery.finish_reason)
        self._counters.count_step(durations, prefill_tokens)
        self._counters.count_outputs(output for _, output in outputs)
        return outputs

    def _remove(self, request_id: str, reason: str) -> bool:
        sequence = self._scheduler.remove(request_id)
        if sequence is None:
            return False
        self._live_ids.discard(request_id)
        self._drafters.release(request_id)
        self._counters.count_finish(reason)
        return True


class _Round(NamedTuple):
    """What a step did for one sequence.

    `accepted` counts delivered drafts, none behind a cut; `kept` the span's positions that stay in the cache.
    """

    span: Span
    delivery: Delivery
    accepted: int
    kept: int


class _LapTimer:
    """Gives every nanosecond since its start to exactly one part of the step."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last_ns = clock()
        self._totals = dict.fromkeys(("draft", "verify", "sample", "schedule"), 0)

    def lap(self, part: str) -> None:
        now_ns = self._clock()
        self._totals[part] += now_ns - self._last_ns
        self._last_ns = now_ns

    def durations(self) -> StepDurations:
        return StepDurations(**{f"{part}_ns": total for part, total in self._totals.items()})


def _round_output(
    sequence: LiveSequence, delivery: Delivery, stats: RoundStats | None, *, error: str | None = None
) -> RoundOutput:
    queue_end_ns = sequence.arrival_ns if sequence.scheduled_ns is None else sequence.scheduled_ns
    first_token_ns = queue_end_ns if sequence.first_token_ns is None else sequence.first_token_ns
    return RoundOutput(
        token_ids=delivery.token_ids,
        text=delivery.text,
        finish_reason=delivery.finish_reason,
        round=stats,
        queue_ns=queue_end_ns - sequence.arrival_ns,
        prefill_ns=first_token_ns - queue_end_ns,
        fallbacks=sequence.fallbacks,
        error=error,
    )


def _failure_output(sequence: LiveSequence, error: str) -> tuple[str, RoundOutput]:
    ended = Delivery(token_ids=(), text="", finish_reason="error")
    return sequence.request_id, _round_output(sequence, ended, None, error=error)


def default_proposers(config: EngineConfig) -> dict[str, Proposer]:
    """Return the drafters that need no weights."""
    return {"ngram": NgramProposer(ngram_min=config.ngram_min, ngram_max=config.ngram_max)}


def load_engine(config: EngineConfig) -> Engine:
    """Load the configured model and put an engine around it."""
    return Engine(load_target(config), config)
