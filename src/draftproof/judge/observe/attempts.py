"""What the host did to a period, by the evidence stored with it, and which attempt at the period counts.

An arm's own latency is no evidence: a candidate that stalls by itself would lose its slow periods and be
judged by the rest. A late client is evidence only where our own processes did not fill the host. Both
attempts stay in the record. Whether one arm was disturbed more often than the others is tested, since chance
does not know arms.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec
import scipy

from draftproof.core.clock import NS_PER_MS, NS_PER_S
from draftproof.core.records import BlockRecord, HostUse, Notice, RequestRecord, TelemetrySample
from draftproof.judge.metrics.host_use import (
    find_throttled,
    foreign_cores,
    is_disturbed,
    is_filled_by_own,
    join_uses,
    stolen_cores,
    taken_cores,
)
from draftproof.judge.observe.client_limits import LAGGED_PERIODS_LIMIT
from draftproof.judge.observe.observed import PeriodKey, RunData, lower_first, read_notice
from draftproof.judge.results.decide import Reference
from draftproof.judge.results.run import Reason
from draftproof.judge.stats.permutation import holm_adjusted

_LEAST_NAMED_CORES = 0.05  # beside what others took, less is written as none
EventKind = Literal["foreign", "stolen", "late", "slept", "throttled"]


class HostEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that the host did to a period.

    `amount`: cores (foreign, stolen), ms (late), seconds (slept), index of the accelerator (throttled).
    """

    kind: EventKind
    amount: float

    def __str__(self) -> str:
        return _WORDS[self.kind].format(self.amount)


_WORDS: dict[EventKind, str] = {
    "foreign": "other programs used {:.1f} cores",
    "stolen": "the hypervisor took {:.1f} cores",
    "late": "the client was {:,.0f} ms late",
    "slept": "the host slept for {:.1f} s",
    "throttled": "heat or its supply slowed accelerator {:.0f} down",
}


def find_host_events(parts: Sequence[BlockRecord], lag_limit_ms: float) -> tuple[HostEvent, ...]:
    """Return what the host did to one period, of which `parts` are the records; none where it was quiet."""
    use = join_uses([one.host for one in parts if one.host is not None])
    return (*(_find_taken(use) if use else ()), *_find_late(parts, use, lag_limit_ms), *_find_sleep(parts))


def _find_taken(use: HostUse) -> Iterator[HostEvent]:
    if is_disturbed(use):
        stolen, foreign = stolen_cores(use), foreign_cores(use)
        is_foreign = foreign is not None and taken_cores(use) > stolen
        if is_foreign and foreign is not None:
            yield HostEvent(kind="foreign", amount=foreign)
        if stolen >= _LEAST_NAMED_CORES or not is_foreign:
            yield HostEvent(kind="stolen", amount=stolen)
    for one in find_throttled(use):
        yield HostEvent(kind="throttled", amount=one.index)


def _find_late(parts: Sequence[BlockRecord], use: HostUse | None, limit_ms: float) -> Iterator[HostEvent]:
    late_ms = max((one.event_loop_lag_max_ns or 0 for one in parts), default=0) / NS_PER_MS
    if late_ms > limit_ms and use is not None and is_filled_by_own(use) is False:
        yield HostEvent(kind="late", amount=late_ms)


def _find_sleep(parts: Sequence[BlockRecord]) -> Iterator[HostEvent]:
    slept_ns = sum(one.suspended_ns or 0 for one in parts)
    if slept_ns:
        yield HostEvent(kind="slept", amount=slept_ns / NS_PER_S)


class PeriodCount(NamedTuple):
    """How many of a plan's periods have ended; one that was measured twice is one period.

    Live view, package and `verify` count so, and say it in these words.
    """

    ended: int
    planned: int
    twice: int = 0

    def __str__(self) -> str:
        return f"{self.ended} of {self.planned} periods{describe_twice(self.twice)}"


def describe_twice(twice: int) -> str:
    """Return how many periods were measured twice, in brackets, "" for none."""
    return f" ({twice} measured twice)" if twice else ""


_NAMED = 3
_MORE_OFTEN_P = 0.05
# So few disturbed periods can make no test significant: then chance is no reason to believe in it.
_UNLIKE_P = 0.2


