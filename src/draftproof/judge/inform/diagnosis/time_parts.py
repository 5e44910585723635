"""Where the time of every arm goes in every cell, with intervals over prompts, and what decoding can give.

Pure. Shares are ratios of sums over answered requests of periods in which the client was on time; each part
is based on the requests that disclose it. Definitions: docs/diagnosis.md.
"""

import math
from collections.abc import Iterator, Sequence

import msgspec
import numpy as np

from draftproof.judge.decide.effects import EffectIndex, null_difference_at, read_direction
from draftproof.judge.decide.faults import Faults
from draftproof.judge.metrics.request import end_to_end_gain
from draftproof.judge.observe.columns import Columns
from draftproof.judge.observe.run_data import ALL_SEGMENTS, PreparedRun
from draftproof.judge.results.decide import Figure, as_figure
from draftproof.judge.results.inform import PartsSource, TimeParts
from draftproof.judge.results.run import Diagnosis
from draftproof.judge.stats.resampling import Floats, Ints
from draftproof.judge.stats.totals import ratio_of_totals, sum_by_index

BOUND_SHARE = 0.5
ARMS = ("baseline", "candidate", "alternative")
WORDS = {
    "decode-bound": "decoding takes most of the time, so faster decoding reaches the user",
    "prefill-bound": "reading the prompt takes most of the time, which speculation does not shorten",
    "queue-bound": "waiting for a free place takes most of the time; more batching or capacity helps first",
    "first-token-bound": "waiting for the first token takes most of the time, by the client's clock: queueing"
    " and reading the prompt cannot be told apart, and speculation shortens neither",
    "client-bound": "most of the time passes outside the server's own clock",
    "unknown": "no single part takes half of the time, or the service does not disclose the parts",
}
LATE = "the load client itself was late, so its times are not the service's"
NOT_MEASURED = (
    ("media-bound", "not measured: no trace of media synthesis or transport is recorded"),
    ("retrieval-bound", "not measured: no trace of retrieval before the request is recorded"),
    ("tool-bound", "not measured: tool calls are recorded without the time of their execution"),
)
_UNDISCLOSED = "the engine does not disclose it"
_NO_ANSWER = "no request was answered in a period in which the client was on time"
_BY_CLIENT = "told from the client's clock only, which cannot tell queueing from prefill"


class Shares(msgspec.Struct, frozen=True, kw_only=True):
    """The five shares of a set of answered requests, and whose clock measured them."""

    source: PartsSource
    queue: Figure
    prefill: Figure
    decode: Figure
    other: Figure
    before_first: Figure


def compute_time_parts(prepared: PreparedRun, effects: EffectIndex, faults: Faults) -> tuple[TimeParts, ...]:
    """Return every arm at every load, segment "all" first, the second baseline left out."""
    keys = [
        (arm, segment, load)
        for load in prepared.loads
        for segment in (ALL_SEGMENTS, *prepared.segments)
        for arm in ARMS
        if arm in prepared.arms
    ]
    choice = prepared.plan.comparison
    seen = {(arm, segment, load): find_answered(prepared, arm, load, segment) for arm, segment, load in keys}
    shares = {
        key: measure_shares(
            prepared.columns, seen[key], level=choice.confidence, floor=choice.minimum_prompts
        )
        for key in keys
    }
    return tuple(
        _describe_parts(
            key,
            shares[key],
            shares["baseline", key[1], key[2]],
            effects,
            requests=len(seen[key]),
            client_late=faults.is_client_late(key[2]),
            is_invalid=faults.is_invalid(key[2]),
        )
        for key in keys
    )


def find_answered(prepared: PreparedRun, arm: str, load: str, segment: str = ALL_SEGMENTS) -> Ints:
    """Return the indices of answered requests whose times count."""
    columns, indices = prepared.columns, prepared.indices_of(arm, load, segment)
    found: Ints = indices[columns.is_ok[indices] & columns.timed[indices]]
    return found


def measure_shares(columns: Columns, indices: Ints, *, level: float, floor: int) -> Shares:
    """Return where the time of answered requests went: by the server where it tells, else by the client."""
    seen = len(indices) > 0

    def share(part: Floats, whole: Floats, reason: str = _UNDISCLOSED) -> Figure:
        reason = reason if seen else _NO_ANSWER
        return _share(columns, indices, (part, whole), reason, level=level, floor=floor)

    timings = {name: columns.server_ns(name) for name in ("queue_ns", "prefill_ns", "decode_ns")}
    by_server = bool((~np.isnan(timings["decode_ns"][indices])).any())
    missing = Figure(value=None, reason=(_BY_CLIENT if seen else _NO_ANSWER))
    sent, whole = columns.sent_ns, columns.residence_ns.astype(np.float64)
    before, span = columns.before_first_ns, columns.span_ns
    left_over = sent - (timings["queue_ns"] + timings["prefill_ns"] + timings["decode_ns"])
    return Shares(
        source="server" if by_server else "client" if seen else "none",
        queue=share(timings["queue_ns"], sent) if by_server else missing,
        prefill=share(timings["prefill_ns"], sent) if by_server else missing,
        decode=share(timings["decode_ns"], sent) if by_server else share(span, whole),
        other=share(left_over, sent, "the engine does not disclose all of queue, prefill and decode")
        if by_server
        else share(whole - before - span, whole),
        before_first=share(before, whole),
    )


