#!/usr/bin/env python3
"""What a decode step costs on this machine, by batch size and draft length; writes bench/steps.json.

Every drafted token here is arbitrary, so hardly any is accepted: the step's cost is what is measured, not a
speed-up. A draft of k tokens breaks even when a step accepts `break_even_accepted` of them on average.
Figures are medians of several steps, interleaved over draft lengths; ratios matter, not milliseconds.
"""

import json
import statistics
from collections.abc import Sequence
from pathlib import Path

from draftproof.qualify.runner import describe_host
from draftproof.reference.engine import Engine, load_engine
from draftproof.reference.fetch import demo_model_path
from draftproof.reference.proposer import DraftContext, Drafts
from draftproof.reference.types import EngineConfig, GenerationRequest, SamplingParams, SpeculationParams

BATCHES, DRAFT_LENGTHS = (1, 2, 4, 8), (0, 1, 2, 4, 8)
CONTEXT_TOKENS, ROUNDS = 113, 9


class ArbitraryProposer:
    """Drafts the same arbitrary tokens whatever the text: a drafter that knows nothing."""

    def propose(self, contexts: Sequence[DraftContext]) -> Drafts:
        """Return as many tokens as are allowed."""
        return Drafts(token_ids=[[11 + i for i in range(one.max_draft_tokens)] for one in contexts])

    def release(self, request_id: str) -> None:
        """Keep nothing."""


def step_costs(engine: Engine, batch: int, draft_length: int) -> list[float]:
    """Return the milliseconds of ROUNDS decode steps of a full batch."""
    method = "ngram" if draft_length else "off"
    for index in range(batch):
        prompt = tuple(100 + (index * 977 + position * 37) % 40_000 for position in range(CONTEXT_TOKENS))
        engine.add_request(
            GenerationRequest(
                request_id=f"{batch}-{draft_length}-{index}",
                prompt_token_ids=prompt,
                sampling=SamplingParams(max_tokens=200, ignore_eos=True),
                speculation=SpeculationParams(method=method, num_spec_tokens=max(draft_length, 1)),
            )
        )
    costs: list[float] = []
    while len(costs) < ROUNDS:
        rounds = [output.round for _, output in engine.step() if output.round is not None]
        if len(rounds) == batch and not rounds[0].prefill_tokens:
            one = rounds[0]
            costs.append((one.draft_ns + one.verify_ns + one.sample_ns + one.schedule_ns) / 1e6)
    for index in range(batch):
        engine.cancel(f"{batch}-{draft_length}-{index}")
    return costs


def main() -> None:
    """Measure every combination twice, in turn, and write the medians."""
    config = EngineConfig(model_path=str(demo_model_path()), max_num_batched_tokens=1024)
    engine = Engine(load_engine(config).target, config, proposers={"ngram": ArbitraryProposer()})
    samples: dict[tuple[int, int], list[float]] = {}
    for _ in range(2):
        for batch in BATCHES:
            for length in DRAFT_LENGTHS:
                samples.setdefault((batch, length), []).extend(step_costs(engine, batch, length))
    rows = []
    for (batch, length), costs in samples.items():
        ordinary = statistics.median(samples[(batch, 0)])
        ratio = statistics.median(costs) / ordinary
        rows.append(
            {
                "batch": batch,
                "draft_tokens": length,
                "step_ms": round(statistics.median(costs), 2),
                "ratio_to_ordinary": round(ratio, 3),
                "break_even_accepted": round(ratio - 1, 3) if length else None,
            }
        )
        print(rows[-1])
    report = {"host": describe_host(), "context_tokens": CONTEXT_TOKENS, "dtype": "float32", "steps": rows}
    Path(__file__).with_name("steps.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
