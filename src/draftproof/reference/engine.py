"""The engine: one forward pass a step over decode rounds and prompt chunks together, timed part by part.

Synchronous and single-threaded. Who runs is the scheduler's matter, which tokens come out is decided by
`spans` and `verify`, where an output ends by `sequence`; this file puts them in order and keeps the clock.
"""

import contextlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec
import torch

from draftproof.core.clock import Clock, monotonic_ns
from draftproof.core.errors import UsageError
from draftproof.reference.counters import (
    EngineStats,
    LapTimer,
    SequenceTrace,
    StepDurations,
    StepTrace,
    Tracer,
)
from draftproof.reference.draft_planner import Drafters
from draftproof.reference.drafters.loading import check_default, choose_drafters, load_drafters
from draftproof.reference.drafters.ngram import NgramProposer
from draftproof.reference.models.model import TargetModel, load_target
from draftproof.reference.processors import Grammars
from draftproof.reference.proposer import Draft, Proposer
from draftproof.reference.scheduler import LiveSequence, Scheduler, SequenceOutput
from draftproof.reference.spans import (
    BROKEN_LOGITS,
    NO_DRAFT,
    Span,
    choose_tokens,
    decode_span,
    describe_tokens,
    prefill_span,
    repair_logits,
    wanted_rows,
)
from draftproof.reference.types import (
    EngineConfig,
    GenerationRequest,
    RoundOutput,
    RoundStats,
    TokenLogprobs,
    check_request,
)

Outputs = list[tuple[str, RoundOutput]]
_FAILED = SequenceOutput(token_ids=(), text="", finish_reason="error")