def name_bound(shares: Shares, *, client_late: bool) -> tuple[str, bool]:
    """Return (bound, whether the whole interval of its share is at least half of the time)."""
    if client_late:
        return "client-bound", True
    named = {
        "decode-bound": shares.decode,
        "prefill-bound": shares.prefill,
        "queue-bound": shares.queue,
        "client-bound": shares.other,
    }
    if shares.source == "client":
        named["first-token-bound"] = shares.before_first
    known = {name: one for name, one in named.items() if one.value is not None}
    largest = max(known, key=lambda name: known[name].value or 0.0, default=None)
    if largest is None or (known[largest].value or 0.0) < BOUND_SHARE:
        return "unknown", False
    low = known[largest].low
    return largest, low is not None and low >= BOUND_SHARE


def ceiling_of(decode: Figure) -> Figure:
    """Return 1 / (1 − f) with the limits of f carried over; a limit of all the time is infinite: None."""
    value, low, high = map(_limit_of, (decode.value, decode.low, decode.high))
    reason = decode.reason
    if value is None and decode.value is not None:
        reason = "all of the time is decoding, so there is no ceiling"
    return Figure(value=value, low=low, high=high, level=decode.level, n=decode.n, reason=reason)


def predict_gain(decode: Figure, speedup: Figure) -> Figure:
    """Return the end-to-end gain that a decode speed-up predicts, over the box of both intervals."""
    value = _gain_of(decode.value, speedup.value)
    corners = [_gain_of(f, s) for f in (decode.low, decode.high) for s in (speedup.low, speedup.high)]
    known = [corner for corner in corners if corner is not None]
    whole = value is not None and len(known) == len(corners)
    level = speedup.level if whole else None
    return Figure(
        value=value,
        low=min(known) if whole else None,
        high=max(known) if whole else None,
        level=None if level is None else max(1 - 2 * (1 - level), 0.0),
        n=decode.n,
        reason=None if whole else decode.reason or speedup.reason,
    )


def invert(ratio: Figure | None) -> Figure:
    """Return baseline / arm of an effect that is arm / baseline."""
    if ratio is None or not ratio.value:
        return Figure(value=None, reason=(ratio and ratio.reason) or "there is no effect to take it from")
    return msgspec.structs.replace(
        ratio,
        value=1 / ratio.value,
        low=1 / ratio.high if ratio.high else None,
        high=1 / ratio.low if ratio.low else None,
    )


def _describe_parts(
    key: tuple[str, str, str],
    shares: Shares,
    baseline: Shares,
    effects: EffectIndex,
    *,
    requests: int,
    client_late: bool,
    is_invalid: bool,
) -> TimeParts:
    arm, segment, load = key
    bound, is_shown = name_bound(shares, client_late=client_late)
    parts = TimeParts(
        arm=arm,
        segment=segment,
        load=load,
        requests=requests,
        bound=bound,
        is_shown=is_shown,
        ceiling=ceiling_of(shares.decode),
        **msgspec.structs.asdict(shares),
    )
    if arm == "baseline":
        return msgspec.structs.replace(parts, text=_read_parts(parts, client_late=client_late))
    tpot, e2e = (
        effects.get((metric, arm, "baseline", segment, load))
        for metric in ("tpot_ns", "e2e_from_schedule_ns")
    )
    speedup = invert(tpot.ratio if tpot else None)
    compared = msgspec.structs.replace(
        parts,
        speedup=speedup,
        predicted=predict_gain(baseline.decode, speedup),
        measured=invert(e2e.ratio if e2e else None),
    )
    # A prediction compares both times: what two equal arms differ by in either.
    null = max(null_difference_at(effects, metric, load) for metric in ("tpot_ns", "e2e_from_schedule_ns"))
    said = "" if is_invalid else _compare(compared, null)
    text = f"{_read_parts(parts, client_late=client_late)} {said}".strip()
    return msgspec.structs.replace(compared, text=text)


def _read_parts(parts: TimeParts, *, client_late: bool) -> str:
    if client_late:
        return "The load client itself was late here, so these times are not all the service's."
    if parts.source == "none":
        return f"Nothing is known: {_NO_ANSWER}."
    clock = "the server's timings" if parts.source == "server" else "the client's clock"
    sure = "" if parts.is_shown or parts.bound == "unknown" else ", though the interval reaches below half"
    if parts.bound == "unknown":
        return f"By {clock} no single part takes half of the time."
    return f"By {clock} it is {parts.bound}{sure}."


