"""The table [knee] of a plan: on which loads each arm's capacity is searched, and how carefully.

Owns the shape and the ranges. `judge/stats/knee.py` chooses the loads, `judge/knee` says which held.
"""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from draftproof.judge.stats.knee import geometric_grid, trials_to_show
from draftproof.plan.load import MOST_IN_FLIGHT, SLOWEST_RPS, Arrivals, LoadLevel, Seconds
from draftproof.plan.tables import Number, Whole
from draftproof.plan.tables import Strict as _Strict

PREFIX = "knee-"
MOST_POINTS = 200
REQUESTS_PER_SLOT = 10  # of a closed loop: with fewer its start and end are most of what is measured
MOST_OF_A_TRIAL = 1_000_000
LONGEST_LOOK_S = 86_400.0
Load = Annotated[float, Field(ge=SLOWEST_RPS, le=100_000, allow_inf_nan=False, strict=True)]


class Knee(_Strict):
    """Search for the highest load at which an arm still meets its objectives. None: no search."""

    axis: Literal["rps", "concurrency"] = Field(
        "rps", description="What is raised: requests per second that come, or requests kept in flight."
    )
    low: Load = Field(description="Lowest load of the grid; every arm should hold it.")
    high: Load = Field(description="Highest load of the grid; every arm should fail it.")
    points_per_doubling: Whole = Field(
        4, ge=1, le=16, description="Points of the grid from one load to its double, the same for all arms."
    )
    on_time_share: Annotated[Number, Field(ge=0.5, le=0.999)] = Field(
        0.95, description="A load holds if at least this share of all attempted requests is on time."
    )
    requests: Whole = Field(
        200, ge=20, le=100_000, description="Requests of an arm in one trial at a load, at least."
    )
    window_s: Seconds = Field(
        20.0,
        description="Open loop: requests of a trial come over so long, at least. Above its capacity "
        "a service "
        "falls behind slowly: a window of a few deadlines may be over before it shows.",
    )
    trials: Whole = Field(
        3,
        ge=1,
        le=20,
        description="Trials at a load, at most: as long as its on-time share is undetermined.",
    )
    time_budget_s: Seconds = Field(
        1800.0, description="No further load is begun once periods of the search have taken so long in all."
    )
    spacing: Literal["even", "poisson", "gamma"] = Field(
        "poisson", description="How arrivals lie, as in arrivals.spacing."
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
