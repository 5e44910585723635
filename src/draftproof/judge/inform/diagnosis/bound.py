"""What the baseline's time is spent on at each load, and the most that faster decoding can give.

Pure. Shares come from the server's own timings; where it gives none, the client's clock tells decoding (first
to last chunk) from everything before, and queueing and prefill stay unknown.

Why it pays or not: what a decode step commits against what it costs. Pure.

A step of the candidate is worth its time only if it commits more tokens than it takes ordinary steps' time.
Both numbers come from the rounds that the engine discloses; without them nothing is explained.
"""

from collections.abc import Iterable, Mapping

import msgspec

from draftproof.judge.decide.effects import EffectIndex, null_difference_at, read_direction
from draftproof.judge.decide.faults import Faults
from draftproof.judge.inform.diagnosis.time_parts import Shares, find_answered, measure_shares, name_bound
from draftproof.judge.metrics.acceptance import ProgressSummary
from draftproof.judge.metrics.request import end_to_end_gain
from draftproof.judge.observe.run_data import ALL_SEGMENTS, PreparedRun
from draftproof.judge.results.diagnosis import BreakEven
from draftproof.judge.results.run import ArmCell, Diagnosis, Figure, Reason

WORDS = {
    "decode-bound": "decoding takes most of the time, so faster decoding reaches the user",
    "prefill-bound": "reading the prompt takes most of the time, which speculation does not shorten",
    "queue-bound": "waiting for a free place takes most of the time; more batching or capacity helps first",
    "first-token-bound": "waiting for the first token takes most of the time, by the client's clock: queueing"
    " and reading the prompt cannot be told apart, and speculation shortens neither",
    "client-bound": "most of the time passes outside the server's own clock",
    "unknown": "no single part takes half of the time, or the service does not disclose the parts",
}
LATE = "the load client itself was late, so its times are not the service's"


def diagnose(prepared: PreparedRun, effects: EffectIndex, faults: Faults) -> tuple[Diagnosis, ...]:
    """Return one diagnosis per load, from the baseline's answered requests over all segments."""
    return tuple(
        _diagnose_load(
            prepared,
            load,
            effects,
            client_late=faults.is_client_late(load),
            is_invalid=faults.is_invalid(load),
        )
        for load in prepared.loads
    )


def _diagnose_load(
    prepared: PreparedRun, load: str, effects: EffectIndex, *, client_late: bool, is_invalid: bool
) -> Diagnosis:
    choice = prepared.plan.comparison
    places = find_answered(prepared, "baseline", load)
    shares = measure_shares(prepared.columns, places, level=choice.confidence, floor=choice.minimum_prompts)
    speedup = _inverse(_pooled_ratio(effects, "tpot_ns", load))
    measured = _inverse(_pooled_ratio(effects, "e2e_from_schedule_ns", load))
    share = None if shares.decode.value is None else min(max(shares.decode.value, 0.0), 1.0)
    bound, _ = name_bound(shares, client_late=client_late)
    predicted = end_to_end_gain(share, speedup) if share is not None and speedup is not None else None
    ceiling = end_to_end_gain(share, None) if share is not None and share < 1 else None
    return Diagnosis(
        load=load,
        bound=bound,
        queue_share=shares.queue.value,
        prefill_share=shares.prefill.value,
        decode_share=shares.decode.value,
        other_share=shares.other.value,
        decode_speedup=speedup,
        ceiling_gain=ceiling,
        predicted_gain=predicted,
        measured_gain=measured,
        text=_describe(
            f"At load {load} the baseline is {bound}: {LATE if client_late else WORDS[bound]}.",
            shares,
            ceiling=ceiling,
            predicted=None if is_invalid else predicted,
            measured=measured,
            is_shown=_is_shown(effects, load),
        ),
    )


def _pooled_ratio(effects: EffectIndex, metric: str, load: str) -> Figure | None:
    effect = effects.get((metric, "candidate", "baseline", ALL_SEGMENTS, load))
    return effect.ratio if effect else None


def _is_shown(effects: EffectIndex, load: str) -> bool:
    """Return whether time per token differs beyond what two equal arms differ by."""
    null = null_difference_at(effects, "tpot_ns", load)
    return read_direction(_pooled_ratio(effects, "tpot_ns", load), null) is not None


def _inverse(ratio: Figure | None) -> float | None:
    return 1 / ratio.value if ratio and ratio.value and not ratio.remedy else None


