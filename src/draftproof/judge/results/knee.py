"""The rows of `results.knee`: every load that was looked at, and each arm's knee. Pure data."""

from typing import Literal

import msgspec

from draftproof.judge.results.decide import Figure
from draftproof.judge.stats.knee import TrialOutcome


class KneePoint(msgspec.Struct, frozen=True, kw_only=True):
    """One arm at one load of the search.

    `share` is the on-time share of all attempted requests, `unjudged` are those of which it is not known
    and which are in neither count. `effective` is the number of independent requests that they count for.
    `saturated` says why the service cannot keep up, None where it can. `in_flight` are those in flight at
    the start and at the end of the counted part, on average over the trials. `window_s` is what the
    counted requests of all trials filled of the time from the first one due to the last end.
    """

    arm: str
    load: float
    level: str
    standing: TrialOutcome
    trials: int
    invalid_trials: int
    attempted: int
    unjudged: int
    prompts: int
    share: Figure
    effective: float | None = None
    saturated: str | None = None
    reason: str | None = None
    good: int = 0
    window_s: float | None = None
    goodput_rps: float | None = None
    completed_rps: float | None = None
    in_flight: tuple[float, float] | None = None
    conversations_per_device_hour: Figure = Figure(value=None)


class ArmKnee(msgspec.Struct, frozen=True, kw_only=True):
    """The knee of one arm: it holds at `holds` and fails at `fails`, so it is in [`holds`, `fails`).

    Either is None where the search did not show it, with the reason and how many more requests would. The
    other figures are those at `holds`.
    """

    arm: str
    holds: float | None
    fails: float | None
    devices: int
    text: str
    reason: str | None = None
    needed: int | None = None
    is_monotone: bool = True
    goodput_rps: float | None = None
    conversations_per_device_hour: Figure = Figure(value=None)


class KneeRatio(msgspec.Struct, frozen=True, kw_only=True):
    """Knee of `arm` / knee of `versus`; above 1 the arm carries more. An open end is None."""

    arm: str
    versus: str
    low: float | None
    high: float | None
    text: str


class KneeSearch(msgspec.Struct, frozen=True, kw_only=True):
    """The search over all arms on one grid.

    `confidence` is that of an arm's knee, `trial_level` the one at which a single trial is judged. `ended`
    says why the search stopped: nothing was left to tell, the time budget, or the run was broken off.
    `next_s` is about how long the trial would have taken that did not fit into the budget.
    """

    axis: Literal["rps", "concurrency"]
    unit: str
    grid: tuple[float, ...]
    target: float
    confidence: float
    trial_level: float
    budget_s: float
    spent_s: float
    periods: int
    ended: Literal["settled", "budget", "unfinished"]
    points: tuple[KneePoint, ...]
    arms: tuple[ArmKnee, ...]
    ratios: tuple[KneeRatio, ...]
    sentence: str
    notes: tuple[str, ...] = ()
    next_s: float | None = None
