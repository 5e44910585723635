#!/usr/bin/env python3
"""The simulation study: how often the verdict is right where the truth is known; writes bench/study.json.

Every world of study_worlds.py is drawn many times, written as the records of a run and judged by
`decide_run`, the code that judges every run. Seeds are fixed: the same versions give the same counts. The
table in docs/method.md is written from the JSON (`--table` writes it alone), and a test compares the two.
"""

import argparse
import json
import multiprocessing
import os
import platform
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))  # of tests.builders

import numpy as np
from study_worlds import WORLDS as TIME_WORLDS
from study_worlds import Cell, World, draw_requests, true_ratio
from study_worlds_counting import COUNTING_WORLDS
from study_worlds_periods import PERIOD_WORLDS
from study_worlds_processes import PROCESS_WORLDS
from study_worlds_stalls import STALL_WORLDS
from tests.builders.runs import build_run, order_periods

from draftproof.judge.decide.decision import DecidedRun, decide_run
from draftproof.judge.decide.effects import derive_seed
from draftproof.judge.observe.run_data import ALL_SEGMENTS
from draftproof.judge.results.run import Cell as DecidedCell
from draftproof.judge.results.run import Effect
from draftproof.judge.stats.shares import share_interval

WORLDS = (*TIME_WORLDS, *COUNTING_WORLDS, *PERIOD_WORLDS, *STALL_WORLDS, *PROCESS_WORLDS)
ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "bench" / "study.json"
METHOD = ROOT / "docs" / "method.md"
SEED, RUNS = 2026, 200
TABLE_BEGINS, TABLE_ENDS = "<!-- study table: make study -->", "<!-- end of study table -->"


class Judged(NamedTuple):
    """What one run of a world was judged to be, against the truth."""

    decision: str
    is_false_adopt: bool
    is_right: bool
    found: int
    covered: int
    intervals: int
    is_jointly_covered: bool | None
    is_false_harm: bool