def _describe(
    opening: str,
    shares: Shares,
    *,
    ceiling: float | None,
    predicted: float | None,
    measured: float | None,
    is_shown: bool,
) -> str:
    parts = [opening]
    if shares.decode.value is not None:
        clock = "by the server's timings" if shares.source == "server" else "by the client's clock"
        parts.append(f"Decoding takes {100 * shares.decode.value:.0f} % of the time {clock}.")
    if ceiling is not None:
        parts.append(f"Faster decoding can make a whole request at most {ceiling:.2f} times as fast.")
    if predicted is not None and not is_shown:
        parts.append("Whether decoding is faster or slower than two equal arms differ is not shown.")
    elif predicted is not None and measured is not None:
        parts.append(f"The decode speed-up predicts {predicted:.2f} times; {measured:.2f} was measured.")
    return " ".join(parts)


FEW_TOKENS = 1.3  # below this a step commits hardly more than the target's own token

ArmCellIndex = Mapping[tuple[str, str, str], ArmCell]
MarginIndex = Mapping[tuple[str, str], Figure]  # (segment, load): what a step commits / what it must commit


class StepCost(msgspec.Struct, frozen=True, kw_only=True):
    """`tokens_per_step`: committed by a candidate's step; `cost`: its time / an ordinary step's time."""

    tokens_per_step: float
    cost: float


def index_arm_cells(arm_cells: Iterable[ArmCell]) -> ArmCellIndex:
    """Return the cells by (arm, segment, load)."""
    return {(cell.arm, cell.segment, cell.load): cell for cell in arm_cells}


def index_margins(break_evens: Iterable[BreakEven], nulls: Mapping[str, float]) -> MarginIndex:
    """Return by (segment, load) what a step commits against what it must, with its interval.

    The interval is widened by what two equal arms differ by at the load: two processes of one service step at
    different paces, too.
    """
    return {
        (one.segment, one.load): widen_margin(one.margin, nulls.get(one.load, 1.0)) for one in break_evens
    }


def widen_margin(margin: Figure, null: float) -> Figure:
    """Return a ratio of two arms whose interval takes in what two equal arms differ by, 1 or more."""
    if margin.low is None or margin.high is None:
        return margin
    return msgspec.structs.replace(margin, low=margin.low / null, high=margin.high * null)


def compute_step_cost(arm_cells: ArmCellIndex, segment: str, load: str) -> StepCost | None:
    """Return what a step of the candidate commits and costs in a cell, None without rounds in both arms."""
    baseline, candidate = (arm_cells.get((arm, segment, load)) for arm in ("baseline", "candidate"))
    if baseline is None or candidate is None:
        return None
    ordinary, speculative = compute_step_ns(baseline.progress), compute_step_ns(candidate.progress)
    if not ordinary or not speculative or candidate.progress is None:
        return None
    return StepCost(
        tokens_per_step=candidate.progress.committed_tokens / candidate.progress.rounds,
        cost=speculative / ordinary,
    )


def explain_step_cost(
    arm_cells: ArmCellIndex, margins: MarginIndex, segment: str, load: str
) -> Reason | None:
    """Return the step cost of a cell as a reason: too few tokens, too dear a step, paying, or not shown."""
    step = compute_step_cost(arm_cells, segment, load)
    if step is None:
        return None
    margin = margins.get((segment, load))
    code = name_step_cost(step, margin)
    words = {
        "low_acceptance": "too few drafts are accepted",
        "dear_verification": "verifying drafts is too dear at this batch",
        "step_pays": "the step pays",
        "step_open": "whether the step pays is not shown",
    }
    text = (
        f"A candidate's step commits {step.tokens_per_step:.2f} tokens and takes {step.cost:.2f} times "
        f"an ordinary step: {words[code]}."
    )
    return Reason(code=code, text=text, evidence=f"arm_cells: progress, {segment} × {load}")


def name_step_cost(step: StepCost, margin: Figure | None = None) -> str:
    """Return the code of a step cost; without an interval of its margin, or where it holds 1, it is open."""
    direction = read_direction(margin, 1.0)
    if direction is None:
        return "step_open"
    if direction == "above":
        return "step_pays"
    return "low_acceptance" if step.tokens_per_step < FEW_TOKENS else "dear_verification"


def compute_step_ns(progress: ProgressSummary | None) -> float | None:
    """Return what a decode step of a cell takes, in ns; None without rounds or their time."""
    if progress is None or progress.time_per_committed_token_ns is None or not progress.rounds:
        return None
    return progress.time_per_committed_token_ns * progress.committed_tokens / progress.rounds
