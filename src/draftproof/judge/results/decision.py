"""The part of `results.json` that carries the decision to others: guardrails, turns, contexts, questions.

Pure data. A figure that is not known is None and a reason stands beside it.
"""

from typing import Literal

import msgspec

BandReading = Literal["gain", "harm", "neutral", "inconclusive"]
QuestionStanding = Literal["answered", "partly", "open"]


class GuardrailStanding(msgspec.Struct, frozen=True, kw_only=True):
    """Where one guardrail stands in one cell, with the row it rests on; `code` is that of its reason."""

    code: str
    standing: str
    text: str
    evidence: str


class TurnSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The turns of one arm at one load: how many, how many ended, and how late the client itself was.

    `lag_max_ns` is the longest stall of the client's event loop in any of them, None where none was read.
    """

    arm: str
    load: str
    turns: int
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
