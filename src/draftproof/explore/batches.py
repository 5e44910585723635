"""One wave of requests to what its steps took. Pure.

A wave is `batch` requests sent at once. Counted is only the time in which all of them decode: from the first
token of the last one to begin until the first one nears its end. So no prefill and no half-empty batch is in
it. Rounds that the engine discloses are used in place of arrival times where there are any.
"""

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence

import msgspec

from draftproof.core.errors import EngineError
from draftproof.core.records import RequestRecord, Round
from draftproof.judge.metrics.acceptance import count_decode_steps, count_speculation
from draftproof.judge.metrics.request import count_output_tokens
from draftproof.services.engines.facts import Series
from draftproof.services.engines.values import first_sum, sum_parts

FEWEST_STEPS = 8
# An engine that accepts none may still be charged with a few by its own counting at the end of an answer.
ACCEPTED_SHARE = 0.02
# Chunks and steps may differ by a merged chunk or two, and at the end by drafts that were accepted in vain.
CHUNK_SHARE = 0.05
Counters = Mapping[str, float]


class Wave(msgspec.Struct, frozen=True, kw_only=True):
    """What was sent and heard: the records of one wave, and the service's counters around it.

    `synthetic`: no draft is accepted, so a token is a step; else a content chunk is one.
    """

    start: int
    draft_length: int
    batch: int
    records: tuple[RequestRecord, ...]
    synthetic: bool = True
    before: dict[str, float] | None = None
    after: dict[str, float] | None = None


class WaveCost(msgspec.Struct, frozen=True, kw_only=True):
    """What a step of one wave took, ns: the median over its requests, or over its rounds.

    `drafted` are drafts per decode step and request, None where nothing counts them. `draft_ns` and
    `verify_ns` are None where the engine does not tell them apart; `from_rounds`: it does so round by round.
    """

    start: int
    draft_length: int
    batch: int
    step_ns: float
    requests: int
    steps: int
    drafted: float | None
    draft_ns: float | None = None
    verify_ns: float | None = None
    prompt_tokens: int | None = None
    from_rounds: bool = False


def cost_wave(wave: Wave, series: Series) -> WaveCost:
    """Return what a step of a wave took.

    Raises EngineError: a request failed or ended early, the batch was never full, the drafter was idle, or
    drafts were accepted although none may be.
    """
    _check_answered(wave)
    if all(record.rounds for record in wave.records):
        return _cost_from_rounds(wave)
    return _cost_from_arrivals(wave, series)


def _check_answered(wave: Wave) -> None:
    for record in wave.records:
        if record.outcome != "ok":
            said = (record.error or record.outcome)[:200]
            raise EngineError(
                f"a request of a wave of {wave.batch} failed ({record.outcome}: {said}).",
                place=_place(wave),
                fix="see the log; the engine may refuse a field of arms.candidate.request.",
            )
        if (count_output_tokens(record) or 0) < FEWEST_STEPS + wave.draft_length + 2:
            raise EngineError(
                f"an answer ended after {count_output_tokens(record)} tokens; steps cannot be timed on it.",
                place=_place(wave),
                fix="make the engine ignore the end of sequence with a field in arms.candidate.request.",
            )


# ---- from the engine's own rounds


def _cost_from_rounds(wave: Wave) -> WaveCost:
    rounds = find_full_rounds(wave.records, wave.batch, wave.draft_length)
    if len(rounds) < FEWEST_STEPS // 2:
        raise _no_full_rounds(wave)
    return WaveCost(
        start=wave.start,
        draft_length=wave.draft_length,
        batch=wave.batch,
        step_ns=statistics.median(one.round_ns for one in rounds),
        requests=len(wave.records),
        steps=len(rounds),
        drafted=float(wave.draft_length),
        draft_ns=statistics.median(one.draft_ns for one in rounds),
        verify_ns=statistics.median(one.verify_ns + one.sample_ns for one in rounds),
        prompt_tokens=_prompt_tokens(wave),
        from_rounds=True,
    )


