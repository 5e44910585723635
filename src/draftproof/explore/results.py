"""The shape of `costs.json`. Pure data; times are nanoseconds, a figure not known is None with why."""

from typing import Literal

import msgspec

from draftproof.judge.results.run import Figure
from draftproof.services.engines.commands import Drafting

COSTS_SCHEMA_VERSION = 1
SplitSource = Literal["rounds", "device_timer", "ngram"]
Judgement = Literal["pays", "does_not_pay", "too_close", "unknown"]


class StepCost(msgspec.Struct, frozen=True, kw_only=True):
    """What one decode step takes at a draft length and a batch size.

    `step_ns` is the median over waves, `waves` its sample, `requests` and `steps` what they rest on.
    `ratio` is this step / the ordinary step of the same batch: the tokens that it must commit to break even.
    `acceptance` is the share of drafts, each accepted whatever went before, at which it commits so many;
    None where none is enough. `drafted` are the drafts per step that were really made, None if not counted.
    """

    draft_length: int
    batch: int
    drafting: Drafting
    step_ns: Figure
    ratio: Figure
    acceptance: Figure
    waves: int
    requests: int
    steps: int
    drafted: float | None
    prompt_tokens: int | None
    note: str | None = None


class StepSplit(msgspec.Struct, frozen=True, kw_only=True):
    """Where the time of a step with drafts goes: an ordinary step, checking the drafts, making them.

    `verification_ns` is what checking adds to an ordinary step. `draft_limit_ns` is the longest drafting time
    with which the step still pays at the acceptance that was asked for; None where no drafting is quick
    enough.
    """

    draft_length: int
    batch: int
    source: SplitSource
    ordinary_ns: Figure
    verification_ns: Figure
    draft_ns: Figure
    draft_limit_ns: Figure


class Drift(msgspec.Struct, frozen=True, kw_only=True):
    """Ordinary step of the last start / that of the first, at one batch size."""

    batch: int
    ratio: float
    is_large: bool


class RunComparison(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens per decode step that a run had in a cell, beside those that its steps need to break even."""

    segment: str
    load: str
    batch: int
    draft_length: int | None
    needs: Figure
    has: float | None
    pays: Judgement
    sentence: str


class Costs(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that was found, a pure function of the recorded waves and, where named, of a run."""

    schema_version: int
    draftproof_version: str
    plan_name: str
    plan_sha256: str
    created_wall_ns: int
    engine: str
    engine_version: str
    method: str
    target: str
    acceptance_while_timing: str
    host: dict[str, str | int | float | None]
    commands: tuple[tuple[str, tuple[str, ...]], ...]
    draft_lengths: tuple[int, ...]
    batches: tuple[int, ...]
    repeats: int
    answer_tokens: int
    seed: int
    confidence: float
    acceptance: float
    steps: tuple[StepCost, ...]
    splits: tuple[StepSplit, ...]
    drifts: tuple[Drift, ...]
    run: str | None
    comparisons: tuple[RunComparison, ...]
    assumptions: tuple[str, ...]
    warnings: tuple[str, ...]
