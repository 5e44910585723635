#!/usr/bin/env python3
"""What a long run costs beside its measuring: journal, tables, verdict, report; writes bench/records.json.

A run of known shape is made in memory period by period and given to the real journal; then the tables are
written, and the verdict and the report computed, as `draftproof run` does at its end. Every stage is a
process of its own, so that its time holds its imports and its peak memory is its own. Only `append` counts as
the journal's time: records are made before it. `cpu_s` is the stage's CPU time, of all its threads: on a
machine with other work (`load_average`) it says more than `seconds`. Several `--records` show how both grow.
"""

import argparse
import json
import os
import platform
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from records_run import Shape, make_directory, make_periods

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "bench" / "records.json"
STAGES = ("journal", "tables", "report", "report_from_tables")
TOGETHER = ("journal", "tables", "report")  # what ends a run; the fourth reads the compact form instead
LIMIT_S, LIMIT_GIB, LIMIT_RECORDS = 120.0, 4.0, 1_000_000
KIB_PER_GIB = 1 << 20


def main(arguments: Sequence[str] | None = None) -> int:
    """Run every stage at every size, or one stage where a child is asked for it."""
    options = _parse(arguments)
    if options.stage:
        print(json.dumps(run_stage(options.stage, options.folder, Shape(options.records[0]))))
        return 0
    rows = []
    for count in options.records:
        rows.append(measure(count, options.folder))
        print(_render(rows[-1]), flush=True)
    options.out.write_text(json.dumps(_describe(rows), indent=1) + "\n", encoding="utf-8")
    return 0


def measure(records: int, parent: Path | None) -> dict[str, Any]:
    """Return seconds and peak memory of every stage of a run with about so many records."""
    with tempfile.TemporaryDirectory(dir=parent) as scratch:
        folder = Path(scratch) / "run"
        stages = {stage: _start(stage, folder, records) for stage in STAGES}
    together = [stages[stage] for stage in TOGETHER]
    seconds = sum(stage["seconds"] for stage in together)
    peak = max(stage["peak_gib"] for stage in together)
    return {
        "records": stages["journal"]["records"],
        "seconds": round(seconds, 1),
        "cpu_s": round(sum(stage["cpu_s"] for stage in together), 1),
        "peak_gib": peak,
        "within_limits": _is_within(stages["journal"]["records"], seconds, peak),
        "stages": stages,
    }


def _is_within(records: int, seconds: float, peak_gib: float) -> bool | None:
    """Return whether a run of full length keeps the limits; None of a shorter one, which tells nothing."""
    return seconds <= LIMIT_S and peak_gib <= LIMIT_GIB if records >= LIMIT_RECORDS else None


def run_stage(stage: str, folder: Path, shape: Shape) -> dict[str, Any]:
    """Run one stage in this process and return what it took and left."""
    started, cpu = time.perf_counter(), time.process_time()
    found = {
        "journal": lambda: write_journal(folder, shape),
        "tables": lambda: write_tables(folder),
        "report": lambda: write_report(folder),
        "report_from_tables": lambda: write_report_from_tables(folder),
    }[stage]()
    seconds = found.pop("seconds", time.perf_counter() - started)
    cpu_s = found.pop("cpu_s", time.process_time() - cpu)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / KIB_PER_GIB
    return {"seconds": round(seconds, 2), "cpu_s": round(cpu_s, 2), "peak_gib": round(peak, 3), **found}


def write_journal(folder: Path, shape: Shape) -> dict[str, Any]:
    """Append every record of the run, period by period, with the device's sync at the end of each."""
    run, seconds, cpu_s, count = make_directory(folder, shape), 0.0, 0.0, 0
    journal = run.journal
    for period in make_periods(shape):
        started, cpu = time.perf_counter(), time.process_time()
        for record in period:
            journal.append(record)
        seconds += time.perf_counter() - started
        cpu_s += time.process_time() - cpu
        count += len(period) - 1
    run.close()
    size = sum(path.stat().st_size for path in (folder / "journal").iterdir())
    return {"seconds": seconds, "cpu_s": cpu_s, "records": count, "bytes": size}


def write_tables(folder: Path) -> dict[str, Any]:
    """Write the Parquet tables beside the journal."""
    from draftproof.store import RunDirectory  # noqa: PLC0415 - its import is part of the stage

    paths = RunDirectory.open(folder).compact()
    return {"bytes": sum(path.stat().st_size for path in paths)}


def write_report(folder: Path) -> dict[str, Any]:
    """Compute the verdict, and write results, envelope and report."""
    from draftproof.measure.run.reporting import recompute  # noqa: PLC0415 - its import is part of the stage

    results = recompute(folder, write=True)
    return {
        "decision": results.verdict.decision,
        "results_bytes": (folder / "results.json").stat().st_size,
        "report_bytes": (folder / "report.html").stat().st_size,
    }


def write_report_from_tables(folder: Path) -> dict[str, Any]:
    """Do the same for the run without its journal: what a reader of the compact form waits for."""
    shutil.rmtree(folder / "journal")
    shutil.rmtree(folder / "telemetry")
    return write_report(folder)


def _start(stage: str, folder: Path, records: int) -> dict[str, Any]:
    command = [sys.executable, __file__, "--stage", stage, "--folder", str(folder), "--records", str(records)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)  # noqa: S603 - ourselves
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _describe(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "limits": {"seconds": LIMIT_S, "peak_gib": LIMIT_GIB, "records": LIMIT_RECORDS},
        "machine": {
            "cpus": os.cpu_count(),
            "machine": platform.machine(),
            "python": platform.python_version(),
            "load_average": round(os.getloadavg()[0], 1),
        },
        "versions": {name: version(name) for name in ("draftproof", "msgspec", "numpy", "polars")},
        "shape": Shape(0).describe(),
        "runs": rows,
    }


def _render(row: dict[str, Any]) -> str:
    parts = ", ".join(_parts(row["stages"]))
    cost = f"{row['seconds']:.1f} s (CPU {row['cpu_s']:.1f} s), {row['peak_gib']:.2f} GiB"
    return f"{row['records']:,} records: {cost} ({parts})"


def _parts(stages: dict[str, dict[str, Any]]) -> Iterator[str]:
    for name, stage in stages.items():
        cost = f"{stage['seconds']:.1f} s (CPU {stage['cpu_s']:.1f} s)"
        yield f"{name} {cost} {stage['peak_gib']:.2f} GiB"


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--folder", type=Path, help="where the scratch run is made")
    parser.add_argument("--stage", choices=STAGES, help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    raise SystemExit(main())
