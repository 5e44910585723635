"""What remedies are judged by, and those that change drafting itself or part prefill from it. Pure.

Each rests on rounds, histograms of acceptance or counters of the service; without them nothing is suggested.
"""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from draftproof.judge.decide.effects import EffectIndex, null_difference_at, read_direction
from draftproof.judge.decide.guardrails import beside_null
from draftproof.judge.inform.diagnosis.steps import RoundTable
from draftproof.judge.metrics.service import percentile
from draftproof.judge.observe.run_data import ALL_SEGMENTS, PreparedRun
from draftproof.judge.results.diagnosis import BreakEven, Evidence, Remedy, TimeParts
from draftproof.judge.results.figure import describe
from draftproof.judge.results.run import ArmCell
from draftproof.judge.results.services import ServiceStart, ServiceUse

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


def largest(stakes: Iterable[float | None]) -> float | None:
    """Return the largest share of time that is known."""
    return max((one for one in stakes if one is not None), default=None)


def suggest_fewer_drafts(known: Known) -> Remedy | None:
    """Fewer drafted tokens: the last positions add next to no accepted draft at any load."""
    found = {load: steps for load in known.prepared.loads if (steps := _kept_by_length(known, load))}
    enough = {load: enough_drafts(kept) for load, kept in found.items()}
    longest = max((len(kept) for kept in found.values()), default=0)
    wanted = max(enough.values(), default=0)
    if not enough or wanted >= longest:
        return None
    evidence = tuple(
        Evidence(
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
        stake=largest(_draft_stake(known, one) for one in dear),
        evidence=tuple(
            Evidence(
                text=f"at load {one.load} drafting takes {(one.draft_ns or 0.0) / 1e6:.2f} ms a step and "
                f"would pay below {(one.draft_limit_ns or 0.0) / 1e6:.2f} ms",
                row=f"break_evens: all × {one.load}",
            )
            for one in dear
        ),
    )


def suggest_separate_prefill(known: Known) -> Remedy | None:
    """Shorter prefill steps: the slowest rounds are those that carry other requests' prompts.

    Where the alternative is the baseline with another chunk, what that did end to end stands beside it.
    """
    seen = {
        load: [(turn.round_ns, turn.prefill_tokens > 0) for _, turn in owned]
        for load in known.prepared.loads
        if (owned := known.rounds.get(("baseline", ALL_SEGMENTS, load)))
    }
    tails = {load: found for load, one in seen.items() if (found := measure_prefill_tail(one)) is not None}
    if not tails:
        return None
    stakes = [share * (known.baseline[load].decode.value or 0.0) for load, (_, _, share) in tails.items()]
    signs = [
        Evidence(
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
        stake=max(stakes),
        evidence=(*signs, *list_tried_chunks(known, tails)),
    )


def list_tried_chunks(known: Known, loads: Iterable[str]) -> list[Evidence]:
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
        found.append(Evidence(text=text, row=f"effects e2e: alternative / baseline, all × {load}"))
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


def _pays(known: Known, load: str) -> tuple[bool | None, Evidence]:
    """Return whether drafting pays at a load: by steps where rounds tell, else by the time per token."""
    if load in known.invalid:
        return None, Evidence(text=f"the cells at load {load} are invalid", row=f"cells: all × {load}")
    even = known.break_evens.get(load)
    if even is not None and even.margin.low is not None and even.margin.high is not None:
        pays = PAYS_IF_ABOVE[read_direction(even.margin, known.nulls[load])]
        text = (
            f"at load {load} a step commits {even.tokens_per_step:.2f} tokens and takes "
            f"{even.needed_tokens:.2f} ordinary steps"
        )
        return pays, Evidence(text=text, row=f"break_evens: all × {load}")
    effect = known.effects.get(("tpot_ns", "candidate", "baseline", ALL_SEGMENTS, load))
    row = f"effects: tpot_ns candidate / baseline, all × {load}"
    if effect is None or effect.ratio.low is None or effect.ratio.high is None:
        return None, Evidence(text=f"at load {load} nothing is known", row=row)
    null = known.nulls[load]
    direction = read_direction(effect.ratio, null)
    pays = None if direction is None else direction == "below"
    text = (
        f"at load {load} time per token is {describe(effect.ratio)} times the baseline's{beside_null(null)}"
    )
    return pays, Evidence(text=text, row=row)


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


def _draft_stake(known: Known, one: BreakEven) -> float | None:
    parts = known.candidate.get(one.load)
    if parts is None or parts.decode.value is None:
        return None
    return parts.decode.value * _draft_part(one)


def _rank(known: Known, load: str) -> int:
    return known.prepared.loads.index(load)
