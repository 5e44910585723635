"""How much device time an arm took at a load, and what came of it, prompt by prompt. Pure.

Throughput counts over whole turns, failures included. Requests that only keep the load up take a part of
that time, which is taken off (`windows.py`). By Little's law the window is shared among prompts by the time
that their requests were in the service, which gives the interval over prompts.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from draftproof.plan.schema import Arm
from draftproof.stats.resampling import Floats, Ints
from draftproof.stats.totals import Totals, sum_by_place
from draftproof.verdict.conversations import group_conversations
from draftproof.verdict.run_data import PreparedRun
from draftproof.verdict.windows import TurnWindow, measure_windows

Place = tuple[str, str]  # arm, load


class DeviceTime(msgspec.Struct, frozen=True, kw_only=True):
    """One arm at one load.

    `tokens`, `good` and `conversations` have residence ns above and what came of it below, by prompt.

    `is_whole` is False where turns are left out, since their times do not count. `seconds_per_ns` turns
    residence into device seconds, None where the turns' times are not known.
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
    prepared: PreparedRun, windows: Sequence[TurnWindow] | None = None
) -> dict[Place, DeviceTime]:
    """Return every arm at every load; turns whose times do not count are left out with their time.

    Args:
        prepared: the run.
        windows: the counted stretches of its turns; None: they are measured here.
    """
    kept = _group_windows(prepared, measure_windows(prepared) if windows is None else windows)
    partly = {(turn.arm, turn.load) for turn in prepared.turns.values() if not turn.is_timed}
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
    place: Place,
    windows: Sequence[TurnWindow],
    *,
    is_whole: bool,
) -> DeviceTime:
    columns, places = prepared.columns, prepared.places_of(*place)
    places = places[columns.timed[places]]
    residence = columns.residence_ns[places].astype(np.float64)
    tokens = np.nan_to_num(columns.metric("output_tokens")[places])
    on_time, passed = columns.on_time(prepared.plan.objectives)[places], columns.passed[places]
    good = (on_time == 1) & (passed != 0)
    devices = _arm_of(prepared, place[0]).devices
    whole = float(columns.residence_ns[places].sum())
    share = _measured_share(windows)
    window_s = _sum_lengths(windows) / 1e9 * share if share is not None else None
    found = group_conversations(columns, places)
    completed = found.is_completed & (found.all_of(good.astype(np.float64)) == 1)

    def total(above: Floats, below: npt.NDArray[Any], chosen: Ints) -> Totals:
        return sum_by_place(above, below, columns.prompts[chosen], columns.prompt_names)

    return DeviceTime(
        devices=devices,
        is_whole=is_whole,
        window_s=window_s,
        measured_share=share,
        attempted=len(places),
        good_requests=int(good.sum()),
        unchecked=int((good & np.isnan(passed)).sum()),
        output_tokens=int(tokens.sum()),
        on_time=int((on_time == 1).sum()),
        judged=int((~np.isnan(on_time)).sum()),
        tokens=total(residence, tokens, places),
        good=total(residence, good, places),
        conversations=total(
            np.bincount(found.owners, weights=residence).astype(np.float64), completed, found.first
        ),
        completed_conversations=int(completed.sum()),
        seconds_per_ns=window_s * devices / whole if window_s is not None and whole > 0 else None,
    )


def _measured_share(windows: Sequence[TurnWindow]) -> float | None:
    """Return the part of the windows that the counted requests fill, at most 1."""
    length_ns = _sum_lengths(windows)
    return min(sum(one.filled_ns for one in windows) / length_ns, 1.0) if length_ns else None


def _sum_lengths(windows: Sequence[TurnWindow]) -> int:
    return sum(one.length_ns for one in windows)


def _group_windows(prepared: PreparedRun, windows: Sequence[TurnWindow]) -> Mapping[Place, list[TurnWindow]]:
    found: defaultdict[Place, list[TurnWindow]] = defaultdict(list)
    for one in windows:
        turn = prepared.turns.get((one.load, one.block, one.arm))
        if turn is not None and turn.is_timed:
            found[one.arm, one.load].append(one)
    return found


def _arm_of(prepared: PreparedRun, arm: str) -> Arm:
    """Return an arm of the plan; the second baseline is the baseline once more."""
    arms = prepared.plan.arms
    return {"candidate": arms.candidate, "alternative": arms.alternative}.get(arm) or arms.baseline
