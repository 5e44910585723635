"""What a drafter costs beside the baseline at each load: compute, memory and scheduling. Pure.

Every figure names its source; one that nobody discloses is None with the reason, never 0.
"""

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from draftproof.core.manifests import ArmManifest
from draftproof.judge.inform.diagnosis.break_evens import RoundTable, StepMeans, average_rounds
from draftproof.judge.observe.run_data import ALL_SEGMENTS, PreparedRun
from draftproof.judge.results.diagnosis import CostPart, DrafterFact
from draftproof.judge.results.services import ServiceUse

# What vLLM states of its cache; llama.cpp's context is its cache, shared by all slots.
CACHE_KEYS = ("capacity.kv_cache_tokens", "ctx_size")
BASELINE, CANDIDATE = "baseline", "candidate"
_NO_ROUNDS = "neither rounds of answers nor counters of the service tell it"
_NO_CACHE = "the service states no fixed size of its key-value cache"
_NO_LENGTH = "the lengths of prompts or answers are not known"

Pair = tuple[float | None, float | None]  # baseline, candidate


class _Sources(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of both arms at one load."""

    steps: tuple[StepMeans | None, StepMeans | None]
    uses: tuple[ServiceUse | None, ServiceUse | None]
    manifests: tuple[ArmManifest | None, ArmManifest | None]
    contexts: Pair


def compute_drafter_costs(
    prepared: PreparedRun, rounds: RoundTable, services: Sequence[ServiceUse]
) -> tuple[DrafterFact, ...]:
    """Return the facts of every load: compute, memory, scheduling."""
    uses = {(one.arm, one.load): one for one in services}
    manifests = {one.arm: one for one in prepared.run.manifest.arms}
    return tuple(
        fact
        for load in prepared.loads
        for fact in _list_facts(load, _gather(prepared, load, rounds, uses, manifests))
    )


def _gather(
    prepared: PreparedRun,
    load: str,
    rounds: RoundTable,
    uses: Mapping[tuple[str, str], ServiceUse],
    manifests: Mapping[str, ArmManifest],
) -> _Sources:
    return _Sources(
        steps=(
            average_rounds(rounds.get((BASELINE, ALL_SEGMENTS, load), ())),
            average_rounds(rounds.get((CANDIDATE, ALL_SEGMENTS, load), ())),
        ),
        uses=(uses.get((BASELINE, load)), uses.get((CANDIDATE, load))),
        manifests=(manifests.get(BASELINE), manifests.get(CANDIDATE)),
        contexts=(_mean_context(prepared, BASELINE, load), _mean_context(prepared, CANDIDATE, load)),
    )


def _list_facts(load: str, known: _Sources) -> Iterator[DrafterFact]:
    yield from _compute_facts(load, known)
    yield from _memory_facts(load, known)
    yield from _scheduling_facts(load, known)


def _compute_facts(load: str, known: _Sources) -> Iterator[DrafterFact]:
    yield _fact(load, "compute", "step_time", "ns", _of_steps(known, "step_ns"), "rounds", _NO_ROUNDS)
    verify = _of_steps(known, "verify_ns")
    yield _fact(load, "compute", "verify_time_per_step", "ns", verify, "rounds", _NO_ROUNDS)
    draft = _of_steps(known, "draft_ns")
    yield _fact(load, "compute", "draft_time_per_step", "ns", draft, "rounds", _NO_ROUNDS)
    share, source = _draft_share(known)
    yield _fact(load, "compute", "draft_share_of_step", "share", (None, share), source, _NO_ROUNDS)


def _memory_facts(load: str, known: _Sources) -> Iterator[DrafterFact]:
    measured = _of_uses(known, "resident_max_bytes")
    if None not in measured:
        yield _fact(load, "memory", "resident_memory", "bytes", measured, "machine, highest in turns", "")
    else:
        stated = tuple(one.resident_bytes if one else None for one in known.manifests)
        reason = "the services' processes were not read"
        pair = (_float(stated[0]), _float(stated[1]))
        yield _fact(load, "memory", "resident_memory", "bytes", pair, "machine, after the start", reason)
    gpu = _of_uses(known, "gpu_memory_max_bytes")
    yield _fact(load, "memory", "gpu_memory", "bytes", gpu, "machine", "no GPU memory was read")
    cache = _cache_tokens(known)
    yield _fact(load, "memory", "cache_capacity", "tokens", cache, "the service's own statement", _NO_CACHE)
    missing = _NO_CACHE if None in cache else _NO_LENGTH
    lanes = tuple(
        tokens / context if tokens is not None and context else None
        for tokens, context in zip(cache, known.contexts, strict=True)
    )
    source = "cache capacity / mean context of this load"
    yield _fact(
        load, "memory", "cache_limited_concurrency", "requests", (lanes[0], lanes[1]), source, missing
    )


def _scheduling_facts(load: str, known: _Sources) -> Iterator[DrafterFact]:
    schedule = _of_steps(known, "schedule_ns")
    yield _fact(load, "scheduling", "schedule_time_per_step", "ns", schedule, "rounds", "no rounds tell it")
    batch = _of_steps(known, "batch_size")
    yield _fact(load, "scheduling", "batch_size", "requests", batch, "rounds", "no rounds tell it")
    running = tuple(one.running.mean if one and one.running else None for one in known.uses)
    reason = "the service shows no gauge of running requests"
    yield _fact(load, "scheduling", "running", "requests", (running[0], running[1]), "gauge", reason)
    rates = tuple(_per_thousand(one) for one in known.uses)
    reason = "the service counts no preemptions"
    pair = (rates[0], rates[1])
    yield _fact(load, "scheduling", "preemptions_per_1000_requests", "count", pair, "counters", reason)


def _fact(  # noqa: PLR0917 - a row of a table, in the order of its columns
    load: str, part: CostPart, quantity: str, unit: str, values: Pair, source: str, reason: str
) -> DrafterFact:
    """Return one fact; the reason stands where the candidate's value is missing."""
    return DrafterFact(
        load=load,
        part=part,
        quantity=quantity,
        unit=unit,
        baseline=values[0],
        candidate=values[1],
        source=source,
        reason=reason if values[1] is None else None,
    )


def _of_steps(known: _Sources, name: str) -> Pair:
    values = [None if one is None else float(getattr(one, name)) for one in known.steps]
    return values[0], values[1]


def _of_uses(known: _Sources, name: str) -> Pair:
    values = [None if one is None else getattr(one, name) for one in known.uses]
    return values[0], values[1]


def _draft_share(known: _Sources) -> tuple[float | None, str]:
    """Return drafting's share of the candidate's steps: by its rounds, else by the service's counters."""
    steps, use = known.steps[1], known.uses[1]
    if steps is not None and steps.step_ns > 0:
        return steps.draft_ns / steps.step_ns, "rounds"
    if use is not None and use.draft_seconds is not None and use.verify_seconds is not None:
        whole = use.draft_seconds + use.verify_seconds
        return (
            use.draft_seconds / whole if whole > 0 else None
        ), "counters: drafting / (drafting + verifying)"
    return None, "rounds"


def _cache_tokens(known: _Sources) -> Pair:
    values = [_read_cache(one) if one else None for one in known.manifests]
    return values[0], values[1]


def _read_cache(manifest: ArmManifest) -> float | None:
    stated = [manifest.settings.get(key) for key in CACHE_KEYS]
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


def _float(value: float | None) -> float | None:
    return None if value is None else float(value)
