"""The part of `results.json` that carries the decision: guardrails, contexts, behaviour, outputs, questions.

Pure data. A figure that is not known is None and a reason is shown beside it; what was not asked or not
judged is absent or None, never a pass.
"""

from typing import Literal

import msgspec

from draftproof.core.records import ProbeStatus
from draftproof.judge.results.figure import Figure

BandReading = Literal["gain", "harm", "neutral", "inconclusive"]
QuestionStanding = Literal["answered", "partly", "open"]


class GuardrailStanding(msgspec.Struct, frozen=True, kw_only=True):
    """Where one guardrail stands in one cell, with the row it is based on; `code` is that of its reason."""

    code: str
    standing: str
    text: str
    evidence: str


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
    is what it says against the margins, the noise of equal arms counted in.
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
    evidence: tuple[str, ...]
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
    those for which all of this can be told; `unjudged` are the rest.
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


ALL_LOADS = "all loads"  # no load can be called that: a plan's names have no space

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
