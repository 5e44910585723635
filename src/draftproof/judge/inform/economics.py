"""What every arm costs at equal quality and deadline: device time, energy, capacity and money. Pure.

Definitions and their limits: docs/economics.md. Ranges carry the interval of the measurement and the plan's
ranges of prices; where several intervals meet, each is taken wider, so that the range keeps the plan's
confidence.

Ranges of money over every corner of measured intervals and prices, and an arm's worth in words. Pure.

Every function is monotone in each of its inputs, so the extremes are at the corners. A range of prices is
taken as given, an interval of the measurement at its own level.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from typing import Literal

import msgspec

from draftproof.judge.decide.device_time import (
    NO_WINDOW,
    ArmLoad,
    Books,
    DeviceTime,
    compare_unit_time,
    measure_device_time,
    null_of_loads,
    transform_figure,
)
from draftproof.judge.decide.faults import Faults
from draftproof.judge.decide.guardrails import index_differences
from draftproof.judge.observe.pairs import COMPARISONS
from draftproof.judge.observe.run_data import ALL_SEGMENTS, PreparedRun
from draftproof.judge.observe.windows import PeriodWindow
from draftproof.judge.results.decide import Figure, as_figure, describe
from draftproof.judge.results.inform import (
    ArmUse,
    Capacity,
    Economics,
    QualityStanding,
    ServiceUse,
    Span,
    Worth,
    WorthStanding,
)
from draftproof.judge.results.run import Difference
from draftproof.judge.stats.totals import ratio_of_totals
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

    An arm without any good request has no capacity that could be based on few.
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


NO_ENERGY = "no meter of energy was readable"
Unit = Literal["tokens", "good", "conversations"]


def compute_economics(
    prepared: PreparedRun,
    services: Sequence[ServiceUse],
    differences: Sequence[Difference],
    windows: Sequence[PeriodWindow] | None = None,
    faults: Faults | None = None,
) -> Economics:
    """Return use of every arm at every load, capacities, and what each arm costs against another.

    `windows` None: measured here. What `faults` say of an invalid load keeps its arms from being compared.
    """
    objectives, prices = prepared.plan.objectives, prepared.plan.prices
    books = Books(
        prepared=prepared,
        times=measure_device_time(prepared, windows),
        services={(one.arm, one.load): one for one in services},
        differences=index_differences(differences),
        invalid=frozenset(load for load in prepared.loads if faults is not None and faults.is_invalid(load)),
    )
    uses = tuple(_use(books, own) for own in books.times)
    capacities = tuple(_capacity(prepared, arm, uses) for arm in prepared.arms)
    return Economics(
        currency=prices.currency,
        priced=not prices.is_empty,
        has_deadline=any(
            one is not None for one in (objectives.ttft_ms, objectives.tpot_ms, objectives.e2e_ms)
        ),
        on_time_target=prices.on_time_target,
        horizon_months=prices.horizon_months,
        uses=uses,
        capacities=capacities,
        worths=_list_worths(books, {one.arm: one.load for one in capacities}),
        few_good=describe_few_good(uses),
    )


def _use(books: Books, own: ArmLoad) -> ArmUse:
    time, joules = books.times[own], _joules(books, own, of_good=False)
    on_time = time.on_time / time.judged if time.judged else None
    per_good = _per_thousand(books, time, "good")
    return ArmUse(
        arm=own[0],
        load=own[1],
        devices=time.devices,
        window_s=time.window_s,
        measured_share=time.measured_share,
        attempted=time.attempted,
        good=time.good_requests,
        unchecked=time.unchecked,
        output_tokens=time.output_tokens,
        device_s_per_1000_tokens=_per_thousand(books, time),
        device_s_per_1000_good=per_good,
        good_per_device_hour=_per_hour(per_good),
        joules_per_1000_tokens=joules,
        joules_reason=None if joules is not None else NO_ENERGY,
        on_time_share=on_time,
        meets_objectives=None if on_time is None else on_time >= books.prices.on_time_target,
        money_per_1000_tokens=cost_of_units(books.prices, _pair(_per_thousand(books, time)), joules),
        money_per_1000_good=cost_of_units(books.prices, _pair(per_good), _joules_per_good(time, joules)),
        completed_conversations=time.completed_conversations,
        completed_conversations_per_device=_per_hour(_per_thousand(books, time, "conversations")),
    )


def _per_thousand(books: Books, time: DeviceTime, unit: Unit = "tokens", *, joint: bool = False) -> Figure:
    """Return device seconds per 1,000 output tokens, good requests or completed conversations."""
    if time.seconds_per_ns is None:
        return Figure(value=None, reason=NO_WINDOW)
    totals, nothing = {
        "tokens": (time.tokens, "no output token is known"),
        "good": (time.good, "no good request"),
        "conversations": (time.conversations, "no conversation is good in all its turns"),
    }[unit]
    found = ratio_of_totals(
        totals,
        level=books.joint_level if joint else books.level,
        minimum_clusters=books.floor,
    )
    if found.value is None:
        return Figure(value=None, reason=nothing)
    scale = 1000 * time.seconds_per_ns
    return transform_figure(as_figure(found), lambda value: value * scale)


def _per_hour(per_good: Figure) -> Figure:
    """Return good requests per device and hour."""
    if not per_good.value:
        return per_good
    turned = transform_figure(per_good, lambda value: 3.6e6 / value)
    return msgspec.structs.replace(turned, low=turned.high, high=turned.low)


def _joules_per_good(time: DeviceTime, joules: float | None) -> float | None:
    if joules is None or not time.good_requests:
        return None
    return joules * time.output_tokens / time.good_requests


def _capacity(prepared: PreparedRun, arm: str, uses: Sequence[ArmUse]) -> Capacity:
    """Return the highest load with enough requests on time; none where even the lowest has too few."""
    meeting = {one.load: one for one in uses if one.arm == arm and one.meets_objectives}
    best = next((load for load in reversed(prepared.loads) if load in meeting), None)
    if best is None:
        nothing = Figure(value=None, reason="at no measured load are enough requests on time")
        return Capacity(arm=arm, load=None, concurrency=None, good_per_device_hour=nothing)
    size = prepared.sizes[best]
    return Capacity(
        arm=arm,
        load=best,
        concurrency=size.concurrency,
        offered_rps=size.offered_rps,
        good_per_device_hour=meeting[best].good_per_device_hour,
    )


def _list_worths(books: Books, best: Mapping[str, str | None]) -> tuple[Worth, ...]:
    """Return every comparison at every load, then each arm at its own capacity."""
    arms = books.prepared.arms
    known = [(arm, versus) for arm, versus in COMPARISONS if arm in arms and versus in arms]
    at_loads = [
        _worth(books, (arm, load), (versus, load), load)
        for load in books.prepared.loads
        for arm, versus in known
    ]
    at_best = [
        _worth(books, (arm, mine), (versus, other), None)
        for arm, versus in known
        if (mine := best[arm]) is not None and (other := best[versus]) is not None
    ]
    return (*at_loads, *at_best)


def _worth(books: Books, own: ArmLoad, other: ArmLoad, load: str | None) -> Worth:
    prices, arm = books.prices, own[0]
    of_requests = prices.tokens_per_month is None and prices.requests_per_month is not None
    volume = prices.requests_per_month if of_requests else prices.tokens_per_month
    null, quality = null_of_loads(books, (own[1], other[1])), _quality(books, own, other)
    work = {"candidate": prices.candidate, "alternative": prices.alternative}.get(arm, Work())
    costs = _unit_costs(books, own, other, of_good=of_requests, null=null or 1.0)
    saved = even = Span(reason=_why_no_money(prices, arm, other[0], costs))
    standing: WorthStanding = "unknown"
    if saved.reason is None and costs is not None:
        even = break_even_units(prices, costs, work)
        saved = Span(reason="the plan states no volume a month")
        if volume is not None:
            saved = saving_over(prices, costs, work, volume)
            standing = "worth" if (saved.low or 0.0) > 0 and quality == "held" else "not_worth"
    found = Worth(
        arm=arm,
        versus=other[0],
        load=load,
        token_ratio=compare_unit_time(books, own, other, of_good=False),
        good_ratio=compare_unit_time(books, own, other, of_good=True),
        noise=null,
        quality=quality,
        saving_over_horizon=saved,
        break_even_per_month=even,
        unit="requests" if of_requests else "tokens",
        standing=standing,
        left_out=_left_out(books, own, other, work),
        text="",
    )
    return msgspec.structs.replace(found, text=describe_worth(found, prices))


def _why_no_money(prices: Prices, arm: str, versus: str, costs: UnitCosts | None) -> str | None:
    if arm == "baseline_null":
        return "the second baseline only shows by how much two equal services differ"
    if prices.device_hour is None:
        return "the plan has no price of a device"
    if versus != "baseline":
        return "money is stated against the baseline"
    return "there is no device time with an interval in both arms" if costs is None else None


def _unit_costs(
    books: Books, own: ArmLoad, other: ArmLoad, *, of_good: bool, null: float
) -> UnitCosts | None:
    """Return what units take, the ratio widened by what two equal arms differ by."""
    seconds = _pair(_per_thousand(books, books.times[other], "good" if of_good else "tokens", joint=True))
    ratio = _pair(compare_unit_time(books, own, other, of_good=of_good, joint=True))
    if seconds is None or ratio is None:
        return None
    theirs, ours = (_joules(books, one, of_good=of_good) for one in (other, own))
    is_metered = books.prices.energy_kwh and theirs is not None and ours is not None
    return UnitCosts(
        seconds=seconds,
        ratio=(ratio[0] / null, ratio[1] * null),
        joules=(theirs or 0.0, ours or 0.0) if is_metered else None,
    )


def _joules(books: Books, own: ArmLoad, *, of_good: bool) -> float | None:
    service = books.services.get(own)
    if service is None or service.energy_per_output_token_joules is None:
        return None
    joules = 1000 * service.energy_per_output_token_joules
    return _joules_per_good(books.times[own], joules) if of_good else joules


def _quality(books: Books, own: ArmLoad, other: ArmLoad) -> QualityStanding:
    """Return whether passed checks hold up within the plan's margin, at the arm's own load."""
    row = books.differences.get(("passed_share", own[0], other[0], ALL_SEGMENTS, own[1]))
    if row is None or row.difference.low is None or row.difference.high is None:
        return "not_compared"
    margin = books.prepared.plan.thresholds.quality_margin
    if row.difference.high < -margin:
        return "violated"
    return "held" if row.difference.low >= -margin else "not_shown"


def _left_out(books: Books, own: ArmLoad, other: ArmLoad, work: Work) -> tuple[str, ...]:
    """Return what is in no amount of money, in words."""
    prices, found = books.prices, []
    if prices.device_hour is None:
        found.append("device time (no price)")
    if prices.energy_kwh is None:
        found.append("energy (no price of its own)")
    elif None in (_joules(books, own, of_good=False), _joules(books, other, of_good=False)):
        found.append("energy (not metered in both arms)")
    if null_of_loads(books, (own[1], other[1])) is None:
        found.append("difference between two equal services (not measured)")
    hours = (work.one_off_hours, work.recurring_hours_per_month)
    if all(one in (None, (0.0, 0.0)) for one in hours):
        found.append("work (no hours)")
    elif prices.engineer_hour is None:
        found.append("work (no price of an hour)")
    return tuple(found)


def _pair(figure: Figure) -> Pair | None:
    return None if figure.low is None or figure.high is None else (figure.low, figure.high)
