"""Whole searches against two simulated services, for the tests of the knee."""

from typing import Any

from tests.builders.knee import Service, make_plan, search_to_end, start_run

from draftproof.judge.knee.compute import compute_knee

# Four slots of a second each: at most 4 requests/s, and 95% within 3 s up to about 3.2 of them.
SLOW = Service(slots=4, service_s=1.0)
FAST = Service(slots=4, service_s=0.25)
QUICK: dict[str, Any] = {
    "requests": 100,
    "trials": 2,
    "points_per_doubling": 1,
    "time_budget_s": 80_000,
    "window_s": 20,
}


def find(services=None, *, plan=None, prompts=40, **knee):
    plan = plan or make_plan(**(QUICK | knee))
    run = search_to_end(start_run(plan, prompts=prompts), services or {"baseline": SLOW, "candidate": FAST})
    return run, knee_of(run)


def knee_of(run):
    return compute_knee(run)


def arm(found, name):
    return next(one for one in found.arms if one.arm == name)
