#!/usr/bin/env python3
"""What simulated queues say of open loops and of the knee search; writes bench/queues.json.

Services are first-come-first-served slots (`tests/builders/knee.py`), led up to as an open loop leads up.
Two questions: how near the waits of a period come to those of endless traffic, and how often the bracket of a
whole search, taken by the code that takes every search, holds the true knee. Seeds are fixed. Minutes; with
`--only waits` or `--only knees` the other part of the file stays.
"""

import argparse
import itertools
import json
import multiprocessing
import os
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # of tests.builders

import numpy as np
from tests.builders.knee import PLAN, Queue, Service, make_plan, search_to_end, start_run

from draftproof.judge.knee.compute import compute_knee
from draftproof.measure.load import loops

OUT = Path(__file__).with_name("queues.json")
TARGET, REQUESTS = 0.95, 200
SEARCHES = 100
TURNS, COUNTED, ENDLESS = 1500, 64, 400_000
# Slots, and the deadline in mean service times.
SERVICES = ((1, 6.0), (4, 3.0), (8, 2.5))
LOADS = (0.3, 0.7, 0.85, 0.95)
LEAD_MAX_S = 1000.0  # service times are of a second: no bound
# Lengths of the ramp-up in mean times of a request: until requests stand, the rule's own, twice that.
LEADS = (0, loops.RAMP_UP_TIMES, 2 * loops.RAMP_UP_TIMES)


def main() -> int:
    """Run the studies, write the report and print it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=("waits", "knees"))
    only = parser.parse_args().only
    report = json.loads(OUT.read_text()) if only else {}
    report["draftproof"] = version("draftproof")
    with multiprocessing.Pool(os.cpu_count()) as pool:
        if only != "knees":
            report["waits"] = pool.starmap(study_wait, itertools.product(LEADS, LOADS), chunksize=1)
        if only != "waits":
            truths = pool.starmap(find_knee, SERVICES)
            report["knees"] = [
                study_knee(pool, *place, knee) for place, knee in zip(SERVICES, truths, strict=True)
            ]
    OUT.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report, indent=1))
    return 0


def study_wait(lead_times: int, load: float) -> dict[str, float]:
    """Return the mean wait in a period as a share of that of endless traffic, four slots."""
    loops.RAMP_UP_TIMES = lead_times
    service = Service(slots=4)
    rps = load * service.slots
    periods = [ask(service, rps, COUNTED, seed) for seed in range(TURNS)]
    mean_s = float(np.mean([_wait_of(asked) for asked in periods]))
    lead_s = float(np.mean([Queue(service, seed).lead_up(rps, LEAD_MAX_S) for seed in range(TURNS)]))
    endless = _wait_of(ask(service, rps, ENDLESS, 1, is_led=False)[ENDLESS // 20 :])
    return {
        "lead_times": lead_times,
        "load": load,
        "wait_s": mean_s,
        "share_of_endless": mean_s / endless,
        "lead_s": lead_s,
    }


def study_knee(pool: Any, slots: int, deadline_s: float, knee: float) -> dict[str, Any]:
    """Return how often the brackets of whole searches hold the knee, and how wide they are."""
    found = pool.starmap(search, [(slots, deadline_s, knee, seed) for seed in range(SEARCHES)])
    pairs = [pair for both in found for pair in both]
    widths = [fails / holds for holds, fails in pairs if holds is not None and fails is not None]
    return {
        "slots": slots,
        "deadline_in_service_times": deadline_s,
        "knee_share_of_capacity": knee / slots,
        "brackets": len(pairs),
        "held_too_high": sum(holds is not None and holds > knee for holds, _ in pairs),
        "failed_too_low": sum(fails is not None and fails <= knee for _, fails in pairs),
        "open": len(pairs) - len(widths),
        "width_p50": float(np.quantile(widths, 0.5)),
        "width_p90": float(np.quantile(widths, 0.9)),
    }


def search(slots: int, deadline_s: float, knee: float, seed: int) -> list[tuple[float | None, float | None]]:
    """Return the bracket of each arm of one search, its grid placed by the seed."""
    offset = 2 ** float(np.random.default_rng(seed).uniform())
    keys: dict[str, Any] = {
        "requests": REQUESTS,
        "looks": 3,
        "low": round(knee / 8 * offset, 3),
        "high": round(knee * 8, 3),
        "time_budget_s": 80_000,
    }
    text = PLAN.replace("e2e_ms = 3000", f"e2e_ms = {round(1000 * deadline_s)}")
    service = Service(slots=slots)
    run = search_to_end(
        start_run(make_plan(text, seed=seed, **keys)), {"baseline": service, "candidate": service}
    )
    result = compute_knee(run)
    return [(one.holds, one.fails) for one in result.arms] if result else []


def find_knee(slots: int, deadline_s: float, halvings: int = 12, periods: int = 600) -> float:
    """Return the load at which the share on time, over many periods of that length, is the target."""
    service = Service(slots=slots)
    low, high = 0.3 * service.slots, 1.2 * service.slots
    for _ in range(halvings):
        middle = (low + high) / 2
        shares = [
            np.mean([one.end_s - one.due_s <= deadline_s for one in ask(service, middle, REQUESTS, seed)])
            for seed in range(periods)
        ]
        low, high = (middle, high) if np.mean(shares) > TARGET else (low, middle)
    return low


def ask(service: Service, rps: float, count: int, seed: int, *, is_led: bool = True) -> list[Any]:
    """Return the counted requests of one period at a Poisson rate."""
    queue, rng = Queue(service, seed), np.random.default_rng((seed, 7))
    due_s = queue.lead_up(rps, LEAD_MAX_S) if is_led else 0.0
    before = len(queue.asked)
    for gap_s in rng.exponential(1 / rps, count):
        due_s += float(gap_s)
        queue.ask(due_s)
    return queue.asked[before:]


def _wait_of(asked: list[Any]) -> float:
    return float(np.mean([one.begins_s - one.due_s for one in asked]))


if __name__ == "__main__":
    sys.exit(main())
