"""Why it pays or not: what a decode step commits against what it costs, and what it must.

A step of the candidate is worth its time only if it commits more tokens than it takes ordinary steps' time.
Both numbers come from the rounds that the engine discloses in both arms; without them nothing is explained,
and `draftproof costs` measures the same. Times of a round are those of its whole batch. Pure.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter

import msgspec

from draftproof.core.records import Round
from draftproof.judge.decide.effects import read_direction
from draftproof.judge.metrics.acceptance import ProgressSummary, break_even_acceptance, break_even_draft_ns
from draftproof.judge.observe.run_data import ALL_SEGMENTS, PreparedRun
from draftproof.judge.results.decide import Figure, Reference, as_figure
from draftproof.judge.results.inform import BreakEven
from draftproof.judge.results.run import ArmCell, Reason
from draftproof.judge.stats.totals import Totals, ratio_of_ratios, sum_by_cluster

NO_ORDINARY = "the baseline discloses no rounds, so there is no ordinary step to compare with"
NONE_PAYS = "a step costs more than all its tokens, whatever is accepted"
NO_DRAFT = "no round of this cell drafted"
TOO_SLOW = "verification alone takes longer than the tokens are worth"
FEW_TOKENS = 1.3  # below this a step commits hardly more than the target's own token
STEP_WORDS = {
    "low_acceptance": "too few drafts are accepted",
    "dear_verification": "verifying drafts is too dear at this batch",
    "step_pays": "the step pays",
    "step_open": "whether the step pays is not shown",
}

Owned = Sequence[tuple[str, Round]]  # prompt, one of its rounds
RoundTable = Mapping[tuple[str, str, str], Owned]  # arm, segment, load
ArmCellIndex = Mapping[tuple[str, str, str], ArmCell]
MarginIndex = Mapping[tuple[str, str], Figure]  # (segment, load): what a step commits / what it must commit


class StepCost(msgspec.Struct, frozen=True, kw_only=True):
    """`tokens_per_step`: committed by a candidate's step; `cost`: its time / an ordinary step's time."""

    tokens_per_step: float
    cost: float


class StepMeans(msgspec.Struct, frozen=True, kw_only=True):
    """Means over the rounds of an arm in a cell: ns of the parts, batch size and committed tokens."""

    step_ns: float
    draft_ns: float
    verify_ns: float
    schedule_ns: float
    batch_size: float
    tokens: float


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
    if baseline is None or candidate is None or candidate.progress is None:
        return None
    ordinary, speculative = compute_step_ns(baseline.progress), compute_step_ns(candidate.progress)
    if not ordinary or not speculative:
        return None
    tokens = candidate.progress.committed_tokens / candidate.progress.rounds
    return StepCost(tokens_per_step=tokens, cost=speculative / ordinary)


def explain_step_cost(
    arm_cells: ArmCellIndex, margins: MarginIndex, segment: str, load: str
) -> Reason | None:
    """Return the step cost of a cell as a reason: too few tokens, too dear a step, paying, or not shown."""
    step = compute_step_cost(arm_cells, segment, load)
    if step is None:
        return None
    code = name_step_cost(step, margins.get((segment, load)))
    text = (
        f"A candidate's step commits {step.tokens_per_step:.2f} tokens and takes {step.cost:.2f} times "
        f"an ordinary step: {STEP_WORDS[code]}."
    )
    return Reason(code=code, text=text, evidence=Reference("arm_cells", name="progress", at=(segment, load)))


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


def collect_rounds(prepared: PreparedRun) -> RoundTable:
    """Return the rounds of answered requests with sound counters, in periods with a client on time."""
    found: defaultdict[tuple[str, str, str], list[tuple[str, Round]]] = defaultdict(list)
    names = prepared.columns.cluster_names(None)
    for one, is_sound in zip(prepared.observations, prepared.columns.is_sound.tolist(), strict=True):
        record = one.record
        if is_sound and one.timed and record.rounds:
            owned = [(names[record.item_id], period) for period in record.rounds]
            for segment in (ALL_SEGMENTS, one.segment):
                found[record.arm, segment, record.load] += owned
    return found


_AVERAGED = attrgetter("draft_ns", "verify_ns", "sample_ns", "schedule_ns", "batch_size", "committed")


def average_rounds(owned: Owned) -> StepMeans | None:
    """Return the means over rounds, None without any."""
    if not owned:
        return None

    rows = (_AVERAGED(period) for _, period in owned)
    draft_ns, verify_ns, sample_ns, schedule_ns, batch_size, tokens = map(sum, zip(*rows, strict=True))
    count = len(owned)
    return StepMeans(
        step_ns=(draft_ns + verify_ns + sample_ns + schedule_ns) / count,
        draft_ns=draft_ns / count,
        verify_ns=verify_ns / count,
        schedule_ns=schedule_ns / count,
        batch_size=batch_size / count,
        tokens=tokens / count,
    )


def compute_break_evens(prepared: PreparedRun, rounds: RoundTable) -> tuple[BreakEven, ...]:
    """Return every cell in which the candidate discloses rounds, segment "all" first at each load."""
    return tuple(
        _break_even(prepared, segment, load, rounds)
        for load in prepared.loads
        for segment in (ALL_SEGMENTS, *prepared.segments)
        if rounds.get(("candidate", segment, load))
    )


def _break_even(prepared: PreparedRun, segment: str, load: str, table: RoundTable) -> BreakEven:
    candidate, baseline = table["candidate", segment, load], table.get(("baseline", segment, load), ())
    means, ordinary = average_rounds(candidate), average_rounds(baseline)
    assert means is not None  # noqa: S101 - cells without rounds are left out
    ordinary_ns = ordinary.step_ns if ordinary and ordinary.step_ns > 0 else None
    drafted = [period for _, period in candidate if period.proposed > 0]
    proposed, accepted = (
        sum(period.proposed for period in drafted),
        sum(period.accepted for period in drafted),
    )
    # The draft length nearest to the mean over drafted rounds.
    length = max(round(proposed / len(drafted)), 1) if drafted else None
    acceptance, acceptance_reason = _needed_acceptance(drafted, length, ordinary_ns)
    limit_ns, draft_reason = _draft_limit(means, ordinary_ns)
    return BreakEven(
        segment=segment,
        load=load,
        batch_size=means.batch_size,
        full_length=length,
        draft_length=proposed / len(drafted) if drafted else None,
        tokens_per_step=means.tokens,
        step_ns=means.step_ns,
        needed_tokens=means.step_ns / ordinary_ns if ordinary_ns else None,
        margin=_margin(prepared, candidate, baseline),
        acceptance=accepted / proposed if drafted else None,
        needed_acceptance=acceptance,
        acceptance_reason=acceptance_reason,
        draft_ns=means.draft_ns,
        draft_limit_ns=limit_ns,
        draft_reason=draft_reason,
    )


def _margin(prepared: PreparedRun, candidate: Owned, baseline: Owned) -> Figure:
    """Return tokens per step / step cost = ordinary step time / time per committed token, over prompts."""
    if not baseline:
        return Figure(value=None, reason=NO_ORDINARY)
    choice = prepared.plan.comparison
    found = ratio_of_ratios(
        _totals(candidate, [period.committed for _, period in candidate]),
        _totals(baseline, [1] * len(baseline)),
        level=choice.confidence,
        minimum_clusters=choice.minimum_prompts,
    )
    return as_figure(found)


def _totals(owned: Owned, counted: Sequence[int]) -> Totals:
    return sum_by_cluster(counted, [period.round_ns for _, period in owned], [prompt for prompt, _ in owned])


def _needed_acceptance(
    drafted: Sequence[Round], length: int | None, ordinary_ns: float | None
) -> tuple[float | None, str | None]:
    if length is None:
        return None, NO_DRAFT
    if ordinary_ns is None:
        return None, NO_ORDINARY
    ratio = sum(period.round_ns for period in drafted) / len(drafted) / ordinary_ns
    needed = break_even_acceptance(ratio, length)
    return needed, None if needed is not None else NONE_PAYS


def _draft_limit(means: StepMeans, ordinary_ns: float | None) -> tuple[float | None, str | None]:
    if ordinary_ns is None:
        return None, NO_ORDINARY
    limit = break_even_draft_ns(means.tokens, ordinary_ns, means.step_ns - means.draft_ns)
    return limit, None if limit is not None else TOO_SLOW
