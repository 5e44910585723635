"""The `[rollback]` table: what is watched in operation, and at which value speculation is switched off.

Owns shape and ranges. Nothing here decides the verdict, so it is no part of the thresholds' hash; the hash
of the whole plan covers it. What is left open follows from `[thresholds]` and `[objectives]`.
"""

from typing import Annotated, Literal

from pydantic import Field

from draftproof.plan.strict import Number, Share, Strict, Whole

Milliseconds = Annotated[Number, Field(gt=0.0)]
# Prometheus needs two scrapes in a window; scrapes come every 15 to 60 s.
Window = Annotated[Whole, Field(ge=120, le=86_400)]
Holding = Annotated[Whole, Field(ge=0, le=86_400)]


class Rollback(Strict):
    """What is watched in operation and when speculation is switched off; `draftproof rules` exports it."""

    quantile: Literal["p90", "p95", "p99"] | None = Field(
        None, description="Quantile of the two tail objectives; none: thresholds.tail_quantile."
    )
    max_ttft_ms: Milliseconds | None = Field(
        None, description="Longest first token at that quantile; none: objectives.ttft_ms."
    )
    max_tpot_ms: Milliseconds | None = Field(
        None, description="Longest time per output token at that quantile; none: objectives.tpot_ms."
    )
    net_slowdown_ratio: Annotated[Number, Field(ge=1.0, le=10.0)] | None = Field(
        None,
        description="Time per token of the candidate over the hold-out's above which it is slower on "
        "balance; none: 1 + thresholds.harm_margin.",
    )
    max_failed_share: Share | None = Field(
        None,
        description="Largest share of failed requests; none: the hold-out's share + "
        "thresholds.failure_margin.",
    )
    critical_errors: Whole = Field(
        0, ge=0, description="Critical errors of the application that are tolerated in one window."
    )
    max_cache_usage: Share = Field(
        0.95, description="Share of the key-value cache in use above which memory is under pressure."
    )
    cache_for_s: Holding = Field(600, description="For how long the cache must stay above it.")
    max_preemptions_per_request: Annotated[Number, Field(ge=0.0, le=1000.0)] = Field(
        0.1, description="Preemptions per finished request above which memory is under pressure."
    )
    min_acceptance_length: Annotated[Number, Field(ge=1.0, le=1000.0)] | None = Field(
        None,
        description="Alarm below this mean acceptance length, the target's own token included; none: no "
        "alarm but for a drafter that is idle.",
    )
    window_s: Window = Field(300, description="Window over which rates and quantiles are taken.")
    for_s: Holding = Field(300, description="For how long a condition must hold before its alert fires.")
    minimum_requests: Whole = Field(
        30, ge=1, description="Finished requests an arm needs in one window before it is judged."
    )
    holdout_share: Annotated[Number, Field(gt=0.0, le=0.5)] = Field(
        0.05, description="Share of in-envelope traffic that stays on ordinary decoding, for comparison."
    )
