"""Worlds in which processes have luck, or the periods of one arm follow what those of another do not.

Times are drawn as in the other worlds; then each period is made slower or faster as a whole, by the process
that answered it or by what preceded it, and its record says which process and when, as a run's own does.
What a run then measures beside the effect, nothing in it tells from the effect: intervals are held to what
was measured (`truth_factor`, `unseen`), verdicts to what is true of the arms.
"""

from collections.abc import Callable, Mapping
from functools import partial
from itertools import pairwise

import msgspec
import numpy as np
from study_worlds import ALL, PLAN, THRESHOLDS, World
from tests.builders.runs import TURN_NS, Layout

from draftproof.core.records import BlockRecord, Chunk, RequestRecord
from draftproof.judge.decide.effects import derive_seed
from draftproof.judge.observe.observed import PeriodKey, RunData

LUCK, CARRIED, PAUSE_NS = 0.08, 0.08, 5_000_000_000
SIX = Layout(prompts=48, block_size=8, thresholds=THRESHOLDS, comparison=PLAN)
TWELVE = Layout(prompts=48, block_size=4, thresholds=THRESHOLDS, comparison=PLAN)
Shifts = Mapping[PeriodKey, float]  # log of what a period takes of what it would take


def luck_of(run: RunData, arm: str, process: int) -> float:
    """Return the log of what a process makes of all times, drawn once for each."""
    rng = np.random.default_rng(derive_seed(run.plan.seed, "luck", arm, str(process)))
    return float(rng.normal(0, LUCK))


def draw_luck(run: RunData, processes: int | None) -> RunData:
    """Give every process its luck: so many of each arm in turn; None: a new one for each block."""
    rank = _rank_blocks(run)
    blocks = 1 + max(rank.values())
    shifts, told = dict[PeriodKey, float](), list[BlockRecord]()
    for one in run.blocks:
        place = rank[one.load, one.block]
        # In a run the loads alternate, so that each of them meets every process.
        process = one.process if processes is None else 1 + place * processes // blocks
        shifts[_key(one)] = luck_of(run, one.arm, process or 0)
        told.append(msgspec.structs.replace(one, process=process))
    return msgspec.structs.replace(_shift(run, shifts), blocks=tuple(told))


def measure_luck(run: RunData) -> float:
    """Return by what the only processes move the candidate over both equal arms, as a log."""
    equal = {one.arm for one in run.blocks} & {"baseline", "baseline_null"}
    reference = np.mean(np.exp([luck_of(run, arm, 1) for arm in sorted(equal)]))
    return luck_of(run, "candidate", 1) - float(np.log(reference))


def pause_before(run: RunData, arm: str, factor: float) -> RunData:
    """Let the host rest before each period of an arm, and the arm be faster or slower for it."""
    periods = sorted(run.blocks, key=lambda one: one.started_ns)
    waited, told = 0, list[BlockRecord]()
    for one in periods:
        waited += PAUSE_NS * (one.arm == arm)
        told.append(_move(one, waited))
    shifts = {_key(one): np.log(factor) * (one.arm == arm) for one in periods}
    return msgspec.structs.replace(_shift(run, shifts), blocks=tuple(told))


def carry_over(run: RunData, order: tuple[str, ...] | None) -> RunData:
    """Make each period slower that follows the candidate; `order` puts every block in that order."""
    if order is not None:
        run = msgspec.structs.replace(run, blocks=tuple(_reorder(one, order) for one in run.blocks))
    periods = sorted(run.blocks, key=lambda one: one.started_ns)
    shifts = {_key(one): CARRIED * (before.arm == "candidate") for before, one in pairwise(periods)}
    return _shift(run, shifts)


def _rank_blocks(run: RunData) -> dict[tuple[str, int], int]:
    """Return the place of each block among those of its load."""
    found: dict[str, set[int]] = {}
    for one in run.blocks:
        found.setdefault(one.load, set()).add(one.block)
    return {(load, block): rank for load, own in found.items() for rank, block in enumerate(sorted(own))}


def _reorder(one: BlockRecord, order: tuple[str, ...]) -> BlockRecord:
    place = order.index(one.arm)
    moved = _move(one, (place - one.order) * TURN_NS)
    return msgspec.structs.replace(moved, order=place)


