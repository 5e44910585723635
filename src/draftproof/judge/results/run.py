"""The shape of `results.json`: every figure of a report, with its interval, count and reason.

Pure data, made by `compute_results`. A figure that cannot be given is None and carries the reason and, below
the sample floor, how many more samples it needs.
"""

from typing import Literal

import msgspec

from draftproof.core.manifests import EarlierRuns
from draftproof.core.records import Analysis
from draftproof.judge.metrics.acceptance import AcceptanceSummary, ProgressSummary
from draftproof.judge.metrics.delivery import DeliverySummary
from draftproof.judge.results.decide import (
    CheckKind,
    ContextBand,
    ConversationSummary,
    Figure,
    GuardrailStanding,
    JudgeAgreement,
    LabelAcceptance,
    OrderSummary,
    OutputEquivalence,
    PeriodSummary,
    ProbeResult,
    Question,
    Reference,
)
from draftproof.judge.results.inform import (
    ClientUse,
    Diagnoses,
    Economics,
    Headline,
    PhaseSummary,
    ServiceAgreement,
    ServiceLine,
    ServiceStart,
    ServiceUse,
)
from draftproof.judge.results.knee import KneeSearch
from draftproof.plan.limits import LoadLimit, LoadSize, read_sizes

__all__ = ["Figure"]  # part of what a reader of the results needs; defined below all of them

CellStatus = Literal["gain", "harm", "neutral", "no_gain", "inconclusive", "invalid"]
Decision = Literal["adopt", "adopt_limited", "defer", "inconclusive", "invalid"]
APPROVING: frozenset[Decision] = frozenset({"adopt", "adopt_limited"})

EXIT_CODES: dict[str, int] = {
    "adopt": 0,
    "adopt_limited": 10,
    "defer": 20,
    "inconclusive": 30,
    "invalid": 40,
}


class Percentiles(msgspec.Struct, frozen=True, kw_only=True):
    """Percentiles of one per-request quantity, ns: failure-inclusive, and on successes only beside it.

    A failure-inclusive percentile that falls on a failed request is infinite: the value is None and the
    reason says so.
    """

    p50: Figure
    p95: Figure
    p99: Figure
    ok_p50: Figure
    ok_p95: Figure
    ok_p99: Figure
    mean_ok: Figure


class CheckSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Checks of answers: how many were judged, passed, and how many critical ones failed."""

    judged: int
    passed: int
    critical_failed: int
    unjudged: int


class ArmCell(msgspec.Struct, frozen=True, kw_only=True):
    """One arm in one cell (segment × load). Segment "all" pools the segments and never hides them.

    `ttft` and `e2e` count from the scheduled time. `tpot_bases` counts the times per token by `tpot_basis`;
    where first chunks are not counted, `tpot_most` is the mean with as many tokens in them as they may hold,
    and `tpot` the one with one token. Shares are parts of the summed end-to-end time of answered
    requests. `checks` counts single checks; those of a failed request count as judged and not passed.
    """

    arm: str
    segment: str
    load: str
    attempted: int
    prompts: int
    outcomes: dict[str, int]
    ttft: Percentiles
    tpot: Percentiles
    e2e: Percentiles
    output_tokens_mean: Figure
    icl_p50_ns: float | None
    icl_p99_ns: float | None
    stall_count: int
    longest_stall_ns: int | None
    on_time_share: Figure
    queue_share: float | None
    prefill_share: float | None
    decode_share: float | None
    acceptance: AcceptanceSummary | None
    progress: ProgressSummary | None
    checks: CheckSummary
    fallbacks: int | None
    tpot_bases: dict[str, int] = {}
    tpot_most: Figure | None = None


class Effect(msgspec.Struct, frozen=True, kw_only=True):
    """Ratio `arm` / `versus` of the same statistic in one cell; for latencies < 1 is better.

    `ratio` has the interval of one comparison, `simultaneous` the one that holds over all cells at once. Of a
    time per token that is known within bounds both reach over all of them, `value` being the ratio with one
    token in each first chunk that nobody counts; `assumed_pairs` have such a chunk, None for other metrics.
    `standard_error` is that of the log of the ratio, what a period shares included; None where there is none.
    `sequence` is the interval by which a gain of the candidate is told where the loads below are admissible.
    """

    metric: str
    statistic: str
    arm: str
    versus: str
    segment: str
    load: str
    ratio: Figure
    simultaneous: Figure
    pairs: int
    prompts: int
    assumed_pairs: int | None = None
    standard_error: float | None = None
    sequence: Figure | None = None


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """Difference `arm` − `versus` of a share (failures, passed checks) in one cell."""

    quantity: str
    arm: str
    versus: str
    segment: str
    load: str
    difference: Figure


class Agreement(msgspec.Struct, frozen=True, kw_only=True):
    """How often two arms gave the same greedy output, and where they first differ.

    `statement` says in words whether they differ more often than two equal arms do.
    """

    arm: str
    versus: str
    load: str
    compared: int
    identical: int
    identical_share: Figure
    first_divergence_tokens: tuple[int, ...]
    statement: str | None = None


class EstimatorRow(msgspec.Struct, frozen=True, kw_only=True):
    """One way other tools compute 'inter-token latency', applied to this very run.

    `ratio_*` are candidate / baseline of that estimator's mean, p50 and p99; `null_ratio_mean` is
    baseline_null / baseline of its mean, None without that arm.
    """

    load: str
    estimator: str
    used_by: str
    baseline_mean_ns: float | None
    candidate_mean_ns: float | None
    ratio_mean: float | None
    ratio_p50: float | None
    ratio_p99: float | None
    null_ratio_mean: float | None = None


class Reason(msgspec.Struct, frozen=True, kw_only=True):
    """Why: a machine-readable code, a sentence, and the table row it is based on.

    `remedy`: what helps where no number of prompts does; None where more of them may.
    """

    code: str
    text: str
    evidence: Reference
    remedy: str | None = None


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """Segment × load with its status and the reasons for it, and the state of every guardrail in it.

    `concurrency` is that of a closed loop, `offered_rps` the rate of an open one (see `LoadSize`).
    """

    segment: str
    load: str
    concurrency: int | None
    status: CellStatus
    effect: Figure
    alternative_effect: Figure | None
    reasons: tuple[Reason, ...]
    guardrails: tuple[GuardrailStanding, ...] = ()
    offered_rps: float | None = None
    load_shape: str = ""

    @property
    def size(self) -> LoadSize:
        """How large its load is."""
        return LoadSize(concurrency=self.concurrency, offered_rps=self.offered_rps, shape=self.load_shape)


class EnvelopeEntry(msgspec.Struct, frozen=True, kw_only=True):
    """Speculation may run for `segment` within every limit that is stated (docs/envelope.md).

    `max_concurrency` is None where no closed loop was measured, `max_rps` where no open one was.
    `min_context_tokens` is the shortest context measured, `labels` are the segment's by dimension.
    `gain_loads` and `neutral_loads` are the measured loads inside, by what was shown there. `context` says
    whether the upper context lengths were judged apart.
    """

    segment: str
    max_concurrency: int | None
    max_context_tokens: int | None
    min_context_tokens: int | None = None
    labels: dict[str, str] = {}
    gain_loads: tuple[str, ...] = ()
    neutral_loads: tuple[str, ...] = ()
    context: Literal["resolved", "limited", "not_resolved", "unknown"] = "unknown"
    max_rps: float | None = None

    @property
    def limit(self) -> LoadLimit:
        """Up to which load it holds."""
        return LoadLimit(concurrency=self.max_concurrency, rps=self.max_rps)


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """What the baseline's time is spent on at one load, and the most that faster decoding can give.

    `ceiling_gain` is 1 / (1 − decode share); `predicted_gain` applies the measured decode speed-up.
    """

    load: str
    bound: str
    queue_share: float | None
    prefill_share: float | None
    decode_share: float | None
    other_share: float | None
    decode_speedup: float | None
    ceiling_gain: float | None
    predicted_gain: float | None
    measured_gain: float | None
    text: str


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The decision in one sentence, with its reasons and the envelope in which it holds."""

    decision: Decision
    sentence: str
    evidence_level: str
    reasons: tuple[Reason, ...]
    envelope: tuple[EnvelopeEntry, ...]


