"""A run of any length for bench/records.py: four arms, two loads, a thousand prompts asked again and again.

Deterministic. The plan, its blocks and the request ids are the real ones; times, tokens and texts are drawn.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))  # of tests.builders

import numpy as np
from tests.builders.records import build_arm_manifest, build_contract, build_manifest

from draftproof.core.records import BlockRecord, Chunk, RequestRecord, SpecCounts
from draftproof.measure.load.period import Period, periods_of
from draftproof.plan.loading import parse_plan, plan_sha256, thresholds_sha256
from draftproof.store import RunDirectory
from draftproof.workload.blocks import plan_blocks, request_seed
from draftproof.workload.items import ContainsCheck, Item, LengthCheck, Message

MS_NS = 1_000_000
ARMS = ("baseline", "candidate", "alternative", "baseline_null")
TASKS = ("rewriting", "grounded", "explanation", "chat")
LOADS = (("single", 1), ("busy", 8))
CHUNKS, TOKENS = 8, 16
TTFT_MS, GAP_MS = 60.0, 40.0
SPEED = {"baseline": 1.0, "candidate": 0.7, "alternative": 0.95, "baseline_null": 1.0}
FAILURE_SHARE = 0.002
WORDS = (
    "the",
    "answer",
    "is",
    "given",
    "in",
    "a",
    "few",
    "plain",
    "words",
    "that",
    "differ",
    "from",
    "prompt",
    "to",
    "prompt",
    "and",
    "say",
    "little",
)


class Shape(NamedTuple):
    """How many records a run has, about: whole repeats of every prompt at every load in every arm."""

    records: int
    items: int = 1000
    block_size: int = 250

    @property
    def prompts(self) -> int:
        """Distinct prompts; fewer where the whole run is smaller than one repeat of a thousand."""
        return max(4, min(self.items, self.records // (len(ARMS) * len(LOADS))))

    @property
    def repeats(self) -> int:
        """How often each prompt is asked in an arm at a load."""
        return max(1, round(self.records / (len(ARMS) * len(LOADS) * self.prompts)))

    def describe(self) -> dict[str, Any]:
        """Return the facts of the shape that hold at every length."""
        return {
            "arms": len(ARMS),
            "loads": len(LOADS),
            "segments": len(TASKS),
            "prompts": self.items,
            "block_size": self.block_size,
            "chunks": CHUNKS,
            "tokens": TOKENS,
            "checks_a_prompt": 2,
        }


def make_directory(folder: Path, shape: Shape) -> RunDirectory:
    """Make the run directory with plan, workload and manifest."""
    text = _plan_text(shape)
    plan = parse_plan(text)
    manifest = build_manifest(
        plan_sha256=plan_sha256(text),
        thresholds_sha256=thresholds_sha256(plan),
        arms=tuple(build_arm_manifest(arm=arm) for arm in ARMS),
        contracts=tuple(build_contract(arm=arm) for arm in ARMS),
    )
    return RunDirectory.create(folder, text, plan, manifest, make_items(shape))


def make_items(shape: Shape) -> tuple[Item, ...]:
    """Return the prompts, every segment in equal shares."""
    return tuple(
        Item(
            id=f"{TASKS[number % len(TASKS)]}-{number:04d}",
            messages=(Message(role="user", content=f"Say something about number {number}."),),
            segments={"task": TASKS[number % len(TASKS)], "language": "en"},
            checks=(ContainsCheck(all_of=("answer",)), LengthCheck(min_chars=3, critical=number % 10 == 0)),
            max_tokens=TOKENS,
        )
        for number in range(shape.prompts)
    )


def make_periods(shape: Shape) -> Iterator[list[RequestRecord | BlockRecord]]:
    """Yield the records of every period in the order of the run, the period's own last."""
    plan, items = parse_plan(_plan_text(shape)), make_items(shape)
    by_id, rng, now_ns = {item.id: item for item in items}, np.random.default_rng(shape.records), 0
    texts = {item.id: _make_text(rng) for item in items}
    for block in plan_blocks(items, plan.load, ARMS, plan.seed, plan.workload.segment_by):
        for period in periods_of(block):
            records = [*_make_records(period, by_id, texts, rng, now_ns)]
            ended_ns = max(record.end_ns for record in records)
            yield [*records, _make_block(period, now_ns, ended_ns)]
            now_ns = ended_ns + MS_NS


