#!/usr/bin/env python3
"""How soon a verdict settles: power, requests and errors of the rules, simulated; writes bench/settle.json.

Cells are drawn as numbers and judged by the statistics of the product itself (`judge/stats`,
`decide_effect`), without records: thousands of runs in minutes. Guardrails are taken to hold: what is shown
is what the deciding metric costs. Beside the rule stands the one it replaced: one interval for all cells, the
baseline alone as the reference, no status for a cell without a gain, a fixed size. `bench/study.py` judges
whole runs.
"""

import argparse
import itertools
import json
import math
import multiprocessing
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from draftproof.judge.decide.cells import decide_effect
from draftproof.judge.results.decide import Figure
from draftproof.judge.stats.bootstrap import (
    RatioEstimate,
    interval_at,
    noise_margin,
    null_difference,
    paired_ratio,
)
from draftproof.judge.stats.periods import period_spread, widen_by_periods
from draftproof.judge.stats.shares import share_interval
from draftproof.judge.stats.spending import repeated_level
from draftproof.plan.schema import Sequential, Thresholds
from draftproof.workload.blocks import FEWEST_BLOCKS

OUT = Path(__file__).resolve().parent / "settle.json"
SEED, ALPHA, RESAMPLES = 2026, 0.05, 400
THRESHOLDS = Thresholds()
SETTLED = {"gain", "neutral", "harm", "no_gain"}
SEGMENTS, LOADS, ARMS = 4, 2, 4  # an alternative is asked too, and counts as requests


class World(NamedTuple):
    """The truth: the ratio at each load, and standard deviations of logarithms.

    `spread`: between prompts of what they gain; `noise`: of one request's time; `period`: of what a period
    does to all of its requests; `luck`: of what an arm is slower or faster by for the whole run.
    """

    name: str
    ratios: tuple[float, ...]
    spread: float = 0.10
    noise: float = 0.04
    period: float = 0.01
    luck: float = 0.0

    @property
    def truth(self) -> float:
        """The factor between the ratio of means and that of medians."""
        return math.exp(self.spread**2 / 2)


class Rule(NamedTuple):
    """How a run is judged: a fixed size or `analyses`; `is_new`: today's rule, else the one before."""

    is_new: bool = True
    analyses: int = 1


WORLDS = (
    World("equal", (1.0, 1.0)),
    World("gain_12_at_both", (0.88, 0.88)),
    World("gain_at_single_only", (0.80, 1.0)),
    World("gain_then_harm", (0.80, 1.15)),
    World("just_no_gain", (0.95, 0.95)),
    World("just_no_harm", (1.05, 1.05)),
    World("slower_8", (1.08, 1.08)),
    World("just_no_gain_spread_30", (0.95, 0.95), spread=0.30),
    World("just_no_gain_periods", (0.95, 0.95), period=0.03),
    World("just_no_gain_luck", (0.95, 0.95), luck=0.02),
)


class Drawn(NamedTuple):
    """One load of a run, shape (prompts,) each: values of the arms, prompt, segment and block numbers."""

    values: dict[str, np.ndarray]
    segments: np.ndarray
    blocks: np.ndarray


def draw(world: World, load: int, size: tuple[int, int], luck: dict[str, float], rng: Any) -> Drawn:
    """Draw a load of a size: prompts in each segment, dealt in turn to so many blocks."""
    prompts, blocks = size
    total = prompts * SEGMENTS
    segments = np.repeat(np.arange(SEGMENTS), prompts)
    block = np.tile(np.arange(prompts) % blocks, SEGMENTS)
    length = rng.normal(0.0, 0.2, total)
    gains = rng.normal(math.log(world.ratios[load]), world.spread, total)
    values = {}
    for arm in ("baseline", "baseline_null", "candidate"):
        shared = rng.normal(0.0, world.period, blocks)[block]
        own = gains if arm == "candidate" else 0.0
        values[arm] = np.exp(length + own + shared + luck[arm] + rng.normal(0.0, world.noise, total))
    return Drawn(values, segments, block)


def estimate(drawn: Drawn, arm: str, kept: np.ndarray, *, is_pooled: bool, seed: int) -> list[RatioEstimate]:
    """Return the ratio of an arm in all segments together, then in each."""
    above, below = drawn.values[arm][kept], drawn.values["baseline"][kept]
    if is_pooled:
        below = (below + drawn.values["baseline_null"][kept]) / 2
    segments, blocks, names = drawn.segments[kept], drawn.blocks[kept], np.flatnonzero(kept)
    spread = period_spread(np.log(above / below), blocks, segments)
    found = []
    for segment in (None, *range(SEGMENTS)):
        own = np.ones(len(above), dtype=bool) if segment is None else segments == segment
        strata = segments[own] if segment is None else None
        one = paired_ratio(
            above[own], below[own], names[own], strata, resamples=RESAMPLES, seed=seed, minimum_clusters=3
        )
        found.append(widen_by_periods(one, spread, blocks[own]))
    return found


