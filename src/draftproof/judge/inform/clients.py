"""What the load client did in each arm at each load (docs/metrics.md, "Load and capacity"). Pure.

Connecting is kept apart from sending: who needs long to accept a connection is the service.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence

import msgspec

from draftproof.core.records import BlockRecord
from draftproof.judge.metrics.service import percentile
from draftproof.judge.observe.client_limits import Pace, measure_pace, pool_paces, share_of_core
from draftproof.judge.observe.run_data import Observation, PreparedRun, TurnKey
from draftproof.judge.observe.windows import UNCOUNTED, TurnWindow
from draftproof.judge.results.economics import ArmUse
from draftproof.judge.results.services import ClientUse


class _Sources(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one arm at one load; `connects` are of all its turns' requests, in ns."""

    arm: str
    load: str
    seen: list[Observation]
    blocks: list[BlockRecord]
    windows: list[TurnWindow]
    connects: list[int]
    use: ArmUse | None


def summarise_clients(
    prepared: PreparedRun, windows: Iterable[TurnWindow], uses: Iterable[ArmUse]
) -> tuple[ClientUse, ...]:
    """Return one row for every arm and load that has a turn."""
    blocks: defaultdict[tuple[str, str], list[BlockRecord]] = defaultdict(list)
    for block in prepared.run.blocks:
        blocks[block.arm, block.load].append(block)
    stretches: defaultdict[tuple[str, str], list[TurnWindow]] = defaultdict(list)
    for window in windows:
        stretches[window.arm, window.load].append(window)
    connects, by_place = _collect_connects(prepared), {(one.arm, one.load): one for one in uses}
    return tuple(
        _summarise(
            prepared,
            _Sources(
                arm=arm,
                load=load,
                seen=prepared.of_arm(arm, load),
                blocks=blocks[arm, load],
                windows=stretches[arm, load],
                connects=connects[arm, load],
                use=by_place.get((arm, load)),
            ),
        )
        for load in prepared.loads
        for arm in prepared.arms
        if (arm, load) in blocks
    )


def _collect_connects(prepared: PreparedRun) -> defaultdict[tuple[str, str], list[int]]:
    found: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
    for record in prepared.run.records:
        if record.connect_ns is not None and (record.phase == "measure" or record.phase in UNCOUNTED):
            found[record.arm, record.load].append(record.connect_ns)
    return found


def _summarise(prepared: PreparedRun, known: _Sources) -> ClientUse:
    turns = [one for one in prepared.turns.values() if (one.arm, one.load) == (known.arm, known.load)]
    shares = [share for one in known.blocks if (share := share_of_core(one)) is not None]
    pace = _measure_pace(prepared, known)
    return ClientUse(
        arm=known.arm,
        load=known.load,
        turns=len(turns),
        unfit=sum(turn.lagged for turn in turns),
        offered_rps=pace.offered_rps if pace else prepared.sizes[known.load].offered_rps,
        achieved_rps=pace.achieved_rps if pace else None,
        on_time_share=known.use.on_time_share if known.use else None,
        goodput_rps=_goodput_rps(known, pace),
        in_flight_mean=_mean_in_flight(known.windows),
        in_flight_max=_most(one.in_flight_max for one in known.blocks),
        send_lag_p99_ns=percentile(_send_lags(known.seen), 0.99),
        connections=len(known.connects),
        connect_p50_ns=percentile(known.connects, 0.50),
        connect_max_ns=max(known.connects, default=None),
        lag_max_ns=_most(one.event_loop_lag_max_ns for one in known.blocks),
        gc_pause_max_ns=_most(one.gc_pause_max_ns for one in known.blocks),
        core_share=max(shares, default=None),
        workers=max(one.workers for one in known.blocks),
    )


def _measure_pace(prepared: PreparedRun, known: _Sources) -> Pace | None:
    """Return the pace over the counted part of turns that ran in one go, None in a closed loop."""
    if prepared.sizes[known.load].axis != "rate":
        return None
    parts: defaultdict[TurnKey, int] = defaultdict(int)
    for block in known.blocks:
        parts[block.load, block.block, block.arm] += 1
    turns: defaultdict[TurnKey, list[Observation]] = defaultdict(list)
    for one in known.seen:
        key = (one.record.load, one.record.block, one.record.arm)
        if one.record.conversation_turn == 0 and parts.get(key) == 1:
            turns[key].append(one)
    paces = [measure_pace(one.record for one in seen) for seen in turns.values()]
    return pool_paces(pace for pace in paces if pace is not None)


def _goodput_rps(known: _Sources, pace: Pace | None) -> float | None:
    """Return good requests per second: of the time over which they came, else of the window that they filled.

    In an open loop good and offered requests so count over the same time, and one is a share of the other.
    """
    use = known.use
    if use is None:
        return None
    if pace is None:
        return use.good / use.window_s if use.window_s else None
    openings = sum(one.timed and one.record.conversation_turn == 0 for one in known.seen)
    return use.good * pace.offered_rps / openings if openings else None


def _mean_in_flight(windows: Sequence[TurnWindow]) -> float | None:
    length_ns = sum(one.length_ns for one in windows)
    return sum(one.all_ns for one in windows) / length_ns if length_ns else None


def _send_lags(seen: Iterable[Observation]) -> list[float]:
    records = [one.record for one in seen]
    return [
        float(max(one.sent_ns - one.scheduled_ns - (one.connect_ns or 0), 0))
        for one in records
        if one.sent_ns is not None
    ]


def _most(values: Iterable[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)
