"""Arms whose first counted requests after a start were slow, as a service's are that still compiles. Pure.

A warm-up ends when two groups of requests agree, and two that are equally slow do. So the counted requests
are looked at once more, in the order of their turns: each arm at each load by the same rule, which knows no
arm by name. What is found is told, and no request is left out. Where it moves the ratio of the deciding arms
by as much as half a margin, nothing is concluded at that load, in favour of neither.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from draftproof.plan.schema import Thresholds
from draftproof.verdict.results import Reason
from draftproof.verdict.run_data import PreparedRun

STRETCHES = 16
LEAST_OF_A_STRETCH = 5
SLOWER = 1.2
# Of stretches that differ by chance alone, one first one is the slowest as often as any other, so that the
# requests themselves have to differ as well: three standard errors of a rank sum.
LEAST_Z = 3.0
DECIDING = ("baseline", "candidate")

Floats = npt.NDArray[np.float64]


class ColdSpell(msgspec.Struct, frozen=True, kw_only=True):
    """The slow first requests of an arm at a load.

    `requests` of `all_requests`, all starts of the arm together; `slower` is their median time per token over
    that of the others. `shift` is the mean time per token of all over that of the others.
    """

    load: str
    arm: str
    requests: int
    all_requests: int
    slower: float
    shift: float


def count_cold(times: Floats) -> int:
    """Return how many of the first requests were slow by a step, 0 where none were.

    The requests are cut into stretches. The first ones are a step, up to half of all, if the median of each
    of them is `SLOWER` times that of the slowest stretch behind them, and the requests before and behind
    the step differ in rank.

    Args:
        times: time per token of one arm at one load after one start, in the order of sending; shape
            (requests,), any unit.
    """
    stretches = min(STRETCHES, times.size // LEAST_OF_A_STRETCH)
    if stretches < 4:
        return 0
    cut = np.array_split(times, stretches)
    medians = np.array([np.median(one) for one in cut])
    steps = [
        count
        for count in range(1, stretches // 2 + 1)
        if medians[:count].min() >= SLOWER * medians[count:].max()
    ]
    cold = sum(one.size for one in cut[: steps[-1]]) if steps else 0
    return cold if cold and _rank_z(times, cold) >= LEAST_Z else 0


def find_cold_spells(prepared: PreparedRun) -> tuple[ColdSpell, ...]:
    """Return the cold spells of a run, loads and arms in its order."""
    return tuple(
        spell
        for load in prepared.loads
        for arm in prepared.arms
        if (spell := _find_spell(prepared, load, arm)) is not None
    )


def withhold_for_cold(spells: Sequence[ColdSpell], thresholds: Thresholds) -> dict[str, tuple[Reason, ...]]:
    """Return by load why nothing is concluded there, where cold requests move the ratio of the arms."""
    found: dict[str, tuple[Reason, ...]] = {}
    allowed = math.log1p(min(thresholds.minimum_gain, thresholds.harm_margin) / 2)
    for load in dict.fromkeys(one.load for one in spells):
        own = {one.arm: one for one in spells if one.load == load}
        moved = sum(
            math.log(own[arm].shift) * sign for arm, sign in zip(DECIDING, (-1, 1), strict=True) if arm in own
        )
        if abs(moved) > allowed:
            told = "; ".join(_describe(own[arm]) for arm in DECIDING if arm in own)
            text = (
                f"At load {load} the first counted requests belong to an arm that was still getting warm: "
                f"{told}. That alone moves candidate / baseline by {math.expm1(moved):+.1%}, so nothing is "
                "concluded there. Raise limits.warmup_requests above that number and measure again."
            )
            found[load] = (Reason(code="cold_turns", text=text, evidence=f"turns: load {load}"),)
    return found


def warn_about_cold(spells: Sequence[ColdSpell]) -> Iterator[str]:
    """Yield a sentence for each load at which an arm was cold."""
    for load in dict.fromkeys(one.load for one in spells):
        told = "; ".join(_describe(one) for one in spells if one.load == load)
        yield (
            f"At load {load} the first counted requests were slow by a step: {told}. All of them count. Set "
            "limits.warmup_requests above that number, or look for what ran beside the run as it began."
        )


def _describe(spell: ColdSpell) -> str:
    return (
        f"{spell.arm}, {spell.requests} of {spell.all_requests} requests took {spell.slower:.2f} times as "
        "long per token as the others"
    )


def _find_spell(prepared: PreparedRun, load: str, arm: str) -> ColdSpell | None:
    every, cold = list[Floats](), list[Floats]()
    for times in _split_by_start(prepared, load, arm):
        count = count_cold(times)
        every.append(times)
        cold.append(times[:count])
    if not sum(one.size for one in cold):
        return None
    rest = np.concatenate([one[slow.size :] for one, slow in zip(every, cold, strict=True)])
    slow, whole = np.concatenate(cold), np.concatenate(every)
    return ColdSpell(
        load=load,
        arm=arm,
        requests=slow.size,
        all_requests=whole.size,
        slower=float(np.median(slow) / np.median(rest)),
        shift=float(whole.mean() / rest.mean()),
    )


def _split_by_start(prepared: PreparedRun, load: str, arm: str) -> list[Floats]:
    """Return times per token in the order of sending, one array for each process of the arm."""
    found = defaultdict[str | None, list[tuple[int, int, str, float]]](list)
    for seen in prepared.of_arm(arm, load):
        tpot_ns, sent_ns = seen.metrics.tpot_ns, seen.record.sent_ns
        if seen.is_ok and seen.timed and tpot_ns and sent_ns is not None:
            block = seen.record.block
            process = prepared.process_labels.get((load, block, arm))
            found[process].append((block, sent_ns, seen.record.request_id, tpot_ns))
    return [np.array([one[-1] for one in sorted(own)]) for own in found.values()]


def _rank_z(times: Floats, first: int) -> float:
    """Return by how many standard errors the rank sum of the first requests is above its expectation."""
    rest = times.size - first
    below = np.searchsorted(np.sort(times[first:]), times[:first], side="left").sum()
    return float((below - first * rest / 2) / math.sqrt(first * rest * (times.size + 1) / 12))