class Attempts(msgspec.Struct, frozen=True, kw_only=True):
    """The attempts at one period that the host disturbed.

    `first`, `second`: what the host did to them; None: there is no whole second attempt. `counts`: the
    number of the attempt that counts. `is_left_out`: not even its times do, since that one was disturbed too.
    """

    load: str
    block: int
    arm: str
    first: tuple[HostEvent, ...]
    second: tuple[HostEvent, ...] | None
    counts: int
    is_left_out: bool = False

    @property
    def key(self) -> PeriodKey:
        """Load, block and arm."""
        return self.load, self.block, self.arm

    @property
    def events(self) -> tuple[HostEvent, ...]:
        """What the host did to the attempt that counts."""
        return self.first if self.second is None else self.second


def find_attempts(run: RunData) -> tuple[Attempts, ...]:
    """Return the periods of the plan's loads whose first attempt the host disturbed, in order.

    Those without a quiet attempt are left out of all times while they are at most a fifth of their load's.
    More of them are what this host is like: then they count, but for those in which the client was late or
    stood still.
    """
    loads, limits = {level.name for level in run.plan.load}, run.plan.limits
    parts: defaultdict[PeriodKey, defaultdict[int, list[BlockRecord]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for block in run.blocks:
        if block.load in loads:
            parts[block.load, block.block, block.arm][block.attempt].append(block)
    found = []
    for (load, block_index, arm), own in sorted(parts.items()):
        first = find_host_events(own[0], limits.client_lag_ms)
        if first and is_whole(own[0]):
            second = find_host_events(own[1], limits.client_lag_ms) if is_whole(own[1]) else None
            found.append(
                Attempts(
                    load=load,
                    block=block_index,
                    arm=arm,
                    first=first,
                    second=second,
                    counts=0 if second is None else 1,
                )
            )
    return _leave_out(found, Counter(load for load, _, _ in parts) if limits.repeat_disturbed else {})


def _leave_out(found: Sequence[Attempts], periods: Mapping[str, int]) -> tuple[Attempts, ...]:
    loud = Counter(one.load for one in found if one.events)
    few = {load for load, count in loud.items() if count <= LAGGED_PERIODS_LIMIT * periods.get(load, 0)}

    def is_left_out(one: Attempts) -> bool:
        is_client = any(event.kind in ("late", "slept") for event in one.events)
        return is_client or (bool(one.events) and one.load in few)

    return tuple(msgspec.structs.replace(one, is_left_out=is_left_out(one)) for one in found)


def is_whole(parts: Iterable[BlockRecord]) -> bool:
    """Tell whether one of the records of an attempt says that it ended."""
    return any(one.completed for one in parts)


def keep_counting(run: RunData, attempts: Iterable[Attempts]) -> RunData:
    """Return a run in which every period has the attempt that counts, and no line of another one."""
    second = {one.key for one in attempts if one.counts == 1}
    lines: tuple[BlockRecord | RequestRecord, ...] = (*run.blocks, *run.records)
    if not any(one.attempt for one in lines):
        return run

    def counts(line: RequestRecord | BlockRecord) -> bool:
        return line.attempt == int((line.load, line.block, line.arm) in second)

    return msgspec.structs.replace(
        run,
        records=tuple(one for one in run.records if counts(one) or one.phase == "warmup"),
        blocks=tuple(one for one in run.blocks if counts(one)),
        telemetry=tuple(one for one in run.telemetry if _is_of(one, second)),
    )


def warn_about_attempts(attempts: Collection[Attempts], *, is_repeating: bool = True) -> Iterator[str]:
    """Say which periods the host disturbed, which of them count all the same and why, and whose they are.

    `is_repeating`: the plan's `limits.repeat_disturbed`.
    """
    again = [one for one in attempts if one.counts == 1]
    if again:
        yield (
            f"{_count(len(again))} measured once more, because the host disturbed the first attempt, which "
            f"is kept and does not count: {_list(again)}. A service that keeps prompts knew them by then, so "
            "first tokens and end-to-end times of the second are left out."
        )
    why = (
        "more than a fifth of the periods of their load were, which is what the host is like"
        if is_repeating
        else "the plan says limits.repeat_disturbed = false"
    )
    for is_left_out in (True, False):
        still = [one for one in attempts if one.events and one.is_left_out == is_left_out]
        times = "its times are" if len(still) == 1 else "their times are"
        words = f"{times} left out" if is_left_out else f"what was measured then counts, since {why}"
        if still:
            yield f"{_count(len(still))} disturbed by the host, and {words}: {_list(still, last=True)}."


HOST_BUSY = "host_busy"
HOST_CODES = (HOST_BUSY, "host_stolen")  # of notices that others take the host's cores


def explain_busy_host(
    attempts: Collection[Attempts], periods: int, notices: Iterable[Notice]
) -> tuple[Reason, ...]:
    """Return that the host was not quiet, which an unfinished run may be unfinished for; none if it was.

    `periods`: how many the run has had.
    """
    said = [one for one in notices if one.code in HOST_CODES]
    if attempts:
        text = f"The host disturbed {len(attempts)} of {periods} periods: {_list(attempts)}."
    elif said:
        text = f"The host was not quiet: {lower_first(read_notice(said[-1]))}"
    else:
        return ()
    return (Reason(code=HOST_BUSY, text=text, evidence=Reference("periods")),)


def describe_disturbed_more(attempts: Collection[Attempts], arms: Iterable[str]) -> dict[str, str]:
    """Return, by arm, that its periods were disturbed more often than chance gives, without a full stop.

    `arms`: the arm of every period.
    """
    periods, disturbed = Counter(arms), Counter(one.arm for one in attempts)
    return {
        arm: f"The host disturbed {disturbed[arm]} of {periods[arm]} periods of {arm} and "
        f"{disturbed.total() - disturbed[arm]} of {periods.total() - periods[arm]} of the other arms "
        f"(p = {p:.2g}): what disturbs may be the arm itself"
        for arm, p in find_disturbed_more(disturbed, periods).items()
    }


def find_disturbed_more(disturbed: Mapping[str, int], periods: Mapping[str, int]) -> dict[str, float]:
    """Return the arms of which more periods were disturbed than chance gives, with their p.

    One-sided exact test of each arm against all others together (hypergeometric), adjusted after Holm.
    """
    adjusted = zip(periods, holm_adjusted(_test_each(disturbed, periods)), strict=True)
    return {arm: p for arm, p in adjusted if p is not None and p < _MORE_OFTEN_P}


def may_disturb_itself(attempts: Collection[Attempts], arms: Iterable[str], arm: str) -> bool:
    """Tell whether hardly any other arm was disturbed, so that nothing shows that the host chose at random.

    `arms`: the arm of every period.
    """
    periods, disturbed = Counter(arms), Counter(one.arm for one in attempts)
    if not disturbed[arm]:
        return False
    p = dict(zip(periods, _test_each(disturbed, periods), strict=True))[arm]
    return disturbed[arm] == disturbed.total() or p < _UNLIKE_P


def take_first_attempts(run: RunData, arm: str) -> RunData:
    """Return a run, with the lines of all attempts, whose periods of an arm say nothing of their host.

    The first attempt at each then counts, and none is left out for what the host did.
    """

    def is_kept(line: RequestRecord | BlockRecord) -> bool:
        return line.arm != arm or not line.attempt

    blocks = (msgspec.structs.replace(one, host=None) if one.arm == arm else one for one in run.blocks)
    return msgspec.structs.replace(
        run,
        records=tuple(one for one in run.records if is_kept(one)),
        blocks=tuple(one for one in blocks if is_kept(one)),
    )


def _test_each(disturbed: Mapping[str, int], periods: Mapping[str, int]) -> list[float]:
    every, hits = sum(periods.values()), sum(disturbed.values())
    if not hits:  # most runs: nothing to load scipy.stats for
        return [1.0 for _ in periods]
    return [
        float(scipy.stats.hypergeom.sf(disturbed.get(arm, 0) - 1, every, hits, n))
        for arm, n in periods.items()
    ]


def _is_of(sample: TelemetrySample, second: Collection[PeriodKey]) -> bool:
    load, _, block = (sample.period or "").rpartition("/")
    is_second = block.isdecimal() and (load, int(block), sample.arm) in second
    return sample.period is None or sample.attempt == int(is_second)


def _count(number: int) -> str:
    return "1 period was" if number == 1 else f"{number} periods were"


def _list(attempts: Collection[Attempts], *, last: bool = False) -> str:
    """Name periods with what the host did to the first attempt; `last`: to the one that counts."""
    named = [
        f"{'second attempt at ' if last and one.counts else ''}{one.load}/{one.block} of {one.arm} "
        f"({', '.join(map(str, one.events if last else one.first))})"
        for one in list(attempts)[:_NAMED]
    ]
    more = f" and {len(attempts) - _NAMED} more" if len(attempts) > _NAMED else ""
    return ", ".join(named) + more
