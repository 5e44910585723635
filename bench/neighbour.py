#!/usr/bin/env python3
"""What other programs on the engine's processors do to a decode step: `neighbour_slowdown` of engine.json.

A loop that never waits is put on one processor, then one on each. A figure is the step's time beside them
over the step's time alone, measured in turn several times: median, lowest and highest of these ratios. An
equal share of the processors is 4/3 beside a loop on one of two, and 2 beside a loop on each.
`--against` takes another commit's kernels.cpp: `over_other_kernels` is the time alone over theirs.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from report import check_thresholds
from steps import CONTEXT_TOKENS, step_costs

from draftproof.measure.run.runner import describe_host
from draftproof.reference.engine import Engine
from draftproof.reference.kernels.native import NativeKernels
from draftproof.reference.models.model import load_target
from draftproof.reference.types import EngineConfig
from draftproof.reference.weights.fetch import demo_model_path

ROUNDS = 7
SETTLE_S = 0.3  # the scheduler spreads the threads within this
INSTRUCTION_SETS = ("avx2", "fma", "avx512f", "avx512_bf16", "amx_tile", "amx_bf16", "asimd")
Steps = dict[int, float]  # by batch: milliseconds


@dataclass(frozen=True, slots=True)
class NeighbourPlan:
    """Which batches are measured, how many steps of each at a time, how often."""

    batches: tuple[int, ...] = (1, 4, 8)
    steps: int = 15
    rounds: int = ROUNDS


def measure_neighbour(engine: Engine, plan: NeighbourPlan) -> dict[str, Any]:
    """Return the step's milliseconds alone, and its slowdown by where the neighbours are and by batch."""
    cores = sorted(os.sched_getaffinity(0))
    places = {"one": cores[:1], "each": cores}
    alone: list[Steps] = []
    beside: dict[str, list[Steps]] = {name: [] for name in places}
    for _ in range(plan.rounds):
        alone.append(typical_steps(engine, plan))
        for name, taken in places.items():
            with busy_loops(taken):
                beside[name].append(typical_steps(engine, plan))
    slowdown = {name: ratios(steps, alone) for name, steps in beside.items()}
    return {
        "processors": len(cores),
        "kernels": engine.target.kernels_name,
        "instruction_sets": instruction_sets(),
        "context_tokens": CONTEXT_TOKENS,
        "alone_ms": {
            batch: round(statistics.median(one[batch] for one in alone), 2) for batch in plan.batches
        },
        "slowdown": slowdown,
        "worst": {
            name: max(one["median"] for one in by_batch.values()) for name, by_batch in slowdown.items()
        },
    }


def compare_kernels(engine: Engine, other: NativeKernels, plan: NeighbourPlan) -> dict[int, dict[str, float]]:
    """Return by batch the step's time over that with other kernels, both alone, taken in turn."""
    decoder = engine.target.decoder
    ours, theirs, own = [], [], decoder.kernels
    for at in range(plan.rounds):
        for kernels in (other, own) if at % 2 else (own, other):
            decoder.kernels = kernels
            (ours if kernels is own else theirs).append(typical_steps(engine, plan))
    decoder.kernels = own
    return ratios(ours, theirs)


def typical_steps(engine: Engine, plan: NeighbourPlan) -> Steps:
    """Return the median milliseconds of a decode step of each batch."""
    return {batch: statistics.median(step_costs(engine, batch, 0, plan.steps)) for batch in plan.batches}


def ratios(upper: Sequence[Steps], lower: Sequence[Steps]) -> dict[int, dict[str, float]]:
    """Return by batch the median, lowest and highest ratio of two measurements that took periods."""
    found = {}
    for batch in lower[0]:
        values = sorted(one[batch] / other[batch] for one, other in zip(upper, lower, strict=True))
        figures = {"median": statistics.median(values), "lowest": values[0], "highest": values[-1]}
        found[batch] = {name: round(value, 3) for name, value in figures.items()}
    return found


@contextmanager
def busy_loops(cores: Sequence[int]) -> Iterator[None]:
    """Keep each of some processors busy with a program of its own."""
    loops = [subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"]) for _ in cores]
    try:
        for loop, core in zip(loops, cores, strict=True):
            os.sched_setaffinity(loop.pid, {core})
        time.sleep(SETTLE_S)
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()
        time.sleep(SETTLE_S)


def instruction_sets() -> list[str]:
    """Return which of the instruction sets that matter to the kernels this processor has."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), "").split()
    return [name for name in INSTRUCTION_SETS if name in flags]


def load_other(source: Path) -> NativeKernels:
    """Compile another commit's kernels with the flags of theirs that matter to time, and load them."""
    folder = Path(tempfile.mkdtemp())
    flags = ("-std=gnu++17", "-O3", "-march=native", "-fopenmp", "-shared", "-fPIC", "-fno-math-errno")
    library = folder / "other.so"
    command = ["g++", *flags, "-ffp-contract=off", str(source), "-o", str(library)]
    subprocess.run(command, check=True)  # noqa: S603
    kernels = NativeKernels(library)
    kernels.name = "other"  # torch keeps its threads beside kernels that have none of their own
    return kernels


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    default = Path(__file__).with_name("engine.json")
    parser.add_argument("--out", type=Path, default=default, help="the report to put the key into")
    parser.add_argument("--against", type=Path, help="kernels.cpp of another commit")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="how often each is measured")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> None:
    """Measure, write the key and its wanted value into the report, print both."""
    options = parse_arguments(arguments)
    load = os.getloadavg()
    config = EngineConfig(model_path=str(demo_model_path()), kernels="native", max_num_batched_tokens=1024)
    engine = Engine(load_target(config), config)
    plan = NeighbourPlan(rounds=options.rounds)
    figure = measure_neighbour(engine, plan) | {"host": describe_host() | {"load_at_start": load}}
    if options.against:
        figure["over_other_kernels"] = compare_kernels(engine, load_other(options.against), plan)
    print(json.dumps(figure, indent=1))
    report = json.loads(options.out.read_text(encoding="utf-8")) if options.out.exists() else {}
    report["neighbour_slowdown"] = json.loads(json.dumps(figure))
    if "thresholds" in report:
        report["thresholds"] = check_thresholds(report)
    options.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