class Engine:
    """Speculative decoding with continuous batching.

    `proposers`: drafters by method; n-gram lookup unless given. `clock`: monotonic ns. `tracer`: gets
    every step that did not raise.
    """

    def __init__(
        self,
        target: TargetModel,
        config: EngineConfig,
        *,
        proposers: Mapping[str, Proposer] | None = None,
        clock: Clock = monotonic_ns,
        tracer: Tracer | None = None,
    ) -> None:
        self.target, self.config = target, config
        self._scheduler = Scheduler(
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
            max_queue=config.max_queue,
        )
        self._clock = clock
        self._counters = EngineStats()
        self._drafters = Drafters(
            default_proposers(config) if proposers is None else proposers,
            vocab_size=target.vocab_size,
            max_draft_tokens=self._scheduler.max_draft_tokens,
            length_by_batch=config.draft_length_by_batch,
            counters=self._counters,
        )
        self._grammars = Grammars(target.tokenizer, vocab_size=target.vocab_size, eos_ids=target.eos_ids)
        self._live_ids: set[str] = set()
        self._tracer = tracer
        self._traced_until_ns: int | None = None  # the end of the last step, if it left work

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
                fix=f"use off, {', '.join(sorted(self._drafters.proposers))}, or serve with a drafter for it",
            )
        if request.sampling.json_schema is not None:
            self._grammars.check(request.sampling.json_schema)

    def warm_grammars(self) -> None:
        """Read the tokenizer for schemas, so that the first request with one need not wait for it."""
        with contextlib.suppress(UsageError):  # a model without schemas: a request with one gets an error
            self._grammars.check("{}")

    def add_request(self, request: GenerationRequest, *, arrival_ns: int | None = None) -> None:
        """Queue a request.

        Raises UsageError: it can never run here, or its id is in use; QueueFullError: too many run and wait
        already.
        """
        self.check(request)
        if request.request_id in self._live_ids:
            raise UsageError(f"request id {request.request_id!r} is in use", fix="use an id once at a time")
        schema = request.sampling.json_schema
        sequence = LiveSequence(
            request,
            arrival_ns=self._clock() if arrival_ns is None else arrival_ns,
            eos_ids=self.target.eos_ids,
            max_model_len=self.config.max_model_len,
            cache_shape=self.target.cache_shape,
            decode=self.target.decode,
            constraint=None if schema is None else self._grammars.start(schema),
        )
        self._scheduler.enqueue(sequence)
        self._live_ids.add(request.request_id)

    def cancel(self, request_id: str) -> bool:
        """Drop a request with its slot and cache; False if it is not here (any more)."""
        is_dropped = self._remove(request_id, "cancelled")
        self._note_idleness()
        return is_dropped

    def fail_running(self, error: str) -> Outputs:
        """End every running request with `error`: what a step that raised leaves behind cannot be trusted.

        If none runs, the step failed before it began, and the waiting requests end.
        """
        affected = self._scheduler.running or self._scheduler.waiting
        failed = [(one.request_id, _round_output(one, _FAILED, None, error=error)) for one in affected]
        for request_id, _ in failed:
            self._remove(request_id, "error")
        self._note_idleness()
        return failed

    @property
    def occupancy(self) -> tuple[int, int]:
        """Sequences with a slot and those waiting for one, right now, also in the middle of a step."""
        return len(self._scheduler.running), len(self._scheduler.waiting)

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
        with self.target.torch_threads():
            return self._step() if self.has_work else []

    def _step(self) -> Outputs:
        timer = LapTimer(self._clock)
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
        logits, broken = repair_logits(spans, logits)
        chosen = choose_tokens(spans, logits)
        described = describe_tokens(spans, logits, chosen)
        timer.lap("sample")
        rounds = [self._commit(*parts) for parts in zip(spans, chosen, described, broken, strict=True)]
        timer.lap("schedule")
        self._drafters.observe(spans, [round_.kept for round_ in rounds], taps, states)
        timer.lap("draft")
        self._drafters.learn(spans, chosen, timer.durations())
        for round_ in rounds:
            if round_.delivery.finish_reason is not None:
                self._remove(round_.span.sequence.request_id, round_.delivery.finish_reason)
        timer.lap("schedule")
        outputs = self._report(rounds, timer.durations())
        if self._tracer is not None:
            self._trace(self._tracer, rounds, timer)
        return outputs

    def _plan(self, decoding: Sequence[LiveSequence], drafts: Mapping[str, Draft]) -> list[Span]:
        spans = [decode_span(s, drafts.get(s.request_id, NO_DRAFT)) for s in decoding]
        now_ns = self._clock()
        for sequence, chunk in self._scheduler.plan_prefill(sum(len(span.token_ids) for span in spans)):
            if sequence.scheduled_ns is None:
                sequence.scheduled_ns = now_ns
            spans.append(prefill_span(sequence, chunk))
        return spans

    def _commit(
        self,
        span: Span,
        tokens: Sequence[int],
        described: tuple[TokenLogprobs, ...] | None,
        broken: bool,  # noqa: FBT001 - one of the parts a step zips together
    ) -> "_Round":
        """Drop rejected positions from the cache and append what is delivered."""
        sequence = span.sequence
        rejected = span.logit_rows - len(tokens)
        sequence.cache.truncate(sequence.cache.length - rejected)
        kept = len(span.token_ids) - rejected
        if broken:
            return _Round(span, _FAILED, 0, kept, None, BROKEN_LOGITS)
        delivery = sequence.commit(tokens)
        if tokens and sequence.first_token_ns is None:
            sequence.first_token_ns = self._clock()
        accepted = min(len(tokens) - 1, len(delivery.token_ids))
        logprobs = None if described is None else described[: len(delivery.token_ids)]
        return _Round(span, delivery, accepted, kept, logprobs)

    def _report(self, rounds: Sequence["_Round"], durations: StepDurations) -> Outputs:
        """Turn deliveries into outputs and count them."""
        prefill_tokens, shared = _prefill_tokens(rounds), msgspec.structs.asdict(durations)
        outputs: Outputs = []
        for span, delivery, accepted, _, logprobs, error in rounds:
            if not delivery.token_ids and error is None:
                continue
            stats = None
            if not span.is_prefill and error is None:
                stats = RoundStats(
                    proposed=len(span.draft.token_ids),
                    accepted=accepted,
                    committed=len(delivery.token_ids),
                    batch_size=len(rounds),
                    prefill_tokens=prefill_tokens,
                    draft_limit=self._drafters.planned.get(span.sequence.request_id),
                    **shared,
                )
            output = _round_output(span.sequence, delivery, stats, error=error, logprobs=logprobs)
            outputs.append((span.sequence.request_id, output))
        self._counters.count_step(durations, prefill_tokens)
        self._counters.count_outputs(output for _, output in outputs)
        return outputs

    def _trace(self, tracer: Tracer, rounds: Sequence["_Round"], timer: LapTimer) -> None:
        """Tell the tracer of a step that is over; its own time falls between the steps."""
        end_ns = self._clock()
        stats = self.stats()
        before_ns, self._traced_until_ns = self._traced_until_ns, end_ns if self.has_work else None
        tracer(
            StepTrace(
                step=stats.steps,
                start_ns=timer.start_ns,
                gap_ns=None if before_ns is None else timer.start_ns - before_ns,
                **msgspec.structs.asdict(timer.durations()),
                total_ns=end_ns - timer.start_ns,
                rows=sum(len(round_.span.token_ids) for round_ in rounds),
                prefill_tokens=_prefill_tokens(rounds),
                running=stats.running,
                waiting=stats.waiting,
                cache_bytes=stats.kv_bytes,
                sequences=[_sequence_trace(round_, self._drafters.planned) for round_ in rounds],
            )
        )

    def _note_idleness(self) -> None:
        """Let the time from here to the next step count as no gap if nothing is left to do."""
        if not self.has_work:
            self._traced_until_ns = None

    def _remove(self, request_id: str, reason: str) -> bool:
        sequence = self._scheduler.remove(request_id)
        if sequence is None:
            return False
        self._live_ids.discard(request_id)
        self._drafters.release(request_id)
        self._counters.finished[reason] += 1
        return True


