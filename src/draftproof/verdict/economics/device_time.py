"""How much device time an arm took at a load, and what came of it, prompt by prompt. Pure.

Throughput counts over whole turns, failures included. Requests that only keep the load up take a part of
that time, which is taken off by Little's law: the summed time of all requests is window × requests in flight.
In a closed loop without thought that number is known, its concurrency; in any other loop the sum is taken
over all requests of the turn. The same law shares the window among prompts, by the time that their requests
were in the service, which gives the interval over prompts.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from draftproof.metrics.service import is_on_time
from draftproof.plan.schema import Arm
from draftproof.stats.totals import Totals, sum_by_cluster
from draftproof.verdict.run_data import Observation, PreparedRun
from draftproof.verdict.windows import TurnWindow, measure_windows

Place = tuple[str, str]  # arm, load


class DeviceTime(msgspec.Struct, frozen=True, kw_only=True):
    """One arm at one load.

    `tokens`, `good` and `conversations` have residence ns above and what came of it below, by prompt.

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
    conversations: Totals
    completed_conversations: int
    seconds_per_ns: float | None


def measure_device_time(
    prepared: PreparedRun, windows: Sequence[TurnWindow] | None = None
) -> dict[Place, DeviceTime]:
    """Return every arm at every load, turns with an unfit client left out with their time.

    Args:
        prepared: the run.
        windows: the counted stretches of its turns; None: they are measured here.
    """
    seen = _group_measured(prepared)
    kept = _group_windows(prepared, measure_windows(prepared) if windows is None else windows)
    late = {(turn.arm, turn.load) for turn in prepared.turns.values() if turn.lagged}
    return {
        (arm, load): _measure(
            prepared,
            (arm, load),
            seen.get((arm, load), ()),
            kept.get((arm, load), ()),
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
    windows: Sequence[TurnWindow],
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
    share = _measured_share(prepared, place[1], whole, windows)
    window_s = _sum_lengths(windows) / 1e9 * share if share is not None else None
    conversations = _group_conversations(seen, residence, good)
    completed = [one.is_good for one in conversations]
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
        conversations=sum_by_cluster(
            [one.residence_ns for one in conversations],
            [float(one) for one in completed],
            [one.item_id for one in conversations],
        ),
        completed_conversations=sum(completed),
        seconds_per_ns=window_s * devices / whole if window_s is not None and whole > 0 else None,
    )


def _tokens_of(one: Observation) -> int:
    """Return the tokens that were of use: those of answered requests."""
    return (one.metrics.output_tokens or 0) if one.is_ok else 0


def _measured_share(
    prepared: PreparedRun, load: str, residence_ns: float, windows: Sequence[TurnWindow]
) -> float | None:
    """Return the part of the windows that the counted requests fill, at most 1."""
    length_ns, level = _sum_lengths(windows), prepared.level(load)
    if not length_ns:
        return None
    if level.concurrency is not None and not level.think_s:
        return min(residence_ns / (length_ns * level.concurrency), 1.0)
    return min(sum(one.filled_ns for one in windows) / length_ns, 1.0)


def _sum_lengths(windows: Sequence[TurnWindow]) -> int:
    return sum(one.length_ns for one in windows)


class _Conversation(NamedTuple):
    """One conversation: the time its turns spent in the service, and whether each was asked and is good."""

    item_id: str
    residence_ns: float
    is_good: bool


def _group_conversations(
    seen: Sequence[Observation], residence: Sequence[float], good: Sequence[bool]
) -> list[_Conversation]:
    found: defaultdict[tuple[int, int, str], list[int]] = defaultdict(list)
    for index, one in enumerate(seen):
        found[one.record.block, one.record.repeat, one.record.item_id].append(index)
    return [
        _Conversation(
            item_id=key[2],
            residence_ns=sum(residence[index] for index in turns),
            is_good=all(good[index] for index in turns)
            and len({seen[index].record.conversation_turn for index in turns}) == seen[turns[0]].item.turns,
        )
        for key, turns in found.items()
    ]


def _group_measured(prepared: PreparedRun) -> Mapping[Place, list[Observation]]:
    found: defaultdict[Place, list[Observation]] = defaultdict(list)
    for one in prepared.observations:
        if one.timed:
            found[one.record.arm, one.record.load].append(one)
    return found


def _group_windows(prepared: PreparedRun, windows: Sequence[TurnWindow]) -> Mapping[Place, list[TurnWindow]]:
    found: defaultdict[Place, list[TurnWindow]] = defaultdict(list)
    for one in windows:
        turn = prepared.turns.get((one.load, one.block, one.arm))
        if turn is not None and not turn.lagged:
            found[one.arm, one.load].append(one)
    return found


def _arm_of(prepared: PreparedRun, arm: str) -> Arm:
    """Return an arm of the plan; the second baseline is the baseline once more."""
    arms = prepared.plan.arms
    return {"candidate": arms.candidate, "alternative": arms.alternative}.get(arm) or arms.baseline
