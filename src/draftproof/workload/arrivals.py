"""When requests are due: a pure, seeded function of time, the same for every arm.

An arrival process is a rate that changes over time (the profile) and a way of spacing arrivals at rate one
(the spacing). The n-th arrival is due where the integral of the rate reaches the n-th point of the unit-rate
process (time-rescaling: Cinlar 1975, Introduction to Stochastic Processes, section 4.7): so a ramp can be
even or random, and a burst can sit on any profile. Nothing here waits; the load loop waits for the absolute
times it is given, so its own delay never stretches a later gap.
"""

import itertools
import math
from collections.abc import Iterator
from typing import Literal

import msgspec
import numpy as np

from draftproof.core.clock import NS_PER_S
from draftproof.workload.arm_orders import hash_number

_DRAWS = 4096  # gaps drawn at once; the sequence does not depend on it


class Steady(msgspec.Struct, frozen=True, kw_only=True, tag="steady", forbid_unknown_fields=True):
    """`rps` requests per second, without end."""

    rps: float


class Ramp(msgspec.Struct, frozen=True, kw_only=True, tag="ramp", forbid_unknown_fields=True):
    """From `from_rps` to `to_rps` over `ramp_s` seconds, then steady at `to_rps`."""

    from_rps: float
    to_rps: float
    ramp_s: float


class Steps(msgspec.Struct, frozen=True, kw_only=True, tag="steps", forbid_unknown_fields=True):
    """Each rate of `rps` for `step_s` seconds in turn; the last one goes on."""

    rps: tuple[float, ...]
    step_s: float


class OnOff(msgspec.Struct, frozen=True, kw_only=True, tag="on_off", forbid_unknown_fields=True):
    """`on_rps` for `on_s` seconds, then `off_rps` for `off_s` seconds, again and again."""

    on_rps: float
    on_s: float
    off_rps: float
    off_s: float


Profile = Steady | Ramp | Steps | OnOff