class Task(NamedTuple):
    """Some runs of one world."""

    world: World
    truths: dict[Cell, float]
    indices: range


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the study, or write its table."""
    options = _parse(arguments)
    if not options.table:
        study = run_study(options.runs, options.processes, options.world or None)
        if options.world and options.out.exists():
            study = merge_rows(json.loads(options.out.read_text(encoding="utf-8")), study)
        options.out.write_text(json.dumps(study, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    if options.out == OUT:
        write_table(json.loads(OUT.read_text(encoding="utf-8")))
    return 0


def run_study(runs: int, processes: int, names: Sequence[str] | None = None) -> dict[str, Any]:
    """Return the study's figures by world."""
    started = time.perf_counter()
    worlds = [world for world in WORLDS if names is None or world.name in names]
    rows = {}
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        for world in worlds:
            batches = pool.imap(judge_task, _split(world, runs))
            rows[world.name] = summarise(world, _follow(world, runs, batches))
            print(_render_row(world.name, rows[world.name]), flush=True)
    return {
        "seed": SEED,
        "runs_per_world": runs,
        "worlds": rows,
        "order": [world.name for world in worlds],
        "versions": {name: version(name) for name in ("draftproof", "numpy", "scipy")} | _python(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {processes} processes",
        "runtime_s": round(time.perf_counter() - started, 1),
    }


def merge_rows(kept: dict[str, Any], study: dict[str, Any]) -> dict[str, Any]:
    """Return a kept study with the rows of some worlds replaced or added, in the order of all worlds."""
    rows = kept["worlds"] | study["worlds"]
    return kept | {"worlds": rows, "order": [world.name for world in WORLDS if world.name in rows]}


def judge_task(task: Task) -> list[Judged]:
    """Judge some runs of a world; called in worker processes."""
    return [judge(task.world, task.truths, decide_one(task.world, index)) for index in task.indices]


def decide_one(world: World, index: int) -> DecidedRun:
    """Draw run number `index` of a world and decide it."""
    seed = derive_seed(SEED, world.name, str(index))
    rng = np.random.default_rng(seed)
    orders = order_periods(world.layout, rng)
    drawn = draw_requests(world, world.layout, orders, rng)
    run = build_run(world.layout, drawn, orders, seed=seed)
    return decide_run(run if world.rewrite is None else world.rewrite(run))


def judge(world: World, truths: dict[Cell, float], decided: DecidedRun) -> Judged:
    """Hold a decision against the truth.

    False: the envelope takes in a cell of `harms`, or calls one a gain that is not of `gains`. A cell without
    effect that is shown to be neutral may lie in an envelope: that is what the rules say of it. A false harm
    is a cell called harm that is not of `harms`.
    """
    inside = dict(_envelope_cells(decided))
    called = {cell for cell, status in inside.items() if status == "gain"}
    if world.unseen is not None:
        factor = float(np.exp(world.unseen(decided.evidence.prepared.run)))
        truths = {cell: truth * factor for cell, truth in truths.items()}
    effects = [one for one in decided.evidence.effects if _is_deciding(world, one)]
    single = [one for one in effects if one.ratio.low is not None and one.ratio.high is not None]
    joint = [_covers(one, truths, simultaneous=True) for one in single]
    return Judged(
        decision=decided.decision,
        is_false_adopt=bool(called - world.gains or set(inside) & world.harms),
        is_right=called == world.gains and not set(inside) & world.harms,
        found=len(called & world.gains),
        covered=sum(_covers(one, truths, simultaneous=False) for one in single),
        intervals=len(single),
        is_jointly_covered=all(joint) if joint else None,
        is_false_harm=any(one.status == "harm" and _name(one) not in world.harms for one in decided.cells),
    )


def summarise(world: World, judged: Iterable[Judged]) -> dict[str, Any]:
    """Return the row of one world."""
    seen = list(judged)
    runs, wrong = len(seen), sum(one.is_false_adopt for one in seen)
    blamed = sum(one.is_false_harm for one in seen)
    intervals, covered = sum(one.intervals for one in seen), sum(one.covered for one in seen)
    joint = [one.is_jointly_covered for one in seen if one.is_jointly_covered is not None]
    cells = len(world.gains)
    return {
        "text": world.text,
        "runs": runs,
        "decisions": dict(sorted(Counter(one.decision for one in seen).items())),
        "false_adopt": wrong / runs,
        "false_adopt_count": wrong,
        "false_adopt_upper95": share_interval(wrong, runs, level=0.90).high,
        "false_harm": blamed / runs,
        "false_harm_count": blamed,
        "coverage": covered / intervals if intervals else None,
        "intervals": intervals,
        "coverage_simultaneous": sum(joint) / len(joint) if joint else None,
        "power": sum(one.found for one in seen) / (runs * cells) if cells else None,
        "right": sum(one.is_right for one in seen) / runs,
        "true_gain_cells": cells,
        "cells": len(world.ratios),
    }


def write_table(study: dict[str, Any]) -> None:
    """Write the table into docs/method.md, between its two marks."""
    text = METHOD.read_text(encoding="utf-8")
    before, rest = text.split(TABLE_BEGINS)
    _, after = rest.split(TABLE_ENDS)
    METHOD.write_text(f"{before}{TABLE_BEGINS}\n{render_table(study)}\n{TABLE_ENDS}{after}", encoding="utf-8")


def render_table(study: dict[str, Any]) -> str:
    """Return the study as a Markdown table."""
    head = "world, runs, false adopts, at most, false harms, 95 % intervals, all at once, power, decisions"
    titles = head.split(", ")
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    lines += [_render_row(name, study["worlds"][name]) for name in study["order"]]
    return "\n".join(lines)


def _render_row(name: str, row: dict[str, Any]) -> str:
    power = "no true gain" if row["power"] is None else f"{100 * row['power']:.0f} %"
    blamed = row.get("false_harm_count")
    harms = "not counted" if blamed is None else f"{blamed} ({100 * row['false_harm']:.1f} %)"
    decisions = ", ".join(f"{decision} {count}" for decision, count in row["decisions"].items())
    return (
        f"| `{name}` | {row['runs']} | {row['false_adopt_count']} ({100 * row['false_adopt']:.1f} %) "
        f"| {100 * row['false_adopt_upper95']:.1f} % "
        f"| {harms} | {_percent(row['coverage'])} | {_percent(row['coverage_simultaneous'])} "
        f"| {power} | {decisions} |"
    )


def _percent(share: float | None) -> str:
    return "no interval" if share is None else f"{100 * share:.1f} %"


def _follow(world: World, runs: int, batches: Iterable[list[Judged]]) -> Iterator[Judged]:
    """Yield what the batches judged, and say on a terminal how many runs are done."""
    done = 0
    for batch in batches:
        done += len(batch)
        if sys.stderr.isatty():
            print(f"\r{world.name}: {done}/{runs} ", end="\r", file=sys.stderr)
        yield from batch


def _split(world: World, runs: int, batch: int = 10) -> list[Task]:
    truths = {cell: true_ratio(world, cell) for cell in world.ratios}
    return [Task(world, truths, range(first, min(first + batch, runs))) for first in range(0, runs, batch)]


def _envelope_cells(decided: DecidedRun) -> Iterator[tuple[Cell, str]]:
    limits = {entry.segment: entry.limit for entry in decided.envelope}
    for cell in decided.cells:
        if cell.segment in limits and limits[cell.segment].covers(cell.size):
            yield _name(cell), cell.status


def _name(cell: DecidedCell) -> Cell:
    """Return a decided cell as the worlds name it."""
    return cell.segment.removeprefix("task="), cell.load


def _is_deciding(world: World, effect: Effect) -> bool:
    wanted = (world.metric, "candidate", "baseline")
    return (effect.metric, effect.arm, effect.versus) == wanted and effect.segment != ALL_SEGMENTS


def _covers(effect: Effect, truths: dict[Cell, float], *, simultaneous: bool) -> bool:
    figure = effect.simultaneous if simultaneous else effect.ratio
    truth = truths[effect.segment.removeprefix("task="), effect.load]
    return figure.low is not None and figure.high is not None and figure.low <= truth <= figure.high


def _python() -> dict[str, str]:
    return {"python": platform.python_version()}


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=RUNS, help="runs of each world")
    parser.add_argument("--processes", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--world", action="append", help="only this world; may be repeated")
    parser.add_argument("--out", type=Path, default=OUT, help="with --world, its rows are replaced there")
    parser.add_argument("--table", action="store_true", help="only write the table from bench/study.json")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    raise SystemExit(main())
