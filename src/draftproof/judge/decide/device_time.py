"""Device time per output token: the wall time of an arm's periods times its devices.

Eight devices answer faster than one, which is no gain of a method: for arms with other numbers of devices it
decides beside the time of answers.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from draftproof.judge.decide.cells import decide_effect
from draftproof.judge.decide.effects import CellKey
from draftproof.judge.decide.guardrails import GuardrailFinding, GuardrailOutcome
from draftproof.judge.observe.pairs import group_conversations
from draftproof.judge.observe.run_data import PreparedRun
from draftproof.judge.observe.windows import PeriodWindow, measure_windows
from draftproof.judge.results.decide import Figure, Reference, as_figure, describe
from draftproof.judge.results.inform import ServiceUse
from draftproof.judge.results.run import CellStatus, Difference, Reason
from draftproof.judge.stats.bootstrap import null_difference
from draftproof.judge.stats.quantiles import normal_quantile
from draftproof.judge.stats.resampling import Floats, Ints
from draftproof.judge.stats.totals import Totals, ratio_of_ratios, sum_by_index
from draftproof.plan.limits import list_budgets
from draftproof.plan.schema import Arm
from draftproof.plan.tables import Prices

ArmLoad = tuple[str, str]  # arm, load
NO_WINDOW = "no period of it has a recorded time and a client that kept up"


class DeviceTime(msgspec.Struct, frozen=True, kw_only=True):
    """One arm at one load.

    `tokens`, `good` and `conversations` have residence ns above and what came of it below, by prompt.

    `is_whole` is False where periods are left out, since their times do not count. `seconds_per_ns` periods
    residence into device seconds, None where the periods' times are not known.
    """

    devices: int
    is_whole: bool
    window_s: float | None
    measured_share: float | None
    attempted: int
    good_requests: int
    unchecked: int
    output_tokens: int
    on_time: int
    judged: int
    tokens: Totals
    good: Totals
    conversations: Totals
    completed_conversations: int
    seconds_per_ns: float | None


def measure_device_time(
    prepared: PreparedRun, windows: Sequence[PeriodWindow] | None = None
) -> dict[ArmLoad, DeviceTime]:
    """Return every arm at every load; periods whose times do not count are left out with their time.

    Args:
        prepared: the run.
        windows: the counted stretches of its periods; None: they are measured here.
    """
    kept = _group_windows(prepared, measure_windows(prepared) if windows is None else windows)
    partly = {(period.arm, period.load) for period in prepared.periods.values() if not period.is_timed}
    return {
        (arm, load): _measure(
            prepared,
            (arm, load),
            kept.get((arm, load), ()),
            is_whole=(arm, load) not in partly,
        )
        for arm in prepared.arms
        for load in prepared.loads
    }


def _measure(
    prepared: PreparedRun,
    arm_load: ArmLoad,
    windows: Sequence[PeriodWindow],
    *,
    is_whole: bool,
) -> DeviceTime:
    columns, indices = prepared.columns, prepared.indices_of(*arm_load)
    indices = indices[columns.timed[indices]]
    residence = columns.residence_ns[indices].astype(np.float64)
    tokens = np.nan_to_num(columns.metric("output_tokens")[indices])
    on_time, passed = columns.on_time(prepared.plan.objectives)[indices], columns.passed[indices]
    good = (on_time == 1) & (passed != 0)
    devices = _arm_of(prepared, arm_load[0]).devices
    whole = float(columns.residence_ns[indices].sum())
    share = _measured_share(windows)
    window_s = _sum_lengths(windows) / 1e9 * share if share is not None else None
    found = group_conversations(columns, indices)
    completed = found.is_completed & (found.all_of(good.astype(np.float64)) == 1)

    def total(above: Floats, below: npt.NDArray[Any], chosen: Ints) -> Totals:
        return sum_by_index(above, below, columns.prompts[chosen], columns.prompt_names)

    return DeviceTime(
        devices=devices,
        is_whole=is_whole,
        window_s=window_s,
        measured_share=share,
        attempted=len(indices),
        good_requests=int(good.sum()),
        unchecked=int((good & np.isnan(passed)).sum()),
        output_tokens=int(tokens.sum()),
        on_time=int((on_time == 1).sum()),
        judged=int((~np.isnan(on_time)).sum()),
        tokens=total(residence, tokens, indices),
        good=total(residence, good, indices),
        conversations=total(
            np.bincount(found.owners, weights=residence).astype(np.float64), completed, found.first
        ),
        completed_conversations=int(completed.sum()),
        seconds_per_ns=window_s * devices / whole if window_s is not None and whole > 0 else None,
    )


def _measured_share(windows: Sequence[PeriodWindow]) -> float | None:
    """Return the part of the windows that the counted requests fill, at most 1."""
    length_ns = _sum_lengths(windows)
    return min(sum(one.filled_ns for one in windows) / length_ns, 1.0) if length_ns else None


def _sum_lengths(windows: Sequence[PeriodWindow]) -> int:
    return sum(one.length_ns for one in windows)


def _group_windows(
    prepared: PreparedRun, windows: Sequence[PeriodWindow]
) -> Mapping[ArmLoad, list[PeriodWindow]]:
    found: defaultdict[ArmLoad, list[PeriodWindow]] = defaultdict(list)
    for one in windows:
        period = prepared.periods.get((one.load, one.block, one.arm))
        if period is not None and period.is_timed:
            found[one.arm, one.load].append(one)
    return found


def _arm_of(prepared: PreparedRun, arm: str) -> Arm:
    """Return an arm of the plan; the second baseline is the baseline once more."""
    arms = prepared.plan.arms
    return {"candidate": arms.candidate, "alternative": arms.alternative}.get(arm) or arms.baseline


LATE = (
    "the load client was late in periods of one of the arms, or the host disturbed them, so they "
    "do not compare"
)


INVALID = "the cells of the load are invalid, so its arms do not compare"


Differences = Mapping[tuple[str, str, str, str, str], Difference]


class Books(msgspec.Struct, frozen=True, kw_only=True):
    """What the accounts of a run are made from."""

    prepared: PreparedRun
    times: dict[ArmLoad, DeviceTime]
    services: Mapping[ArmLoad, ServiceUse]
    differences: Differences
    invalid: frozenset[str] = frozenset()  # loads whose cells are invalid

    @property
    def prices(self) -> Prices:
        """The plan's prices."""
        return self.prepared.plan.prices

    @property
    def level(self) -> float:
        """The plan's confidence."""
        return self.prepared.plan.comparison.confidence

    @property
    def joint_level(self) -> float:
        """The level of each of two intervals that hold together with the plan's confidence."""
        return 1 - (1 - self.level) / 2

    @property
    def floor(self) -> int:
        """Prompts that an interval needs."""
        return self.prepared.plan.comparison.minimum_prompts