def judge_load(
    drawn: Drawn, done: int, times: tuple[float, ...], rule: Rule, seed: int
) -> tuple[list[str], list[str], list[tuple[float, float]]]:
    """Return each segment's status after `done` blocks: joint, in sequence; and the joint intervals."""
    kept = drawn.blocks < done
    null = estimate(drawn, "baseline_null", kept, is_pooled=False, seed=seed)[0]
    apart = null_difference(null.value, null.standard_error)
    widened = noise_margin(apart, "mean") if rule.is_new else apart
    joint, sequence, intervals = [], [], []
    for one in estimate(drawn, "candidate", kept, is_pooled=rule.is_new, seed=seed)[1:]:
        for claims, found in ((SEGMENTS * LOADS, joint), (SEGMENTS, sequence)):
            low, high = interval_at(one, repeated_level(ALPHA / claims, times))
            found.append(decide_effect(Figure(value=one.value, low=low, high=high), THRESHOLDS, widened))
            if found is joint:
                intervals.append((low or 0.0, high or math.inf))
    return joint, sequence, intervals


class Settled(NamedTuple):
    """One run: the status of each cell, requests asked, and how many joint intervals cover the truth."""

    statuses: tuple[tuple[str, ...], ...]
    requests: int
    covered: int
    intervals: int


def run_once(world: World, prompts: int, blocks: int, rule: Rule, seed: int) -> Settled:
    """Draw and judge one run."""
    rng = np.random.default_rng(seed)
    luck = {arm: float(rng.normal(0.0, world.luck)) for arm in ("baseline", "baseline_null", "candidate")}
    points = (
        Sequential(analyses=rule.analyses).list_points(blocks, FEWEST_BLOCKS)
        if rule.analyses > 1
        else (blocks,)
    )
    found, requests, covered = [], 0, 0
    gaining = [True] * SEGMENTS
    for load in range(LOADS):
        drawn = draw(world, load, (prompts, blocks), luck, rng)
        for number, point in enumerate(points):
            times = tuple(one / blocks for one in points[: number + 1])
            joint, sequence, intervals = judge_load(drawn, point, times, rule, seed)
            statuses = [_choose(*one, rule) for one in zip(joint, sequence, gaining, strict=True)]
            if set(statuses) <= SETTLED:
                break
        requests += ARMS * int((drawn.blocks < point).sum())
        truth = world.ratios[load] * world.truth
        covered += sum(low <= truth <= high for low, high in intervals)
        gaining = [
            is_on and status in ("gain", "neutral") for is_on, status in zip(gaining, statuses, strict=True)
        ]
        if not rule.is_new:
            statuses = ["inconclusive" if one == "no_gain" else one for one in statuses]
        found.append(tuple(statuses))
    return Settled(tuple(found), requests, covered, SEGMENTS * LOADS)


def _choose(joint: str, sequence: str, is_on: bool, rule: Rule) -> str:  # noqa: FBT001
    return "gain" if rule.is_new and is_on and sequence == "gain" else joint


def run_many(task: tuple[World, int, int, Rule, range]) -> list[Settled]:
    """Judge some runs of a world; called in worker processes."""
    world, prompts, blocks, rule, numbers = task
    return [run_once(world, prompts, blocks, rule, SEED + number) for number in numbers]


