"""Worlds in which measurement periods, or the load client, are at fault: a part of the study's worlds.

What a period does to all of its requests is no effect of an arm. Each world says which periods are off.
"""

from collections.abc import Mapping
from functools import partial

import msgspec
import numpy as np
from study_worlds import ALL, LOW, STANDARD, World, everywhere, make_layout
from tests.builders.runs import Floats

from draftproof.core.records import Chunk, RequestRecord
from draftproof.judge.observe.run_data import RunData

STALL, OFF, KNEE = 0.47, (0.04, 0.08), 0.22  # logs: 1.6 times as long; 4 to 8 % off; 25 % slower
RARE, RARE_STALL = 0.08, 0.6  # share of periods; log
SHORT, LAG_NS = 0.375, 40_000_000  # of a span of about 800 ms; how late the client is
LATE_FOR = ("baseline", "baseline_null")


def stall_one(stalled: str, arm: str, _load: str, blocks: int, rng: np.random.Generator) -> Floats:
    """One period of one arm takes 1.6 times as long, drawn anew at each load."""
    return np.where(np.arange(blocks) == rng.integers(blocks), STALL if arm == stalled else 0.0, 0.0)


def draw_off(_arm: str, _load: str, blocks: int, rng: np.random.Generator) -> Floats:
    """Every period is off by 4 to 8 %, either way."""
    return rng.uniform(*OFF, blocks) * rng.choice([-1.0, 1.0], blocks)


def draw_bimodal(_arm: str, load: str, blocks: int, rng: np.random.Generator) -> Floats:
    """At high load a period is fast or 25 % slower, as likely as not: a service at its knee."""
    slow = rng.random(blocks) < 0.5
    return np.where(slow & (load == "high"), KNEE, 0.0)


def stall_rarely(_arm: str, _load: str, blocks: int, rng: np.random.Generator) -> Floats:
    """A period in twelve takes 1.8 times as long, whatever its arm."""
    return np.where(rng.random(blocks) < RARE, RARE_STALL, 0.0)


def be_late(run: RunData) -> RunData:
    """Make answers short, and the client 40 ms late where a service streams token by token."""
    blocks = tuple(
        msgspec.structs.replace(one, lag_p99_ns=LAG_NS if one.arm in LATE_FOR else 0, unstamped=1)
        for one in run.blocks
    )
    records = tuple(_end_late(one) for one in run.records)
    return msgspec.structs.replace(run, blocks=blocks, records=records)


def _end_late(one: RequestRecord) -> RequestRecord:
    first, last = one.chunks[0], one.chunks[-1]
    late_ns = LAG_NS if one.arm in LATE_FOR else 0
    end_ns = first.arrival_ns + round(SHORT * (last.arrival_ns - first.arrival_ns)) + late_ns
    chunks = (first, Chunk(end_ns, last.cumulative_tokens))
    return msgspec.structs.replace(one, chunks=chunks, end_ns=end_ns)


def _cut(prompts: int, blocks: int, **changes: object) -> Mapping[str, object]:
    return {"layout": make_layout(prompts=prompts, block_size=-(-prompts // blocks), **changes)}


SIX, THREE, FOUR = _cut(40, 6), _cut(24, 3), _cut(24, 4, evidence="synthetic")
TWENTY_FOUR, TWELVE = _cut(24, 6), _cut(48, 12)

PERIOD_WORLDS: tuple[World, ...] = (
    World(
        name="stalled_null_period",
        text="15 % faster; one period of the null arm takes 1.6 times as long.",
        ratios=everywhere(0.85),
        gains=ALL,
        periods=partial(stall_one, "baseline_null"),
        **SIX,
    ),
    World(
        name="stalled_candidate_period",
        text="No effect; one period of the candidate takes 1.6 times as long.",
        ratios=everywhere(1.0),
        periods=partial(stall_one, "candidate"),
        is_wide=True,
        **SIX,
    ),
    World(
        name="stalled_baseline_period",
        text="No effect; one period of the baseline takes 1.6 times as long.",
        ratios=everywhere(1.0),
        periods=partial(stall_one, "baseline"),
        is_wide=True,
        **SIX,
    ),
    World(
        name="three_blocks",
        text="No effect; 24 prompts in three blocks, each period is off by 4 to 8 %.",
        ratios=everywhere(1.0),
        periods=draw_off,
        **THREE,
    ),
    World(
        name="four_blocks",
        text="The same in four blocks, with evidence that four suffice for.",
        ratios=everywhere(1.0),
        periods=draw_off,
        **FOUR,
    ),
    World(
        name="six_blocks",
        text="The same in six blocks.",
        ratios=everywhere(1.0),
        periods=draw_off,
        **TWENTY_FOUR,
    ),
    World(
        name="gain_in_uneven_periods",
        text="15 % faster; 48 prompts in twelve blocks, each period is off by 4 to 8 %.",
        ratios=everywhere(0.85),
        gains=ALL,
        periods=draw_off,
        **TWELVE,
    ),
    World(
        name="bimodal_knee",
        text="15 % faster at low load, nothing at high load, where each period is fast or 25 % slower.",
        ratios={cell: 0.85 if cell in LOW else 1.0 for cell in ALL},
        gains=LOW,
        periods=draw_bimodal,
        **SIX,
    ),
    World(
        name="late_client",
        text="No effect; answers of 300 ms over TLS, and the client is 40 ms late in the baseline's periods.",
        ratios=everywhere(1.0),
        rewrite=be_late,
        **SIX,
    ),
    World(
        name="bimodal_knee_three_blocks",
        text="The same with 24 prompts in three blocks: too few for any gain.",
        ratios={cell: 0.85 if cell in LOW else 1.0 for cell in ALL},
        gains=LOW,
        periods=draw_bimodal,
        **THREE,
    ),
    World(
        name="rare_stalls",
        text="No effect; 8 % of all periods of any arm take 1.8 times as long: one has two, one none.",
        ratios=everywhere(1.0),
        periods=stall_rarely,
        is_wide=True,
        layout=STANDARD,
    ),
)
