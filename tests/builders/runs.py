"""Runs of known truth, made from arrays of request times: fast enough for thousands of verdicts.

Deterministic: the same arrays and order of periods give the same run. Nothing is measured; the records are
those that a run of that shape would leave, with a few chunks each.
"""

import hashlib
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from draftproof.core.manifests import ArmManifest, Manifest
from draftproof.core.records import BlockRecord, Chunk, RequestRecord, SpecCounts
from draftproof.judge.observe.run_data import RunData
from draftproof.plan.load import Arrivals
from draftproof.plan.schema import Plan
from draftproof.workload.arm_orders import draw_arm_orders
from draftproof.workload.arrivals import arrival_times_ns
from draftproof.workload.items import ContainsCheck, Item, Message, Sampling

MS_NS = 1_000_000
PROMPT_TOKENS = 60
ACCEPTED_PER_STEP, DRAFTED_PER_STEP = 2, 4
TURN_NS = 10_000_000_000
# What a client that kept up says of a period of an open loop.
_OPEN_LOOP: dict[str, Any] = {
    "lag_p99_ns": MS_NS // 2,
    "send_lag_p99_ns": MS_NS,
    "send_lag_max_ns": MS_NS,
    "gc_pause_max_ns": 0,
    "gc_pause_total_ns": 0,
    "connections": 0,
    "in_flight_max": 4,
    "held_back": 0,
    "unstamped": 0,
}

Floats = npt.NDArray[np.float64]
Load = int | Mapping[str, Any]  # concurrency, or the keys of `arrivals`


class Place(NamedTuple):
    """Where a request lies: its load, the block, the place of its arm in it, and when it is due in ns."""

    load: str
    concurrency: int
    block: int
    order: int
    due_ns: int


class Requests(NamedTuple):
    """One arm's requests in one cell, one entry for each prompt: ms, tokens, and whether it was answered."""

    tpot_ms: Floats
    ttft_ms: Floats
    tokens: npt.NDArray[np.int64]
    is_ok: npt.NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The shape of a synthetic run.

    `loads` are (name, concurrency), or (name, arrivals) of an open loop as a plan states them, whose requests
    all meet a service with room. With `prompts_per_topic` the items have a label in the dimension "topic",
    and so many prompts of a segment share one. `copies`: so many items of a segment have the same messages.
    `plan` overrides keys of the plan, table by table.
    """

    segments: tuple[str, ...] = ("rewriting", "chat")
    loads: tuple[tuple[str, Load], ...] = (("low", 1), ("high", 8))
    prompts: int = 40
    prompts_per_topic: int | None = None
    copies: int = 1
    block_size: int = 8
    arms: tuple[str, ...] = ("baseline", "candidate", "baseline_null")
    evidence: str = "representative"
    temperature: float = 0.0
    thresholds: dict[str, Any] = field(default_factory=dict)
    comparison: dict[str, Any] = field(default_factory=dict)

    @property
    def blocks(self) -> int:
        """How many blocks a load has; the prompts of a segment are dealt to them in turn."""
        return -(-self.prompts // self.block_size)


Drawn = Mapping[tuple[str, str, str], Requests]  # by arm, segment, load
Orders = Mapping[tuple[str, int], tuple[str, ...]]  # by load, block: the arms in the order of their periods


def order_periods(layout: Layout, rng: np.random.Generator) -> dict[tuple[str, int], tuple[str, ...]]:
    """Return the order of the arms in every block, as a plan draws it; load after load."""
    places = [(load, block) for load, _ in layout.loads for block in range(layout.blocks)]
    drawn = draw_arm_orders([load for load, _ in places], layout.arms, int(rng.integers(2**31)))
    return dict(zip(places, drawn, strict=True))


def build_run(layout: Layout, drawn: Drawn, orders: Orders, *, seed: int = 1) -> RunData:
    """Return the run that these requests are; `seed` is the plan's, of every resampling."""
    return RunData(
        plan=_build_plan(layout, seed),
        manifest=_build_manifest(layout),
        records=tuple(_build_records(layout, drawn, orders)),
        blocks=tuple(_build_blocks(layout, orders)),
        items=tuple(_build_items(layout)),
    )


def write_prompt(segment: str, number: int) -> str:
    """Return a prompt that is no near copy of any other: most of it is a hash of its own."""
    return f"hello {segment} {number} {hashlib.sha256(f'{segment} {number}'.encode()).hexdigest()}"


def name_topic(layout: Layout, segment: str, prompt: int) -> str:
    """Return the topic label of a prompt, its own where topics are not grouped."""
    return f"{segment}-topic-{prompt // (layout.prompts_per_topic or 1)}"


def _build_records(layout: Layout, drawn: Drawn, orders: Orders) -> Iterator[RequestRecord]:
    for place, (load, size) in enumerate(layout.loads):
        for segment in layout.segments:
            for arm in layout.arms:
                requests = drawn[arm, segment, load]
                for prompt in range(layout.prompts):
                    block = prompt % layout.blocks
                    period = orders[load, block].index(arm)
                    due_ns = _period_start(layout, place, block, period) + _due_ns(
                        layout, size, segment, prompt
                    )
                    yield _build_record(
                        _take(requests, prompt),
                        arm,
                        f"{segment}-{prompt}",
                        Place(load, size if isinstance(size, int) else 1, block, period, due_ns),
                    )


