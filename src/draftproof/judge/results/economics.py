"""The part of `results.json` on what an arm costs: device time, energy, capacity, money. Pure data."""

from typing import Literal

import msgspec

from draftproof.judge.results.figure import Figure

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
    the range covers the interval of the measurement at its level, the noise, and the plan's ranges of
    prices. `standing` "worth": the whole range of `saving_over_horizon` lies above 0 and the quality
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