def find_full_rounds(records: Sequence[RequestRecord], batch: int, draft_length: int) -> list[Round]:
    """Return one round for each engine step in which `batch` requests decoded and all drafted so many tokens.

    A round's durations are those of its whole batch, so the requests that shared it state the same ones.
    """
    shared: defaultdict[tuple[int, ...], list[Round]] = defaultdict(list)
    for record in records:
        for one in record.rounds or ():
            if one.batch_size == batch and not one.prefill_tokens:
                key = (one.draft_ns, one.verify_ns, one.sample_ns, one.schedule_ns)
                shared[key].append(one)
    return [
        group[0]
        for group in shared.values()
        if len(group) == batch and all(one.proposed == draft_length for one in group)
    ]


def _no_full_rounds(wave: Wave) -> EngineError:
    rounds = [one for record in wave.records for one in record.rounds or ()]
    largest = max((one.batch_size for one in rounds), default=0)
    if largest < wave.batch:
        return _never_full(wave, f"its largest batch was {largest}")
    drafted = sum(one.proposed for one in rounds) / max(1, len(rounds))
    return _idle(wave, drafted)


# ---- from arrival times


def _cost_from_arrivals(wave: Wave, series: Series) -> WaveCost:
    if wave.synthetic:
        _check_none_accepted(wave)
    else:
        _check_chunks_are_steps(wave)
    window = find_full_window(wave.records, wave.draft_length)
    if window is None:
        raise _never_full(wave, "the last request began when the first was about to end")
    times = [_time_step(record, *window, by_token=wave.synthetic) for record in wave.records]
    known = [time for time in times if time is not None]
    if not known:
        raise _never_full(wave, f"fewer than {FEWEST_STEPS} tokens arrived while all were decoding")
    drafted = count_drafted(wave, series)
    if wave.draft_length and drafted == 0:
        raise _idle(wave, 0.0)
    draft_ns, verify_ns = _read_timer(wave, series)
    return WaveCost(
        start=wave.start,
        draft_length=wave.draft_length,
        batch=wave.batch,
        step_ns=statistics.median(step_ns for step_ns, _ in known),
        requests=len(known),
        steps=round(statistics.median(steps for _, steps in known)),
        drafted=drafted,
        draft_ns=draft_ns,
        verify_ns=verify_ns,
        prompt_tokens=_prompt_tokens(wave),
    )


def find_full_window(records: Sequence[RequestRecord], draft_length: int) -> tuple[int, int] | None:
    """Return from when until when every request of a wave decodes, ns of the client's clock.

    The last draft_length + 1 tokens of an answer are left out, because drafts are cut there.
    """
    begins, ends = [], []
    for record in records:
        tokens = count_output_tokens(record) or 0
        early = [
            chunk.arrival_ns
            for chunk in record.chunks
            if chunk.cumulative_tokens is not None and chunk.cumulative_tokens <= tokens - draft_length - 1
        ]
        if not early:
            return None
        begins.append(record.chunks[0].arrival_ns)
        ends.append(early[-1])
    begin_ns, end_ns = max(begins), min(ends)
    return (begin_ns, end_ns) if begin_ns < end_ns else None


def _time_step(
    record: RequestRecord, begin_ns: int, end_ns: int, *, by_token: bool
) -> tuple[float, int] | None:
    """Return a request's time per step; a token is a step, or a chunk is."""
    inside = [
        (chunk.arrival_ns, chunk.cumulative_tokens)
        for chunk in record.chunks
        if begin_ns <= chunk.arrival_ns <= end_ns and chunk.cumulative_tokens is not None
    ]
    if len(inside) < 2:
        return None
    (first_ns, first), (last_ns, last) = inside[0], inside[-1]
    steps = last - first if by_token else len(inside) - 1
    return ((last_ns - first_ns) / steps, steps) if steps >= FEWEST_STEPS and last_ns > first_ns else None


