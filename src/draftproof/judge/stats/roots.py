"""Where a function crosses zero: Brent's method as `scipy.optimize.brentq` has it, step for step.

`scipy.optimize` takes as long to load as all else that a verdict computes, for this one function of it.
"""

from collections.abc import Callable

RELATIVE = 8.881784197001252e-16  # four units in the last place of 1


def find_root(function: Callable[[float], float], low: float, high: float, *, within: float) -> float:
    """Return where `function` is 0 between two arguments at which its signs differ (Brent 1973, chapter 4).

    `within`: how far from the root the result may lie.

    Raises:
        ValueError: the signs are equal.
    """
    before, at = low, high
    value_before, value = function(before), function(at)
    if value_before == 0.0 or value == 0.0:
        return before if value_before == 0.0 else at
    if (value_before < 0.0) == (value < 0.0):
        raise ValueError(f"the function has one sign at {low} and {high}")
    across, value_across, step_before, step = before, value_before, at - before, at - before
    while True:
        if value_before != 0.0 and value != 0.0 and (value_before < 0.0) != (value < 0.0):
            across, value_across, step_before, step = before, value_before, at - before, at - before
        if abs(value_across) < abs(value):
            before, at, across = at, across, at
            value_before, value, value_across = value, value_across, value
        least, half = (within + RELATIVE * abs(at)) / 2.0, (across - at) / 2.0
        if value == 0.0 or abs(half) < least:
            return at
        wanted = _interpolate((before, value_before), (at, value), (across, value_across))
        if (
            abs(step_before) > least
            and abs(value) < abs(value_before)
            and 2.0 * abs(wanted) < min(abs(step_before), 3.0 * abs(half) - least)
        ):
            step_before, step = step, wanted
        else:
            step_before, step = half, half
        before, value_before = at, value
        at += step if abs(step) > least else (least if half > 0.0 else -least)
        value = function(at)


Point = tuple[float, float]  # argument, value


def _interpolate(before: Point, here: Point, across: Point) -> float:
    """Return the step to the root by the secant, or by all three points where they differ."""
    (left, value_left), (at, value), (right, value_right) = before, here, across
    if value == value_left:
        return float("inf")
    if left == right:
        return -value * (at - left) / (value - value_left)
    slope_left, slope_right = (value_left - value) / (left - at), (value_right - value) / (right - at)
    divisor = slope_right * slope_left * (value_right - value_left)
    return (
        -value * (value_right * slope_right - value_left * slope_left) / divisor if divisor else float("inf")
    )
