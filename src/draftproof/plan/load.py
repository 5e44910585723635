"""The load levels of a plan: how requests come, and how many of them.

Owns the shape and the ranges. When each request is due is computed by `workload/arrivals.py`.
"""

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from draftproof.plan.tables import Name, Number, Whole
from draftproof.plan.tables import Strict as _Strict
from draftproof.workload.arrivals import OnOff, OpenLoop, Profile, Ramp, Spacing, Steady, Steps

SLOWEST_RPS = 1e-6  # one request in twelve days: what is slower is a slip of the pen, and never ends
MOST_IN_FLIGHT = 20_000


def _check_idle(rps: float) -> float:
    if 0 < rps < SLOWEST_RPS:
        raise ValueError(f"{rps:g} requests per second never come: write 0, or {SLOWEST_RPS:g} at least")
    return rps


Rate = Annotated[float, Field(ge=SLOWEST_RPS, le=100_000, allow_inf_nan=False, strict=True)]
IdleRate = Annotated[
    float, Field(ge=0, le=100_000, allow_inf_nan=False, strict=True), AfterValidator(_check_idle)
]
Seconds = Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False, strict=True)]
Count = Annotated[int, Field(ge=1, strict=True)]
_HELD_OPEN = 4096
_LEAST_OF_CYCLE = 0.01  # arrivals; with fewer there is no burst, and the next arrival is far to seek


class RampShape(_Strict):
    """From one rate to another, then steady at the second."""

    from_rps: IdleRate = Field(description="Requests per second at the start.")
    to_rps: Rate = Field(description="Requests per second at the end, and from then on.")
    over_s: Seconds = Field(description="Duration of the ramp.")


class StepShape(_Strict):
    """One rate after the other; the last goes on."""

    rps: tuple[Rate, ...] = Field(min_length=2, description="Requests per second of each step.")
    each_s: Seconds = Field(description="Duration of a step.")


class BurstShape(_Strict):
    """Bursts and pauses in turn."""

    on_rps: Rate = Field(description="Requests per second in a burst.")
    on_s: Seconds = Field(description="Duration of a burst.")
    off_rps: IdleRate = Field(0.0, description="Requests per second between bursts.")
    off_s: Seconds = Field(description="Duration between bursts.")

    @model_validator(mode="after")
    def _has_arrivals(self) -> Self:
        of_cycle = self.on_rps * self.on_s + self.off_rps * self.off_s
        if of_cycle < _LEAST_OF_CYCLE:
            raise ValueError(
                f"a burst and its pause bring {of_cycle:.2g} requests on average: raise on_rps or on_s until "
                f"it is {_LEAST_OF_CYCLE:g} at least"
            )
        return self


class Arrivals(_Strict):
    """Open loop: requests are due at times of their own, whether or not earlier ones have ended.

    Exactly one of `rps`, `ramp`, `steps` and `bursts`. Each period goes through the shape from its start.
    """

    rps: Rate | None = Field(None, description="A steady rate, requests per second.")
    ramp: RampShape | None = None
    steps: StepShape | None = None
    bursts: BurstShape | None = None
    spacing: Literal["even", "poisson", "gamma"] = Field(
        "poisson", description="How arrivals lie: at equal distance, independent, or in gamma bursts."
    )
    cv: float = Field(
        1.0,
        ge=0.001,
        le=20,
        strict=True,
        description="Coefficient of variation of gamma gaps; above 1 arrivals come in bursts.",
    )

    @model_validator(mode="after")
    def _has_one_shape(self) -> Self:
        given = [name for name in ("rps", "ramp", "steps", "bursts") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"give exactly one of rps, ramp, steps and bursts, got {given or 'none'}")
        if self.cv != 1.0 and self.spacing != "gamma":
            raise ValueError('cv needs spacing = "gamma"')
        return self

    @property
    def open_loop(self) -> OpenLoop:
        """The arrival process that these keys state."""
        return OpenLoop(profile=self._profile, spacing=Spacing(kind=self.spacing, cv=self.cv))

    @property
    def _profile(self) -> Profile:
        if self.ramp is not None:
            ramp = self.ramp
            return Ramp(from_rps=ramp.from_rps, to_rps=ramp.to_rps, ramp_s=ramp.over_s)
        if self.steps is not None:
            return Steps(rps=self.steps.rps, step_s=self.steps.each_s)
        if self.bursts is not None:
            on = self.bursts
            return OnOff(on_rps=on.on_rps, on_s=on.on_s, off_rps=on.off_rps, off_s=on.off_s)
        return Steady(rps=self.rps or 0.0)


