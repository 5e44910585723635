"""The parts of `results.json` on the services, the load client and the parts of a period. Pure data.

The part of `results.json` that says where time goes, what a drafter costs, and what to look at first.

Pure data. A figure that cannot be given is None and carries the reason.

The part of `results.json` on what an arm costs: device time, energy, capacity, money. Pure data.
"""

from typing import Literal

import msgspec

from draftproof.judge.results.decide import Figure

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


PartsSource = Literal["server", "client", "none"]
CostPart = Literal["compute", "memory", "scheduling"]


class TimeParts(msgspec.Struct, frozen=True, kw_only=True):
    """Where the end-to-end time of one arm's answered requests went in one cell; shares of their summed time.

    `source` "server": the engine's own timings, from send to end; `other` is what they leave over (client,
    network, tools, waiting between rounds). "client": the client's clock, from the scheduled time to the end;
    `decode` is first to last chunk, `before_first` all before, and queue and prefill cannot be separated.

    `bound` names the part that takes half or more; `is_shown` says whether its whole interval does.
    `ceiling` is 1 / (1 − decode): how many times as fast a request can get by decoding alone. Against the
    baseline: `speedup` of time per token, the end-to-end gain it `predicted` from the baseline's decode
    share, and the one `measured`. The interval of `predicted` is the box of two intervals, at level 1 −
    2·(1 − level).
    """

    arm: str
    segment: str
    load: str
    source: PartsSource
    requests: int
    bound: str
    is_shown: bool
    queue: Figure
    prefill: Figure
    decode: Figure
    other: Figure
    before_first: Figure
    ceiling: Figure
    speedup: Figure | None = None
    predicted: Figure | None = None
    measured: Figure | None = None
    text: str = ""


class Sign(msgspec.Struct, frozen=True, kw_only=True):
    """One figure that a remedy is based on, in words, and the row it comes from."""

    text: str
    row: str


class Remedy(msgspec.Struct, frozen=True, kw_only=True):
    """Something to try, named only with evidence for it; remedies come in the order to look at them.

    `stake` is the share of a request's time that it could touch at most, None where that cannot be said.
    """

    code: str
    title: str
    text: str
    loads: tuple[str, ...]
    stake: float | None
    evidence: tuple[Sign, ...]


class DrafterFact(msgspec.Struct, frozen=True, kw_only=True):
    """One figure of what a drafter costs at a load, beside the baseline's; None with the reason."""

    load: str
    part: CostPart
    quantity: str
    unit: str
    baseline: float | None
    candidate: float | None
    source: str
    reason: str | None = None


class BreakEven(msgspec.Struct, frozen=True, kw_only=True):
    """What a candidate's step commits in a cell, against what it must commit before it pays.

    `tokens_per_step` per round, drafted or not; `needed_tokens` is the step's time in ordinary steps;
    `margin` is their ratio, above 1 where steps pay. `draft_length` is the mean over drafted rounds.
    `needed_acceptance` is the acceptance of each draft at which a step of `full_length` drafts breaks even,
    None with `acceptance_reason` where none is enough. `draft_limit_ns` is the longest drafting time per
    step with which it pays at the tokens it has; None where no drafting is quick enough.
    """

    segment: str
    load: str
    batch_size: float | None
    full_length: int | None
    draft_length: float | None
    tokens_per_step: float | None
    step_ns: float | None
    needed_tokens: float | None
    margin: Figure
    acceptance: float | None
    needed_acceptance: float | None
    acceptance_reason: str | None
    draft_ns: float | None
    draft_limit_ns: float | None
    draft_reason: str | None


class Diagnoses(msgspec.Struct, frozen=True, kw_only=True):
    """All of it, and the bounds of which the traces carry nothing, as (bound, why)."""

    parts: tuple[TimeParts, ...]
    remedies: tuple[Remedy, ...]
    drafter: tuple[DrafterFact, ...]
    break_evens: tuple[BreakEven, ...]
    not_measured: tuple[tuple[str, str], ...]


WorthStanding = Literal["worth", "not_worth", "unknown"]
QualityStanding = Literal["held", "violated", "not_shown", "not_compared"]


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """A range [`low`, `high`]; an end that has no bound, or nothing known, is None with the reason."""

    low: float | None = None
    high: float | None = None
    reason: str | None = None


