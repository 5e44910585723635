"""What a run can know early of its own end: a pure function of host, client, periods and forecast.

Nothing foreign and a slow model is no finding. A run that cannot end well any more gets a warning with what
is wrong, in figures, and what helps; whatever else is odd is a note.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median

import msgspec

from draftproof.core.records import AcceleratorUse, BlockRecord, HostUse, Notice
from draftproof.judge.metrics.host_use import (
    foreign_cores,
    is_crowded,
    is_disturbed,
    join_uses,
    stolen_cores,
    taken_cores,
)
from draftproof.judge.observe.attempts import find_host_events
from draftproof.judge.observe.client_limits import LAGGED_PERIODS_LIMIT
from draftproof.judge.observe.observed import FORECAST
from draftproof.measure.run.progress_model import format_duration

# Others who stay for so long are no cron job. What is lost by waiting grows with what has been measured well.
NOTED_S, SUSTAINED_S, LONGEST_PATIENCE_S = 10.0, 45.0, 600.0
PATIENCE_SHARE = 0.1
# Of so many first periods of a load the client was fit for none: by chance, at a fifth, in one of a hundred.
FIRST_PERIODS = 3
DRIFT = 1.5
CLOCK_SHARE = 0.05
DECIDING = ("baseline", "candidate")


class PeriodSeen(msgspec.Struct, frozen=True, kw_only=True):
    """A measurement period that has ended: its record, what the client did beyond its limits, and its pace.

    `faults` in words. `tpot_ns`: median time per token of its answers, None where this process sees none.
    """

    record: BlockRecord
    faults: tuple[str, ...] = ()
    tpot_ns: float | None = None


class RunSeen(msgspec.Struct, frozen=True, kw_only=True):
    """What a run has seen so far.

    `slices`: the host in slices of some seconds while arms were warmed up or measured, the last ones in
    order. `well_s`: seconds so far in which nobody disturbed them. `planned`: periods of baseline and
    candidate by load. `serves_here`: an arm runs on this host. `hidden`: whose processes cannot be
    distinguished from those of others. `left_s`: the forecast, None until known.
    """

    slices: tuple[HostUse, ...] = ()
    well_s: float = 0.0
    periods: tuple[PeriodSeen, ...] = ()
    planned: Mapping[str, int] = {}
    lag_limit_ms: float = math.inf
    serves_here: bool = True
    hidden: tuple[str, ...] = ()
    left_s: float | None = None


def find_notices(seen: RunSeen) -> tuple[Notice, ...]:
    """Return what is to be said of a run as it stands, the gravest first."""
    found = [
        *_find_crowded(seen),
        *_find_unfit_client(seen),
        *_find_hidden(seen),
        *_find_drift(seen),
        *_find_accelerators(seen),
    ]
    return tuple(sorted(found, key=lambda one: one.severity != "cannot_end_well"))


def _find_crowded(seen: RunSeen) -> Iterator[Notice]:
    """Find that others take cores that are wanted here, now and without a pause until now."""
    crowded, disturbed = _last_stretch(seen.slices, is_crowded), _last_stretch(seen.slices, is_disturbed)
    patience_s = min(max(SUSTAINED_S, PATIENCE_SHARE * seen.well_s), LONGEST_PATIENCE_S)
    is_over = crowded is not None and crowded.span_s >= patience_s and seen.serves_here
    if is_over or (disturbed is not None and disturbed.span_s >= NOTED_S):
        use = crowded if is_over and crowded is not None else disturbed
        assert use is not None  # noqa: S101 - one of the two is there
        yield _describe_taken(use, seen, is_over=is_over)


def _describe_taken(use: HostUse, seen: RunSeen, *, is_over: bool) -> Notice:
    foreign, stolen = foreign_cores(use) or 0.0, stolen_cores(use)
    is_foreign = taken_cores(use) - stolen >= stolen
    if is_foreign:
        what = (
            f"other programs have used {foreign:.1f} of this host's {use.cores} cores for {use.span_s:.0f} s"
        )
        if use.pressure_s is not None:
            what += f", and threads waited for a core {min(use.pressure_s / use.span_s, 1):.0%} of the time"
        remedy = "stop them"
    else:
        what = (
            f"the hypervisor has taken {stolen:.1f} of this host's {use.cores} cores for {use.span_s:.0f} s"
        )
        remedy = "use a machine of your own, or cores that are reserved for it"
    return Notice(
        code="host_busy" if is_foreign else "host_stolen",
        severity="cannot_end_well" if is_over else "note",
        text=_sentence(f"{what}: what the arms need there, they do not get{_forecast(seen)}"),
        remedy=remedy,
    )


def _forecast(seen: RunSeen) -> str:
    if seen.left_s is None:
        return ""
    return f"{FORECAST} {format_duration(seen.left_s)} are left"


def _last_stretch(slices: Sequence[HostUse], is_so: Callable[[HostUse], bool]) -> HostUse | None:
    """Return the last slices, if others took so much in them, one in five apart."""
    length, misses, kept = 0, 0, 0
    for length, one in enumerate(reversed(slices), start=1):
        if is_so(one):
            kept = length
        else:
            misses += 1
        if misses > 1 + length // 5:
            break
    use = join_uses(slices[len(slices) - kept :])
    return use if use is not None and is_so(use) else None


def _find_unfit_client(seen: RunSeen) -> Iterator[Notice]:
    """Find loads of which too many periods have an unfit client already, whatever comes."""
    lost = {load: words for load in seen.planned if (words := _why_lost(seen, load))}
    if not lost:
        return
    is_over = len(lost) == len(seen.planned)
    yield Notice(
        code="client_late",
        severity="cannot_end_well" if is_over else "note",
        text=_sentence("; ".join(f"at load {load} {words}" for load, words in lost.items()))
        + (" No load can be judged any more." if is_over else ""),
        remedy="stop other work on this machine, raise limits.workers or lower the load, and measure anew",
    )


def _why_lost(seen: RunSeen, load: str) -> str | None:
    periods = [
        one
        for one in seen.periods
        if one.record.load == load and one.record.arm in DECIDING and not _is_disturbed_first(one, seen)
    ]
    unfit = [one for one in periods if one.faults]
    is_certain = len(unfit) > LAGGED_PERIODS_LIMIT * seen.planned[load]
    if not is_certain and not (len(unfit) == len(periods) >= FIRST_PERIODS):
        return None
    kinds = dict.fromkeys(words for one in unfit for words in one.faults)
    return (
        f"{', '.join(kinds)} in {len(unfit)} of {len(periods)} periods of baseline and candidate, and more "
        f"than {LAGGED_PERIODS_LIMIT:.0%} of {seen.planned[load]} are too many"
    )


def _is_disturbed_first(one: PeriodSeen, seen: RunSeen) -> bool:
    """Tell whether a period may be measured once more."""
    return one.record.attempt == 0 and bool(find_host_events([one.record], seen.lag_limit_ms))


def _find_hidden(seen: RunSeen) -> Iterator[Notice]:
    if seen.hidden:
        arms = ", ".join(seen.hidden)
        yield Notice(
            code="foreign_unknown",
            severity="note",
            text=f"The processes of {arms} cannot be told from those of others on this host, so that nobody "
            "watches whether other programs take its cores.",
            remedy="start them by a command of the plan, or run as the user who started them",
        )


def _find_drift(seen: RunSeen) -> Iterator[Notice]:
    """Find loads at which every arm's time per token has moved the same way since its first period."""
    for load, arms in _paces(seen).items():
        changes = [own[-1] / own[0] for own in arms.values() if len(own) > 1]
        if len(changes) < 2:
            continue
        if min(changes) > DRIFT or max(changes) < 1 / DRIFT:
            yield Notice(
                code="drift",
                severity="note",
                text=f"At load {load} time per token is {median(changes):.1f} times what it was in the first "
                f"period of each arm, in all {len(changes)} arms alike{_forecast(seen)}.",
                remedy="look for what has changed on the services' host: clocks, heat, other work",
            )