class Study:
    """Runs worlds in processes."""

    def __init__(self, runs: int, processes: int) -> None:
        self.runs = runs
        self._pool = multiprocessing.get_context("spawn").Pool(processes)

    def run(self, world: World, prompts: int, blocks: int, rule: Rule) -> list[Settled]:
        """Return all runs of a world."""
        step = max(1, self.runs // 16)
        tasks = [
            (world, prompts, blocks, rule, range(first, min(first + step, self.runs)))
            for first in range(0, self.runs, step)
        ]
        return list(itertools.chain.from_iterable(self._pool.imap(run_many, tasks)))

    def power(self, world: World, prompts: int, blocks: int, rule: Rule) -> float:
        """Return how many cells of a world are called a gain, as a share."""
        found = self.run(world, prompts, blocks, rule)
        return float(np.mean([status == "gain" for one in found for load in one.statuses for status in load]))

    def settled(self, world: World, prompts: int, blocks: int, rule: Rule) -> tuple[float, float]:
        """Return the share of settled cells, and requests a run."""
        found = self.run(world, prompts, blocks, rule)
        share = np.mean([status in SETTLED for one in found for load in one.statuses for status in load])
        return float(share), float(np.mean([one.requests for one in found]))


def judge_errors(world: World, found: Sequence[Settled]) -> dict[str, Any]:
    """Return false adopts and harms of a world, with the bounds of 99 % intervals, and coverage."""
    truths = [ratio * world.truth for ratio in world.ratios]
    adopted = sum(
        any(
            status == "gain" and truth >= 1 - THRESHOLDS.minimum_gain
            for load, truth in zip(one.statuses, truths, strict=True)
            for status in load
        )
        for one in found
    )
    blamed = sum(
        any(
            status == "harm" and truth <= 1 + THRESHOLDS.harm_margin
            for load, truth in zip(one.statuses, truths, strict=True)
            for status in load
        )
        for one in found
    )
    joint = sum(one.covered == one.intervals for one in found)
    return {
        "runs": len(found),
        "false_adopt": adopted / len(found),
        "false_adopt_99": _bounds(adopted, len(found)),
        "false_harm": blamed / len(found),
        "false_harm_99": _bounds(blamed, len(found)),
        "coverage": joint / len(found),
        "coverage_99": _bounds(joint, len(found)),
        "settled": float(np.mean([s in SETTLED for one in found for load in one.statuses for s in load])),
        "requests": float(np.mean([one.requests for one in found])),
    }


def _bounds(count: int, runs: int) -> list[float]:
    found = share_interval(count, runs, level=0.99)
    return [round(found.low, 4), round(found.high, 4)]


def compare_requests(study: Study, worlds: Sequence[World]) -> dict[str, Any]:
    """Return requests of a sequential run over those of the old rule's smallest run that settles as much.

    Over a mixture of worlds, each as likely as the other.
    """
    new, old = Rule(analyses=3), Rule(is_new=False)
    own = [study.settled(world, 48, 12, new) for world in worlds]
    wanted, requests = (float(np.mean(column)) for column in zip(*own, strict=True))
    rows = []
    for prompts in (24, 48, 72, 96, 144, 192, 288, 384, 576):
        found = [study.settled(world, prompts, 12, old) for world in worlds]
        share, asked = (float(np.mean(column)) for column in zip(*found, strict=True))
        rows.append({"prompts": prompts, "settled": share, "requests": asked})
        print(f"old rule, {prompts} prompts a cell: {share:.3f} settled (wanted {wanted:.3f})", flush=True)
        if share >= wanted:
            break
    reached = rows[-1]["settled"] >= wanted
    return {
        "requests_ratio_sequential": requests / rows[-1]["requests"],
        "is_old_rule_as_settled": reached,
        "sequential": {"settled": wanted, "requests": requests, "prompts": 48, "blocks": 12},
        "old_rule": rows,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the simulation and write its figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1000, help="runs of each world")
    parser.add_argument("--mixture-runs", type=int, default=200, help="runs of each world for the requests")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args(arguments)
    began, study = time.perf_counter(), Study(options.runs, options.processes)
    found: dict[str, Any] = {}
    for spread, (blocks, name) in itertools.product((0.10, 0.15, 0.30), ((6, "6"), (12, "12"))):
        world, key = (
            World("gain_12", (0.88 / math.exp(spread**2 / 2),) * 2, spread=spread),
            f"power_24_{name}",
        )
        key += "" if spread == 0.10 else f"_spread_{100 * spread:.0f}"
        found[key] = study.power(world, 24, blocks, Rule())
        found[f"{key}_old_rule"] = study.power(world, 24, blocks, Rule(is_new=False))
        print(f"{key}: {found[key]:.3f}, by the old rule {found[key + '_old_rule']:.3f}", flush=True)
    found["worlds"] = {}
    for world in WORLDS:
        edge = world._replace(ratios=tuple(ratio / world.truth for ratio in world.ratios))
        found["worlds"][world.name] = judge_errors(edge, study.run(edge, 24, 12, Rule(analyses=3)))
        print(world.name, found["worlds"][world.name], flush=True)
    mixture = [
        World(f"{ratio}", (ratio / math.exp(0.005),) * 2)
        for ratio in (0.80, 0.88, 0.96, 1.0, 1.04, 1.08, 1.2)
    ]
    study.runs = options.mixture_runs
    found |= compare_requests(study, mixture)
    found |= {
        "seed": SEED,
        "runs": options.runs,
        "mixture_runs": options.mixture_runs,
        "runtime_s": round(time.perf_counter() - began, 1),
    }
    options.out.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