def _compare(parts: TimeParts, null: float) -> str:
    """Say whether what was measured end to end is what the faster decoding predicts."""
    predicted, measured = parts.predicted, parts.measured
    if predicted is None or measured is None or predicted.low is None or measured.low is None:
        return ""
    if predicted.high is None or measured.high is None:
        return ""
    if measured.high * null < predicted.low:
        return "Less was measured end to end than faster decoding predicts: another part got slower."
    if measured.low > predicted.high * null:
        return "More was measured end to end than faster decoding predicts: another part got faster too."
    return "What was measured end to end is what faster decoding predicts."


def _share(
    columns: Columns,
    indices: Ints,
    spans: tuple[Floats, Floats],
    reason: str,
    *,
    level: float,
    floor: int,
) -> Figure:
    """Return part / whole of `spans`, both in the order of the columns, over the indices that have them."""
    part, whole = spans[0][indices], spans[1][indices]
    known = ~(np.isnan(part) | np.isnan(whole))
    if not known.any():
        return Figure(value=None, reason=reason)
    owners = columns.prompts[indices[known]]
    totals = sum_by_index(part[known], whole[known], owners, columns.prompt_names)
    return as_figure(ratio_of_totals(totals, scale="logit", level=level, minimum_clusters=floor))


def _limit_of(share: float | None) -> float | None:
    """Return 1 / (1 − f), the share held inside 0 to 1; None where unknown or infinite."""
    if share is None:
        return None
    gain = end_to_end_gain(min(max(share, 0.0), 1.0), None)
    return gain if math.isfinite(gain) else None


def _gain_of(share: float | None, speedup: float | None) -> float | None:
    if share is None or not speedup:
        return None
    return end_to_end_gain(min(max(share, 0.0), 1.0), speedup)


def diagnose(
    prepared: PreparedRun, parts: Sequence[TimeParts], effects: EffectIndex, faults: Faults
) -> tuple[Diagnosis, ...]:
    """Return what the baseline's time is spent on at each load and what faster decoding can give.

    Where the engine gives no timings, the client's clock tells decoding (first to last chunk) from all
    before.
    """
    pooled = {one.load: one for one in parts if (one.arm, one.segment) == ("baseline", ALL_SEGMENTS)}
    return tuple(_diagnose_load(pooled[load], effects, faults) for load in prepared.loads)


def _diagnose_load(parts: TimeParts, effects: EffectIndex, faults: Faults) -> Diagnosis:
    tpot, measured = (_speedup(effects, metric, parts.load) for metric in ("tpot_ns", "e2e_from_schedule_ns"))
    found = Diagnosis(
        load=parts.load,
        bound=parts.bound,
        queue_share=parts.queue.value,
        prefill_share=parts.prefill.value,
        decode_share=parts.decode.value,
        other_share=parts.other.value,
        decode_speedup=tpot,
        ceiling_gain=parts.ceiling.value,
        predicted_gain=_gain_of(parts.decode.value, tpot),
        measured_gain=measured,
        text="",
    )
    text = " ".join(_describe(found, parts.source, effects, faults))
    return msgspec.structs.replace(found, text=text)


def _speedup(effects: EffectIndex, metric: str, load: str) -> float | None:
    effect = effects.get((metric, "candidate", "baseline", ALL_SEGMENTS, load))
    return 1 / effect.ratio.value if effect and effect.ratio.value and not effect.ratio.remedy else None


def _describe(found: Diagnosis, source: str, effects: EffectIndex, faults: Faults) -> Iterator[str]:
    load, predicted, measured = found.load, found.predicted_gain, found.measured_gain
    why = LATE if faults.is_client_late(load) else WORDS[found.bound]
    yield f"At load {load} the baseline is {found.bound}: {why}."
    if found.decode_share is not None:
        clock = "by the server's timings" if source == "server" else "by the client's clock"
        yield f"Decoding takes {100 * found.decode_share:.0f} % of the time {clock}."
    if found.ceiling_gain is not None:
        yield f"Faster decoding can make a whole request at most {found.ceiling_gain:.2f} times as fast."
    if predicted is None or faults.is_invalid(load):
        return
    effect = effects.get(("tpot_ns", "candidate", "baseline", ALL_SEGMENTS, load))
    null = null_difference_at(effects, "tpot_ns", load)
    if read_direction(effect.ratio if effect else None, null) is None:
        yield "Whether decoding differs by more than two equal services do is not shown."
    elif measured is not None:
        yield f"The decode speed-up predicts {predicted:.2f} times; {measured:.2f} was measured."