class Spacing(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How arrivals lie at rate one.

    `even`: one after the other at equal distance, the first half a distance in. `poisson`: independent
    exponential gaps. `gamma`: independent gamma gaps of mean one with coefficient of variation `cv`; above 1
    they come in bursts, 1 is `poisson`.
    """

    kind: Literal["even", "poisson", "gamma"] = "poisson"
    cv: float = 1.0


class OpenLoop(msgspec.Struct, frozen=True, kw_only=True):
    """An arrival process: a rate over time and a spacing."""

    profile: Profile
    spacing: Spacing = Spacing()


class Segment(msgspec.Struct, frozen=True):
    """A piece of a profile: from `start_s` on, the rate is `rps` + `slope` × (t − `start_s`)."""

    start_s: float
    rps: float
    slope: float = 0.0


def arrival_times_ns(profile: Profile, spacing: Spacing, seed: int) -> Iterator[int]:
    """Yield the times at which requests are due, in ns from the start, in order and without end.

    The times depend on the arguments alone. Ends early only where the rate of a profile falls to 0 for good.
    Raises ValueError: a rate, a duration or a coefficient of variation that is not usable.
    """
    check_profile(profile)
    if not (math.isfinite(spacing.cv) and spacing.cv > 0):
        raise ValueError(f"the coefficient of variation must be positive, got {spacing.cv}")
    return _rescale(_points(spacing, seed), _segments(profile))


def times_within(profile: Profile, spacing: Spacing, seed: int, duration_s: float) -> tuple[int, ...]:
    """Return the arrivals due before `duration_s`, in ns from the start."""
    limit_ns = round(duration_s * NS_PER_S)
    return tuple(
        itertools.takewhile(lambda due_ns: due_ns < limit_ns, arrival_times_ns(profile, spacing, seed))
    )


def mean_rate_rps(profile: Profile, duration_s: float) -> float:
    """Return the arrivals per second that a profile asks for on average until `duration_s`."""
    if not duration_s > 0:
        raise ValueError(f"a duration must be positive, got {duration_s}")
    total, previous = 0.0, None
    for piece in itertools.chain(_segments(profile), [Segment(math.inf, 0.0)]):
        if previous is not None:
            total += _integral(previous, min(piece.start_s, duration_s) - previous.start_s)
        if piece.start_s >= duration_s:
            break
        previous = piece
    return total / duration_s


def rate_at_start_rps(profile: Profile) -> float:
    """Return the rate that holds just before a profile's first moment: that of its ramp-up.

    A burst is led up to by the pause before it.
    """
    match profile:
        case Steady():
            return profile.rps
        case Ramp():
            return profile.from_rps
        case Steps():
            return profile.rps[0]
        case OnOff():
            return profile.off_rps


def check_profile(profile: Profile) -> None:
    """Refuse a profile whose rates or durations cannot be used. Raises ValueError: names the field."""
    for name in profile.__struct_fields__:
        value = getattr(profile, name)
        for one in value if isinstance(value, tuple) else (value,):
            if not (math.isfinite(one) and one >= 0):
                raise ValueError(f"{name} must be a number of 0 or more, got {one}")
            if name.endswith("_s") and one == 0:
                raise ValueError(f"{name} must be above 0")
    if not any(rate > 0 for rate in _rates(profile)):
        raise ValueError("a profile needs a rate above 0")


def think_time_ns(mean_s: float, *parts: str | int) -> int:
    """Return a time of thought in ns, exponential with this mean, drawn from what it belongs to alone."""
    if mean_s <= 0:
        return 0
    uniform = (hash_number("think", *parts) % 2**53 + 0.5) / 2**53
    return round(-mean_s * math.log(uniform) * NS_PER_S)


def _rates(profile: Profile) -> tuple[float, ...]:
    match profile:
        case Steady():
            return (profile.rps,)
        case Ramp():
            return (profile.from_rps, profile.to_rps)
        case Steps():
            return profile.rps
        case OnOff():
            return (profile.on_rps, profile.off_rps)


def _segments(profile: Profile) -> Iterator[Segment]:
    """Yield the pieces of a profile in order; the last one goes on for ever."""
    match profile:
        case Steady():
            yield Segment(0.0, profile.rps)
        case Ramp():
            yield Segment(0.0, profile.from_rps, (profile.to_rps - profile.from_rps) / profile.ramp_s)
            yield Segment(profile.ramp_s, profile.to_rps)
        case Steps():
            yield from (Segment(index * profile.step_s, rps) for index, rps in enumerate(profile.rps))
        case OnOff():
            for cycle in itertools.count():
                start_s = cycle * (profile.on_s + profile.off_s)
                yield Segment(start_s, profile.on_rps)
                yield Segment(start_s + profile.on_s, profile.off_rps)


def _points(spacing: Spacing, seed: int) -> Iterator[float]:
    """Yield the points of the unit-rate process."""
    if spacing.kind == "even":
        yield from (index + 0.5 for index in itertools.count())
        return
    rng = _generator("arrivals", seed)
    shape = 1.0 if spacing.kind == "poisson" else 1 / spacing.cv**2
    reached = 0.0
    while True:
        for gap in rng.standard_gamma(shape, _DRAWS) if shape != 1.0 else rng.standard_exponential(_DRAWS):
            reached += float(gap) / shape
            yield reached


def _rescale(points: Iterator[float], segments: Iterator[Segment]) -> Iterator[int]:
    """Map points of the unit-rate process to where the integral of the rate reaches them."""
    piece, before = next(segments), 0.0  # `before`: integral up to the start of the piece
    following = next(segments, None)
    for point in points:
        while following is not None:
            total = _integral(piece, following.start_s - piece.start_s)
            if before + total > point:
                break
            before += total
            piece, following = following, next(segments, None)
        if piece.rps <= 0 and piece.slope <= 0:
            return
        yield round((piece.start_s + _invert(piece, point - before)) * NS_PER_S)


def _integral(piece: Segment, seconds: float) -> float:
    return piece.rps * seconds + piece.slope * seconds * seconds / 2


def _invert(piece: Segment, amount: float) -> float:
    """Return the seconds into a piece after which its integral reaches `amount`.

    The smaller root of rate·t + slope·t²/2 = amount, in the form that loses no digits where the slope is
    small (Press et al. 2007, Numerical Recipes, section 5.6).
    """
    root = math.sqrt(max(piece.rps * piece.rps + 2 * piece.slope * amount, 0.0))
    return 2 * amount / (piece.rps + root) if amount > 0 else 0.0


def _generator(purpose: str, seed: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(hash_number(purpose, seed)))
