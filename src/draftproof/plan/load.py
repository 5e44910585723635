"""The load levels of a plan: how requests come, and how many of them.

Owns the shape and the ranges. When each request is due is computed by `workload/arrivals.py`.

The table [knee] of a plan: on which loads each arm's capacity is searched, and how carefully.

Owns the shape and the ranges. `judge/stats/knee.py` chooses the loads, `judge/knee` says which held.
"""

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from draftproof.judge.stats.knee import geometric_grid, trials_to_show
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
    """One rate after the other; the last one continues."""

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

    Exactly one of `rps`, `ramp`, `steps` and `bursts`. Each measurement period follows it from its start.
    """

    rps: Rate | None = Field(None, description="A steady rate, requests per second.")
    ramp: RampShape | None = None
    steps: StepShape | None = None
    bursts: BurstShape | None = None
    spacing: Literal["even", "poisson", "gamma"] = Field(
        "poisson",
        description="Distribution of the gaps between arrivals: even (constant), poisson (exponential) or "
        "gamma (see cv).",
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
    requests: Whole | None = Field(None, ge=1, description="Most requests, the earliest.")


class LoadLevel(_Strict):
    """How requests come at one level: exactly one of `concurrency`, `arrivals` and `replay`."""

    name: Name = Field(description="Name of the load in every table.")
    concurrency: int | None = Field(
        None, ge=1, le=MOST_IN_FLIGHT, strict=True, description="Closed loop: requests kept in flight."
    )
    arrivals: Arrivals | None = None
    replay: Replay | None = None
    classes: dict[str, Annotated[float, Field(ge=1e-6, le=1_000_000, strict=True)]] = Field(
        default_factory=dict,
        description="Shares of traffic classes, by label of the first dimension of segment_by: items of each "
        "class are asked in this proportion. None: every item.",
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
        description="Open loop: most requests that this client keeps in flight. A request that is due beyond "
        "it waits, its times include the wait, and the period's client is unfit (invalid_client).",
    )
    repeats: Count = Field(1, description="How often each arm is asked each item at this level.")
    block_size: Count | None = Field(
        None,
        description="Items that an arm answers in one measurement period. None: eight, or fewer so that the "
        "level has six blocks, the fewest that a gain with representative evidence needs.",
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


PREFIX = "knee-"
MOST_POINTS = 200
REQUESTS_PER_SLOT = 10  # of a closed loop: with fewer its start and end are most of what is measured
MOST_OF_A_TRIAL = 1_000_000
LONGEST_LOOK_S = 86_400.0
Load = Annotated[float, Field(ge=SLOWEST_RPS, le=100_000, allow_inf_nan=False, strict=True)]


class Knee(_Strict):
    """Search for the highest load at which an arm still meets its objectives. None: no search."""

    axis: Literal["rps", "concurrency"] = Field(
        "rps", description="What is raised: arriving requests per second, or requests kept in flight."
    )
    low: Load = Field(description="Lowest load of the grid; every arm should meet its objectives there.")
    high: Load = Field(description="Highest load of the grid; every arm should miss its objectives there.")
    points_per_doubling: Whole = Field(
        4, ge=1, le=16, description="Points of the grid from one load to its double, the same for all arms."
    )
    on_time_share: Annotated[Number, Field(ge=0.5, le=0.999)] = Field(
        0.95,
        description="An arm sustains a load if at least this share of all attempted requests is on time.",
    )
    requests: Whole = Field(
        200, ge=20, le=100_000, description="Fewest requests of an arm in one trial at a load."
    )
    window_s: Seconds = Field(
        20.0,
        description="Open loop: shortest time over which the requests of a trial arrive. Above its capacity a"
        " service falls behind slowly: a window of a few deadlines may end before it shows.",
    )
    trials: Whole = Field(
        3,
        ge=1,
        le=20,
        description="Most trials at one load, while its on-time share is undetermined.",
    )
    time_budget_s: Seconds = Field(
        1800.0,
        description="No further load is tried once the periods of the search have taken this long in total.",
    )
    spacing: Literal["even", "poisson", "gamma"] = Field(
        "poisson", description="Distribution of the gaps between arrivals, as arrivals.spacing."
    )
    cv: Number = Field(1.0, ge=0.001, le=20, description="Coefficient of variation of gamma gaps.")

    @model_validator(mode="after")
    def _is_a_grid(self) -> Self:
        if self.low > self.high:
            raise ValueError(f"low = {self.low:g} lies above high = {self.high:g}; exchange them")
        if self.axis == "concurrency" and not (self.low.is_integer() and self.high.is_integer()):
            raise ValueError('with axis = "concurrency" low and high are whole numbers')
        if self.axis == "concurrency" and self.high > MOST_IN_FLIGHT:
            raise ValueError(f"high = {self.high:g} in flight is more than {MOST_IN_FLIGHT}; lower it")
        if len(self.grid) > MOST_POINTS:
            raise ValueError(
                f"the grid has {len(self.grid)} points, at most {MOST_POINTS} are allowed; raise low, lower "
                "high or set fewer points_per_doubling"
            )
        if self.cv != 1.0 and self.spacing != "gamma":
            raise ValueError('cv needs spacing = "gamma"')
        return self

    @model_validator(mode="after")
    def _has_trials_that_end(self) -> Self:
        if (most := self.count_requests(self.high)) > MOST_OF_A_TRIAL:
            raise ValueError(
                f"a trial at high = {self.high:g} takes {most:,} requests, at most {MOST_OF_A_TRIAL:,} are "
                "allowed; lower high or window_s"
            )
        if self.axis == "rps" and self.requests / self.low > LONGEST_LOOK_S:
            raise ValueError(
                f"the {self.requests} requests of a trial at low = {self.low:g} take longer than a "
                f"day; raise "
                "low or lower requests"
            )
        return self

    @property
    def grid(self) -> tuple[float, ...]:
        """Every load of the search, in rising order."""
        return geometric_grid(self.low, self.high, self.points_per_doubling, whole=self.axis == "concurrency")

    @property
    def unit(self) -> str:
        """What a load counts, for a reader."""
        return "requests/s" if self.axis == "rps" else "in flight"

    def trial_level(self, confidence: float) -> float:
        """Return the confidence of one trial, so that all trials at a load together have `confidence`."""
        return 1.0 - (1.0 - confidence) / self.trials

    def count_requests(self, load: float) -> int:
        """Return the requests of one trial at a load."""
        least = load * self.window_s if self.axis == "rps" else load * REQUESTS_PER_SLOT
        return max(self.requests, -int(-least // 1))

    def level(self, load: float, repeats: int = 1) -> LoadLevel:
        """Return a load as a level like any other, its whole trial in one block."""
        is_open = self.axis == "rps"
        return LoadLevel(
            name=name_level(load),
            concurrency=None if is_open else int(load),
            arrivals=Arrivals(rps=load, spacing=self.spacing, cv=self.cv) if is_open else None,
            repeats=repeats,
            block_size=self.count_requests(load),
        )

    def check(self, *, has_deadline: bool, levels: tuple[str, ...], confidence: float) -> None:
        """Do nothing if the search can find something in this plan.

        Raises ValueError: says what is missing and what to do.
        """
        if not has_deadline:
            raise ValueError(
                "knee needs a deadline, for without one every load holds: state ttft_ms, tpot_ms or e2e_ms "
                "in [objectives]"
            )
        if taken := [name for name in levels if name.startswith(PREFIX)]:
            raise ValueError(f"load level {taken[0]!r} has a name of the knee search: rename it")
        needed = trials_to_show(self.on_time_share, self.trial_level(confidence))
        if self.requests * self.trials < needed:
            raise ValueError(
                f"knee.requests = {self.requests} in {self.trials} trials cannot show an on-time share of "
                f"{self.on_time_share:g} even if every request is on time: set requests to "
                f"{-(-needed // self.trials)} at least"
            )


def name_level(load: float) -> str:
    """Return the name of a load of the search, e.g. "knee-4_757" for 4.757."""
    return PREFIX + f"{load:.10g}".replace(".", "_")
