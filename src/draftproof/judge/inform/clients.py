"""What the load client did in each arm at each load, and how the arm got to its steady state there. Pure.

Connecting is kept apart from sending: who needs long to accept a connection is the service. Definitions:
docs/metrics.md, "Load and capacity".
"""

import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from draftproof.core.records import BlockRecord, RequestRecord, Warmup
from draftproof.judge.metrics.phases import PeriodPhases, split_period
from draftproof.judge.metrics.service import percentile
from draftproof.judge.observe.client_limits import Pace, measure_pace, pool_paces, share_of_core
from draftproof.judge.observe.run_data import Observation, PeriodKey, PreparedRun
from draftproof.judge.observe.windows import UNCOUNTED, PeriodWindow
from draftproof.judge.results.inform import ArmUse, ClientUse, PhaseSummary


class _Sources(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one arm at one load; `connects` are of all its periods' requests, in ns."""

    arm: str
    load: str
    seen: list[Observation]
    blocks: list[BlockRecord]
    windows: list[PeriodWindow]
    connects: list[int]
    use: ArmUse | None


def summarise_clients(
    prepared: PreparedRun, windows: Iterable[PeriodWindow], uses: Iterable[ArmUse]
) -> tuple[ClientUse, ...]:
    """Return one row for every arm and load that has a period."""
    blocks: defaultdict[tuple[str, str], list[BlockRecord]] = defaultdict(list)
    for block in prepared.run.blocks:
        blocks[block.arm, block.load].append(block)
    stretches: defaultdict[tuple[str, str], list[PeriodWindow]] = defaultdict(list)
    for window in windows:
        stretches[window.arm, window.load].append(window)
    connects, by_arm = _collect_connects(prepared), {(one.arm, one.load): one for one in uses}
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
                use=by_arm.get((arm, load)),
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
    periods = [one for one in prepared.periods.values() if (one.arm, one.load) == (known.arm, known.load)]
    shares = [share for one in known.blocks if (share := share_of_core(one)) is not None]
    pace = _measure_pace(prepared, known)
    return ClientUse(
        arm=known.arm,
        load=known.load,
        periods=len(periods),
        unfit=sum(period.lagged for period in periods),
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
    """Return the pace over the counted part of periods that ran in one go, None in a closed loop."""
    if prepared.sizes[known.load].axis != "rate":
        return None
    parts: defaultdict[PeriodKey, int] = defaultdict(int)
    for block in known.blocks:
        parts[block.load, block.block, block.arm] += 1
    periods: defaultdict[PeriodKey, list[Observation]] = defaultdict(list)
    for one in known.seen:
        key = (one.record.load, one.record.block, one.record.arm)
        if one.record.conversation_turn == 0 and parts.get(key) == 1:
            periods[key].append(one)
    paces = [measure_pace(one.record for one in seen) for seen in periods.values()]
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


def _mean_in_flight(windows: Sequence[PeriodWindow]) -> float | None:
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


_LoadArm = tuple[str, str]  # load, arm


def summarise_phases(prepared: PreparedRun) -> tuple[PhaseSummary, ...]:
    """Return one row per load and arm, loads and arms in the order of the run."""
    warmups = _by_load_arm(prepared.run.warmups)
    asked = defaultdict[_LoadArm, int](int)
    for record in prepared.run.records:
        if record.phase == "warmup":
            asked[record.load, record.arm] += 1
    periods = _split_periods(prepared)
    return tuple(
        _summarise_phases(prepared, (load, arm), warmups[load, arm], asked[load, arm], periods[load, arm])
        for load in prepared.loads
        for arm in prepared.arms
    )


def warn_about_warmups(warmups: Iterable[Warmup]) -> Iterator[str]:
    """Yield a sentence where arms did not become stable before their counted requests."""
    restless = [one for one in warmups if not one.stable]
    if not restless:
        return
    named = "; ".join(
        f"{arm} at {load} ({_describe(found)})"
        for (load, arm), found in sorted(_by_load_arm(restless).items())
    )
    yield (
        f"The warm-up did not become stable: {named}. The first counted requests there may still belong to "
        "it. Look for what else runs on these machines, or raise limits.warmup_requests (steadier medians) "
        "or limits.warmup_max_s."
    )


def _describe(restless: Sequence[Warmup]) -> str:
    worst = max(restless, key=lambda one: -1.0 if one.change is None else one.change)
    times = f"{len(restless)} times, " if len(restless) > 1 else ""
    requests = f"{worst.requests} requests in {_seconds(worst):.1f} s"
    if worst.change is None:
        return f"{times}{requests}, too few answers to compare"
    return f"{times}{requests}, last change {worst.change:.0%} where {worst.tolerance:.0%} is allowed"


def _summarise_phases(
    prepared: PreparedRun,
    key: _LoadArm,
    warmups: Sequence[Warmup],
    asked: int,
    periods: Sequence[PeriodPhases],
) -> PhaseSummary:
    load, arm = key
    manifest = next((one for one in prepared.run.manifest.arms if one.arm == arm), None)
    warm = [one.metrics.ttft_ns for one in prepared.of_arm(arm, load) if one.is_ok and one.timed]
    changes = [one.change for one in warmups if one.change is not None]
    return PhaseSummary(
        arm=arm,
        load=load,
        load_time_s=manifest.load_time_s if manifest else None,
        cold_ttft_ns=manifest.cold.ttft_ns if manifest and manifest.cold else None,
        warmups=len(warmups),
        warmups_stable=sum(one.stable for one in warmups),
        warmup_requests=asked,
        warmup_s=sum(map(_seconds, warmups)) if warmups else None,
        warmup_change=max(changes, default=None),
        warmup_first_ttft_ns=_median(one.groups[0].ttft_ns for one in warmups if one.groups),
        warmup_last_ttft_ns=_median(one.groups[-1].ttft_ns for one in warmups if one.groups),
        periods=len(periods),
        ramp_ns=_median(one.ramp_ns for one in periods),
        steady_ns=sum(one.steady_ns for one in periods) if periods else None,
        drain_ns=_median(one.drain_ns for one in periods),
        warm_ttft_ns=_median(warm),
    )


def _split_periods(prepared: PreparedRun) -> defaultdict[_LoadArm, list[PeriodPhases]]:
    """Split the periods that ended in one piece: what a resumed one did between its parts is no phase."""
    parts = defaultdict[tuple[str, int, str], list[BlockRecord]](list)
    for block in prepared.run.blocks:
        parts[block.load, block.block, block.arm].append(block)
    counted = defaultdict[tuple[str, int, str], list[RequestRecord]](list)
    for seen in prepared.observations:
        counted[seen.record.load, seen.record.block, seen.record.arm].append(seen.record)
    found = defaultdict[_LoadArm, list[PeriodPhases]](list)
    for (load, number, arm), pieces in parts.items():
        phases = split_period(pieces[0], counted[load, number, arm])
        if len(pieces) == 1 and phases is not None:
            found[load, arm].append(phases)
    return found


def _by_load_arm(warmups: Iterable[Warmup]) -> defaultdict[_LoadArm, list[Warmup]]:
    found = defaultdict[_LoadArm, list[Warmup]](list)
    for one in sorted(warmups, key=lambda one: (one.load, one.arm, one.block, one.start, one.started_ns)):
        found[one.load, one.arm].append(one)
    return found


def _seconds(warmup: Warmup) -> float:
    return (warmup.ended_ns - warmup.started_ns) / 1e9


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None
