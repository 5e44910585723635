"""What a drafter costs beside the baseline at each load, and the remedies that change drafting. Pure.

Every figure names its source; one that nobody discloses is None with the reason, never 0. Remedies are based
on rounds, histograms of acceptance or counters of the service; without them nothing is suggested.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from draftproof.core.manifests import ArmManifest
from draftproof.judge.decide.effects import EffectIndex, null_difference_at, read_direction
from draftproof.judge.decide.guardrails import beside_null
from draftproof.judge.inform.diagnosis.steps import RoundTable, StepMeans, average_rounds
from draftproof.judge.metrics.service import percentile
from draftproof.judge.observe.run_data import ALL_SEGMENTS, PreparedRun
from draftproof.judge.results.decide import describe
from draftproof.judge.results.inform import (
    BreakEven,
    CostPart,
    DrafterFact,
    Remedy,
    ServiceStart,
    ServiceUse,
    Sign,
    TimeParts,
)
from draftproof.judge.results.run import ArmCell

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
    resident, source = known.of_uses("resident_max_bytes"), "machine, highest in periods"
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


E2E = "e2e_from_schedule_ns"
# What a step commits against what it must: above 1 it pays.
PAYS_IF_ABOVE = {"above": True, "below": False, None: None}
# A draft length is enough if it keeps this share of the drafts that the full length gets accepted.
KEPT_SHARE = 0.95
LEAST_STEPS = 50
DRAFT_SHARE = 0.10
# A tail belongs to prefill if most of the slowest rounds carry some and such rounds take twice as long.
TAIL, TAIL_SHARE, PREFILL_FACTOR, LEAST_ROUNDS = 0.95, 0.5, 2.0, 20

# Settings that bound how much of a prompt one step reads, as engines name them.
PREFILL_CHUNKS = frozenset(
    {
        "max_num_batched_tokens",
        "long_prefill_token_threshold",
        "chunked_prefill_size",
        "max_num_tokens",
        "ubatch_size",
    }
)

Rounds = Sequence[tuple[int, bool]]  # ns of a round, whether it carried prefill of other requests


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """What remedies are judged by: the baseline's and the candidate's figures over all segments, by load."""

    prepared: PreparedRun
    baseline: Mapping[str, TimeParts]
    candidate: Mapping[str, TimeParts]
    cells: Mapping[tuple[str, str], ArmCell]
    services: Mapping[tuple[str, str], ServiceUse]
    starts: Sequence[ServiceStart]
    break_evens: Mapping[str, BreakEven]
    effects: EffectIndex
    rounds: RoundTable
    nulls: Mapping[str, float]  # by load: what two equal arms differ by in time per token
    invalid: frozenset[str]  # loads whose cells are invalid: nothing there compares arms


def largest(impacts: Iterable[float | None]) -> float | None:
    """Return the largest share of time that is known."""
    return max((one for one in impacts if one is not None), default=None)


def suggest_fewer_drafts(known: Known) -> Remedy | None:
    """Fewer drafted tokens: the last positions add next to no accepted draft at any load."""
    found = {load: steps for load in known.prepared.loads if (steps := _kept_by_length(known, load))}
    enough = {load: enough_drafts(kept) for load, kept in found.items()}
    longest = max((len(kept) for kept in found.values()), default=0)
    wanted = max(enough.values(), default=0)
    if not enough or wanted >= longest:
        return None
    evidence = tuple(
        Sign(
            text=f"at load {load} the first {wanted} of {longest} positions bring "
            f"{100 * kept[min(wanted, len(kept)) - 1]:.0f} % of all accepted drafts",
            row=f"arm_cells or services: acceptance of candidate, all × {load}",
        )
        for load, kept in found.items()
    )
    return Remedy(
        code="fewer_drafted_tokens",
        title=f"Shorter drafts: {wanted} instead of {longest} tokens",
        text=f"Later positions are hardly ever accepted, so drafts of {wanted} would commit nearly as many "
        "tokens and take less drafting and checking.",
        loads=tuple(found),
        stake=None,
        evidence=evidence,
    )


def enough_drafts(kept: Sequence[float]) -> int:
    """Return the shortest draft length that keeps `KEPT_SHARE` of the accepted drafts, at least 1.

    `kept`: for each length 1, 2, …, the share of all accepted drafts that it would have kept.
    """
    return next((length for length, share in enumerate(kept, start=1) if share >= KEPT_SHARE), len(kept))


def suggest_off_at_load(known: Known) -> Remedy | None:
    """No drafting from some load on: steps cost more than they commit there and less at a lower load."""
    standing = {load: _pays(known, load) for load in known.prepared.loads}
    paying = [load for load, (pays, _) in standing.items() if pays is True]
    losing = [load for load, (pays, _) in standing.items() if pays is False]
    later = [load for load in losing if paying and _rank(known, load) > _rank(known, paying[0])]
    if not later:
        return None
    return Remedy(
        code="off_at_high_batch",
        title=f"No drafting from load {later[0]} on",
        text="Drafting pays at a lower load and costs at this one: a policy that switches it off by batch "
        "size keeps the gain without the loss.",
        loads=tuple(later),
        stake=largest(_loss(known, load) for load in later),
        evidence=tuple(standing[load][1] for load in (*paying, *later)),
    )


def suggest_cheaper_drafter(known: Known) -> Remedy | None:
    """A cheaper drafter: with quicker drafting the same tokens would pay for the step."""
    dear = [
        one
        for load, one in known.break_evens.items()
        if load not in known.invalid and _drafts_too_slowly(one, known.nulls[load])
    ]
    if not dear:
        return None
    return Remedy(
        code="cheaper_drafter",
        title="A cheaper drafter",
        text="The step commits enough tokens for its verification; it is drafting that makes it too dear.",
        loads=tuple(one.load for one in dear),
        stake=largest(_draft_impact(known, one) for one in dear),
        evidence=tuple(
            Sign(
                text=f"at load {one.load} drafting takes {(one.draft_ns or 0.0) / 1e6:.2f} ms a step and "
                f"would pay below {(one.draft_limit_ns or 0.0) / 1e6:.2f} ms",
                row=f"break_evens: all × {one.load}",
            )
            for one in dear
        ),
    )


def suggest_separate_prefill(known: Known) -> Remedy | None:
    """Shorter prefill steps: the slowest rounds are those that carry other requests' prompts.

    Where the alternative is the baseline with another chunk, what that did end to end is shown beside it.
    """
    seen = {
        load: [(period.round_ns, period.prefill_tokens > 0) for _, period in owned]
        for load in known.prepared.loads
        if (owned := known.rounds.get(("baseline", ALL_SEGMENTS, load)))
    }
    tails = {load: found for load, one in seen.items() if (found := measure_prefill_tail(one)) is not None}
    if not tails:
        return None
    impacts = [share * (known.baseline[load].decode.value or 0.0) for load, (_, _, share) in tails.items()]
    signs = [
        Sign(
            text=f"at load {load} {100 * slowest:.0f} % of the slowest twentieth of steps carry prefill "
            f"of other requests, and such steps take {factor:.1f} times as long",
            row=f"records: rounds of baseline, {load}",
        )
        for load, (slowest, factor, _) in tails.items()
    ]
    return Remedy(
        code="separate_prefill",
        title="Shorter prefill steps, or prefill apart from decoding",
        text="Running answers stall while other requests' prompts are read. Smaller prefill chunks shorten "
        "the stalls and take more steps; separate devices for prefill and decoding remove them.",
        loads=tuple(tails),
        stake=max(impacts),
        evidence=(*signs, *list_tried_chunks(known, tails)),
    )


def list_tried_chunks(known: Known, loads: Iterable[str]) -> list[Sign]:
    """Return what another prefill chunk did to end-to-end time, where the alternative changes that alone.

    Of loads that are valid, and only where it is more than two equal arms differ by.
    """
    settings = {one.arm: one.settings for one in known.prepared.run.manifest.arms}
    if "alternative" not in settings or "baseline" not in settings:
        return []
    theirs, ours = settings["baseline"], settings["alternative"]
    changed = [name for name in sorted({*theirs, *ours}) if theirs.get(name) != ours.get(name)]
    if len(changed) != 1 or changed[0] not in PREFILL_CHUNKS:
        return []
    name, found = changed[0], []
    for load in loads:
        effect = known.effects.get((E2E, "alternative", "baseline", ALL_SEGMENTS, load))
        null = null_difference_at(known.effects, E2E, load)
        if load in known.invalid or effect is None or read_direction(effect.ratio, null) is None:
            continue
        text = (
            f"tried at load {load}: the alternative, with {name} {ours.get(name)} instead of "
            f"{theirs.get(name)}, takes {describe(effect.ratio)} times as long end to end{beside_null(null)}"
        )
        found.append(Sign(text=text, row=f"effects e2e: alternative / baseline, all × {load}"))
    return found


def measure_prefill_tail(rounds: Rounds) -> tuple[float, float, float] | None:
    """Return (share of the slowest rounds with prefill, median with / without, share of time it adds).

    None where the tail is not prefill's, or either kind is too rare to say.
    """
    carrying = [float(took) for took, carries in rounds if carries]
    free = [float(took) for took, carries in rounds if not carries]
    if min(len(carrying), len(free)) < LEAST_ROUNDS:
        return None
    usual, slow = percentile(free, 0.5), percentile([*carrying, *free], TAIL)
    loaded = percentile(carrying, 0.5)
    if not usual or slow is None or loaded is None:
        return None
    tail = [carries for took, carries in rounds if took >= slow]
    share, factor = sum(tail) / len(tail), loaded / usual
    if share < TAIL_SHARE or factor < PREFILL_FACTOR:
        return None
    added = sum(max(took - usual, 0.0) for took in carrying) / (sum(carrying) + sum(free))
    return share, factor, added


def _kept_by_length(known: Known, load: str) -> list[float] | None:
    """Return, for each draft length, the share of accepted drafts it keeps; None with too few steps."""
    cell, use = known.cells.get(("candidate", load)), known.services.get(("candidate", load))
    accepted: list[float] = []
    steps = 0.0
    if cell and cell.acceptance and cell.acceptance.acceptance_histogram:
        histogram = cell.acceptance.acceptance_histogram
        steps = float(cell.acceptance.num_spec_steps)
        longest = max(len(cell.acceptance.position_acceptance), len(histogram) - 1)
        accepted = [float(sum(histogram[length:])) for length in range(1, longest + 1)]
    elif use and use.accepted_by_position and use.num_spec_steps:
        steps, accepted = use.num_spec_steps, list(use.accepted_by_position)
    total = sum(accepted)
    if steps < LEAST_STEPS or total <= 0:
        return None
    return [sum(accepted[: length + 1]) / total for length in range(len(accepted))]


def _pays(known: Known, load: str) -> tuple[bool | None, Sign]:
    """Return whether drafting pays at a load: by steps where rounds tell, else by the time per token."""
    if load in known.invalid:
        return None, Sign(text=f"the cells at load {load} are invalid", row=f"cells: all × {load}")
    even = known.break_evens.get(load)
    if even is not None and even.margin.low is not None and even.margin.high is not None:
        pays = PAYS_IF_ABOVE[read_direction(even.margin, known.nulls[load])]
        text = (
            f"at load {load} a step commits {even.tokens_per_step:.2f} tokens and takes "
            f"{even.needed_tokens:.2f} ordinary steps"
        )
        return pays, Sign(text=text, row=f"break_evens: all × {load}")
    effect = known.effects.get(("tpot_ns", "candidate", "baseline", ALL_SEGMENTS, load))
    row = f"effects: tpot_ns candidate / baseline, all × {load}"
    if effect is None or effect.ratio.low is None or effect.ratio.high is None:
        return None, Sign(text=f"at load {load} nothing is known", row=row)
    null = known.nulls[load]
    direction = read_direction(effect.ratio, null)
    pays = None if direction is None else direction == "below"
    text = (
        f"at load {load} time per token is {describe(effect.ratio)} times the baseline's{beside_null(null)}"
    )
    return pays, Sign(text=text, row=row)


def _loss(known: Known, load: str) -> float | None:
    even, parts = known.break_evens.get(load), known.candidate.get(load)
    if even is None or even.margin.value is None or parts is None or parts.decode.value is None:
        return None
    return parts.decode.value * max(1 - even.margin.value, 0.0)


def _drafts_too_slowly(one: BreakEven, null: float) -> bool:
    if one.draft_ns is None or one.draft_limit_ns is None:
        return False
    whole = (one.draft_ns - one.draft_limit_ns) > 0 and read_direction(one.margin, null) == "below"
    return whole and _draft_part(one) >= DRAFT_SHARE


def _draft_part(one: BreakEven) -> float:
    """Return drafting's share of the step, from what the step takes in ordinary steps."""
    return one.draft_ns / one.step_ns if one.draft_ns and one.step_ns else 0.0


def _draft_impact(known: Known, one: BreakEven) -> float | None:
    parts = known.candidate.get(one.load)
    if parts is None or parts.decode.value is None:
        return None
    return parts.decode.value * _draft_part(one)


def _rank(known: Known, load: str) -> int:
    return known.prepared.loads.index(load)
