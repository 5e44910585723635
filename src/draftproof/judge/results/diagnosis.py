"""The part of `results.json` that says where time goes, what a drafter costs, and what to look at first.

Pure data. A figure that cannot be given is None and carries the reason.
"""

from typing import Literal

import msgspec

from draftproof.judge.results.figure import Figure

PartsSource = Literal["server", "client", "none"]
CostPart = Literal["compute", "memory", "scheduling"]


class TimeParts(msgspec.Struct, frozen=True, kw_only=True):
    """Where the end-to-end time of one arm's answered requests went in one cell; shares of their summed time.

    `source` "server": the engine's own timings, from send to end; `other` is what they leave over (client,
    network, tools, waiting between rounds). "client": the client's clock, from the scheduled time to the end;
    `decode` is first to last chunk, `before_first` all before, and queue and prefill cannot be told apart.

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


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
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
    evidence: tuple[Evidence, ...]


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
