"""Waves of known step times, from records that say only what a test cares about."""

from typing import Any, TypeVar

from tests.builders.records import MS_NS, build_record, build_round

from draftproof.core.records import SpecCounts
from draftproof.explore.batches import Wave, WaveCost
from draftproof.explore.estimate import WaveSet, estimate_drifts, estimate_splits, estimate_steps
from draftproof.explore.results import COSTS_SCHEMA_VERSION, Costs
from draftproof.explore.schedule import CostGrid, plan_starts

TOKENS = 40
Value = TypeVar("Value")
GRID = CostGrid(draft_lengths=(1, 4), batches=(1, 8), repeats=4, acceptance=0.5)
ORDINARY_NS = {1: 10e6, 8: 20e6}
CHECK_NS, DRAFT_NS = 1e6, 0.5e6


def build_wave(
    *, step_ms=20.0, batch=2, length=2, begins_ms=(0, 30), start=1, drafted=None, accepted=0, **wave
) -> Wave:
    """Return a wave of one-token chunks; request i begins `begins_ms[i]` after the first."""
    counts = None
    if drafted is not None:
        counts = SpecCounts(TOKENS - 1, drafted, accepted, (TOKENS - 1,))
    records = tuple(
        build_record(
            sent_ns=0,
            ttft_ns=round((50 + begins_ms[slot]) * MS_NS),
            tokens_per_chunk=(1,) * TOKENS,
            gap_ns=round(step_ms * MS_NS),
            speculation=counts,
        )
        for slot in range(batch)
    )
    return Wave(start=start, draft_length=length, batch=batch, records=records, **wave)


def build_round_wave(*, batch=2, length=2, rounds=12, draft_ms=3, proposed=None) -> Wave:
    """Return a wave of shared rounds; `proposed` are the drafts of the last request, by default all K."""
    records = []
    for slot in range(batch):
        last = slot == batch - 1 and proposed is not None
        shared = tuple(
            build_round(
                proposed=proposed if last else length,
                accepted=0,
                committed=1,
                draft_ns=draft_ms * MS_NS + number,
                verify_ns=20 * MS_NS,
                batch_size=batch,
            )
            for number in range(rounds)
        )
        records.append(build_record(tokens_per_chunk=(1,) * TOKENS, rounds=shared))
    return Wave(start=1, draft_length=length, batch=batch, records=tuple(records))


def build_waves(*, with_lookup=True, drift=1.0, drafted_share=1.0, timer=False, rounds=False, **fields):
    """Return waves whose steps take ordinary + K × checking × batch + K × drafting, within ±1 %."""
    starts = plan_starts(GRID, with_lookup=with_lookup)
    costs = []
    for start in starts:
        for number, batch in enumerate(start.batches):
            length, is_lookup = start.draft_length, start.drafting == "ngram"
            drafting = 0.0 if is_lookup else length * DRAFT_NS
            step = ORDINARY_NS[batch] + length * CHECK_NS * batch + drafting
            step *= drift if start.index == len(starts) - 1 else 1.0
            told = length > 0 and (timer or rounds)
            costs.append(
                WaveCost(
                    start=start.index,
                    draft_length=length,
                    batch=batch,
                    step_ns=step * (1 + 0.01 * (number % 3 - 1)),
                    requests=batch,
                    steps=50,
                    drafted=length * drafted_share,
                    draft_ns=drafting if told else None,
                    verify_ns=step - drafting if told else None,
                    from_rounds=rounds,
                )
            )
    return WaveSet(grid=GRID, starts=starts, costs=tuple(costs), **fields)


def known(value: Value | None) -> Value:
    """Return a value that must be there."""
    assert value is not None
    return value


def build_costs(**fields: Any) -> Costs:
    waves = build_waves()
    steps = estimate_steps(waves)
    values: dict[str, Any] = {
        "schema_version": COSTS_SCHEMA_VERSION,
        "draftproof_version": "0.1.0",
        "plan_name": "staged",
        "plan_sha256": "0" * 64,
        "created_wall_ns": 1,
        "engine": "vllm",
        "engine_version": "0.32.0",
        "method": "draft_model",
        "target": "./model",
        "acceptance_while_timing": "synthetic acceptance length 1.0",
        "host": {"cpu": "some", "cores": 2, "memory_bytes": 2**33},
        "commands": (("ordinary decoding", ("vllm", "serve")),),
        "draft_lengths": GRID.draft_lengths,
        "batches": GRID.batches,
        "repeats": GRID.repeats,
        "answer_tokens": GRID.answer_tokens,
        "seed": 1,
        "confidence": 0.95,
        "acceptance": GRID.acceptance,
        "steps": steps,
        "splits": estimate_splits(waves),
        "drifts": estimate_drifts(waves),
        "run": None,
        "comparisons": (),
        "assumptions": ("one",),
        "warnings": (),
    }
    return Costs(**(values | fields))
