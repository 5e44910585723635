"""What every arm costs at equal quality and deadline: device time, energy, capacity and money. Pure.

Definitions and their limits: docs/economics.md. Ranges carry the interval of the measurement and the plan's
ranges of prices; where several intervals meet, each is taken wider, so that the range keeps the plan's
confidence.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from draftproof.judge.decide.device_time import (
    NO_WINDOW,
    Books,
    DeviceTime,
    Place,
    compare_places,
    measure_device_time,
    null_of_loads,
    transform_figure,
)
from draftproof.judge.decide.faults import Faults
from draftproof.judge.decide.guardrails import index_differences
from draftproof.judge.inform.economics.money import (
    Pair,
    UnitCosts,
    break_even_units,
    cost_of_units,
    describe_few_good,
    describe_worth,
    saving_over,
    take_off,
    work_once,
)
from draftproof.judge.observe.pairs import COMPARISONS
from draftproof.judge.observe.run_data import ALL_SEGMENTS, PreparedRun
from draftproof.judge.observe.windows import TurnWindow
from draftproof.judge.results.economics import ArmUse, Capacity, Economics, QualityStanding, Span, Worth
from draftproof.judge.results.figure import Figure, as_figure
from draftproof.judge.results.run import Difference
from draftproof.judge.results.services import ServiceUse
from draftproof.judge.stats.totals import ratio_of_totals
from draftproof.plan.tables import Prices, Work

NO_ENERGY = "no meter of energy was readable"
Unit = Literal["tokens", "good", "conversations"]


def compute_economics(
    prepared: PreparedRun,
    services: Sequence[ServiceUse],
    differences: Sequence[Difference],
    windows: Sequence[TurnWindow] | None = None,
    faults: Faults | None = None,
) -> Economics:
    """Return use of every arm at every load, capacities, and what each arm costs against another.

    Args:
        prepared: the run.
        services: what its services used.
        differences: of shares, for the standing of quality.
        windows: the counted stretches of its turns; None: they are measured here.
        faults: of the run; what an invalid load says of two arms is not compared. None: none is known.
    """
    objectives, prices = prepared.plan.objectives, prepared.plan.prices
    books = Books(
        prepared=prepared,
        times=measure_device_time(prepared, windows),
        services={(one.arm, one.load): one for one in services},
        differences=index_differences(differences),
        invalid=frozenset(load for load in prepared.loads if faults is not None and faults.is_invalid(load)),
    )
    uses = tuple(_use(books, place) for place in books.times)
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


def _use(books: Books, place: Place) -> ArmUse:
    time, service = books.times[place], books.services.get(place)
    per_token = service.energy_per_output_token_joules if service else None
    joules = None if per_token is None else 1000 * per_token
    on_time = time.on_time / time.judged if time.judged else None
    per_good = _per_thousand(books, time, "good")
    return ArmUse(
        arm=place[0],
        load=place[1],
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
        reason = "at no measured load are enough requests on time"
        return Capacity(
            arm=arm, load=None, concurrency=None, good_per_device_hour=Figure(value=None, reason=reason)
        )
    return Capacity(
        arm=arm,
        load=best,
        concurrency=prepared.sizes[best].concurrency,
        offered_rps=prepared.sizes[best].offered_rps,
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


def _worth(books: Books, place: Place, other: Place, load: str | None) -> Worth:
    unit, volume = _volume(books.prices)
    found = Worth(
        arm=place[0],
        versus=other[0],
        load=load,
        token_ratio=compare_places(books, place, other, of_good=False),
        good_ratio=compare_places(books, place, other, of_good=True),
        noise=null_of_loads(books, (place[1], other[1])),
        quality=_quality(books, place, other),
        saving_per_month=Span(),
        saving_over_horizon=Span(),
        break_even_per_month=Span(),
        unit="requests" if unit == "requests" else "tokens",
        standing="unknown",
        left_out=_left_out(books, place, other),
        text="",
    )
    priced = _add_money(books, found, place, other, volume)
    return msgspec.structs.replace(priced, text=describe_worth(priced, books.prices))


def _add_money(books: Books, found: Worth, place: Place, other: Place, volume: Pair | None) -> Worth:
    """Add savings, the volume that breaks even and whether it is worth it, or why that is not known."""
    prices, work = books.prices, _work_beyond(books.prices, place[0], other[0])
    costs = _unit_costs(books, place, other, found)
    reason = _why_no_money(prices, found, costs)
    if reason is not None or costs is None:
        none = Span(reason=reason)
        return msgspec.structs.replace(
            found, saving_per_month=none, saving_over_horizon=none, break_even_per_month=none
        )
    even = break_even_units(prices, costs, work)
    if volume is None:
        none = Span(reason="the plan states no volume a month")
        return msgspec.structs.replace(
            found, saving_per_month=none, saving_over_horizon=none, break_even_per_month=even
        )
    whole = take_off(saving_over(prices, costs, work, volume, prices.horizon_months), work_once(prices, work))
    is_worth = whole.low is not None and whole.low > 0 and found.quality == "held"
    return msgspec.structs.replace(
        found,
        saving_per_month=saving_over(prices, costs, work, volume, 1.0),
        saving_over_horizon=whole,
        break_even_per_month=even,
        standing="worth" if is_worth else "not_worth",
    )


def _why_no_money(prices: Prices, found: Worth, costs: UnitCosts | None) -> str | None:
    if found.arm == "baseline_null":
        return "the second baseline only shows how far two equal arms lie apart"
    if prices.device_hour is None:
        return "the plan has no price of a device"
    return "there is no device time with an interval in both arms" if costs is None else None


def _unit_costs(books: Books, place: Place, other: Place, found: Worth) -> UnitCosts | None:
    """Return what units take, the ratio widened by what two equal arms differ by."""
    of_good, noise = found.unit == "requests", found.noise or 1.0
    seconds = _pair(_per_thousand(books, books.times[other], "good" if of_good else "tokens", joint=True))
    ratio = _pair(compare_places(books, place, other, of_good=of_good, joint=True))
    if seconds is None or ratio is None:
        return None
    joules = [_joules(books, one, of_good=of_good) for one in (other, place)]
    both = None if joules[0] is None or joules[1] is None else (joules[0], joules[1])
    return UnitCosts(
        seconds=seconds,
        ratio=(ratio[0] / noise, ratio[1] * noise),
        joules=both if books.prices.energy_kwh else None,
    )


def _joules(books: Books, place: Place, *, of_good: bool) -> float | None:
    service = books.services.get(place)
    if service is None or service.energy_per_output_token_joules is None:
        return None
    joules = 1000 * service.energy_per_output_token_joules
    return _joules_per_good(books.times[place], joules) if of_good else joules


def _quality(books: Books, place: Place, other: Place) -> QualityStanding:
    """Return whether passed checks hold up within the plan's margin, at the arm's own load."""
    row = books.differences.get(("passed_share", place[0], other[0], ALL_SEGMENTS, place[1]))
    if row is None or row.difference.low is None or row.difference.high is None:
        return "not_compared"
    margin = books.prepared.plan.thresholds.quality_margin
    if row.difference.high < -margin:
        return "violated"
    return "held" if row.difference.low >= -margin else "not_shown"


def _work_beyond(prices: Prices, arm: str, versus: str) -> Work:
    """Return the work that an arm takes beyond the other; against the alternative, that of both set off."""
    works = {"candidate": prices.candidate, "alternative": prices.alternative}
    mine, theirs = works.get(arm, Work()), works.get(versus, Work())
    if versus not in works:
        return mine
    return Work.model_construct(
        one_off_hours=_set_off(mine.one_off_hours, theirs.one_off_hours),
        recurring_hours_per_month=_set_off(mine.recurring_hours_per_month, theirs.recurring_hours_per_month),
    )


def _set_off(mine: Pair | None, theirs: Pair | None) -> Pair:
    low, high = mine or (0.0, 0.0)
    return low - (theirs or (0.0, 0.0))[1], high - (theirs or (0.0, 0.0))[0]


def _left_out(books: Books, place: Place, other: Place) -> tuple[str, ...]:
    """Return what is in no amount of money, in words."""
    prices, work = books.prices, _work_beyond(books.prices, place[0], other[0])
    found = []
    if prices.device_hour is None:
        found.append("device time (no price)")
    if prices.energy_kwh is None:
        found.append("energy (no price of its own)")
    elif None in (_joules(books, place, of_good=False), _joules(books, other, of_good=False)):
        found.append("energy (not metered in both arms)")
    if null_of_loads(books, (place[1], other[1])) is None:
        found.append("noise between two equal arms (not measured)")
    hours = (work.one_off_hours, work.recurring_hours_per_month)
    if all(one in (None, (0.0, 0.0)) for one in hours):
        found.append("work (no hours)")
    elif prices.engineer_hour is None:
        found.append("work (no price of an hour)")
    return tuple(found)


def _volume(prices: Prices) -> tuple[str, Pair | None]:
    if prices.tokens_per_month is None and prices.requests_per_month is not None:
        return "requests", prices.requests_per_month
    return "tokens", prices.tokens_per_month


def _pair(figure: Figure) -> Pair | None:
    return None if figure.low is None or figure.high is None else (figure.low, figure.high)
