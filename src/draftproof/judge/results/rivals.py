"""The rows of `results.json` that say how a run would be judged by another estimator of time per token.

Pure data, a part of `results.Results`.
"""

from typing import Literal

import msgspec


class RivalCell(msgspec.Struct, frozen=True, kw_only=True):
    """One cell as another estimator judges it: candidate / baseline with its simultaneous interval."""

    segment: str
    load: str
    status: Literal["gain", "harm", "neutral", "inconclusive", "invalid"]
    ratio: float | None
    low: float | None
    high: float | None
    pairs: int


class RivalVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """The decision of the same run, pairs, resamples, margins and guardrails, by another estimator.

    `agrees` says whether decision and status of every cell are those of the run itself.
    """

    estimator: str
    used_by: str
    decision: Literal["adopt", "adopt_limited", "defer", "inconclusive", "invalid"]
    agrees: bool
    cells: tuple[RivalCell, ...]
    sentence: str
