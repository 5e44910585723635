"""What a drafter costs beside the baseline at each load: compute, memory and scheduling. Pure.

Every figure names its source; one that nobody discloses is None with the reason, never 0.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from draftproof.core.manifests import ArmManifest
from draftproof.judge.inform.diagnosis.steps import RoundTable, StepMeans, average_rounds
from draftproof.judge.observe.run_data import ALL_SEGMENTS, PreparedRun
from draftproof.judge.results.diagnosis import CostPart, DrafterFact
from draftproof.judge.results.services import ServiceUse

# What vLLM states of its cache; llama.cpp's context is its cache, shared by all slots.
CACHE_KEYS = ("capacity.kv_cache_tokens", "ctx_size")
ARMS = ("baseline", "candidate")
_NO_ROUNDS = "neither rounds of answers nor counters of the service tell it"
_NO_CACHE = "the service states no fixed size of its key-value cache"
_NO_LENGTH = "the lengths of prompts or answers are not known"

Pair = tuple[float | None, float | None]  # baseline, candidate


class _Sources(msgspec.Struct, frozen=True, kw_only=True):
    """What is known at one load, of baseline and candidate."""

    steps: tuple[StepMeans | None, ...]
    uses: tuple[ServiceUse | None, ...]
    manifests: tuple[ArmManifest | None, ...]
    contexts: tuple[float | None, ...]

    def of_steps(self, name: str) -> Pair:
        """Return a mean over the rounds of each arm."""
        return _read(self.steps, name)

    def of_uses(self, name: str) -> Pair:
        """Return a figure of each arm's service."""
        return _read(self.uses, name)


def compute_drafter_costs(
    prepared: PreparedRun, rounds: RoundTable, services: Sequence[ServiceUse]
) -> tuple[DrafterFact, ...]:
    """Return the facts of every load: compute, memory, scheduling."""
    uses = {(one.arm, one.load): one for one in services}
    manifests = {one.arm: one for one in prepared.run.manifest.arms}
    facts = []
    for load in prepared.loads:
        known = _Sources(
            steps=tuple(average_rounds(rounds.get((arm, ALL_SEGMENTS, load), ())) for arm in ARMS),
            uses=tuple(uses.get((arm, load)) for arm in ARMS),
            manifests=tuple(map(manifests.get, ARMS)),
            contexts=tuple(_mean_context(prepared, arm, load) for arm in ARMS),
        )
        for part, list_facts in _PARTS:
            for quantity, unit, values, source, reason in list_facts(known):
                facts.append(
                    DrafterFact(
                        load=load,
                        part=part,
                        quantity=quantity,
                        unit=unit,
                        baseline=values[0],
                        candidate=values[1],
                        source=source,
                        reason=reason if values[1] is None else None,
                    )
                )
    return tuple(facts)


# Quantity, unit, values, source, and the reason where the candidate's value is missing.
_Row = tuple[str, str, Pair, str, str]


def _list_compute(known: _Sources) -> Iterator[_Row]:
    for quantity, name in (
        ("step_time", "step_ns"),
        ("verify_time_per_step", "verify_ns"),
        ("draft_time_per_step", "draft_ns"),
    ):
        yield quantity, "ns", known.of_steps(name), "rounds", _NO_ROUNDS
    share, source = _draft_share(known)
    yield "draft_share_of_step", "share", (None, share), source, _NO_ROUNDS


def _list_memory(known: _Sources) -> Iterator[_Row]:
    resident, source = known.of_uses("resident_max_bytes"), "machine, highest in turns"
    if None in resident:
        resident, source = _read(known.manifests, "resident_bytes"), "machine, after the start"
    yield "resident_memory", "bytes", resident, source, "the services' processes were not read"
    gpu = known.of_uses("gpu_memory_max_bytes")
    yield "gpu_memory", "bytes", gpu, "machine", "no GPU memory was read"
    baseline, candidate = map(_read_cache, known.manifests)
    cache = (baseline, candidate)
    yield "cache_capacity", "tokens", cache, "the service's own statement", _NO_CACHE
    lanes = [
        tokens / context if tokens is not None and context else None
        for tokens, context in zip(cache, known.contexts, strict=True)
    ]
    missing, source = _NO_CACHE if None in cache else _NO_LENGTH, "cache capacity / mean context of this load"
    yield "cache_limited_concurrency", "requests", (lanes[0], lanes[1]), source, missing


def _list_scheduling(known: _Sources) -> Iterator[_Row]:
    yield "schedule_time_per_step", "ns", known.of_steps("schedule_ns"), "rounds", "no rounds tell it"
    yield "batch_size", "requests", known.of_steps("batch_size"), "rounds", "no rounds tell it"
    running = [one.running.mean if one and one.running else None for one in known.uses]
    reason = "the service shows no gauge of running requests"
    yield "running", "requests", (running[0], running[1]), "gauge", reason
    rates = [_per_thousand(one) for one in known.uses]
    reason = "the service counts no preemptions"
    yield "preemptions_per_1000_requests", "count", (rates[0], rates[1]), "counters", reason


_PARTS: tuple[tuple[CostPart, Any], ...] = (
    ("compute", _list_compute),
    ("memory", _list_memory),
    ("scheduling", _list_scheduling),
)


def _read(sources: Sequence[object], name: str) -> Pair:
    values = [None if one is None else getattr(one, name) for one in sources]
    baseline, candidate = (None if value is None else float(value) for value in values)
    return baseline, candidate


def _draft_share(known: _Sources) -> tuple[float | None, str]:
    """Return drafting's share of the candidate's steps: by its rounds, else by the service's counters."""
    steps, use = known.steps[1], known.uses[1]
    if steps is not None and steps.step_ns > 0:
        return steps.draft_ns / steps.step_ns, "rounds"
    if use is not None and use.draft_seconds is not None and use.verify_seconds is not None:
        whole = use.draft_seconds + use.verify_seconds
        share = use.draft_seconds / whole if whole > 0 else None
        return share, "counters: drafting / (drafting + verifying)"
    return None, "rounds"


def _read_cache(manifest: ArmManifest | None) -> float | None:
    stated = [manifest.settings.get(key) for key in CACHE_KEYS] if manifest else []
    counts = [one for one in stated if isinstance(one, int | float) and not isinstance(one, bool)]
    return float(counts[0]) if counts else None


def _mean_context(prepared: PreparedRun, arm: str, load: str) -> float | None:
    lengths = [
        one.record.prompt_tokens + one.metrics.output_tokens
        for one in prepared.of_arm(arm, load)
        if one.is_ok and one.record.prompt_tokens is not None and one.metrics.output_tokens is not None
    ]
    return sum(lengths) / len(lengths) if lengths else None


def _per_thousand(use: ServiceUse | None) -> float | None:
    if use is None or use.preemptions is None or not use.finished_requests:
        return None
    return 1000 * use.preemptions / use.finished_requests
