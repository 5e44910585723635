"""Runs of known truth: what every arm does in every cell is said by the test, nothing is measured."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, ClassVar

import msgspec
import pytest
from tests.builders.runs import write_prompt

from draftproof.core.manifests import ArmManifest, Manifest
from draftproof.core.records import BlockRecord, Chunk, RequestRecord, Round, ServerTimings, SpecCounts
from draftproof.judge.observe.run_data import RunData
from draftproof.plan.schema import Plan
from draftproof.workload.arm_orders import draw_arm_orders
from draftproof.workload.items import ContainsCheck, Item, Message

MS = 1_000_000
# Many worlds have the same blocks and arms, whose orders take as long as a part of the verdict.
draw_orders = cache(draw_arm_orders)


@dataclass(frozen=True)
class Case:
    """One request to be invented: which arm, segment, load, item and repeat."""

    arm: str
    segment: str
    load: str
    number: int
    repeat: int

    @property
    def item_id(self) -> str:
        return f"{self.segment}-{self.number}"


@dataclass
class World:
    """Truths by request; every callable gets a `Case`. Times in ms. Two arms unless a test needs more."""

    ALL_ARMS: ClassVar[tuple[str, ...]] = ("baseline", "candidate", "alternative", "baseline_null")

    segments: tuple[str, ...] = ("rewriting", "chat")
    loads: tuple[tuple[str, int], ...] = (("low", 1), ("high", 8))
    items_per_segment: int = 20
    repeats: int = 1
    noise: float = 0.02
    arms: tuple[str, ...] = ("baseline", "candidate")
    tpot_ms: Callable[[Case], float] = lambda _: 20.0
    ttft_ms: Callable[[Case], float] = lambda _: 100.0
    tokens: Callable[[Case], int] = lambda _: 40
    outcome: Callable[[Case], str] = lambda _: "ok"
    text: Callable[[Case], str] = lambda _: "yes"
    accepted: Callable[[Case], int | None] = lambda case: 2 if case.arm == "candidate" else 0
    round_ms: Callable[[Case], float] = lambda _: 20.0
    lag_ms: Callable[[Case], float | None] = lambda _: 1.0
    is_kept: Callable[[Case], bool] = lambda _: True
    temperature: float = 0.0
    critical: bool = False
    has_checks: bool = True
    thresholds: dict[str, float] = field(
        default_factory=lambda: {"failure_margin": 0.1, "quality_margin": 0.15}
    )
    comparison: dict[str, Any] = field(default_factory=dict)
    plan: dict[str, Any] = field(default_factory=dict)
    evidence: str = "synthetic"

    def run(self) -> RunData:
        cases = [case for case in self._cases() if self.is_kept(case)]
        return RunData(
            plan=self._plan(),
            manifest=self._manifest(),
            records=tuple(self._record(case) for case in cases),
            blocks=tuple(self._blocks(cases)),
            items=tuple(self._items()),
        )

    def _cases(self) -> Iterator[Case]:
        for load, _ in self.loads:
            for repeat in range(self.repeats):
                for number in range(self.items_per_segment):
                    for arm in self.arms:
                        for segment in self.segments:
                            yield Case(arm, segment, load, number, repeat)

    def _block(self, case: Case) -> int:
        place = [name for name, _ in self.loads].index(case.load)
        return (place * self.repeats + case.repeat) * self.items_per_segment + case.number

    def _record(self, case: Case) -> RequestRecord:
        factor = 1 + self.noise * random.Random(repr(case)).gauss(0, 1)  # noqa: S311
        tokens, outcome = self.tokens(case), self.outcome(case)
        start = self._block(case) * 10_000 * MS
        first = start + round(self.ttft_ms(case) * factor * MS)
        step = self.tpot_ms(case) * factor * MS
        sizes = [1] + [1 + (self.accepted(case) or 0)] * tokens
        chunks, done = [], 0
        for size in sizes:
            done = min(done + size, tokens)
            chunks.append(Chunk(first + round(step * (done - 1)), done))
            if done == tokens:
                break
        end = chunks[-1].arrival_ns
        ok = outcome == "ok"
        counts = [chunk.cumulative_tokens or 0 for chunk in chunks]
        committed = [after - before for before, after in pairwise(counts)]
        return RequestRecord(
            request_id=f"{case.load}-{case.repeat}-{case.item_id}-{case.arm}",
            arm=case.arm,
            load=case.load,
            block=self._block(case),
            repeat=case.repeat,
            item_id=case.item_id,
            phase="measure",
            order_in_block=0,
            concurrency=dict(self.loads)[case.load],
            seed=1,
            scheduled_ns=start,
            sent_ns=start + MS,
            headers_ns=start + 2 * MS,
            end_ns=end,
            outcome=outcome,  # type: ignore[arg-type]
            chunks=tuple(chunks) if ok else (),
            token_source="continuous_usage" if ok else None,
            prompt_tokens=60 if ok else None,
            output_tokens=tokens if ok else None,
            finish_reason="stop" if ok else None,
            # As much text as there are tokens: equal texts have equal counts. No text is none.
            text=self.text(case).ljust(tokens, ".") if ok and self.text(case) else "",
            token_ids=tuple(self.text(case).encode().ljust(tokens, b".")[:tokens]) if ok else None,
            **(self._speculation(case, committed) if ok else {}),
            server=ServerTimings(queue_ns=MS, prefill_ns=first - start - 2 * MS, decode_ns=end - first),
            fallbacks=0,
        )

    def _speculation(self, case: Case, committed: list[int]) -> dict[str, Any]:
        accepted = self.accepted(case)
        if accepted is None:
            return {}
        proposed = 4 if accepted else 0
        each = round(self.round_ms(case) * MS)
        rounds = tuple(Round(proposed, accepted, count, 0, each, 0, 0, 1, 0) for count in committed)
        steps = len(rounds) if proposed else 0
        histogram = tuple([0] * accepted + [steps]) if steps else ()
        return {
            "rounds": rounds,
            "speculation": SpecCounts(steps, proposed * steps, accepted * steps, histogram),
        }

    def _blocks(self, cases: list[Case]) -> Iterator[BlockRecord]:
        periods = {(self._block(case), case.arm): case for case in cases}
        for (block, arm), case in periods.items():
            lag, order = self.lag_ms(case), self._orders[block].index(arm)
            yield BlockRecord(
                block=block,
                load=case.load,
                arm=arm,
                order=order,
                started_ns=block * 10_000 * MS + order,
                ended_ns=block * 10_000 * MS + order + 1,
                completed=True,
                process=block + 1,
                event_loop_lag_max_ns=None if lag is None else round(lag * MS),
                client_cpu_s=0.1,
            )

    @cached_property
    def _orders(self) -> tuple[tuple[str, ...], ...]:
        """The order of the arms in each block, as a plan draws it."""
        loads = (load for load, _ in self.loads for _ in range(self.repeats * self.items_per_segment))
        return draw_orders(tuple(loads), tuple(self.arms), 1)

    def _items(self) -> Iterator[Item]:
        checks = (ContainsCheck(all_of=("yes",), critical=self.critical),) if self.has_checks else ()
        for segment in self.segments:
            for number in range(self.items_per_segment):
                yield msgspec.convert(
                    {
                        "id": f"{segment}-{number}",
                        "messages": [
                            msgspec.to_builtins(Message(role="user", content=write_prompt(segment, number)))
                        ],
                        "segments": {"task": segment, "language": "en"},
                        "checks": msgspec.to_builtins(checks),
                        "sampling": {"temperature": self.temperature},
                    },
                    Item,
                )

    def _plan(self) -> Plan:
        arms: dict[str, Any] = {"baseline": {}, "candidate": {"settings": {"speculation.method": "ngram"}}}
        if "alternative" in self.arms:
            arms["alternative"] = {}
        return Plan.model_validate(
            {
                "name": "invented",
                "evidence": self.evidence,
                "load": [
                    {"name": name, "concurrency": count, "repeats": self.repeats}
                    for name, count in self.loads
                ],
                "arms": arms,
                "comparison": {"resamples": 200, "null_arm": "baseline_null" in self.arms} | self.comparison,
                "thresholds": self.thresholds,
            }
            | self.plan
        )

    def _manifest(self) -> Manifest:
        return Manifest(
            schema_version=1,
            draftproof_version="0.1.0",
            run_name="invented",
            created_wall_ns=0,
            anchor_wall_ns=0,
            anchor_monotonic_ns=0,
            plan_sha256="p",
            thresholds_sha256="t",
            workload_sha256="w",
            workload_name="invented",
            workload_version="1",
            evidence=self.evidence,  # type: ignore[arg-type]
            seed=1,
            host={},
            arms=tuple(
                ArmManifest(
                    arm=arm,
                    engine="reference",
                    engine_version="1",
                    command=None,
                    url="http://127.0.0.1",
                    settings={},
                )
                for arm in self.arms
            ),
            contracts=(),
        )


@pytest.fixture(scope="session")
def world() -> type[World]:
    """Return the maker of invented runs: `world(tpot_ms=lambda case: ...)` and then `.run()`."""
    return World


@pytest.fixture(scope="session")
def lookup() -> SimpleNamespace:
    """Return finders of rows in results."""

    def cell(results: Any, segment: str, load: str) -> Any:
        return next(one for one in results.cells if (one.segment, one.load) == (f"task={segment}", load))

    def effect(results: Any, metric: str, *, segment: str, load: str) -> Any:
        wanted = (metric, "candidate", "baseline", segment if segment == "all" else f"task={segment}", load)
        return next(
            one
            for one in results.effects
            if (one.metric, one.arm, one.versus, one.segment, one.load) == wanted
        )

    def arm_cell(results: Any, arm: str, segment: str, load: str) -> Any:
        wanted = (arm, segment if segment == "all" else f"task={segment}", load)
        return next(one for one in results.arm_cells if (one.arm, one.segment, one.load) == wanted)

    def codes(cell: Any) -> set[str]:
        return {reason.code for reason in cell.reasons}

    return SimpleNamespace(cell=cell, effect=effect, arm_cell=arm_cell, codes=codes)


@pytest.fixture(scope="session")
def diagnoses_of() -> Callable[[RunData], Any]:
    """Return what makes the diagnosis of a run alone, without the rest of its results."""
    from draftproof.judge.decide import effects, faults
    from draftproof.judge.inform import arm_cells
    from draftproof.judge.inform.diagnosis import remedies, steps
    from draftproof.judge.observe import pairs, run_data, services

    def diagnose(run: RunData, **changes: Any) -> Any:
        prepared = run_data.prepare_run(run)
        paired, readings = pairs.pair_observations(prepared), services.read_services(prepared)
        known: dict[str, Any] = {
            "faults": faults.find_faults(prepared, paired, readings),
            "effects": effects.index_effects(effects.compute_effects(prepared, paired)),
            "arm_cells": arm_cells.compute_arm_cells(prepared),
            "services": services.summarise_services(prepared, readings),
            "starts": services.list_starts(prepared),
            "rounds": (rounds := steps.collect_rounds(prepared)),
            "break_evens": steps.compute_break_evens(prepared, rounds),
        }
        return remedies.compute_diagnoses(prepared, **(known | changes))

    return diagnose
