#!/usr/bin/env python3
"""What a decode step costs on this machine, by batch size and draft length; writes bench/steps.json.

Every drafted token here is arbitrary, so hardly any is accepted: the step's cost is what is measured, not a
speed-up. A draft of k tokens breaks even when a step accepts `break_even_accepted` of them on average.
Figures are medians of several steps, interleaved over draft lengths; ratios matter, not milliseconds.
"""

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftproof.measure.run.runner import describe_host
from draftproof.reference.engine import Engine
from draftproof.reference.models.model import TargetModel, load_target
from draftproof.reference.proposer import DraftContext, Drafts
from draftproof.reference.types import EngineConfig, GenerationRequest, SamplingParams, SpeculationParams
from draftproof.reference.weights.fetch import demo_model_path

CONTEXT_TOKENS = 113


@dataclass(frozen=True, slots=True)
class StepPlan:
    """Which combinations are measured; `rounds` steps of each, in `passes` periods."""

    batches: tuple[int, ...] = (1, 2, 4, 8)
    draft_lengths: tuple[int, ...] = (0, 1, 2, 4, 8)
    rounds: int = 9
    passes: int = 2


class ArbitraryProposer:
    """Drafts the same arbitrary tokens whatever the text: a drafter that knows nothing."""

    def propose(self, contexts: Sequence[DraftContext]) -> Drafts:
        """Return as many tokens as are allowed."""
        return Drafts(token_ids=[[11 + i for i in range(one.max_draft_tokens)] for one in contexts])

    def release(self, request_id: str) -> None:
        """Keep nothing."""


def measure_steps(target: TargetModel, model_path: str, plan: StepPlan) -> list[dict[str, Any]]:
    """Return a row per combination, its ratios to the step of the same batch without drafts."""
    config = EngineConfig(model_path=model_path, max_num_batched_tokens=1024)
    engine = Engine(target, config, proposers={"ngram": ArbitraryProposer()})
    samples: dict[tuple[int, int], list[float]] = {}
    for _ in range(plan.passes):
        for batch in plan.batches:
            for length in plan.draft_lengths:
                samples.setdefault((batch, length), []).extend(step_costs(engine, batch, length, plan.rounds))
    return [
        _row(batch, length, statistics.median(costs), statistics.median(samples[(batch, 0)]))
        for (batch, length), costs in samples.items()
    ]


def _row(batch: int, length: int, cost_ms: float, ordinary_ms: float) -> dict[str, Any]:
    ratio = cost_ms / ordinary_ms
    return {
        "batch": batch,
        "draft_tokens": length,
        "step_ms": round(cost_ms, 2),
        "ratio_to_ordinary": round(ratio, 3),
        "break_even_accepted": round(ratio - 1, 3) if length else None,
    }


def step_costs(engine: Engine, batch: int, draft_length: int, rounds: int) -> list[float]:
    """Return the milliseconds of `rounds` decode steps of a full batch."""
    for index in range(batch):
        engine.add_request(_request(batch, draft_length, index))
    costs: list[float] = []
    while len(costs) < rounds:
        stats = [output.round for _, output in engine.step() if output.round is not None]
        if len(stats) == batch and not stats[0].prefill_tokens:
            one = stats[0]
            costs.append((one.draft_ns + one.verify_ns + one.sample_ns + one.schedule_ns) / 1e6)
    for index in range(batch):
        engine.cancel(f"{batch}-{draft_length}-{index}")
    return costs


def _request(batch: int, draft_length: int, index: int) -> GenerationRequest:
    prompt = tuple(100 + (index * 977 + position * 37) % 40_000 for position in range(CONTEXT_TOKENS))
    return GenerationRequest(
        request_id=f"{batch}-{draft_length}-{index}",
        prompt_token_ids=prompt,
        sampling=SamplingParams(max_tokens=200, ignore_eos=True),
        speculation=SpeculationParams(
            method="ngram" if draft_length else "off", num_spec_tokens=max(draft_length, 1)
        ),
    )


def main() -> None:
    """Measure every combination twice, in turn, and write the medians."""
    path = str(demo_model_path())
    target = load_target(EngineConfig(model_path=path))
    rows = measure_steps(target, path, StepPlan())
    for row in rows:
        print(row)
    report = {
        "host": describe_host(),
        "context_tokens": CONTEXT_TOKENS,
        "dtype": "float32",
        "kernels": target.kernels_name,
        "steps": rows,
    }
    Path(__file__).with_name("steps.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
