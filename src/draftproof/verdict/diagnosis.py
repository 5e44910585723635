"""What the baseline's time is spent on at each load, and the most that faster decoding can give.

Pure. Shares come from the server's own timings; where it gives none, the client's clock tells decoding (first
to last chunk) from everything before, and queueing and prefill stay unknown.
"""

from collections.abc import Sequence

import msgspec

from draftproof.metrics.bound import end_to_end_gain
from draftproof.metrics.service import service_shares
from draftproof.verdict.effects import EffectIndex
from draftproof.verdict.faults import Faults
from draftproof.verdict.results import Diagnosis, Figure
from draftproof.verdict.run_data import ALL_SEGMENTS, Observation, PreparedRun

BOUND_SHARE = 0.5
WORDS = {
    "decode-bound": "decoding takes most of the time, so faster decoding reaches the user",
    "prefill-bound": "reading the prompt takes most of the time, which speculation does not shorten",
    "queue-bound": "waiting for a free place takes most of the time; more batching or capacity helps first",
    "client-bound": "most of the time passes outside the server's own clock",
    "unknown": "no single part takes half of the time, or the service does not disclose the parts",
}
LATE = "the load client itself was late, so its times are not the service's"


class TimeShares(msgspec.Struct, frozen=True, kw_only=True):
    """Shares of end-to-end time of answered requests; None where unknown."""

    queue: float | None
    prefill: float | None
    decode: float | None
    other: float | None
    source: str


def diagnose(prepared: PreparedRun, effects: EffectIndex, faults: Faults) -> tuple[Diagnosis, ...]:
    """Return one diagnosis per load, from the baseline's answered requests over all segments."""
    return tuple(
        _diagnose_load(prepared, load, effects, client_late=faults.is_client_late(load))
        for load in prepared.loads
    )


def compute_time_shares(seen: Sequence[Observation]) -> TimeShares:
    """Return where the time of answered requests went."""
    shares = service_shares(one.record for one in seen)
    if shares.decode_share is not None:
        return TimeShares(
            queue=shares.queue_share,
            prefill=shares.prefill_share,
            decode=shares.decode_share,
            other=shares.other_share,
            source="server",
        )
    return TimeShares(queue=None, prefill=None, decode=_decode_share(seen), other=None, source="client")


def name_bound(shares: TimeShares, *, client_late: bool) -> str:
    """Return the bound: the part that takes half of the time or more."""
    parts = {
        "decode-bound": shares.decode,
        "prefill-bound": shares.prefill,
        "queue-bound": shares.queue,
        "client-bound": shares.other,
    }
    if client_late:
        return "client-bound"
    known = {name: share for name, share in parts.items() if share is not None}
    largest = max(known, key=lambda name: known[name], default=None)
    return largest if largest is not None and known[largest] >= BOUND_SHARE else "unknown"


def _decode_share(seen: Sequence[Observation]) -> float | None:
    answered = [one.record for one in seen if one.is_ok and one.record.chunks]
    total = sum(record.end_ns - record.scheduled_ns for record in answered)
    decoding = sum(record.chunks[-1].arrival_ns - record.chunks[0].arrival_ns for record in answered)
    return decoding / total if total > 0 else None


def _diagnose_load(prepared: PreparedRun, load: str, effects: EffectIndex, *, client_late: bool) -> Diagnosis:
    shares = compute_time_shares([one for one in prepared.of_arm("baseline", load) if one.timed])
    speedup = _inverse(_pooled_ratio(effects, "tpot_ns", load))
    measured = _inverse(_pooled_ratio(effects, "e2e_from_schedule_ns", load))
    share = None if shares.decode is None else min(max(shares.decode, 0.0), 1.0)
    bound = name_bound(shares, client_late=client_late)
    predicted = end_to_end_gain(share, speedup) if share is not None and speedup is not None else None
    ceiling = end_to_end_gain(share, None) if share is not None and share < 1 else None
    return Diagnosis(
        load=load,
        bound=bound,
        queue_share=shares.queue,
        prefill_share=shares.prefill,
        decode_share=shares.decode,
        other_share=shares.other,
        decode_speedup=speedup,
        ceiling_gain=ceiling,
        predicted_gain=predicted,
        measured_gain=measured,
        text=_describe(
            f"At load {load} the baseline is {bound}: {LATE if client_late else WORDS[bound]}.",
            shares,
            ceiling=ceiling,
            predicted=predicted,
            measured=measured,
        ),
    )


def _pooled_ratio(effects: EffectIndex, metric: str, load: str) -> Figure | None:
    effect = effects.get((metric, "candidate", "baseline", ALL_SEGMENTS, load))
    return effect.ratio if effect else None


def _inverse(ratio: Figure | None) -> float | None:
    return 1 / ratio.value if ratio and ratio.value else None


def _describe(
    opening: str,
    shares: TimeShares,
    *,
    ceiling: float | None,
    predicted: float | None,
    measured: float | None,
) -> str:
    parts = [opening]
    if shares.decode is not None:
        clock = "by the server's timings" if shares.source == "server" else "by the client's clock"
        parts.append(f"Decoding takes {100 * shares.decode:.0f} % of the time {clock}.")
    if ceiling is not None:
        parts.append(f"Faster decoding can make a whole request at most {ceiling:.2f} times as fast.")
    if predicted is not None and measured is not None:
        parts.append(f"The decode speed-up predicts {predicted:.2f} times; {measured:.2f} was measured.")
    return " ".join(parts)