def _period_start(layout: Layout, place: int, block: int, period: int) -> int:
    return ((place * layout.blocks + block) * len(layout.arms) + period) * TURN_NS


def _due_ns(layout: Layout, size: Load, segment: str, prompt: int) -> int:
    """Return when a request is due after the start of its period: at once in a closed loop."""
    if isinstance(size, int):
        return 0
    rank = prompt // layout.blocks * len(layout.segments) + layout.segments.index(segment)
    process = Arrivals.model_validate(size).open_loop
    times = arrival_times_ns(process.profile, process.spacing, prompt % layout.blocks)
    return next(itertools.islice(times, rank, None))


def _take(requests: Requests, prompt: int) -> tuple[float, float, int, bool]:
    return (
        float(requests.tpot_ms[prompt]),
        float(requests.ttft_ms[prompt]),
        int(requests.tokens[prompt]),
        bool(requests.is_ok[prompt]),
    )


def _build_record(
    request: tuple[float, float, int, bool], arm: str, item: str, place: Place
) -> RequestRecord:
    (tpot_ms, ttft_ms, tokens, is_ok), (load, concurrency, block, order, start) = request, place
    first = start + round(ttft_ms * MS_NS)
    last = first + round(tpot_ms * MS_NS * (tokens - 1))
    middle = 1 + (tokens - 1) // 2
    halfway = first + (last - first) * (middle - 1) // max(1, tokens - 1)
    steps = (tokens - 1) // (1 + ACCEPTED_PER_STEP) if arm == "candidate" else 0
    answer: dict[str, Any] = {
        "chunks": (Chunk(first, 1), Chunk(halfway, middle), Chunk(last, tokens)),
        "token_source": "continuous_usage",
        "prompt_tokens": PROMPT_TOKENS,
        "output_tokens": tokens,
        "finish_reason": "stop",
        "text": "yes" + " ok" * (tokens - 1),
        "speculation": SpecCounts(
            steps, DRAFTED_PER_STEP * steps, ACCEPTED_PER_STEP * steps, (0, 0, steps) if steps else ()
        ),
    }
    return RequestRecord(
        request_id=f"{load}-{item}-{arm}",
        arm=arm,
        load=load,
        block=block,
        repeat=0,
        item_id=item,
        phase="measure",
        order_in_block=order,
        concurrency=concurrency,
        seed=1,
        scheduled_ns=start,
        sent_ns=start + MS_NS,
        headers_ns=start + 2 * MS_NS,
        end_ns=last,
        outcome="ok" if is_ok else "timeout",
        fallbacks=0,
        **(answer if is_ok else {}),
    )


def _build_blocks(layout: Layout, orders: Orders) -> Iterator[BlockRecord]:
    places = {load: place for place, (load, _) in enumerate(layout.loads)}
    sizes = dict(layout.loads)
    for (load, block), arms in orders.items():
        for order, arm in enumerate(arms):
            start = _period_start(layout, places[load], block, order)
            yield BlockRecord(
                block=block,
                load=load,
                arm=arm,
                order=order,
                started_ns=start,
                ended_ns=start + TURN_NS,
                completed=True,
                event_loop_lag_max_ns=MS_NS,
                client_cpu_s=0.1,
                process=places[load] * layout.blocks + block + 1,
                **({} if isinstance(sizes[load], int) else _OPEN_LOOP | {"counted_from_ns": start}),
            )


def _build_items(layout: Layout) -> Iterator[Item]:
    for segment in layout.segments:
        for prompt in range(layout.prompts):
            topic = {"topic": name_topic(layout, segment, prompt)} if layout.prompts_per_topic else {}
            yield Item(
                id=f"{segment}-{prompt}",
                messages=(Message(role="user", content=write_prompt(segment, prompt // layout.copies)),),
                segments={"task": segment, **topic},
                checks=(ContainsCheck(all_of=("yes",)),),
                sampling=Sampling(temperature=layout.temperature),
            )


def _build_plan(layout: Layout, seed: int) -> Plan:
    arms: dict[str, Any] = {"baseline": {}, "candidate": {"settings": {"speculation.method": "ngram"}}}
    if "alternative" in layout.arms:
        arms["alternative"] = {}
    return Plan.model_validate(
        {
            "name": "synthetic",
            "seed": seed,
            "evidence": layout.evidence,
            "load": [
                {"name": name, "concurrency": size}
                if isinstance(size, int)
                else {"name": name, "arrivals": size}
                for name, size in layout.loads
            ],
            "arms": arms,
            "comparison": {"null_arm": "baseline_null" in layout.arms} | layout.comparison,
            "thresholds": layout.thresholds,
        }
    )


def _build_manifest(layout: Layout) -> Manifest:
    return Manifest(
        schema_version=1,
        draftproof_version="0",
        run_name="synthetic",
        created_wall_ns=0,
        anchor_wall_ns=0,
        anchor_monotonic_ns=0,
        plan_sha256="0",
        thresholds_sha256="0",
        workload_sha256="0",
        workload_name="synthetic",
        workload_version="1",
        evidence=layout.evidence,  # type: ignore[arg-type]
        seed=1,
        host={},
        arms=tuple(_build_arm(arm) for arm in layout.arms),
        contracts=(),
    )


def _build_arm(arm: str) -> ArmManifest:
    return ArmManifest(
        arm=arm,
        engine="reference",
        engine_version="1",
        command=None,
        url="http://127.0.0.1",
        settings={},
    )
