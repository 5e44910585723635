"""Worlds in which whole periods take three times as long: because of the host, or because of the candidate.

What the host does is stored with a period, as a run stores it; the host disturbs whichever arm it meets. A
candidate that stalls by itself leaves a quiet host behind, or a client that it made late itself.
"""

from dataclasses import replace
from functools import partial

import msgspec
import numpy as np
from study_worlds import ALL, STANDARD, World
from tests.builders.disturbed import BUSY, QUIET, add_attempts, note_hosts

from draftproof.core.records import BlockRecord, Chunk, HostUse, RequestRecord
from draftproof.judge.decide.effects import derive_seed
from draftproof.judge.observe.client_limits import LAGGED_PERIODS_LIMIT
from draftproof.judge.observe.observed import PeriodKey, RunData

STALLED, FACTOR, GAIN = 0.1, 3.0, 0.85
OWN_STALLED = 2  # of the candidate's periods at each load
FILLED = HostUse(span_s=30.0, cores=2, busy_s=59.5, own_s=59.0, steal_s=0.0, pressure_s=29.0)
LATE_NS = 80_000_000


def disturb(run: RunData) -> RunData:
    """Let the host stall a tenth of all periods, which say so and are measured once more."""
    stalled = _choose(run, STALLED)
    slow = note_hosts(_stretch(run, stalled), dict.fromkeys(stalled, BUSY))
    return add_attempts(slow, note_hosts(run, {}), _within_bound(run, stalled))


def stall_candidate(run: RunData, *, is_client_late: bool = False) -> RunData:
    """Let the candidate stall by itself in two of its periods, on a host that it fills with its own work."""
    stalled = _choose_own(run)
    slow = note_hosts(_stretch(run, stalled), dict.fromkeys(stalled, FILLED), quiet=QUIET)
    if not is_client_late:
        return slow
    blocks = (
        msgspec.structs.replace(one, event_loop_lag_max_ns=LATE_NS) if _key(one) in stalled else one
        for one in slow.blocks
    )
    return msgspec.structs.replace(slow, blocks=tuple(blocks))


def look_disturbed(run: RunData) -> RunData:
    """Let the candidate stall once a load while the host looks disturbed; measure that once more."""
    stalled = _choose_own(run, 1)
    slow = note_hosts(_stretch(run, stalled), dict.fromkeys(stalled, BUSY))
    return add_attempts(slow, note_hosts(run, {}), stalled)


def _choose(run: RunData, share: float) -> set[PeriodKey]:
    """Draw periods; the same of one run, whoever asks."""
    rng = np.random.default_rng(derive_seed(run.plan.seed, "stalls"))
    return {_key(one) for one in run.blocks if rng.random() < share}


def _choose_own(run: RunData, stalls: int = OWN_STALLED) -> set[PeriodKey]:
    """Draw so many of the candidate's periods at each load."""
    rng = np.random.default_rng(derive_seed(run.plan.seed, "own stalls"))
    own = [_key(one) for one in run.blocks if one.arm == "candidate"]
    drawn = [[key for key in own if key[0] == load] for load in dict.fromkeys(key[0] for key in own)]
    return {keys[place] for keys in drawn for place in rng.choice(len(keys), stalls, replace=False)}


def _within_bound(run: RunData, stalled: set[PeriodKey]) -> set[PeriodKey]:
    """Return the periods that a run measures once more: at most a fifth of a load's."""
    kept: set[PeriodKey] = set()
    for load in {key[0] for key in stalled}:
        planned = sum(one.load == load for one in run.blocks)
        in_order = [_key(one) for one in run.blocks if _key(one) in stalled and one.load == load]
        kept |= set(in_order[: int(LAGGED_PERIODS_LIMIT * planned)])
    return kept


def _stretch(run: RunData, periods: set[PeriodKey]) -> RunData:
    records = (_slow_down(one) if _key(one) in periods else one for one in run.records)
    return msgspec.structs.replace(run, records=tuple(records))


def _slow_down(one: RequestRecord) -> RequestRecord:
    def later(at_ns: int) -> int:
        return one.scheduled_ns + round(FACTOR * (at_ns - one.scheduled_ns))

    chunks = tuple(Chunk(later(chunk.arrival_ns), chunk.cumulative_tokens) for chunk in one.chunks)
    return msgspec.structs.replace(one, chunks=chunks, end_ns=later(one.end_ns))


def _key(line: RequestRecord | BlockRecord) -> PeriodKey:
    return (line.load, line.block, line.arm)


NO_EFFECT, FASTER = dict.fromkeys(ALL, 1.0), dict.fromkeys(ALL, GAIN)
FINE = replace(STANDARD, block_size=4)
OWN_FACTOR = 1 + (FACTOR - 1) * OWN_STALLED / FINE.blocks

STALL_WORLDS: tuple[World, ...] = (
    World(
        name="host_stalls",
        text="No effect; the host stalls a tenth of the periods, which are measured once more.",
        ratios=NO_EFFECT,
        layout=STANDARD,
        rewrite=disturb,
    ),
    World(
        name="host_stalls_gain",
        text="15 % faster; the host stalls a tenth of the periods, which are measured once more.",
        ratios=FASTER,
        gains=ALL,
        layout=STANDARD,
        rewrite=disturb,
    ),
    World(
        name="candidate_stalls",
        text="15 % faster, but two of its ten periods take three times as long, by itself: slower in all.",
        ratios=FASTER,
        harms=ALL,
        layout=FINE,
        is_wide=True,
        truth_factor=OWN_FACTOR,
        rewrite=stall_candidate,
    ),
    World(
        name="candidate_stalls_client",
        text="As before, but each stall makes the client late: intervals are of the other eight periods.",
        ratios=FASTER,
        harms=ALL,
        layout=FINE,
        rewrite=partial(stall_candidate, is_client_late=True),
    ),
    World(
        name="candidate_stalls_disturbed",
        text="One of ten does, by itself, while the host looks disturbed: it is measured once more.",
        ratios=FASTER,
        harms=ALL,
        layout=FINE,
        rewrite=look_disturbed,
    ),
)
