"""Ranges of money over every corner of measured intervals and prices, and an arm's worth in words. Pure.

Every function is monotone in each of its inputs, so the extremes lie at the corners. A range of prices is
taken as given, an interval of the measurement at its own level.
"""

import math
from collections.abc import Callable, Iterable
from itertools import product

import msgspec

from draftproof.judge.results.economics import ArmUse, Span, Worth
from draftproof.judge.results.figure import Figure, describe
from draftproof.plan.tables import Prices, Work

SECONDS_PER_HOUR, JOULES_PER_KWH = 3600.0, 3.6e6
Pair = tuple[float, float]
NOTHING: Pair = (0.0, 0.0)


class UnitCosts(msgspec.Struct, frozen=True, kw_only=True):
    """What 1,000 units (output tokens or good requests) take in the other arm, and this arm's ratio to it.

    `seconds`: device seconds of the other arm; `ratio`: arm / other, both as (low, high). `joules` of
    (other, arm), None where not metered or not priced.
    """

    seconds: Pair
    ratio: Pair
    joules: Pair | None = None


def span_over(compute: Callable[..., float], *inputs: Pair) -> Span:
    """Return the lowest and the highest value over all corners of the inputs."""
    values = [compute(*corner) for corner in product(*map(dict.fromkeys, inputs))]
    return Span(low=min(values), high=max(values))


def cost_of_units(prices: Prices, seconds: Pair | None, joules: float | None) -> Span:
    """Return the money for 1,000 units: device time and, where priced and metered, energy."""
    if prices.device_hour is None:
        return Span(reason="the plan has no price of a device")
    if seconds is None:
        return Span(reason="there is no device time with an interval")
    energy = prices.energy_kwh if joules is not None else None
    return span_over(
        lambda took, hour, kwh: took / SECONDS_PER_HOUR * hour + (joules or 0.0) / JOULES_PER_KWH * kwh,
        seconds,
        prices.device_hour,
        energy or NOTHING,
    )


def unit_saving(prices: Prices, costs: UnitCosts) -> Span:
    """Return the money that 1,000 units save in the arm, before any work; below 0 where they cost more."""
    return span_over(
        _save_per_unit(costs),
        costs.seconds,
        costs.ratio,
        prices.device_hour or NOTHING,
        prices.energy_kwh or NOTHING,
    )


def saving_over(prices: Prices, costs: UnitCosts, work: Work, volume: Pair) -> Span:
    """Return what the arm saves over the horizon at a monthly volume, all work taken off."""
    per_unit, months = _save_per_unit(costs), prices.horizon_months

    def save(  # noqa: PLR0917 - one input a range, all of them corners
        took: float, ratio: float, hour: float, kwh: float, units: float, hours: float, wage: float
    ) -> float:
        return months * (units / 1000 * per_unit(took, ratio, hour, kwh) - hours * wage)

    saved = span_over(
        save,
        costs.seconds,
        costs.ratio,
        prices.device_hour or NOTHING,
        prices.energy_kwh or NOTHING,
        volume,
        work.recurring_hours_per_month or NOTHING,
        prices.engineer_hour or NOTHING,
    )
    once = _pay(work.one_off_hours, prices)
    return Span(low=(saved.low or 0.0) - once[1], high=(saved.high or 0.0) - once[0])


def break_even_units(prices: Prices, costs: UnitCosts, work: Work) -> Span:
    """Return the monthly units at which savings pay for one-off and recurring work over the horizon.

    An end at which a unit saves nothing has no such volume: None, with the reason.
    """
    saved, once = unit_saving(prices, costs), _pay(work.one_off_hours, prices)
    monthly = _pay(work.recurring_hours_per_month, prices)
    least, most = (monthly[end] + once[end] / prices.horizon_months for end in (0, 1))
    best, worst = saved.high or 0.0, saved.low or 0.0
    if best <= 0:
        return Span(reason="no volume pays: a unit costs no less in this arm")
    low = least / best * 1000
    if worst <= 0:
        return Span(low=low, reason="at the unfavourable end no volume pays")
    return Span(low=low, high=most / worst * 1000)


