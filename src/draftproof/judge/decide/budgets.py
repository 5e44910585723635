"""Arms with other numbers of devices: device time per output token decides beside the time of answers. Pure.

Eight devices answer faster than one, which is no gain of a method. Device time is the wall time of an arm's
turns times its devices, so that throughput, capacity and cost per device move with it.
"""

from collections.abc import Mapping

from draftproof.judge.decide.cells import decide_effect
from draftproof.judge.decide.device_time import compare_device_time
from draftproof.judge.decide.effects import CellKey
from draftproof.judge.decide.guardrails import Finding, Standing
from draftproof.judge.observe.run_data import PreparedRun
from draftproof.judge.results.figure import Figure, describe
from draftproof.judge.results.run import CellStatus, Reason
from draftproof.plan.limits import list_budgets

# What device time says of a cell by its interval; inside its margins it withholds a gain and harms nothing.
_STANDINGS: dict[CellStatus, Standing] = {"gain": "held", "harm": "violated", "neutral": "shifted"}


def judge_budgets(prepared: PreparedRun) -> Mapping[CellKey, tuple[Finding, ...]]:
    """Return, by cell, where device time per output token stands; none where the budgets are equal."""
    budgets = list_budgets(prepared.plan)
    mine, theirs = budgets["candidate"], budgets["baseline"]
    if mine == theirs:
        return {}
    found = compare_device_time(prepared, "candidate", "baseline")
    return {
        (segment, load): (_judge(prepared, load, ratio, noise, f"{mine} devices against {theirs}"),)
        for load, (ratio, noise) in found.items()
        for segment in prepared.segments
    }


def compare_with_alternative(prepared: PreparedRun) -> Mapping[str, Figure]:
    """Return load -> device time per token of the candidate over the alternative's; none for one budget.

    An alternative with more devices is no better use of the same budget because it answers faster.
    """
    budgets = list_budgets(prepared.plan)
    if "alternative" not in prepared.arms or budgets["alternative"] == budgets["candidate"]:
        return {}
    found = compare_device_time(prepared, "candidate", "alternative")
    return {load: ratio for load, (ratio, _) in found.items()}


def _judge(prepared: PreparedRun, load: str, ratio: Figure, noise: float, devices: str) -> Finding:
    if ratio.low is None or ratio.high is None:
        standing: Standing = "open"
        text = f"With {devices} the device time per output token cannot be compared: {ratio.reason}"
    else:
        standing = _STANDINGS.get(decide_effect(ratio, prepared.plan.thresholds, noise), "open")
        text = (
            f"With {devices} a token takes {describe(ratio)} times the baseline's device time over load "
            f"{load}; a gain needs less than {1 - prepared.plan.thresholds.minimum_gain:.2f}"
        )
    reason = Reason(code="device_time", text=f"{text}.", evidence="plan: arms")
    return Finding(standing=standing, reason=reason)
