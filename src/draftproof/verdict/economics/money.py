"""Ranges of money: what an arm costs and saves, over every corner of measured intervals and prices. Pure.

Every function is monotone in each of its inputs, so the extremes lie at the corners. A range of prices is
taken as given, an interval of the measurement at its own level.
"""

from collections.abc import Callable
from itertools import product

import msgspec

from draftproof.plan.prices import Prices, Work
from draftproof.verdict.economics.results import Span

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
