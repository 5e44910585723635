"""How much device time an arm took at a load, and what came of it, prompt by prompt. Pure.

Throughput counts over whole turns, failures included. Requests that only keep the load up take a part of
that time: in a closed loop the summed time of all requests is window × concurrency (Little's law), so what
the counted requests do not fill of it is taken off. The same law shares the window among prompts, by the
time that their requests were in the service, which gives the interval over prompts.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence

import msgspec

from draftproof.metrics.service import is_on_time
from draftproof.plan.schema import Arm
from draftproof.stats.totals import Totals, sum_by_cluster
from draftproof.verdict.run_data import Observation, PreparedRun

Place = tuple[str, str]  # arm, load


class DeviceTime(msgspec.Struct, frozen=True, kw_only=True):
    """One arm at one load. `tokens` and `good` have residence ns above and what came of it below, by prompt.

    `is_whole` is False where turns with a late client are left out. `seconds_per_ns` turns residence into
    device seconds, None where the turns' times are not known.
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
    seconds_per_ns: float | None


def measure_device_time(prepared: PreparedRun) -> dict[Place, DeviceTime]:
    """Return every arm at every load, turns with a late client left out with their time."""
    seen, windows = _group_measured(prepared), _sum_windows(prepared)
    late = {(turn.arm, turn.load) for turn in prepared.turns.values() if turn.lagged}
    return {
        (arm, load): _measure(
            prepared,
            (arm, load),
            seen.get((arm, load), ()),
            windows.get((arm, load)),
            is_whole=(arm, load) not in late,
        )
        for arm in prepared.arms
        for load in prepared.loads
    }


def is_good(prepared: PreparedRun, one: Observation) -> bool:
    """Return whether a request was answered within every objective and failed no check."""
    on_time = is_on_time(one.record, one.metrics, prepared.plan.objectives)
    return on_time is True and one.is_passed is not False


def _measure(
    prepared: PreparedRun,
    place: Place,
    seen: Sequence[Observation],
    window_ns: int | None,
    *,
    is_whole: bool,
) -> DeviceTime:
    items = [one.record.item_id for one in seen]
    residence = [float(one.record.end_ns - one.record.scheduled_ns) for one in seen]
    tokens = [_tokens_of(one) for one in seen]
    good = [is_good(prepared, one) for one in seen]
    on_time = [is_on_time(one.record, one.metrics, prepared.plan.objectives) for one in seen]
    devices = _arm_of(prepared, place[0]).devices
    whole = sum(residence)
    share = _measured_share(prepared, place[1], whole, window_ns)
    window_s = window_ns / 1e9 * share if window_ns and share is not None else None
    return DeviceTime(
        devices=devices,
        is_whole=is_whole,
        window_s=window_s,
        measured_share=share,
        attempted=len(seen),
        good_requests=sum(good),
        unchecked=sum(fine and one.is_passed is None for fine, one in zip(good, seen, strict=True)),
        output_tokens=sum(tokens),
        on_time=on_time.count(True),
        judged=len(on_time) - on_time.count(None),
        tokens=sum_by_cluster(residence, [float(one) for one in tokens], items),
        good=sum_by_cluster(residence, [float(one) for one in good], items),
        seconds_per_ns=window_s * devices / whole if window_s is not None and whole > 0 else None,
    )


def _tokens_of(one: Observation) -> int:
    """Return the tokens that were of use: those of answered requests."""
    return (one.metrics.output_tokens or 0) if one.is_ok else 0


def _measured_share(
    prepared: PreparedRun, load: str, residence_ns: float, window_ns: int | None
) -> float | None:
    """Return the part of the window that the counted requests fill, at most 1."""
    if not window_ns:
        return None
    return min(residence_ns / (window_ns * prepared.concurrency(load)), 1.0)


def _group_measured(prepared: PreparedRun) -> Mapping[Place, list[Observation]]:
    found: defaultdict[Place, list[Observation]] = defaultdict(list)
    for one in prepared.observations:
        if one.timed:
            found[one.record.arm, one.record.load].append(one)
    return found


def _sum_windows(prepared: PreparedRun) -> dict[Place, int]:
    total: defaultdict[Place, int] = defaultdict(int)
    for block in prepared.run.blocks:
        turn = prepared.turns.get((block.load, block.block, block.arm))
        if turn is not None and not turn.lagged:
            total[block.arm, block.load] += block.ended_ns - block.started_ns
    return {place: window for place, window in total.items() if window > 0}


def _arm_of(prepared: PreparedRun, arm: str) -> Arm:
    """Return an arm of the plan; the second baseline is the baseline once more."""
    arms = prepared.plan.arms
    return {"candidate": arms.candidate, "alternative": arms.alternative}.get(arm) or arms.baseline