class Replay(_Strict):
    """Open loop: requests are due when the workload's trace says so."""

    speed: float = Field(
        1.0, ge=1e-6, le=10_000, strict=True, description="How many times as fast as recorded."
    )


class RecordedWindow(_Strict):
    """The part of a recorded workload that is used; `duration_s` and `requests` both bound it."""

    start_s: Number = Field(
        0.0, ge=0, le=1e9, allow_inf_nan=False, description="Seconds after the recording's first request."
    )
    duration_s: Number | None = Field(
        None, gt=0, le=1e9, allow_inf_nan=False, description="Seconds from there; none: to the end."
    )
    requests: Whole | None = Field(None, ge=1, description="At most so many requests, the earliest.")


class LoadLevel(_Strict):
    """How requests come at one level: exactly one of `concurrency`, `arrivals` and `replay`."""

    name: Name
    concurrency: int | None = Field(
        None, ge=1, le=MOST_IN_FLIGHT, strict=True, description="Closed loop: requests kept in flight."
    )
    arrivals: Arrivals | None = None
    replay: Replay | None = None
    classes: dict[str, Annotated[float, Field(ge=1e-6, le=1_000_000, strict=True)]] = Field(
        default_factory=dict,
        description="Shares of traffic classes, by label of the first dimension of segment_by: as many items "
        "of each are asked as its share wants. None: every item.",
    )
    think_s: float = Field(
        0.0,
        ge=0,
        le=3600,
        strict=True,
        description="Mean time between an answer and the next request of the same conversation or slot, "
        "drawn from an exponential distribution, the same in every arm.",
    )
    max_in_flight: int = Field(
        _HELD_OPEN,
        ge=1,
        le=MOST_IN_FLIGHT,
        strict=True,
        description="Open loop: requests that this client holds open at most. What is due beyond it waits, "
        "which its times show, and the period's client is invalid.",
    )
    repeats: Count = Field(1, description="How often each arm sees each item at this level.")
    block_size: Count | None = Field(
        None,
        description="Items an arm answers before the next arm takes its period. None: eight, or so "
        "many fewer "
        "that the level has six blocks, the least that representative evidence credits a gain with.",
    )

    @model_validator(mode="after")
    def _has_one_loop(self) -> Self:
        given = [name for name in ("concurrency", "arrivals", "replay") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(
                f"give exactly one of concurrency, arrivals and replay, got {given or 'none'} "
                f"in load level {self.name!r}"
            )
        return self

    @model_validator(mode="after")
    def _has_no_idle_key(self) -> Self:
        if self.replay is not None and self.classes:
            raise ValueError(
                f"a replay asks every request of the recording, so classes have no effect in load level "
                f"{self.name!r}: thin it by workload.where"
            )
        if self.concurrency is not None and self.max_in_flight != _HELD_OPEN:
            raise ValueError(
                f"max_in_flight bounds an open loop, and load level {self.name!r} is closed: leave it out"
            )
        return self

    @property
    def open_loop(self) -> OpenLoop | None:
        """The arrival process of an open loop; None for a closed loop and for a replay."""
        return None if self.arrivals is None else self.arrivals.open_loop

    @property
    def replay_speed(self) -> float | None:
        """How many times as fast as recorded the trace is replayed, None where it is not."""
        return None if self.replay is None else self.replay.speed
