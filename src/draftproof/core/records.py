"""Frozen records of what was measured: the product from which every number can be re-computed.

Owns the shape of one request's record and of the facts about a run. Times are integer nanoseconds of
one monotonic clock of the client host; a value that is not known is None, never 0 and never a guess.
"""

from typing import Literal

import msgspec

SCHEMA_VERSION = 1

Outcome = Literal["ok", "rejected", "http_error", "timeout", "cut", "malformed", "cancelled"]
TokenSource = Literal["token_ids", "continuous_usage", "engine", "tokenizer"]
Phase = Literal["warmup", "measure", "fill", "interrupted"]
RampUpEnd = Literal["whole", "cut", "not_standing"]
ArmName = str  # "baseline", "candidate", "alternative", "baseline_null"


class Chunk(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One content chunk: when its bytes were complete and how many tokens the answer had by then."""

    arrival_ns: int
    cumulative_tokens: int | None


class Round(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One decode step as the sequence saw it (requirement A7).

    `proposed` is 0 for an ordinary step. `committed` counts tokens kept by the sequence, the target's
    own token included, after stop handling. Durations are those of the whole batched round.
    """

    proposed: int
    accepted: int
    committed: int
    draft_ns: int
    verify_ns: int
    sample_ns: int
    schedule_ns: int
    batch_size: int
    prefill_tokens: int

    @property
    def rejection_position(self) -> int | None:
        """Index of the first rejected draft, None if every draft was accepted."""
        return self.accepted if self.accepted < self.proposed else None

    @property
    def round_ns(self) -> int:
        """Drafting + verification + sampling + scheduling time."""
        return self.draft_ns + self.verify_ns + self.sample_ns + self.schedule_ns


class SpecCounts(msgspec.Struct, frozen=True, gc=False):
    """Acceptance counters of one request as the server states them (metrics.md, Acceptance).

    `per_step_drafted` and `per_step_accepted` have one entry for each verification step, in order, and are
    empty where the engine gives no such list.
    """

    num_spec_steps: int
    num_draft_tokens: int
    num_accepted_draft_tokens: int
    acceptance_histogram: tuple[int, ...] = ()
    per_step_drafted: tuple[int, ...] = ()
    per_step_accepted: tuple[int, ...] = ()


class ToolCall(msgspec.Struct, frozen=True, gc=False):
    """One tool call of the answer: its name and its arguments as the text that was streamed."""

    name: str
    arguments: str


class ServerTimings(msgspec.Struct, frozen=True, gc=False):
    """Server-side split of the first clock, each None where the engine does not disclose it."""

    queue_ns: int | None = None
    prefill_ns: int | None = None
    decode_ns: int | None = None


class WithheldCheck(msgspec.Struct, frozen=True, array_like=True):
    """The outcome of one check whose answer is withheld; None where it could not be judged."""

    kind: str
    passed: bool | None
    critical: bool


class WithheldSequence(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept of a withheld answer (judge/metrics/sequence.py); `first` and `bigrams` as digests.

    Digests of one item are made with the same salt in every arm, so that they can be compared.
    """

    first: int | None = None
    distinct_share: float | None = None
    repeated_share: float | None = None
    bigrams: tuple[int, ...] = ()


class Withheld(msgspec.Struct, frozen=True, kw_only=True):
    """What statistics need of an answer whose texts were replaced by salted digests.

    `checks` in the order of the item's; `characters` of all generated text, see `count_characters`;
    `first_bytes` of the first chunk's text, see `count_first_bytes`.
    """

    checks: tuple[WithheldCheck, ...] = ()
    characters: int = 0
    sequence: WithheldSequence | None = None
    first_bytes: int | None = None


class RequestRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Everything kept of one attempted request. One line of the journal.

    `scheduled_ns`: when the arrival process wanted it sent; `sent_ns`: when its last byte was given to
    the socket; `headers_ns`: response headers complete; `end_ns`: last event. Requests of
    phase "measure" enter the statistics; "warmup", "fill" and "interrupted" (a counted request that the
    operator stopped and that a resumed run asks again) are kept and never averaged in. `warnings` name
    disagreements inside the answer, such as a token count that differs from the server's usage.
    `decode_steps` are the target's passes after the prefill, drafted or not, where the engine's own fields
    tell them, or its chunks of which each holds one. `withheld` is set where texts and token ids are digests.
    `top_two_margins` has one entry for each token id: the log-probability of the likeliest token less that of
    the next, in nats; None where the plan does not ask for log-probabilities.
    `conversation_turn` counts the turns of an item with follow-ups from 0; a turn that the failure of an
    earlier one kept from being sent has no `sent_ns`. `concurrency`: requests that a closed loop keeps in
    flight; in an open loop those that its own load process had in flight when this one was
    sent, itself included: of several workers never the whole. `connect_ns`: time
    between schedule and sending that went into a new connection, name lookup and TLS included; None on a
    kept one. `attempt`: that of its period, see `BlockRecord`. `finish_ns`: arrival of the event with the
    finish reason. `unstreamed_tokens`: those of `output_tokens` that the service says are in no chunk (hidden
    reasoning). `piece_chars`: where no chunk states its tokens, the characters that each chunk brought, of
    reasoning, text and tool calls in this order, for a tokenizer to count after the run.
    """

    request_id: str
    arm: ArmName
    load: str
    block: int
    repeat: int
    item_id: str
    phase: Phase
    order_in_block: int
    concurrency: int
    seed: int | None
    scheduled_ns: int
    sent_ns: int | None
    headers_ns: int | None
    end_ns: int
    outcome: Outcome
    http_status: int | None = None
    error: str | None = None
    chunks: tuple[Chunk, ...] = ()
    token_source: TokenSource | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    finish_reason: str | None = None
    text: str = ""
    token_ids: tuple[int, ...] | None = None
    speculation: SpecCounts | None = None
    rounds: tuple[Round, ...] | None = None
    server: ServerTimings = ServerTimings()
    fallbacks: int | None = None
    malformed_raw: str | None = None
    reasoning_text: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    warnings: tuple[str, ...] = ()
    decode_steps: int | None = None
    withheld: Withheld | None = None
    top_two_margins: tuple[float | None, ...] | None = None
    conversation_turn: int = 0
    connect_ns: int | None = None
    attempt: int = 0
    finish_ns: int | None = None
    unstreamed_tokens: int = 0
    piece_chars: tuple[int, ...] | None = None


class TokenCounts(msgspec.Struct, frozen=True, kw_only=True):
    """The tokens of one answer's chunks as the target's tokenizer counted them after the run.

    `end_ns` tells apart two attempts at the request.
    """

    request_id: str
    end_ns: int
    cumulative_tokens: tuple[int, ...]


class Judgement(msgspec.Struct, frozen=True, kw_only=True):
    """What a function or a judge model said of one answer, asked once after the run.

    `check` is the index of the check among those of the period. `attempt` numbers the passes of a judge
    model. `source_sha256` is the hash of the function's code, or of the judge's model, prompt and rubric;
    `by` names them. `answer_sha256` binds the judgement to the answer that was judged.
    """

    request_id: str
    item_id: str
    check: int
    kind: Literal["python", "judge"]
    passed: bool | None
    detail: str
    by: str
    source_sha256: str
    answer_sha256: str
    attempt: int = 0


ProbeStatus = Literal["passed", "failed", "unsupported", "unknown"]


class BehaviourProbe(msgspec.Struct, frozen=True, kw_only=True):
    """One question about an arm's behaviour, asked outside its measured periods, and what it showed.

    `unsupported`: the service refused the request. `unknown`: what came back does not tell.
    """

    arm: ArmName
    probe: str
    status: ProbeStatus
    detail: str
    at_ns: int
    http_status: int | None = None


class WarmupGroup(msgspec.Struct, frozen=True, kw_only=True):
    """One group of warm-up requests: how many, how many were answered, and their medians in ns.

    A median is None where no answer of the group tells the quantity.
    """

    requests: int
    answered: int
    ttft_ns: float | None = None
    tpot_ns: float | None = None


class Warmup(msgspec.Struct, frozen=True, kw_only=True):
    """How an arm was warmed up at a load level after one of its starts, before the period of `block`.

    `start` counts the arm's starts in the run from 1. `change` is the largest relative change of a median
    from the group before the last one to the last, None where they have nothing in common; `stable` says
    whether it was within `tolerance`. `end_lag_max_ns`: how long after its end a request was written at most.
    """

    arm: ArmName
    load: str
    block: int
    start: int
    started_ns: int
    ended_ns: int
    stable: bool
    tolerance: float
    change: float | None
    groups: tuple[WarmupGroup, ...]
    end_lag_max_ns: int | None = None

    @property
    def requests(self) -> int:
        """Requests of all groups."""
        return sum(group.requests for group in self.groups)


class WorkerClock(msgspec.Struct, frozen=True, array_like=True):
    """The clock of a load worker on another host: its times are already corrected by `offset_ns`.

    `offset_ns` is the worker's clock less that of the client host; `error_ns` bounds what is left.
    """

    worker: str
    offset_ns: int
    error_ns: int


class AcceleratorUse(msgspec.Struct, frozen=True, kw_only=True):
    """One accelerator of the client's host over a measurement period, from samples taken while it was busy.

    `throttled`: samples in which heat or its supply slowed it down. `clock_mhz` is the mean, `power_limit_w`
    the lowest limit, `temperature_c` the highest reading.
    """

    index: int
    samples: int
    throttled: int | None = None
    clock_mhz: float | None = None
    power_limit_w: float | None = None
    temperature_c: float | None = None


class HostUse(msgspec.Struct, frozen=True, kw_only=True):
    """What the client's host did over a span of `span_s` seconds, all of it in seconds.

    `busy_s`: processor time of all programs; `own_s`: the part of this program, of what it started and of
    attached services whose processes were found here, None where that is not known. `steal_s`: time that
    the hypervisor gave to others. `pressure_s`: time in which a thread that could run waited for a core
    (Linux, PSI).
    """

    span_s: float
    cores: int
    busy_s: float
    own_s: float | None = None
    steal_s: float | None = None
    pressure_s: float | None = None
    accelerators: tuple[AcceleratorUse, ...] = ()


class BlockRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One arm's period inside one block: which requests it owned and how the client itself behaved.

    `counted_from_ns`: when the ramp was over and counted requests began. `lag_p99_ns`: 99th percentile of the
    event loop's lateness. `send_lag_p99_ns`, `send_lag_max_ns`: how long after its due time a request was
    sent, connecting left out. `end_lag_max_ns`: how long after its end one was written. `gc_pause_max_ns`,
    `gc_pause_total_ns`: times in which Python's garbage collection stood in the way. `connections`: new ones
    opened. `client_cpu_s`: of all load processes together, `workers` of them, and `client_cpu_max_s` of the
    one of several that took most; `conductor_cpu_s`: of the process that conducts them and samples the
    service, None where the load runs in it. `in_flight_max`: of several workers the sum of each one's own.
    `held_back`: due requests that waited because the plan's max_in_flight were open. `unreached`: requests,
    counted or not, that found no service to connect to; `broken`: those whose connection was lost before the
    answer's end. `unstamped`: those whose arrivals the client stamped as it read them, the kernel having
    none. `clocks`: those of workers on other hosts. `lead_end`: how the ramp-up of an open loop ended: at its
    full length, cut by its bound, or at its bound before as many requests had ended as were in flight; None
    where there was none. `lead_asks_counted`: fill before the counted requests asked the same items, since
    the workload has no others; None where nothing came before them. `host`: what the client's host did
    meanwhile. `attempt`: 1 where a period was measured once more because the host disturbed the first.
    `process`: how often the run had started the arm by then, None for a service that it only attaches to.
    """

    block: int
    load: str
    arm: ArmName
    order: int
    started_ns: int
    ended_ns: int
    completed: bool
    event_loop_lag_max_ns: int | None
    client_cpu_s: float | None
    note: str | None = None
    counted_from_ns: int | None = None
    lag_p99_ns: int | None = None
    send_lag_p99_ns: int | None = None
    send_lag_max_ns: int | None = None
    gc_pause_max_ns: int | None = None
    gc_pause_total_ns: int | None = None
    connections: int | None = None
    in_flight_max: int | None = None
    workers: int = 1
    clocks: tuple[WorkerClock, ...] = ()
    started_wall_ns: int | None = None
    boot: str | None = None
    wall_step_ns: int | None = None
    suspended_ns: int | None = None
    unreached: int | None = None
    conductor_cpu_s: float | None = None
    held_back: int | None = None
    client_cpu_max_s: float | None = None
    broken: int | None = None
    unstamped: int | None = None
    lead_end: RampUpEnd | None = None
    lead_asks_counted: bool | None = None
    host: HostUse | None = None
    attempt: int = 0
    process: int | None = None
    end_lag_max_ns: int | None = None


class TelemetrySample(msgspec.Struct, frozen=True, kw_only=True):
    """One line of telemetry/<arm>.jsonl: what one source said at one time of the client's clock.

    `values` is series -> value, a series being a Prometheus sample name with its labels in order. `source`
    tells the engine's own metrics from those of the machine it runs on; of several replicas each is sampled
    under its own number. `period` is "load/block" of the arm's period, `mark` where in the period it was
    taken.
    """

    arm: str
    at_ns: int
    values: dict[str, float]
    source: Literal["engine", "host"] = "engine"
    replica: int = 0
    period: str | None = msgspec.field(default=None, name="turn")  # its name on disk
    mark: Literal["start", "during", "end"] | None = None
    attempt: int = 0


NoticeCode = Literal[
    "host_busy", "host_stolen", "client_late", "drift", "accelerator", "foreign_unknown", "waited", "went_on"
]
Severity = Literal["note", "cannot_end_well"]


class Notice(msgspec.Struct, frozen=True, kw_only=True):
    """What a run said of its own chances while it was measured: what is wrong, in figures, and what helps.

    `severity`: with `cannot_end_well` the run ended there, or waited, unless it was set to go on.
    """

    code: NoticeCode
    severity: Severity
    text: str
    remedy: str
    at_ns: int = 0


class Analysis(msgspec.Struct, frozen=True, kw_only=True):
    """An interim analysis of one load: after how many of its blocks, what it showed, and whether it ended it.

    `statuses` are those of the cells of `segments` at that time; `futile` are segments that hardly any
    further block could settle. `ended`: why no further block of the load was measured; None: it went on.
    """

    load: str
    blocks: int
    planned: int
    segments: tuple[str, ...]
    statuses: tuple[str, ...]
    futile: tuple[str, ...] = ()
    ended: Literal["settled", "futile", "budget"] | None = None
    at_ns: int = 0


class ScreenedAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What decoding one answer would take with a drafter, expected given its text; a row of a screening.

    `method`: the drafter's family, and its name where it is not the one that ships. `tokens`: those after the
    first, which comes from the prefill. `rounds`: decode steps that commit them, of which `drafting_rounds`
    draft `drafted` tokens. `reached[i]`: rounds that have a draft i and accept all before it; `kept[i]`:
    those of them that accept draft i too.
    """

    item_id: str
    segment: str
    method: str
    draft_length: int
    tokens: int
    rounds: float
    drafting_rounds: float
    drafted: float
    reached: tuple[float, ...]
    kept: tuple[float, ...]
    conversation_turn: int = 0
