"""The part of `results.json` that rests on what the services and their machine say of themselves.

Pure data. What nobody told is None or left out, never 0.
"""

from typing import Literal

import msgspec

AgreementStanding = Literal["exact", "close", "explained", "differs", "unknown"]


class Gauge(msgspec.Struct, frozen=True, kw_only=True):
    """A gauge over turns: its mean during them, its maximum, and the samples the mean rests on."""

    mean: float | None
    maximum: float
    samples: int


class ServiceUse(msgspec.Struct, frozen=True, kw_only=True):
    """One arm's service at one load, by its own counters and by readings of its machine.

    Counts are gains over the `turns_used`, in which every replica was sampled at both ends; `unused` says why
    the others were not used. `accepted_by_position` and `drafted_by_position` are counts by draft position,
    from the first on. Of the prompt tokens looked up in a prefix cache (`prefix_queries`) `prefix_hits` were
    found. `cpu_seconds` and energy are over `machine_seconds`, the turns in which the machine was
    read at both ends; energy is that of the GPUs and processors of the whole machine.
    """

    arm: str
    load: str
    turns: int
    turns_used: int
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
    """A gauge over one arm's own time at a load, its turns laid end to end."""

    arm: str
    load: str
    quantity: str
    times_s: tuple[float, ...]
    values: tuple[float, ...]


class ServiceAgreement(msgspec.Struct, frozen=True, kw_only=True):
    """One quantity that two sources tell over the same turns: the client's own figure and the service's.

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
