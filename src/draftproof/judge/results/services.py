"""The parts of `results.json` on the services, the load client and the parts of a period. Pure data."""

from typing import Literal

import msgspec

AgreementStanding = Literal["exact", "close", "explained", "differs", "unknown"]


class Gauge(msgspec.Struct, frozen=True, kw_only=True):
    """A gauge over periods: its mean during them, its maximum, and the samples the mean is based on."""

    mean: float | None
    maximum: float
    samples: int


class ServiceUse(msgspec.Struct, frozen=True, kw_only=True):
    """One arm's service at one load, by its own counters and by readings of its machine.

    Counts are gains over the `periods_used`, in which every replica was sampled at both ends; `unused` says
    why the others were not used. `accepted_by_position` and `drafted_by_position` are counts by draft
    position, from the first on. Of the prompt tokens looked up in a prefix cache (`prefix_queries`)
    `prefix_hits` were found. `cpu_seconds` and energy are over `machine_seconds`, the periods in which the
    machine was read at both ends; energy is that of the GPUs and processors of the whole machine.
    """

    arm: str
    load: str
    periods: int
    periods_used: int
    samples: int
    seconds: float
    unused: tuple[str, ...] = ()
    generation_tokens: float | None = None
    prompt_tokens: float | None = None
    finished_requests: float | None = None
    engine_steps: float | None = None
    preemptions: float | None = None
    tokens_per_engine_step: float | None = None
    num_spec_steps: float | None = None
    num_draft_tokens: float | None = None
    num_accepted_draft_tokens: float | None = None
    draft_acceptance_rate: float | None = None
    mean_acceptance_length: float | None = None
    accepted_by_position: tuple[float, ...] = ()
    drafted_by_position: tuple[float, ...] = ()
    draft_seconds: float | None = None
    verify_seconds: float | None = None
    running: Gauge | None = None
    waiting: Gauge | None = None
    cache_usage: Gauge | None = None
    resident_max_bytes: float | None = None
    machine_seconds: float | None = None
    cpu_seconds: float | None = None
    gpu_memory_max_bytes: float | None = None
    gpu_busy: Gauge | None = None
    gpu_power_watts: Gauge | None = None
    gpu_energy_joules: float | None = None
    cpu_energy_joules: float | None = None
    energy_per_output_token_joules: float | None = None
    prefix_queries: float | None = None
    prefix_hits: float | None = None


class ServiceStart(msgspec.Struct, frozen=True, kw_only=True):
    """How one arm's service began: time to load, and the first request after that, which is never counted."""

    arm: str
    load_time_s: float | None
    cold_outcome: str | None
    cold_ttft_ns: int | None
    cold_e2e_ns: int | None


class ServiceLine(msgspec.Struct, frozen=True, kw_only=True):
    """A gauge over one arm's own time at a load, its periods laid end to end."""

    arm: str
    load: str
    quantity: str
    times_s: tuple[float, ...]
    values: tuple[float, ...]


class ServiceAgreement(msgspec.Struct, frozen=True, kw_only=True):
    """One quantity that two sources tell over the same periods: the client's own figure and the service's.

    `difference` is service − client. "exact" is equal, "close" within 1 %, "explained" no more than what
    requests that were broken off may have made, "unknown" where one is missing.
    """

    arm: str
    load: str
    quantity: str
    client: float | None
    service: float | None
    difference: float | None
    standing: AgreementStanding
    text: str


class PhaseSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One arm at one load: cold start, warm-up, and the parts of its periods. None is what is not known.

    `cold_ttft_ns`: first token of the first request after the start. `warmups`: warm-ups that say how they
    went, `warmups_stable` of them until two groups agreed; `warmup_requests`: requests of all warm-ups.
    `warmup_change`: the largest of their last changes. `warmup_first_ttft_ns` and `warmup_last_ttft_ns`:
    median first token of the first and of the last group, medians over the warm-ups. `ramp_ns` and `drain_ns`
    are medians over `periods` periods that ended in one piece, `steady_ns` is the sum. `warm_ttft_ns`: median
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
    periods: int
    ramp_ns: float | None
    steady_ns: int | None
    drain_ns: float | None
    warm_ttft_ns: float | None


class ClientUse(msgspec.Struct, frozen=True, kw_only=True):
    """What the client did in one arm's periods at one load, over counted requests; times in ns.

    `offered_rps` is the rate at which requests were due, `achieved_rps` that at which the client sent them; a
    closed loop has none. `goodput_rps`: requests in time with passing checks, per second of the time over
    which the counted ones came, failures included; in a closed loop of the time that they filled.
    `in_flight_mean` is by Little's law over the counted
    stretches, fill requests included. `send_lag_p99_ns`: from a request's due time to its sending,
    connecting left out. `connections` were opened in all periods; `connect_p50_ns` and `connect_max_ns` are
    what they took. `core_share`: the largest part of one core that a load process used. `unfit` periods had a
    client beyond its limits. None is not known.
    """

    arm: str
    load: str
    periods: int
    unfit: int
    offered_rps: float | None
    achieved_rps: float | None
    on_time_share: float | None
    goodput_rps: float | None
    in_flight_mean: float | None
    in_flight_max: int | None
    send_lag_p99_ns: float | None
    connections: int
    connect_p50_ns: float | None
    connect_max_ns: int | None
    lag_max_ns: int | None
    gc_pause_max_ns: int | None
    core_share: float | None
    workers: int | None
