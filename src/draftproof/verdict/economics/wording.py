"""What an arm is worth against another, in one or two sentences. Pure."""

import math
from collections.abc import Iterable

from draftproof.plan.prices import Prices
from draftproof.verdict.economics.results import ArmUse, Span, Worth
from draftproof.verdict.figure import Figure

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