def _plan_text(shape: Shape) -> str:
    loads = "".join(
        f'[[load]]\nname = "{name}"\nconcurrency = {count}\nrepeats = {shape.repeats}\n'
        f"block_size = {shape.block_size}\n"
        for name, count in LOADS
    )
    arms = "[arms.baseline]\n[arms.candidate]\n[arms.alternative]\n[comparison]\nnull_arm = true\n"
    return f'name = "long"\nseed = 1\nevidence = "synthetic"\n{loads}{arms}'


def _make_text(rng: np.random.Generator) -> str:
    return " ".join(["answer", *rng.choice(WORDS, 11)])


def _make_records(
    period: Period, items: dict[str, Item], texts: dict[str, str], rng: np.random.Generator, start_ns: int
) -> Iterator[RequestRecord]:
    """Yield one record for each prompt of a period; `concurrency` of them lie side by side."""
    count, slots = len(period.item_ids), period.concurrency or 1
    slow = SPEED[period.arm] * (1 + 0.1 * (slots - 1))
    gaps = rng.gamma(8.0, slow * GAP_MS / 8.0, (count, CHUNKS)) * MS_NS
    gaps[:, 0] = rng.gamma(8.0, (1 + 0.1 * (slots - 1)) * TTFT_MS / 8.0, count) * MS_NS
    offsets = np.cumsum(gaps, axis=1).astype(np.int64).tolist()
    failed, differs = rng.random(count) < FAILURE_SHARE, rng.random(count) < 0.01
    free_ns = [start_ns] * slots
    for order, item_id in enumerate(period.item_ids):
        sent_ns = free_ns[order % slots] + 20_000
        ends = [sent_ns + offset for offset in offsets[order]]
        text = texts[item_id] + (" indeed" if differs[order] else "")
        answer = (
            _make_answer(period.arm, text, ends) if not failed[order] else {"error": "no end within 120 s"}
        )
        yield RequestRecord(
            request_id=f"{period.key}/{item_id}",
            arm=period.arm,
            load=period.load,
            block=period.block,
            repeat=period.repeat,
            item_id=item_id,
            phase="measure",
            order_in_block=order,
            concurrency=slots,
            seed=request_seed(items[item_id], period.repeat),
            scheduled_ns=sent_ns - 20_000,
            sent_ns=sent_ns,
            headers_ns=ends[0] - 1000,
            end_ns=ends[-1] + 50_000,
            outcome="timeout" if failed[order] else "ok",
            http_status=200,
            **answer,
        )
        free_ns[order % slots] = ends[-1] + 60_000


def _make_answer(arm: str, text: str, ends: list[int]) -> dict[str, Any]:
    share = TOKENS // CHUNKS
    counts = SpecCounts(CHUNKS - 1, 3 * (CHUNKS - 1), CHUNKS - 1, (0, CHUNKS - 1))
    return {
        "chunks": tuple(Chunk(end, share * (place + 1)) for place, end in enumerate(ends)),
        "token_source": "continuous_usage",
        "prompt_tokens": 12,
        "output_tokens": TOKENS,
        "finish_reason": "stop",
        "text": text,
        "speculation": counts if arm == "candidate" else None,
        "fallbacks": 0,
    }


def _make_block(period: Period, started_ns: int, ended_ns: int) -> BlockRecord:
    return BlockRecord(
        block=period.block,
        load=period.load,
        arm=period.arm,
        order=period.order,
        started_ns=started_ns,
        ended_ns=ended_ns,
        completed=True,
        event_loop_lag_max_ns=MS_NS,
        client_cpu_s=0.5,
        counted_from_ns=started_ns,
        lag_p99_ns=MS_NS,
        connections=period.concurrency,
        in_flight_max=period.concurrency,
    )