def _move(one: BlockRecord, by_ns: int) -> BlockRecord:
    return msgspec.structs.replace(one, started_ns=one.started_ns + by_ns, ended_ns=one.ended_ns + by_ns)


def _shift(run: RunData, shifts: Shifts) -> RunData:
    """Stretch all times of each period."""
    records = tuple(
        _stretch(one, float(np.exp(shifts.get((one.load, one.block, one.arm), 0.0)))) for one in run.records
    )
    return msgspec.structs.replace(run, records=records)


def _stretch(one: RequestRecord, factor: float) -> RequestRecord:
    def move(at_ns: int) -> int:
        return one.scheduled_ns + round((at_ns - one.scheduled_ns) * factor)

    return msgspec.structs.replace(
        one,
        end_ns=move(one.end_ns),
        chunks=tuple(Chunk(move(chunk.arrival_ns), chunk.cumulative_tokens) for chunk in one.chunks),
    )


def _key(one: BlockRecord) -> PeriodKey:
    return (one.load, one.block, one.arm)


def _world(
    name: str,
    text: str,
    rewrite: Callable[[RunData], RunData],
    *,
    ratio: float = 1.0,
    layout: Layout = SIX,
    is_wide: bool = False,
    truth_factor: float = 1.0,
    unseen: Callable[[RunData], float] | None = None,
) -> World:
    return World(
        name=name,
        text=text,
        ratios=dict.fromkeys(ALL, ratio),
        gains=ALL if ratio < 1 else frozenset(),
        layout=layout,
        is_wide=is_wide,
        rewrite=rewrite,
        truth_factor=truth_factor,
        unseen=unseen,
    )


PROCESS_WORLDS: tuple[World, ...] = (
    _world(
        "one_process",
        "No effect; one process an arm, each with a luck of 8 %.",
        partial(draw_luck, processes=1),
        unseen=measure_luck,
    ),
    _world("three_processes", "No effect; three processes an arm.", partial(draw_luck, processes=3)),
    _world(
        "gain_in_three_processes",
        "30 % faster; three processes an arm, each with a luck of 8 %.",
        partial(draw_luck, processes=3),
        ratio=0.70,
    ),
    _world(
        "gain_in_six_processes",
        "25 % faster; twelve blocks, six processes an arm.",
        partial(draw_luck, processes=6),
        ratio=0.75,
        layout=TWELVE,
    ),
    _world(
        "gain_in_processes_redrawn",
        "25 % faster; a new process for each block.",
        partial(draw_luck, processes=None),
        ratio=0.75,
    ),
    _world(
        "candidate_after_pauses",
        "No effect; the candidate's periods follow a pause of 5 s, and are 8 % faster for it.",
        partial(pause_before, arm="candidate", factor=0.92),
        truth_factor=0.92,
    ),
    _world(
        "halved_after_pauses",
        "Time per token is 0.54 of the baseline's, and the candidate's pauses make it 8 % faster still.",
        partial(pause_before, arm="candidate", factor=0.92),
        truth_factor=0.92,
        ratio=0.54,
    ),
    _world(
        "candidate_slow_after_pauses",
        "No effect; the candidate's periods follow a pause, and are 8 % slower for it.",
        partial(pause_before, arm="candidate", factor=1.08),
        truth_factor=1.08,
    ),
    _world(
        "baseline_follows_candidate",
        "No effect; what follows the candidate is 8 % slower, and in every block the baseline does.",
        partial(carry_over, order=("candidate", "baseline", "baseline_null")),
        truth_factor=float(np.exp(-CARRIED)),
    ),
    _world(
        "gain_where_baseline_follows",
        "The same with a candidate that is 30 % faster.",
        partial(carry_over, order=("candidate", "baseline", "baseline_null")),
        truth_factor=float(np.exp(-CARRIED)),
        ratio=0.70,
    ),
    _world(
        "gain_with_carry_over",
        "20 % faster; what follows the candidate is 8 % slower, in the order of a plan.",
        partial(carry_over, order=None),
        ratio=0.80,
        is_wide=True,  # what is carried over lies between blocks, and balance takes most of it out
    ),
)