def _pay(hours: Pair | None, prices: Prices) -> Pair:
    low, high = hours or NOTHING
    cheap, dear = prices.engineer_hour or NOTHING
    return low * cheap, high * dear


def _save_per_unit(costs: UnitCosts) -> Callable[[float, float, float, float], float]:
    spared = (costs.joules[0] - costs.joules[1]) if costs.joules else 0.0

    def save(took: float, ratio: float, hour: float, kwh: float) -> float:
        return took * (1 - ratio) / SECONDS_PER_HOUR * hour + spared / JOULES_PER_KWH * kwh

    return save


_QUALITY = {
    "violated": "Its answers pass fewer checks than the margin allows, so the quality is not equal.",
    "not_shown": "That quality is equal is not shown.",
    "not_compared": "Quality was not compared.",
    "held": "",
}


def describe_worth(worth: Worth, prices: Prices) -> str:
    """Return device time, money and standing in words."""
    where = "each at its own capacity" if worth.load is None else f"at load {worth.load}"
    arm, ratio = _name_arm(worth.arm), worth.good_ratio
    good = f"{_times(ratio)} the device time per good request"
    if ratio.value is None:
        good = "device time per good request cannot be compared"
    time = (
        f"{arm[:1].upper()}{arm[1:]} instead of {worth.versus}, {where}: {good}, "
        f"{_times(worth.token_ratio)} per output token."
    )
    parts = [time, _QUALITY[worth.quality], _describe_money(worth, prices)]
    return " ".join(part for part in parts if part)


def describe_few_good(uses: Iterable[ArmUse]) -> str | None:
    """Return a warning where fewer than half of an arm's requests are good, None where none is such.

    An arm without any good request has no capacity that could rest on few.
    """
    counted = [one for one in uses if one.good]
    few = [one for one in counted if 2 * one.good < one.attempted]
    if not few:
        return None
    least = min(few, key=lambda one: (one.good / one.attempted, one.load, one.arm))
    worst = f"{_name_arm(least.arm)} at load {least.load} ({least.good} of {least.attempted})"
    where = (
        f"Fewer than half of the requests are good for {worst}"
        if len(few) == 1
        else f"In {len(few)} of {len(counted)} rows fewer than half of the requests are good, the smallest "
        f"share for {worst}"
    )
    return f"{where}: absolute capacity is based on these few, so read the ratios between arms."


def amount(value: float) -> str:
    """Write an amount with three significant digits and thousands separators; millions as such."""
    if not value:
        return "0"
    size = abs(value)
    if size >= 1e6:
        return f"{value / 1e6:,.{max(2 - _exponent(size / 1e6), 0)}f} million".replace("-", "−")
    digits = 2 - _exponent(size)
    return f"{round(value, digits):,.{max(digits, 0)}f}".replace("-", "−")


def _exponent(size: float) -> int:
    return math.floor(math.log10(size))


def _name_arm(arm: str) -> str:
    return "the null (baseline again)" if arm == "baseline_null" else arm


def _describe_money(worth: Worth, prices: Prices) -> str:
    saved = worth.saving_over_horizon
    if saved.low is None or saved.high is None:
        return "" if prices.is_empty or saved.reason is None else f"No saving is stated: {saved.reason}."
    span = f"{amount(saved.low)} to {amount(saved.high)} {prices.currency}".rstrip()
    if worth.standing == "worth":
        said, why = "Worth it", "the whole range is above 0"
    elif saved.high <= 0:
        said, why = "Not worth it", "the whole range is a loss"
    elif saved.low > 0:
        said, why = "Not worth it", "that quality is equal is not shown"
    else:
        said, why = "Not worth it", "the range takes in no saving at all"
    return f"{said}: over {prices.horizon_months:g} months it saves {span}, {why}."


def _times(figure: Figure) -> str:
    return f"{'an unknown number of' if figure.value is None else describe(figure)} times"