class Delivery(DeliverySummary, frozen=True, kw_only=True):
    """How one arm delivered its answers at one load, segments pooled (docs/compare.md). Times in ns.

    `mechanism` is the algorithm that the contract states; it begins with "undisclosed" where the service does
    not say. `hint` and `hint_text` say whether delivery looks bundled: never acceptance, never proof of
    speculation.
    """

    arm: str
    load: str
    mechanism: str | None
    hint: Literal["bundled_chunks", "bursts", "bundled_chunks_and_bursts", "no_sign", "unknown"]
    hint_text: str


RESULTS_SCHEMA_VERSION = 2  # 1 said turn for period, look for trial


class Results(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a report shows, a pure function of the run directory.

    `loads` are (name, requests kept in flight) in order, None for an open loop; `load_sizes` say more.
    `analyses` are those that were made while the run went on, `earlier` the runs of its question before it.
    """

    schema_version: int
    draftproof_version: str
    run_name: str
    question: str
    evidence: str
    plan_sha256: str
    thresholds_sha256: str
    workload_sha256: str
    thresholds: dict[str, float | int]
    confidence: float
    metric: str
    statistic: str
    segments: tuple[str, ...]
    loads: tuple[tuple[str, int | None], ...]
    arms: tuple[str, ...]
    arm_cells: tuple[ArmCell, ...]
    effects: tuple[Effect, ...]
    differences: tuple[Difference, ...]
    agreements: tuple[Agreement, ...]
    estimators: tuple[EstimatorRow, ...]
    cells: tuple[Cell, ...]
    diagnosis: tuple[Diagnosis, ...]
    verdict: Verdict
    not_measured: tuple[str, ...]
    warnings: tuple[str, ...]
    counts: dict[str, int]
    services: tuple[ServiceUse, ...] = ()
    service_starts: tuple[ServiceStart, ...] = ()
    service_agreements: tuple[ServiceAgreement, ...] = ()
    service_lines: tuple[ServiceLine, ...] = ()
    deliveries: tuple[Delivery, ...] = ()
    equivalence: tuple[OutputEquivalence, ...] = ()
    tail_effects: tuple[Effect, ...] = ()
    order: OrderSummary | None = None
    periods: tuple[PeriodSummary, ...] = ()
    context_bands: tuple[ContextBand, ...] = ()
    label_acceptance: tuple[LabelAcceptance, ...] = ()
    questions: tuple[Question, ...] = ()
    diagnoses: Diagnoses | None = None
    economics: Economics | None = None
    behaviour: tuple[ProbeResult, ...] = ()
    check_kinds: tuple[CheckKind, ...] = ()
    judges: tuple[JudgeAgreement, ...] = ()
    conversations: tuple[ConversationSummary, ...] = ()
    knee: KneeSearch | None = None
    load_sizes: dict[str, LoadSize] = {}
    clients: tuple[ClientUse, ...] = ()
    analyses: tuple[Analysis, ...] = ()
    earlier: EarlierRuns | None = None
    headline: Headline | None = None

    @property
    def sizes(self) -> dict[str, LoadSize]:
        """How large every load is, in the order of `loads`."""
        return read_sizes(self.loads, self.load_sizes)

    phases: tuple[PhaseSummary, ...] = ()
