"""The part of `results.json` that carries the decision: figures, evidence, guardrails, answers, order.

Pure data. A figure that is not known is None and a reason is shown beside it, with how many more samples are
`needed` below the floor; what was not asked or not judged is absent or None, never a pass. `adjusted_p` is
Holm's over every test of position and drift in the run.
"""

from typing import Literal, Self

import msgspec

from draftproof.core.records import ProbeStatus
from draftproof.judge.stats.bootstrap import MeanEstimate
from draftproof.judge.stats.shares import share_interval


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """One number: `value` with its interval [`low`, `high`] at `level`, from `n` samples.

    `needed`: how many more samples would help. `remedy`: what helps where no number of samples does.
    """

    value: float | None
    low: float | None = None
    high: float | None = None
    level: float | None = None
    n: int = 0
    needed: int | None = None
    reason: str | None = None
    remedy: str | None = None


def as_figure(found: MeanEstimate) -> Figure:
    """Return an estimate of a mean or of totals as a figure of the report."""
    return Figure(
        value=found.value,
        low=found.low,
        high=found.high,
        level=found.level,
        n=found.n,
        needed=found.needed,
        reason=found.reason,
    )


def describe(figure: Figure | None) -> str:
    """Return "0.62 (0.55 to 0.70)", or "unknown" where there is no value."""
    if figure is None or figure.value is None:
        return "unknown"
    if figure.low is None or figure.high is None:
        return f"{figure.value:.2f}"
    return f"{figure.value:.2f} ({figure.low:.2f} to {figure.high:.2f})"


def share_figure(count: int, n: int, level: float, reason: str) -> Figure:
    """Return count / n with its exact interval; `reason` says why there is none of nothing."""
    share = share_interval(count, n, level)
    why = None if n else reason
    return Figure(value=share.value, low=share.low, high=share.high, level=level, n=n, reason=why)


ALL_LOADS = "all loads"  # no load can be called that: a plan's names have no space


class Reference(str):
    """The rows of the results that a reason is based on, in parts; as a string, their written form.

    A string, so that `results.json` and every page hold it as a reader sees it; one that was read back from
    there has no parts. `table` is a field of `Results` or one of `inform.evidence.TABLES`. `quantity` is
    written beside the table, `name` before the arms. A part that is None is left open.
    """

    __slots__ = ("arm", "load", "name", "quantity", "segment", "table", "versus")
    table: str
    arm: str | None
    versus: str | None
    quantity: str | None
    name: str | None
    segment: str | None
    load: str | None

    def __new__(
        cls,
        table: str,
        arm: str | None = None,
        versus: str | None = None,
        *,
        at: tuple[str, str] | str | None = None,
        quantity: str | None = None,
        name: str | None = None,
        period: str | None = None,
    ) -> Self:
        """Return the reference; `at` is a cell or a load, whose `period` is written instead if given."""
        segment, load = at if isinstance(at, tuple) else (None, at)
        what = " ".join(part for part in (name, f"{arm} / {versus}" if versus else arm) if part)
        where = f"period {period}" if period else name_load(load) if load else ""
        body = ", ".join(part for part in (what, f"{segment} × {load}" if segment else where) if part)
        head = f"{table} {quantity}" if quantity else table
        made = super().__new__(cls, f"{head}: {body}" if body else head)
        made.table, made.quantity, made.name = table, quantity, name
        made.arm, made.versus, made.segment, made.load = arm, versus, segment, load
        return made


def refer(table: str, cell: tuple[str, str], quantity: str | None = None) -> Reference:
    """Return the reference to candidate / baseline in one cell."""
    return Reference(table, "candidate", "baseline", at=cell, quantity=quantity)


def read_reference(kind: type[Reference], written: str) -> Reference:
    """Return a written reference as text without parts, the hook by which msgspec reads results."""
    return kind(written)


def name_load(load: str) -> str:
    """Return "load busy", or "all loads"."""
    return load if load == ALL_LOADS else f"load {load}"


BandReading = Literal["gain", "harm", "neutral", "no_gain", "inconclusive"]
QuestionStanding = Literal["answered", "partly", "open"]