def count_drafted(wave: Wave, series: Series) -> float | None:
    """Return drafts per decode step and request, from the answers, else from the service's counters."""
    steps = sum(_count_steps(record, by_token=wave.synthetic) for record in wave.records)
    if all(record.speculation is not None for record in wave.records):
        drafted: float | None = sum(count_speculation(record).num_draft_tokens for record in wave.records)
    else:
        drafted = _gain(wave, series.draft_tokens)
    return None if drafted is None or not steps else drafted / steps


def _count_steps(record: RequestRecord, *, by_token: bool) -> int:
    """Return the decode steps of a whole answer; its first token comes from the prefill."""
    return (count_output_tokens(record) or 1) - 1 if by_token else max(0, len(record.chunks) - 1)


def _check_chunks_are_steps(wave: Wave) -> None:
    """Refuse a wave whose chunks hold several steps, as far as the answers tell their steps."""
    for record in wave.records:
        counted = count_decode_steps(record)
        chunks = _count_steps(record, by_token=False)
        if counted is not None and abs(counted[0] - chunks) > max(2, CHUNK_SHARE * chunks):
            raise EngineError(
                f"an answer of {counted[0]} steps came in {chunks + 1} chunks, so a chunk is not a step.",
                place=_place(wave),
                fix="let the engine stream every step, and give the client a core of its own.",
            )


def _check_none_accepted(wave: Wave) -> None:
    counts = [count_speculation(record) for record in wave.records if record.speculation is not None]
    accepted = sum(one.num_accepted_draft_tokens for one in counts)
    steps = sum(count_output_tokens(record) or 0 for record in wave.records)
    if wave.draft_length and accepted > ACCEPTED_SHARE * steps:
        raise EngineError(
            f"the engine accepted {accepted} drafts although its synthetic mode must accept none, so a token "
            "is not a step.",
            place=_place(wave),
            fix="use a release whose synthetic acceptance works with this drafter.",
        )


def _read_timer(wave: Wave, series: Series) -> tuple[float | None, float | None]:
    """Return drafting and verification per step, ns, from an engine's own device timer; None without one."""
    steps = max((_count_steps(record, by_token=wave.synthetic) for record in wave.records), default=0)
    if wave.before is None or wave.after is None or not steps:
        return None, None
    per_step = []
    for names in (series.draft_seconds, series.verify_seconds):
        after, before = sum_parts(wave.after, names), sum_parts(wave.before, names) or 0.0
        per_step.append(None if after is None or after < before else (after - before) * 1e9 / steps)
    # A timer that is off stands still; that is no time of zero.
    draft_ns, verify_ns = per_step
    return (draft_ns, verify_ns) if verify_ns else (None, None)


def _gain(wave: Wave, names: Sequence[str]) -> float | None:
    if wave.before is None or wave.after is None:
        return None
    after = first_sum(wave.after, names)
    before = first_sum(wave.before, names) or 0.0
    return None if after is None or after < before else after - before


# ---- what both share


def _prompt_tokens(wave: Wave) -> int | None:
    known = [record.prompt_tokens for record in wave.records if record.prompt_tokens is not None]
    return round(statistics.median(known)) if known else None


def _place(wave: Wave) -> str:
    return f"{wave.draft_length} drafts a step, batch {wave.batch}"


def _never_full(wave: Wave, why: str) -> EngineError:
    return EngineError(
        f"the service never decoded {wave.batch} requests at once ({why}).",
        place=_place(wave),
        fix="let it run as many sequences, raise --answer-tokens, or measure smaller batches.",
    )


def _idle(wave: Wave, drafted: float) -> EngineError:
    return EngineError(
        f"the drafter does not draft {wave.draft_length} tokens a step but {drafted:.2f} on average, "
        "so the cost of such a step was not measured.",
        place=_place(wave),
        fix="a lookup drafter needs text that repeats itself, and matches no longer than the draft; "
        "else measure shorter drafts.",
    )
