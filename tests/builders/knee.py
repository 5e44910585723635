"""Knee searches against made-up services whose knee is known: a queue with a number of slots.

Each trial of a search is answered by a simulation of first-come-first-served slots with service times drawn
from a gamma distribution, led up to as an open loop does. No clock and no socket: a whole search takes part
of a second.
"""

import heapq
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import numpy as np
from tests.builders.records import build_block_record, build_item, build_manifest, build_record

from draftproof.core.records import RequestRecord
from draftproof.judge.knee.search import replay
from draftproof.judge.knee.trials import read_periods
from draftproof.judge.observe.levels import Trial
from draftproof.judge.observe.run_data import RunData
from draftproof.measure.load.loops import RampUp
from draftproof.plan.loading import parse_plan
from draftproof.plan.schema import Plan
from draftproof.workload.arm_orders import hash_number

NS_PER_S = 1_000_000_000
LEAD_S = 30.0
PLAN = """
name = "knee"
[[load]]
name = "low"
concurrency = 1
[arms.baseline]
[arms.candidate]
[comparison]
null_arm = false
[objectives]
e2e_ms = 3000
[knee]
low = 0.5
high = 16
"""


class Service(msgspec.Struct, frozen=True, kw_only=True):
    """`slots` answers at once, `service_s` each on average with a coefficient of variation `cv`.

    `fails` says of a load whether a request of it fails; `late_s` is the lag of the client in its periods.
    """

    slots: int = 4
    service_s: float = 1.0
    cv: float = 0.5
    fails: Callable[[float], bool] = lambda _: False
    late_s: float = 0.001


def make_plan(text: str = PLAN, *, seed: int = 1, **knee: Any) -> Plan:
    """Return a plan with a search, keys of [knee] changed."""
    plan = parse_plan(text)
    assert plan.knee is not None
    changed = type(plan.knee).model_validate(plan.knee.model_dump() | knee)
    return plan.model_copy(update={"knee": changed, "seed": seed})


def start_run(plan: Plan, *, prompts: int = 40) -> RunData:
    """Return a run that has measured nothing yet."""
    return RunData(
        plan=plan,
        manifest=build_manifest(),
        records=(),
        blocks=(),
        items=tuple(build_item(f"item-{number}") for number in range(prompts)),
    )


def search_to_end(run: RunData, services: Mapping[str, Service], *, most: int = 200) -> RunData:
    """Return a run with every trial of its search taken, at most so many."""
    periods = read_periods(run)
    for _ in range(most):
        trial = replay(run.plan, run.items, periods).next
        if trial is None:
            return run
        before = len(run.records), len(run.blocks)
        for order, arm in enumerate(trial.block.arm_order):
            run = answer_period(run, trial, arm, order, services[arm])
        added = msgspec.structs.replace(run, records=run.records[before[0] :], blocks=run.blocks[before[1] :])
        periods = periods | read_periods(added)
    return run


def answer_period(run: RunData, trial: Trial, arm: str, order: int, service: Service) -> RunData:
    """Return a run with one arm's period of a trial answered; the same each time for the same run."""
    start_ns = max((block.ended_ns for block in run.blocks), default=0) + NS_PER_S
    records = tuple(_simulate(run.plan, trial, arm, service, start_ns))
    block = build_block_record(
        block=trial.block.index,
        load=trial.block.load,
        arm=arm,
        order=order,
        started_ns=start_ns,
        counted_from_ns=min(one.scheduled_ns for one in records if one.phase == "measure"),
        ended_ns=max(one.end_ns for one in records if one.phase == "measure"),
        event_loop_lag_max_ns=round(service.late_s * 1e9),
    )
    return msgspec.structs.replace(run, records=(*run.records, *records), blocks=(*run.blocks, block))


def _simulate(plan: Plan, trial: Trial, arm: str, service: Service, start_ns: int) -> list[RequestRecord]:
    """Return the records of a period, those that lead up to it included."""
    queue = Queue(service, hash_number(plan.seed, arm, trial.block.load, trial.number))
    block = trial.block
    base_s = 0.0 if block.concurrency is not None else queue.lead_up(trial.load, plan.limits.ramp_up_max_s)
    client = [0.0] * (block.concurrency or 0)
    for order, item_id in enumerate(block.item_ids):
        due_s = base_s + block.due_ns[order] / NS_PER_S if block.due_ns else heapq.heappop(client)
        end_s = queue.ask(due_s, item_id)
        heapq.heappush(client, end_s)
    return [
        _record(trial, arm, start_ns, number, request, fails=service.fails(trial.load))
        for number, request in enumerate(queue.asked)
    ]


class Asked(msgspec.Struct, frozen=True):
    """One request in the queue; a fill request has no item."""

    due_s: float
    begins_s: float
    end_s: float
    item_id: str | None


class Queue:
    """Slots that answer first come, first served; `asked` are their requests in order."""

    def __init__(self, service: Service, seed: int) -> None:
        self._free, self._service = [0.0] * service.slots, service
        self._rng = np.random.default_rng(seed)
        self.asked: list[Asked] = []

    def ask(self, due_s: float, item_id: str | None = None) -> float:
        """Take a request and return when it ends."""
        begins_s, shape = max(heapq.heappop(self._free), due_s), 1 / self._service.cv**2
        end_s = begins_s + float(self._rng.gamma(shape, self._service.service_s / shape))
        heapq.heappush(self._free, end_s)
        self.asked.append(Asked(due_s, begins_s, end_s, item_id))
        return end_s

    def lead_up(self, rps: float, limit_s: float = LEAD_S) -> float:
        """Ask fill requests as long as an open loop leads up; return when that ends."""
        due_s, ramp_up = 0.0, RampUp(round(limit_s * NS_PER_S))
        while True:
            due_s += float(self._rng.exponential(1 / rps))
            if not ramp_up.is_known:
                took_s = [one.end_s - one.due_s for one in self.asked if one.end_s <= due_s]
                ramp_up.see(
                    round(due_s * NS_PER_S),
                    ended=len(took_s),
                    in_flight=len(self.asked) - len(took_s),
                    ended_ns=round(sum(took_s) * NS_PER_S),
                )
            if due_s * NS_PER_S >= ramp_up.length_ns:
                return ramp_up.length_ns / NS_PER_S
            self.ask(due_s)


def _record(
    trial: Trial, arm: str, start_ns: int, number: int, request: Asked, *, fails: bool
) -> RequestRecord:
    block, phase = trial.block, "fill" if request.item_id is None else "measure"
    begins_ns, end_ns = (start_ns + round(at * 1e9) for at in (request.begins_s, request.end_s))
    due_ns = start_ns + round(request.due_s * 1e9)
    gap_ns = max((end_ns - begins_ns) // 4, 1)
    item_id = request.item_id or f"fill-{number}"
    return build_record(
        request_id=f"{block.load}/{block.index}/{block.repeat}/{arm}/{item_id}",
        arm=arm,
        load=block.load,
        block=block.index,
        repeat=block.repeat,
        item_id=item_id,
        phase=phase,
        order_in_block=number,
        sent_ns=due_ns,
        ttft_ns=begins_ns - due_ns + gap_ns,
        gap_ns=gap_ns,
        end_ns=end_ns,
        outcome="timeout" if fails and phase == "measure" else "ok",
    )