class GuardrailStanding(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one guardrail in one cell, with the row it is based on; `code` is that of its reason."""

    code: str
    standing: str
    text: str
    evidence: Reference


class PeriodSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The periods of one arm at one load: how many, how many ended, and how late the client itself was.

    `lag_max_ns` is the longest stall of the client's event loop in any of them, None where none was read.
    """

    arm: str
    load: str
    periods: int
    completed: int
    lagged: int
    lag_unknown: int
    lag_max_ns: int | None


class ContextBand(msgspec.Struct, frozen=True, kw_only=True):
    """The effect in one band of context lengths of a cell.

    Prompts are banded by their longest context (prompt + answer, tokens) in the baseline, over all loads, so
    that no arm's own effect chooses the band and a band holds the same prompts at every load. `ratio` is
    candidate / baseline of the deciding statistic with the interval of one comparison at `level`; `reading`
    is what it says against the margins, the null difference counted in.
    """

    segment: str
    load: str
    band: int
    bands: int
    min_context_tokens: int
    max_context_tokens: int
    prompts: int
    pairs: int
    ratio: float | None
    low: float | None
    high: float | None
    level: float
    reading: BandReading
    reason: str | None = None
    needed: int | None = None


class LabelAcceptance(msgspec.Struct, frozen=True, kw_only=True):
    """Acceptance of one arm over all items with one label, at one load."""

    arm: str
    load: str
    dimension: str
    label: str
    prompts: int
    num_draft_tokens: int
    num_accepted_draft_tokens: int
    draft_acceptance_rate: float | None
    mean_acceptance_length: float | None


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """One of the twelve review questions with what this run says to it.

    `evidence` names rows as `Reason.evidence` does; `missing` says what would answer what is left open.
    """

    number: int
    key: str
    question: str
    standing: QuestionStanding
    answer: str
    evidence: tuple[Reference, ...]
    missing: tuple[str, ...] = ()


class ProbeResult(msgspec.Struct, frozen=True, kw_only=True):
    """What one probe showed of one arm, outside its measured periods (docs/checks.md)."""

    arm: str
    probe: str
    status: ProbeStatus
    detail: str
    http_status: int | None


class CheckKind(msgspec.Struct, frozen=True, kw_only=True):
    """Checks of one kind for one arm at one load; those of a failed request are judged and not passed."""

    arm: str
    load: str
    kind: str
    judged: int
    passed: int
    critical_failed: int
    unjudged: int


class JudgeAgreement(msgspec.Struct, frozen=True, kw_only=True):
    """How often the passes of one judge over the same answers said the same."""

    by: str
    answers: int
    agreed: int


class ConversationSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The conversations of one arm at one load; an item without follow-ups is a conversation of one turn.

    `completed`: every turn was answered. `good`: completed, every turn on time and passing its checks, out of
    those for which all of this is known; `unjudged` are the rest.
    """

    arm: str
    load: str
    conversations: int
    multi_turn: int
    requests: int
    completed: int
    completed_share: Figure
    good: int
    unjudged: int
    good_share: Figure


# How far apart rounding alone can bring two logits that another order of sums leaves equal, nats. Logits of
# 16 to 32 lie 0.125 apart in bfloat16, and each of the two may be off by one step; in float32 such logits are
# exact to about 1e-4.
TIE_NATS = 0.25
TIE_NATS_FLOAT32 = 0.001

Status = Literal["guaranteed", "tested", "differs", "unknown"]
Cause = Literal["numerics", "batching", "algorithm", "undetermined"]
Scope = Literal["greedy", "sampled", "length"]
BoundOf = Literal["differing_prompts", "mean_length"]


class Margins(msgspec.Struct, frozen=True, kw_only=True):
    """How close the two likeliest tokens were where greedy outputs part, nats.

    `known` of `divergences` have a margin, `tied` of them one of at most `tie_nats` or of at most
    `null_largest_nats`, the largest at which two equal arms part.
    """

    tie_nats: float
    divergences: int
    known: int
    tied: int
    largest_nats: float | None
    null_largest_nats: float | None


class GreedyComparison(msgspec.Struct, frozen=True, kw_only=True):
    """Greedy outputs of an arm against the baseline's, a prompt differing if any of its repeats does.

    `null_prompts` of the prompts were compared in the null as well, `null_differing_prompts` of them differ
    there. `beyond_null` is the share of prompts that differ in the arm and not in the null (of those that
    differ, without a null); its `high` is the exact one-sided upper limit.
    """

    pairs: int
    prompts: int
    differing_pairs: int
    differing_prompts: int
    null_prompts: int | None
    null_differing_prompts: int | None
    beyond_null: Figure
    margins: Margins


class EquivalenceTest(msgspec.Struct, frozen=True, kw_only=True):
    """One statistic of the outputs in two arms.

    `difference` is arm − baseline where the statistic is a number, its interval over prompts. `units` are
    what the p-value based on: prompts, or paired draws. `p` and `adjusted_p` (Holm over the tests of the
    scope at all loads, times the number of scopes) are None where the reason of `difference` says why.
    `differs` is None where no outcome could have shown a difference.
    """

    scope: Scope
    statistic: str
    arm_value: float | None
    versus_value: float | None
    difference: Figure
    units: int
    p: float | None
    adjusted_p: float | None = None
    differs: bool | None = None


class OutputEquivalence(msgspec.Struct, frozen=True, kw_only=True):
    """Whether an arm's outputs are the baseline's, at one load or at all of them ("all loads").

    `phrase` is the whole statement, `why` the sentences it is based on. `difference_bound` is the d of "no
    difference larger than d": a share of prompts, or of the mean length (`bound_of`), at `n` prompts.
    `contract` is what the compatibility contract says of the method; `is_contradicted` that the outputs say
    otherwise.
    """

    arm: str
    versus: str
    load: str
    status: Status
    cause: Cause | None
    phrase: str
    why: tuple[str, ...]
    contract: str | None
    is_contradicted: bool
    difference_bound: float | None
    bound_of: BoundOf | None
    n: int
    greedy: GreedyComparison | None
    sampled_prompts: int
    sampled_draws: int
    tests: tuple[EquivalenceTest, ...]


class PlaceRow(msgspec.Struct, frozen=True, kw_only=True):
    """How the positions in a block differ at one load: one factor per position, in order.

    `arm` is "all" for the comparison over all arms (Friedman), else one arm's own periods (Kruskal & Wallis).
    """

    arm: str
    load: str
    metric: str
    ratios: tuple[float, ...] | None
    p: float | None
    adjusted_p: float | None
    blocks: int
    reason: str | None = None
    needed: int | None = None


class DriftRow(msgspec.Struct, frozen=True, kw_only=True):
    """Change over the blocks of one load: of an arm, or of the effect `arm` / `versus`.

    `factor_per_hour` is the Theil-Sen slope; `change` the factor over the `hours` from first to last block.
    """

    arm: str
    versus: str | None
    load: str
    metric: str
    factor_per_hour: float | None
    change: float | None
    hours: float | None
    p: float | None
    adjusted_p: float | None
    blocks: int
    reason: str | None = None
    needed: int | None = None


class NoiseRow(msgspec.Struct, frozen=True, kw_only=True):
    """What two equal arms show at one load over all segments: baseline_null / baseline.

    `null` has the interval of one comparison, `joint` the one that holds over all loads and metrics;
    `covers_one` is that of `joint`. `noise_floor` is how far `null` reaches from 1, as a factor;
    `null_difference` what it differs from 1 by beyond chance, which counts against gain and harm;
    `effect_beyond` whether the candidate's pooled effect is wholly outside it.
    """

    load: str
    metric: str
    statistic: str
    null: Figure
    joint: Figure
    covers_one: bool | None
    noise_floor: float | None
    effect_beyond: bool | None
    null_difference: float | None = None


class BlockPoint(msgspec.Struct, frozen=True, kw_only=True):
    """`arm` / baseline in one block, geometric mean over its pairs; `hours` since the run's first block."""

    arm: str
    load: str
    block: int
    hours: float
    ratio: float
    pairs: int


class PrecedingRow(msgspec.Struct, frozen=True, kw_only=True):
    """What preceded the measurement periods of one arm at one load.

    `follows` counts its periods by the arm that was measured before; `after_pause` counts those before which
    the host was idle for longer than `preceding.PAUSE_S`. The first period of the run is left out.
    """

    arm: str
    load: str
    periods: int
    after_pause: int
    idle_median_s: float
    idle_max_s: float
    follows: dict[str, int]


class ProcessSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Which processes answered, and how far apart they are in the deciding metric.

    `counts` has the fewest processes that answered for each arm at a load, None where that is not known.
    `spread` is the standard deviation between processes of an arm as a factor, pooled over arms and loads,
    with its degrees of freedom; None where blocks tell it as well as processes, or one process answered all.
    """

    metric: str
    counts: dict[str, int | None]
    spread: float | None
    degrees: float | None


class OrderSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Order and drift of the deciding metric, and the null difference of every metric."""

    places: tuple[PlaceRow, ...]
    drifts: tuple[DriftRow, ...]
    noise: tuple[NoiseRow, ...]
    points: tuple[BlockPoint, ...]
    preceding: tuple[PrecedingRow, ...] = ()
    processes: ProcessSummary | None = None
