"""Ranges of money: what an arm costs and saves, over every corner of measured intervals and prices. Pure.

Every function is monotone in each of its inputs, so the extremes lie at the corners. A range of prices is
taken as given, an interval of the measurement at its own level.

What an arm is worth against another, in one or two sentences. Pure.
"""

import math
from collections.abc import Callable, Iterable
from itertools import product

import msgspec

from draftproof.judge.results.economics import ArmUse, Span, Worth
from draftproof.judge.results.figure import Figure
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


def saving_over(prices: Prices, costs: UnitCosts, work: Work, volume: Pair, months: float) -> Span:
    """Return what the arm saves over months at a monthly volume, recurring work taken off."""
    per_unit = _save_per_unit(costs)

    def save(  # noqa: PLR0917 - one input a range, all of them corners
        took: float, ratio: float, hour: float, kwh: float, units: float, hours: float, wage: float
    ) -> float:
        return months * (units / 1000 * per_unit(took, ratio, hour, kwh) - hours * wage)

    return span_over(
        save,
        costs.seconds,
        costs.ratio,
        prices.device_hour or NOTHING,
        prices.energy_kwh or NOTHING,
        volume,
        work.recurring_hours_per_month or NOTHING,
        prices.engineer_hour or NOTHING,
    )


def take_off(saving: Span, cost: Pair) -> Span:
    """Return a saving less a cost that comes once, end against end."""
    if saving.low is None or saving.high is None:
        return saving
    return Span(low=saving.low - cost[1], high=saving.high - cost[0])


def work_once(prices: Prices, work: Work) -> Pair:
    """Return the money for one-off work, (0, 0) where it is not planned or not priced."""
    return _pay(work.one_off_hours, prices)


def break_even_units(prices: Prices, costs: UnitCosts, work: Work) -> Span:
    """Return the monthly units at which savings pay for one-off and recurring work over the horizon.

    An end at which a unit saves nothing has no such volume: None, with the reason.
    """
    saved, once = unit_saving(prices, costs), work_once(prices, work)
    monthly = _pay(work.recurring_hours_per_month, prices)
    fixed = [monthly[end] + once[end] / prices.horizon_months for end in (0, 1)]
    if fixed[0] < 0:
        return Span(reason="the other arm may take more work, so there is no volume to reach")
    best, worst = saved.high or 0.0, saved.low or 0.0
    if best <= 0:
        return Span(reason="no volume pays: a unit costs no less in this arm")
    low = fixed[0] / best * 1000
    if worst <= 0:
        return Span(low=low, reason="at the unfavourable end no volume pays")
    return Span(low=low, high=fixed[1] / worst * 1000)


def _pay(hours: Pair | None, prices: Prices) -> Pair:
    """Return the money for hours of work; hours set off against those of another arm may be below 0."""
    amounts = [one * wage for one in hours or NOTHING for wage in prices.engineer_hour or NOTHING]
    return min(amounts), max(amounts)


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
    parts = [_describe_time(worth, where), _QUALITY[worth.quality], _describe_money(worth, prices)]
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
    return f"{where}: absolute capacity rests on these few, so read the ratios between arms."


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


def _describe_time(worth: Worth, where: str) -> str:
    ratio = worth.good_ratio
    good = f"{_interval(ratio)} times the device time per good request"
    if ratio.value is None:
        good = "device time per good request cannot be compared"
    return f"{_subject(worth)}, {where}: {good}, {_interval(worth.token_ratio)} times per output token."


def _subject(worth: Worth) -> str:
    arm = _name_arm(worth.arm)
    return f"{arm[:1].upper()}{arm[1:]} instead of {worth.versus}"


def _name_arm(arm: str) -> str:
    return "the null (baseline again)" if arm == "baseline_null" else arm


def _describe_money(worth: Worth, prices: Prices) -> str:
    if worth.standing == "unknown":
        reason = worth.saving_over_horizon.reason
        return "" if prices.is_empty or reason is None else f"No saving is stated: {reason}."
    saved = worth.saving_over_horizon
    span = f"over {prices.horizon_months:g} months it saves {_span(saved)} {prices.currency}".rstrip()
    verdict = "worth it" if worth.standing == "worth" else "not worth it"
    if worth.standing == "worth":
        why = "the whole range is above 0"
    elif saved.high is not None and saved.high <= 0:
        why = "the whole range is a loss"
    elif saved.low is not None and saved.low > 0:
        why = "that quality is equal is not shown"
    else:
        why = "the range takes in no saving at all"
    return f"{verdict[:1].upper()}{verdict[1:]}: {span}, {why}."


def _span(span: Span) -> str:
    if span.low is None or span.high is None:
        return "an unknown amount"
    return f"{amount(span.low)} to {amount(span.high)}"


def _interval(figure: Figure) -> str:
    if figure.value is None:
        return "an unknown number of"
    if figure.low is None or figure.high is None:
        return f"{figure.value:.2f}"
    return f"{figure.value:.2f} ({figure.low:.2f} to {figure.high:.2f})"
