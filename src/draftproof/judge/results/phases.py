"""The struct of a phase's summary."""

import msgspec


class PhaseSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One arm at one load: cold start, warm-up, and the parts of its turns. None is what is not known.

    `cold_ttft_ns`: first token of the first request after the start. `warmups`: warm-ups that say how they
    went, `warmups_stable` of them until two groups agreed; `warmup_requests`: requests of all warm-ups.
    `warmup_change`: the largest of their last changes. `warmup_first_ttft_ns` and `warmup_last_ttft_ns`:
    median first token of the first and of the last group, medians over the warm-ups. `ramp_ns` and `drain_ns`
    are medians over `turns` turns that ended in one piece, `steady_ns` is the sum. `warm_ttft_ns`: median
    first token of the counted answers, from the time of sending, as the cold one.
    """

    arm: str
    load: str
    load_time_s: float | None
    cold_ttft_ns: int | None
    warmups: int
    warmups_stable: int
    warmup_requests: int
    warmup_s: float | None
    warmup_change: float | None
    warmup_first_ttft_ns: float | None
    warmup_last_ttft_ns: float | None
    turns: int
    ramp_ns: float | None
    steady_ns: int | None
    drain_ns: float | None
    warm_ttft_ns: float | None
