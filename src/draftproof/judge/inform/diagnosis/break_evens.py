"""What a candidate's steps commit in every cell, against what they must commit before drafting pays. Pure.

Rests on the rounds that the engine discloses in both arms; `draftproof costs` measures the same for engines
that disclose none. Times of a round are those of its whole batch.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from draftproof.core.records import Round
from draftproof.judge.metrics.acceptance import break_even_acceptance, break_even_draft_ns
from draftproof.judge.metrics.identities import acceptance_faults
from draftproof.judge.observe.run_data import ALL_SEGMENTS, Observation, PreparedRun
from draftproof.judge.results.diagnosis import BreakEven
from draftproof.judge.results.figure import Figure, as_figure
from draftproof.judge.stats.totals import Totals, ratio_of_ratios, sum_by_cluster

NO_ORDINARY = "the baseline discloses no rounds, so there is no ordinary step to compare with"
NONE_PAYS = "a step costs more than all its tokens, whatever is accepted"
NO_DRAFT = "no round of this cell drafted"
TOO_SLOW = "verification alone takes longer than the tokens are worth"

Owned = Sequence[tuple[str, Round]]  # prompt, one of its rounds
RoundTable = Mapping[tuple[str, str, str], Owned]  # arm, segment, load


class StepMeans(msgspec.Struct, frozen=True, kw_only=True):
    """Means over the rounds of an arm in a cell: ns of the parts, batch size and committed tokens."""

    step_ns: float
    draft_ns: float
    verify_ns: float
    schedule_ns: float
    batch_size: float
    tokens: float
    rounds: int


def collect_rounds(prepared: PreparedRun) -> RoundTable:
    """Return the rounds of answered requests with sound counters, in turns with a client on time."""
    found: defaultdict[tuple[str, str, str], list[tuple[str, Round]]] = defaultdict(list)
    names = prepared.columns.cluster_names(None)
    for one in prepared.observations:
        if _counts(one):
            owned = [(names[one.record.item_id], turn) for turn in one.record.rounds or ()]
            for segment in (ALL_SEGMENTS, one.segment):
                found[one.record.arm, segment, one.record.load] += owned
    return found


def average_rounds(owned: Owned) -> StepMeans | None:
    """Return the means over rounds, None without any."""
    if not owned:
        return None
    rounds = [turn for _, turn in owned]
    count = len(rounds)
    return StepMeans(
        step_ns=sum(turn.round_ns for turn in rounds) / count,
        draft_ns=sum(turn.draft_ns for turn in rounds) / count,
        verify_ns=sum(turn.verify_ns for turn in rounds) / count,
        schedule_ns=sum(turn.schedule_ns for turn in rounds) / count,
        batch_size=sum(turn.batch_size for turn in rounds) / count,
        tokens=sum(turn.committed for turn in rounds) / count,
        rounds=count,
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
    drafted = [turn for _, turn in candidate if turn.proposed > 0]
    ordinary_ns = ordinary.step_ns if ordinary and ordinary.step_ns > 0 else None
    needed = means.step_ns / ordinary_ns if means and ordinary_ns else None
    acceptance, acceptance_reason = _needed_acceptance(drafted, ordinary_ns)
    limit_ns, draft_reason = _draft_limit(means, ordinary_ns)
    return BreakEven(
        segment=segment,
        load=load,
        batch_size=means.batch_size if means else None,
        full_length=_typical_length(drafted),
        draft_length=sum(turn.proposed for turn in drafted) / len(drafted) if drafted else None,
        tokens_per_step=means.tokens if means else None,
        step_ns=means.step_ns if means else None,
        needed_tokens=needed,
        margin=_margin(prepared, candidate, baseline),
        acceptance=sum(turn.accepted for turn in drafted) / sum(turn.proposed for turn in drafted)
        if drafted
        else None,
        needed_acceptance=acceptance,
        acceptance_reason=acceptance_reason,
        draft_ns=means.draft_ns if means else None,
        draft_limit_ns=limit_ns,
        draft_reason=draft_reason,
    )


def _margin(prepared: PreparedRun, candidate: Owned, baseline: Owned) -> Figure:
    """Return tokens per step / step cost = ordinary step time / time per committed token, over prompts."""
    if not baseline:
        return Figure(value=None, reason=NO_ORDINARY)
    choice = prepared.plan.comparison
    found = ratio_of_ratios(
        _totals(candidate, [turn.committed for _, turn in candidate]),
        _totals(baseline, [1] * len(baseline)),
        level=choice.confidence,
        minimum_clusters=choice.minimum_prompts,
    )
    return as_figure(found)


def _totals(owned: Owned, counted: Iterable[int]) -> Totals:
    return sum_by_cluster(
        list(counted), [turn.round_ns for _, turn in owned], [prompt for prompt, _ in owned]
    )


def _typical_length(drafted: Sequence[Round]) -> int | None:
    """Return the draft length nearest to the mean over drafted rounds, at least 1."""
    if not drafted:
        return None
    return max(round(sum(turn.proposed for turn in drafted) / len(drafted)), 1)


def _needed_acceptance(
    drafted: Sequence[Round], ordinary_ns: float | None
) -> tuple[float | None, str | None]:
    length = _typical_length(drafted)
    if length is None:
        return None, NO_DRAFT
    if ordinary_ns is None:
        return None, NO_ORDINARY
    ratio = sum(turn.round_ns for turn in drafted) / len(drafted) / ordinary_ns
    needed = break_even_acceptance(ratio, length)
    return needed, None if needed is not None else NONE_PAYS


def _draft_limit(means: StepMeans | None, ordinary_ns: float | None) -> tuple[float | None, str | None]:
    if means is None or ordinary_ns is None:
        return None, NO_ORDINARY
    limit = break_even_draft_ns(means.tokens, ordinary_ns, means.step_ns - means.draft_ns)
    return limit, None if limit is not None else TOO_SLOW


def _counts(one: Observation) -> bool:
    return one.is_ok and one.timed and bool(one.record.rounds) and not acceptance_faults(one.record)