class _Round(NamedTuple):
    """What a step did for one sequence.

    `accepted` counts delivered drafts, none behind a cut; `kept` the span's positions that stay in the cache;
    `error` is what the target did wrong.
    """

    span: Span
    delivery: SequenceOutput
    accepted: int
    kept: int
    logprobs: tuple[TokenLogprobs, ...] | None
    error: str | None = None


def _prefill_tokens(rounds: Sequence[_Round]) -> int:
    return sum(len(round_.span.token_ids) for round_ in rounds if round_.span.is_prefill)


def _sequence_trace(round_: _Round, planned: Mapping[str, int]) -> SequenceTrace:
    span, request_id = round_.span, round_.span.sequence.request_id
    return SequenceTrace(
        request_id=request_id,
        prefill_tokens=len(span.token_ids) if span.is_prefill else 0,
        proposed=len(span.draft.token_ids),
        accepted=max(0, round_.accepted),
        committed=len(round_.delivery.token_ids),
        draft_limit=planned.get(request_id),
    )


def _round_output(
    sequence: LiveSequence,
    delivery: SequenceOutput,
    stats: RoundStats | None,
    *,
    error: str | None = None,
    logprobs: tuple[TokenLogprobs, ...] | None = None,
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
        error=sequence.failure if error is None else error,
        logprobs=logprobs,
    )


def default_proposers(config: EngineConfig) -> dict[str, Proposer]:
    """Return the drafters that need no weights."""
    return {"ngram": NgramProposer(ngram_min=config.ngram_min, ngram_max=config.ngram_max)}


def load_engine(config: EngineConfig, *, tracer: Tracer | None = None) -> Engine:
    """Load the configured model and its drafters, and put an engine around them.

    `config`: limits, defaults, and what to load. Raises UsageError: a model or a drafter is missing or does
    not fit; EngineError: files cannot be loaded, or a model does not compute faithfully.
    """
    target = load_target(config)
    proposers = default_proposers(config) | load_drafters(choose_drafters(config), target)
    check_default(config.speculation.method, proposers)
    return Engine(target, config, proposers=proposers, tracer=tracer)
