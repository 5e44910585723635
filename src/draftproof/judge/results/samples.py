"""What `draftproof samples` answers: prompts and requests that each part of a verdict takes. Pure data."""

from typing import Literal

import msgspec

from draftproof.judge.results.decide import Reference

Aim = Literal["gain", "tail", "failures", "checks", "limit"]
Statistic = Literal["mean", "p50", "p95", "p99"]


class SampleQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """The gain to be seen, in which statistic of the deciding metric, and with which chance."""

    gain: float
    statistic: Statistic
    power: float


class Need(msgspec.Struct, frozen=True, kw_only=True):
    """How many distinct prompts (or pairs) a part of the verdict takes in one cell, or over one load ("all").

    `needed` holds one number for each of `spreads`, smallest first: standard deviations of logarithms, or
    for shares the parts of pairs that are discordant. `source` says whether they come from an earlier run
    (its figure and the upper end of its 80 % interval) or are assumed. `have` is what the plan's workload
    gives, `measured` what the earlier run has; `more` is how many are missing at the largest spread. None,
    with a `reason`, where no number of them would do. `null_difference` is the factor by which
    equal arms differ at the load.
    """

    aim: Aim
    quantity: str
    statistic: str
    segment: str
    load: str
    unit: Literal["prompts"] = "prompts"
    level: float
    have: int
    measured: int | None
    spreads: tuple[float, ...]
    needed: tuple[int, ...] = ()
    more: int | None = None
    source: Literal["run", "assumed"]
    reason: str | None = None
    null_difference: float = 1.0


class Shortfall(msgspec.Struct, frozen=True, kw_only=True):
    """Why no gain could be claimed however fast the candidate is: in a segment, at a load, or in "all".

    `more` is how many prompts it lacks at least, None where no number of prompts mends it. `evidence` names
    what it is read from.
    """

    text: str
    segment: str
    load: str
    more: int | None = None
    evidence: Reference = Reference("plan", name="workload")

    def blocks(self, segment: str, load: str) -> bool:
        """Return whether it prevents an answer in one cell."""
        return self.segment in (segment, "all") and self.load in (load, "all")


class SamplePlan(msgspec.Struct, frozen=True, kw_only=True):
    """Every need of a plan, and the measured requests over all arms and loads: now, and with all needs met.

    `requests_needed` is for the smallest and the largest spreads; None where a need cannot be met at all.
    `shortfalls` are what even the best outcome would lack, largest first. `disturbed`, by load: that the host
    disturbed an earlier run's periods there and their times count. `is_representative`: a tail that is not
    shown withholds a gain.
    """

    plan: str
    run: str | None
    question: SampleQuestion
    confidence: float
    cells: int
    arms: int
    needs: tuple[Need, ...]
    requests: int
    requests_needed: tuple[int, int] | None
    shortfalls: tuple[Shortfall, ...]
    is_representative: bool
    sentence: str
    disturbed: dict[str, str] = {}