def _paces(seen: RunSeen) -> dict[str, dict[str, list[float]]]:
    found: defaultdict[str, defaultdict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for one in seen.periods:
        if one.tpot_ns is not None and one.record.completed:
            found[one.record.load][one.record.arm].append(one.tpot_ns)
    return {load: dict(arms) for load, arms in found.items()}


def _find_accelerators(seen: RunSeen) -> Iterator[Notice]:
    """Find accelerators that ran otherwise under one arm than under another."""
    for index, arms in sorted(_accelerators(seen).items()):
        words = [*_compare_clocks(arms), *_compare_limits(arms), *_tell_throttled(arms)]
        if words:
            yield Notice(
                code="accelerator",
                severity="note",
                text=_sentence(f"accelerator {index} {', and '.join(words)}"),
                remedy="lock its clocks (nvidia-smi -lgc) and its power limit, and see to its cooling",
            )


def _accelerators(seen: RunSeen) -> dict[int, dict[str, AcceleratorUse]]:
    """Return accelerator -> arm -> what it did over the arm's periods."""
    uses: defaultdict[str, list[HostUse]] = defaultdict(list)
    for one in seen.periods:
        if one.record.host is not None:
            uses[one.record.arm].append(one.record.host)
    found: defaultdict[int, dict[str, AcceleratorUse]] = defaultdict(dict)
    for arm, own in uses.items():
        joined = join_uses(own)
        for part in joined.accelerators if joined else ():
            found[part.index][arm] = part
    return dict(found)


def _compare_clocks(arms: Mapping[str, AcceleratorUse]) -> Iterator[str]:
    clocks = {arm: one.clock_mhz for arm, one in arms.items() if one.clock_mhz is not None}
    if clocks and max(clocks.values()) > (1 + CLOCK_SHARE) * min(clocks.values()):
        slow, fast = min(clocks, key=lambda arm: clocks[arm]), max(clocks, key=lambda arm: clocks[arm])
        hot = arms[slow].temperature_c
        heat = "" if hot is None else f" (up to {hot:.0f} °C)"
        yield f"ran at {clocks[slow]:,.0f} MHz under {slow}{heat} and at {clocks[fast]:,.0f} MHz under {fast}"


def _compare_limits(arms: Mapping[str, AcceleratorUse]) -> Iterator[str]:
    limits = {arm: one.power_limit_w for arm, one in arms.items() if one.power_limit_w is not None}
    if len(set(limits.values())) > 1:
        yield "had another power limit under each arm: " + ", ".join(
            f"{watts:.0f} W under {arm}" for arm, watts in limits.items()
        )


def _tell_throttled(arms: Mapping[str, AcceleratorUse]) -> Iterator[str]:
    slowed = [arm for arm, one in arms.items() if one.throttled]
    if slowed:
        yield f"was slowed down by heat or its supply under {', '.join(slowed)}"


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."