class ArmUse(msgspec.Struct, frozen=True, kw_only=True):
    """What one arm took at one load, over whole periods, failures included.

    `window_s` is the part of its periods' wall time that the counted requests filled, `measured_share` of it:
    the rest went to requests that only keep the load up. `good` requests are answered, within every
    objective and fail no check; `unchecked` of them had no check that was judged. Device time is window ×
    devices. `completed_conversations_per_device`: conversations whose turns are all good, per hour and
    device; without follow-ups each request is one. Intervals are over prompts; what differs from period to
    period shows in the row of the second baseline.
    """

    arm: str
    load: str
    devices: int
    window_s: float | None
    measured_share: float | None
    attempted: int
    good: int
    unchecked: int
    output_tokens: int
    device_s_per_1000_tokens: Figure
    device_s_per_1000_good: Figure
    good_per_device_hour: Figure
    joules_per_1000_tokens: float | None
    joules_reason: str | None
    on_time_share: float | None
    meets_objectives: bool | None
    money_per_1000_tokens: Span
    money_per_1000_good: Span
    completed_conversations: int = 0
    completed_conversations_per_device: Figure | None = None


class Capacity(msgspec.Struct, frozen=True, kw_only=True):
    """Good requests per device and hour at the highest measured load at which an arm meets the objectives."""

    arm: str
    load: str | None
    concurrency: int | None
    good_per_device_hour: Figure
    offered_rps: float | None = None


class Worth(msgspec.Struct, frozen=True, kw_only=True):
    """What one arm costs against another, at one load or each at its own capacity (`load` None).

    `token_ratio` and `good_ratio` are arm / versus of device time per output token and per good request;
    below 1 is cheaper. `noise` is the ratio, 1 or more, by which two equal arms differ there, None where
    it was not measured; it counts against every saving. Savings are versus − arm, so above 0 is saved;
    the range covers the interval of the measurement at its level, the null difference, and the plan's ranges
    of prices. `standing` "worth": the whole range of `saving_over_horizon` lies above 0 and the quality
    holds. `left_out` names what has no price or was not metered.
    """

    arm: str
    versus: str
    load: str | None
    token_ratio: Figure
    good_ratio: Figure
    noise: float | None
    quality: QualityStanding
    saving_over_horizon: Span
    break_even_per_month: Span
    unit: Literal["tokens", "requests"]
    standing: WorthStanding
    left_out: tuple[str, ...]
    text: str


class Economics(msgspec.Struct, frozen=True, kw_only=True):
    """All of it; `priced` says whether the plan has any price, `has_deadline` whether any objective.

    `few_good` warns, in a sentence, where absolute capacity is based on few good requests.
    """

    currency: str
    priced: bool
    has_deadline: bool
    on_time_target: float
    horizon_months: float
    uses: tuple[ArmUse, ...]
    capacities: tuple[Capacity, ...]
    worths: tuple[Worth, ...]
    few_good: str | None = None


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """What was compared, and on how much: `methods` by arm; `measured_s` is the sum of the periods' times."""

    model: str
    engine: str
    methods: dict[str, str]
    prompts: int
    requests: int
    blocks: int
    measured_s: float


class HeadlineRow(msgspec.Struct, frozen=True, kw_only=True):
    """One quantity over all tasks at one load: ns, or tokens per second of one request.

    `baseline` and `candidate` are the deciding statistic over the pairs that `change` (candidate / baseline)
    is based on. `null_change` and `alternative_change` are None without that arm.
    """

    quantity: str
    load: str
    baseline: float | None
    candidate: float | None
    change: Figure
    null_change: Figure | None = None
    alternative_change: Figure | None = None


class Exploratory(msgspec.Struct, frozen=True, kw_only=True):
    """The bare ratio of a cell with too few `prompts` for an interval. It decides nothing."""

    segment: str
    load: str
    ratio: float
    prompts: int


class ArmTotal(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of one arm over all loads and tasks; `answers_*` are greedy ones against the baseline's."""

    arm: str
    requests: int
    failed: int
    checks_judged: int
    checks_passed: int
    critical_failed: int
    answers_compared: int
    answers_changed: int


class Headline(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of the first page that no other part of the results has."""

    compared: Compared
    rows: tuple[HeadlineRow, ...]
    exploratory: tuple[Exploratory, ...]
    totals: tuple[ArmTotal, ...]
