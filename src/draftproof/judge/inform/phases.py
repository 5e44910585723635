"""How each arm got to its steady state at each load, and warm-ups that did not get there. Pure."""

import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from draftproof.core.records import BlockRecord, RequestRecord, Warmup
from draftproof.judge.metrics.phases import TurnPhases, split_turn
from draftproof.judge.observe.run_data import PreparedRun
from draftproof.judge.results.services import PhaseSummary

_Place = tuple[str, str]  # load, arm


def summarise_phases(prepared: PreparedRun) -> tuple[PhaseSummary, ...]:
    """Return one row per load and arm, loads and arms in the order of the run."""
    warmups = _by_place(prepared.run.warmups)
    asked = defaultdict[_Place, int](int)
    for record in prepared.run.records:
        if record.phase == "warmup":
            asked[record.load, record.arm] += 1
    turns = _split_turns(prepared)
    return tuple(
        _summarise(prepared, (load, arm), warmups[load, arm], asked[load, arm], turns[load, arm])
        for load in prepared.loads
        for arm in prepared.arms
    )


def warn_about_warmups(warmups: Iterable[Warmup]) -> Iterator[str]:
    """Yield a sentence where arms did not become stable before their counted requests."""
    restless = [one for one in warmups if not one.stable]
    if not restless:
        return
    named = "; ".join(
        f"{arm} at {load} ({_describe(found)})" for (load, arm), found in sorted(_by_place(restless).items())
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


def _summarise(
    prepared: PreparedRun,
    place: _Place,
    warmups: Sequence[Warmup],
    asked: int,
    turns: Sequence[TurnPhases],
) -> PhaseSummary:
    load, arm = place
    told = next((one for one in prepared.run.manifest.arms if one.arm == arm), None)
    warm = [one.metrics.ttft_ns for one in prepared.of_arm(arm, load) if one.is_ok and one.timed]
    changes = [one.change for one in warmups if one.change is not None]
    return PhaseSummary(
        arm=arm,
        load=load,
        load_time_s=told.load_time_s if told else None,
        cold_ttft_ns=told.cold.ttft_ns if told and told.cold else None,
        warmups=len(warmups),
        warmups_stable=sum(one.stable for one in warmups),
        warmup_requests=asked,
        warmup_s=sum(map(_seconds, warmups)) if warmups else None,
        warmup_change=max(changes, default=None),
        warmup_first_ttft_ns=_median(one.groups[0].ttft_ns for one in warmups if one.groups),
        warmup_last_ttft_ns=_median(one.groups[-1].ttft_ns for one in warmups if one.groups),
        turns=len(turns),
        ramp_ns=_median(one.ramp_ns for one in turns),
        steady_ns=sum(one.steady_ns for one in turns) if turns else None,
        drain_ns=_median(one.drain_ns for one in turns),
        warm_ttft_ns=_median(warm),
    )


def _split_turns(prepared: PreparedRun) -> defaultdict[_Place, list[TurnPhases]]:
    """Split the turns that ended in one piece: what a resumed one did between its parts is no phase."""
    parts = defaultdict[tuple[str, int, str], list[BlockRecord]](list)
    for block in prepared.run.blocks:
        parts[block.load, block.block, block.arm].append(block)
    counted = defaultdict[tuple[str, int, str], list[RequestRecord]](list)
    for seen in prepared.observations:
        counted[seen.record.load, seen.record.block, seen.record.arm].append(seen.record)
    found = defaultdict[_Place, list[TurnPhases]](list)
    for (load, number, arm), pieces in parts.items():
        phases = split_turn(pieces[0], counted[load, number, arm])
        if len(pieces) == 1 and phases is not None:
            found[load, arm].append(phases)
    return found


def _by_place(warmups: Iterable[Warmup]) -> defaultdict[_Place, list[Warmup]]:
    found = defaultdict[_Place, list[Warmup]](list)
    for one in sorted(warmups, key=lambda one: (one.load, one.arm, one.block, one.start, one.started_ns)):
        found[one.load, one.arm].append(one)
    return found


def _seconds(warmup: Warmup) -> float:
    return (warmup.ended_ns - warmup.started_ns) / 1e9


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None