def compare_device_time(prepared: PreparedRun, arm: str, versus: str) -> dict[str, tuple[Figure, float]]:
    """Return load -> device time per output token, arm / versus, and the ratio of two equal arms there."""
    books = Books(prepared=prepared, times=measure_device_time(prepared), services={}, differences={})
    return {
        load: (
            compare_unit_time(books, (arm, load), (versus, load), of_good=False),
            null_of_loads(books, [load]) or 1.0,
        )
        for load in prepared.loads
    }


def null_of_loads(books: Books, loads: Iterable[str]) -> float | None:
    """Return the larger null difference of device time per token at these loads, 1 or more."""
    found = []
    for load in dict.fromkeys(loads):
        null, baseline = ("baseline_null", load), ("baseline", load)
        if null not in books.times or baseline not in books.times:
            return None
        ratio = compare_unit_time(books, null, baseline, of_good=False)
        if not ratio.value:
            return None
        found.append(null_difference(ratio.value, _error_of(ratio)))
    return max(found, default=None)


def _error_of(ratio: Figure) -> float | None:
    """Return the standard error of the log ratio that half of an interval's width stands for."""
    if not ratio.low or not ratio.high or ratio.level is None:
        return None
    return math.log(ratio.high / ratio.low) / 2 / normal_quantile(0.5 + ratio.level / 2)


def compare_unit_time(
    books: Books, arm_load: ArmLoad, against: ArmLoad, *, of_good: bool, joint: bool = False
) -> Figure:
    """Return arm / versus of device time per unit, paired by prompt."""
    time, other = books.times[arm_load], books.times[against]
    if not time.is_whole or not other.is_whole:
        return Figure(value=None, reason=LATE)
    if books.invalid & {arm_load[1], against[1]}:
        return Figure(value=None, reason=INVALID)
    if not time.seconds_per_ns or not other.seconds_per_ns:
        return Figure(value=None, reason=NO_WINDOW)
    scale = time.seconds_per_ns / other.seconds_per_ns
    found = ratio_of_ratios(
        time.good if of_good else time.tokens,
        other.good if of_good else other.tokens,
        level=books.joint_level if joint else books.level,
        minimum_clusters=books.floor,
    )
    return transform_figure(as_figure(found), lambda value: value * scale)


def transform_figure(figure: Figure, change: Callable[[float], float]) -> Figure:
    """Return the figure with its value and limits changed by one monotone function."""
    low, value, high = (
        None if one is None else change(one) for one in (figure.low, figure.value, figure.high)
    )
    return msgspec.structs.replace(figure, low=low, value=value, high=high)


# What device time says of a cell by its interval; without a gain of its own it withholds one.
_STANDINGS: dict[CellStatus, GuardrailOutcome] = {
    "gain": "held",
    "harm": "violated",
    "neutral": "shifted",
    "no_gain": "shifted",
}


def evaluate_budgets(prepared: PreparedRun) -> Mapping[CellKey, tuple[GuardrailFinding, ...]]:
    """Return, by cell, the state of device time per output token; none where the budgets are equal."""
    budgets = list_budgets(prepared.plan)
    mine, theirs = budgets["candidate"], budgets["baseline"]
    if mine == theirs:
        return {}
    found = compare_device_time(prepared, "candidate", "baseline")
    return {
        (segment, load): (_evaluate(prepared, load, ratio, null, f"{mine} devices against {theirs}"),)
        for load, (ratio, null) in found.items()
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


def _evaluate(prepared: PreparedRun, load: str, ratio: Figure, null: float, devices: str) -> GuardrailFinding:
    if ratio.low is None or ratio.high is None:
        standing: GuardrailOutcome = "open"
        text = f"With {devices} the device time per output token cannot be compared: {ratio.reason}"
    else:
        standing = _STANDINGS.get(decide_effect(ratio, prepared.plan.thresholds, null), "open")
        text = (
            f"With {devices} a token takes {describe(ratio)} times the baseline's device time over load "
            f"{load}; a gain needs less than {1 - prepared.plan.thresholds.minimum_gain:.2f}"
        )
    reason = Reason(code="device_time", text=f"{text}.", evidence=Reference("plan", name="arms"))
    return GuardrailFinding(standing=standing, reason=reason)
