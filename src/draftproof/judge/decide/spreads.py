"""What stands between a plan or a run and an answer, largest first: said alike by check, samples and verdict.

At a load whose cells are invalid nothing is asked: no number of prompts mends a fault.

How much prompts spread, for planning: what an earlier run shows, and what is assumed without one. Pure.

What the numbers of `samples` come to, in one or two sentences. Pure.
"""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Literal, NamedTuple, TypeVar

import msgspec
import numpy as np
from msgspec.structs import replace

from draftproof.judge.decide.effects import CellKey, derive_seed, estimate_null, find_usable, read_sides
from draftproof.judge.decide.guardrails import count_votes
from draftproof.judge.decide.processes import spread_processes
from draftproof.judge.decide.wording import list_open, name_segment
from draftproof.judge.metrics.request import METRIC_WORDS
from draftproof.judge.observe.client_limits import LAGGED_PERIODS_LIMIT
from draftproof.judge.observe.pairs import NULL, Pairs, PairTable, pair_observations
from draftproof.judge.observe.run_data import ALL_SEGMENTS, PreparedRun
from draftproof.judge.results.decide import ContextBand, Figure, Reference, refer
from draftproof.judge.results.run import Cell, Difference, Effect
from draftproof.judge.results.samples import Need, SamplePlan, Shortfall
from draftproof.judge.stats.bootstrap import noise_margin, null_difference, paired_ratio
from draftproof.judge.stats.periods import ProcessSpread, weigh_processes
from draftproof.judge.stats.planning import spread_of
from draftproof.judge.stats.quantiles import beta_quantile, chi_square_quantile, student_quantile
from draftproof.plan.schema import Plan

# Standard deviations of logarithms. Between prompts of the ratio of two arms: prompts that profit alike, the
# usual mixture, prompts of which some profit several times as much as others.
RATIO_SPREADS = (0.05, 0.15, 0.30)
# Between requests of one arm: of a time per token, and of a first token that may wait in a queue.
VALUE_SPREADS = {
    "tpot_ns": (0.1, 0.3),
    "e2e_from_schedule_ns": (0.3, 0.6),
    "ttft_from_schedule_ns": (0.2, 0.8),
}
DEFAULT_POWER = 0.8
UPPER_CHANCE = 0.8  # of the interval whose upper end is shown beside a measured spread
FEWEST_FOR_SPREAD = 3


class Earlier(msgspec.Struct, frozen=True, kw_only=True):
    """An earlier run: its pairs, and by how much two equal arms differed at each load (1 where unknown).

    `luck` is what processes differ by in the deciding metric, None where the run does not tell.
    """

    prepared: PreparedRun
    pairs: Pairs
    null_differences: Mapping[str, float]
    luck: ProcessSpread | None

    @property
    def disturbed(self) -> dict[str, str]:
        """Where so many periods were disturbed by the host that their times count, by load, in words."""
        prepared = self.prepared
        loud = Counter(one.load for one in prepared.attempts if one.events and not one.is_left_out)
        periods = Counter(load for load, _, _ in prepared.periods)
        return {
            load: f"The host disturbed {count} of {periods[load]} periods at load {load}, and their times "
            "count, since they are more than a fifth: measure on a quiet host."
            for load, count in loud.items()
            if count > LAGGED_PERIODS_LIMIT * periods[load]
        }

    @property
    def name(self) -> str:
        """What the run is called."""
        return self.prepared.run.manifest.run_name

    def usable(self, cell: CellKey, metric: str) -> Pairs:
        """Return the usable pairs of a cell."""
        return find_usable(self.prepared, self.pairs.cell(*cell), self.prepared.columns.metric(metric))

    def reach_of_luck(self, load: str, level: float) -> float:
        """Return how far the luck of its processes alone stretches an interval at a load, as a log."""
        if self.luck is None:
            return 0.0
        usable = self.usable((ALL_SEGMENTS, load), self.prepared.plan.comparison.metric)
        numbers = self.prepared.process_numbers
        weight = weigh_processes(numbers[usable.mine], numbers[usable.theirs], twins=numbers[usable.twins])
        reach = student_quantile(0.5 + level / 2, self.luck.degrees)
        return reach * math.sqrt(self.luck.variance * weight)

    def count_prompts(self, cell: CellKey, metric: str) -> int:
        """Return how many prompts of a cell have a usable pair."""
        return len(np.unique(self.prepared.columns.prompts[self.usable(cell, metric).mine]))

    def is_unknown(self, cell: CellKey, metric: str) -> bool:
        """Return whether a cell has answered pairs of which none shows the metric."""
        answered = self.pairs.cell(*cell).is_ok
        return bool(answered.any()) and not self.count_prompts(cell, metric)


def read_earlier(prepared: PreparedRun, pairs: PairTable | None = None) -> Earlier:
    """Return what an earlier run tells; `pairs` are the run's, where they are known."""
    pairs = pairs or pair_observations(prepared)
    metric = prepared.columns.metric(prepared.plan.comparison.metric)
    return Earlier(
        prepared=prepared,
        pairs=pairs["candidate", "baseline"],
        null_differences={load: _read_null(prepared, pairs, load) for load in prepared.loads},
        luck=spread_processes(prepared, metric),
    )


def spreads_of_ratio(
    plan: Plan, earlier: Earlier | None, cell: CellKey, metric: str
) -> tuple[tuple[float, ...], Literal["run", "assumed"]]:
    """Return the spread between prompts that a run's pairs show and its upper end, else the assumed ones."""
    if earlier is None or (prompts := earlier.count_prompts(cell, metric)) < FEWEST_FOR_SPREAD:
        return RATIO_SPREADS, "assumed"
    columns = earlier.prepared.columns
    values, usable = columns.metric(metric), earlier.usable(cell, metric)
    estimate = paired_ratio(
        *read_sides(usable, values),
        columns.prompts[usable.mine],
        resamples=plan.comparison.resamples,
        seed=derive_seed(plan.seed, "samples", metric, *cell),
    )
    spread = spread_of(estimate)
    return (RATIO_SPREADS, "assumed") if spread is None else (_with_upper(spread, prompts), "run")


def spreads_of_values(
    earlier: Earlier | None, cell: CellKey, metric: str
) -> tuple[tuple[float, ...], Literal["run", "assumed"]]:
    """Return the spread between the baseline's requests and its upper end, else the assumed ones."""
    if earlier is None:
        return VALUE_SPREADS[metric], "assumed"
    return spread_values(earlier.prepared, earlier.pairs.cell(*cell), metric)


def spread_values(
    prepared: PreparedRun, pairs: Pairs, metric: str
) -> tuple[tuple[float, ...], Literal["run", "assumed"]]:
    """Return the spread between the requests of the other arm of some pairs, as `spreads_of_values`."""
    values = prepared.columns.metric(metric)
    usable = find_usable(prepared, pairs, values)
    prompts = len(np.unique(prepared.columns.prompts[usable.mine]))
    if prompts < FEWEST_FOR_SPREAD:
        return VALUE_SPREADS[metric], "assumed"
    return _with_upper(float(np.std(np.log(values[usable.theirs]), ddof=1)), prompts), "run"


def _with_upper(spread: float, prompts: int) -> tuple[float, float]:
    tail = (1 - UPPER_CHANCE) / 2
    upper = math.sqrt((prompts - 1) / chi_square_quantile(tail, prompts - 1))
    return spread, spread * upper


def discordant_shares(
    earlier: Earlier | None, load: str, quantity: str, margin: float
) -> tuple[tuple[float, ...], int | None]:
    """Return the shares of discordant prompts to reckon with, and how many an earlier run judged."""
    votes = count_votes(earlier.pairs.cell(ALL_SEGMENTS, load), quantity) if earlier else {}
    n = int(sum(votes.values()))
    if not n:
        return (0.0, margin), (0 if earlier else None)
    unequal = float(sum(share for (one, other), share in votes.items() if one != other))
    upper = beta_quantile(1 - (1 - UPPER_CHANCE) / 2, unequal + 1, n - unequal) if unequal < n else 1.0
    return (unequal / n, upper), n


def _read_null(prepared: PreparedRun, pairs: PairTable, load: str) -> float:
    """Return the null difference of a run over a load, that of its verdict."""
    if NULL not in pairs:
        return 1.0
    null = estimate_null(prepared, pairs, prepared.plan.comparison.metric, load)
    return null_difference(null.value, null.standard_error)


STATISTIC_WORDS = {"mean": "the mean", "p50": "the median", "p95": "p95", "p99": "p99"}


def describe_samples(found: SamplePlan, obstacles: Sequence[str]) -> str:
    """Say whether the workload suffices for the gain, what else is short, and how many requests it takes.

    Of the obstacles, largest first, the first is said that is no need: before the gain if none is larger.
    """
    gains = [need for need in found.needs if need.aim == "gain"]
    others = {*found.disturbed.values(), *(one.text for one in found.shortfalls)}
    said = [text for text in obstacles if text in others][:1]
    gain = [_describe_gain(found, gains)]
    leading = (*said, *gain) if said == list(obstacles[:1]) else (*gain, *said)
    return " ".join((*leading, _describe_rest(found), _describe_requests(found)))


def _describe_gain(found: SamplePlan, gains: Sequence[Need]) -> str:
    question = found.question
    metric = METRIC_WORDS.get(gains[0].quantity, gains[0].quantity) if gains else ""
    aim = (
        f"a gain of {100 * question.gain:g} % in {STATISTIC_WORDS[question.statistic]} of {metric} with a "
        f"chance of {100 * question.power:g} % per cell"
    )
    impossible = [need for need in gains if need.reason is not None]
    short = [need for need in gains if need.more]
    what = "prompts measured" if found.run else "prompts of the workload"
    if impossible:
        return f"{len(impossible)} of {len(gains)} cells cannot show {aim}: {impossible[0].reason}."
    if not short:
        return f"The {what} suffice in every cell for {aim}."
    worst = max(short, key=lambda need: (need.needed[-1], need.segment, need.load))
    span = _span(worst.needed)
    return (
        f"The {what} are too few in {len(short)} of {len(gains)} cells for {aim}: "
        f"{name_segment(worst.segment)} at load {worst.load} takes {span}."
    )


def _describe_rest(found: SamplePlan) -> str:
    names = {
        "tail": "the tail",
        "failures": "failed requests",
        "checks": "passed checks",
        "limit": "ends of answers",
    }
    short = [need for need in found.needs if need.aim != "gain" and (need.more or need.reason)]
    if not short:
        return "Tail, failures, checks and ends of answers are covered."
    listed = ", ".join(dict.fromkeys(names[need.aim] for need in short))
    return f"Also too few for {listed}." if any(n.more for n in found.needs) else f"Not shown: {listed}."


def _describe_requests(found: SamplePlan) -> str:
    if found.requests_needed is None:
        return "No number of requests meets every need."
    low, high = found.requests_needed
    if high <= found.requests:
        return f"The plan's {found.requests:,} measured requests are enough."
    span = f"{low:,}" if low == high else f"{low:,} to {high:,}"
    return (
        f"All together take {span} measured requests over {found.arms} arms; the plan has {found.requests:,}."
    )


def _span(needed: Sequence[int]) -> str:
    return (
        f"{needed[0]:,}"
        if needed[0] == needed[-1]
        else f"{needed[0]:,} to {needed[-1]:,}, depending on how much prompts differ"
    )


class Obstacle(NamedTuple):
    """One thing that keeps cells from an answer, as a sentence, and what it is read from."""

    text: str
    evidence: Reference
    remedy: str | None = None


def list_obstacles(found: SamplePlan, cells: Collection[CellKey]) -> list[Obstacle]:
    """Return what some cells lack, largest first.

    First what no number of prompts mends: the host, equal arms that differ, the plan, the rest of the run;
    then numbers of prompts. Before a run those that are sure come before those by assumed spreads.
    """
    blocking = list_blocking(found.shortfalls, cells)
    impossible = [one for one in found.needs if one.reason is not None and _concerns(found, one, cells)]
    short = [one for one in found.needs if one.more and _concerns(found, one, cells)]
    short.sort(key=lambda need: (need.more or 0, need.segment, need.load), reverse=True)
    loads = dict.fromkeys(one.load for one in (*impossible, *short) if one.aim == "gain")
    return [
        *(
            Obstacle(found.disturbed[load], Reference("periods", at=load))
            for load in loads
            if load in found.disturbed
        ),
        *_prevent(found, [one for one in impossible if one.null_difference > 1]),
        *(Obstacle(one.text, one.evidence) for one in blocking if one.more is None),
        *_prevent(found, [one for one in impossible if one.null_difference == 1]),
        *(Obstacle(one.text, one.evidence) for one in blocking if one.more and not found.run),
        *(
            Obstacle(
                f"About {one.more:,} more prompts would show {_name_need(found, one)} (an estimate).",
                _row(one),
            )
            for one in short[:1]
        ),
    ]


def list_before_a_run(found: SamplePlan, cells: Collection[CellKey]) -> tuple[list[Obstacle], list[Obstacle]]:
    """Return what rules a gain out in every cell before a run, and what rules it out in some or is unlikely.

    The first are sure; the last of the others is a number of prompts by assumed spreads, over all cells.
    """
    blocking = list_blocking(found.shortfalls, cells)
    is_ruled_out = all(any(one.blocks(*cell) for one in blocking) for cell in cells)
    everywhere = blocking if is_ruled_out else []
    elsewhere = [] if is_ruled_out else blocking
    short = [one for one in found.needs if one.aim == "gain" and one.more]
    few = [Obstacle(_describe_short(found, short), Reference("plan", name="workload"))] if short else []
    return (
        [Obstacle(one.text, one.evidence) for one in everywhere],
        [*(Obstacle(one.text, one.evidence) for one in elsewhere), *few],
    )


def _describe_short(found: SamplePlan, short: Sequence[Need]) -> str:
    """Say how many prompts a cell takes, by how prompts spread, and how many it has."""
    have = sorted({one.have for one in short})
    needed = sorted({count for one in short for count in one.needed})
    gain, least, most = f"{100 * found.question.gain:g} %", f"{needed[0]:,}", f"{needed[-1]:,}"
    held = f"{have[0]:,}" + (f" to {have[-1]:,}" if len(have) > 1 else "")
    return (
        f"A gain of {gain} takes {least} to {most} prompts in each cell, by how much prompts differ, and "
        f"{len(short)} of {found.cells} cells have {held}: add prompts, or split them by fewer labels."
    )


def list_blocking(shortfalls: Iterable[Shortfall], cells: Collection[CellKey]) -> list[Shortfall]:
    """Return the shortfalls that prevent an answer in any of some cells, of most cells first."""
    counted = [(sum(one.blocks(*cell) for cell in cells), one) for one in shortfalls]
    return [one for count, one in sorted(counted, key=lambda row: -row[0]) if count]


def find_more(found: SamplePlan, cell: CellKey) -> int | None:
    """Return how many more prompts the gain of one cell takes, None where none would do or none is asked."""
    own = _find_gain(found, cell)
    return own.more if own else None


def shows_no_gain(found: SamplePlan, cell: Cell) -> bool:
    """Return whether a cell would have shown a gain of the size asked for, or its interval leaves none open.

    By as much as equal arms differ, the candidate may have been the slower one.
    """
    need = _find_gain(found, (cell.segment, cell.load))
    if need is None:
        return False
    if need.reason is None and need.more == 0:
        return True
    low = cell.effect.low
    least = (1 - found.question.gain) * noise_margin(need.null_difference, need.statistic)
    return low is not None and low >= least


def _find_gain(found: SamplePlan, cell: CellKey) -> Need | None:
    own = (one for one in found.needs if one.aim == "gain" and (one.segment, one.load) == cell)
    return next(own, None)


def _concerns(found: SamplePlan, need: Need, cells: Collection[CellKey]) -> bool:
    """Return whether a need decides any of the cells; some withhold only with representative evidence."""
    if need.aim in ("tail", "limit") and not found.is_representative:
        return False
    return any(need.segment in (segment, ALL_SEGMENTS) and need.load == load for segment, load in cells)


def _prevent(found: SamplePlan, needs: Iterable[Need]) -> list[Obstacle]:
    """Return why no number of prompts would do, once for each reason at a load."""
    distinct = {(one.aim, one.load, one.reason): one for one in reversed(list(needs))}
    return [
        Obstacle(f"No number of prompts would show {_name_need(found, one)}: {one.reason}.", _row(one))
        for one in reversed(distinct.values())
    ]


def _row(need: Need) -> Reference:
    if need.null_difference > 1 and need.reason is not None:
        return Reference("effects", "baseline_null", "baseline", at=(ALL_SEGMENTS, need.load))
    table = {"gain": "effects", "tail": "tails"}.get(need.aim, "differences")
    quantity = None if need.aim == "gain" else need.quantity
    return refer(table, (need.segment, need.load), quantity)


def _name_need(found: SamplePlan, need: Need) -> str:
    if need.aim == "gain":
        return (
            f"a gain of {100 * found.question.gain:g} % in {name_segment(need.segment)} at load {need.load}"
        )
    names = {
        "tail": "that the tail is no worse",
        "failures": "that no more requests fail",
        "checks": "that answers pass their checks as often",
        "limit": "that as many answers end at the token limit",
    }
    return f"{names[need.aim]} at load {need.load}"


Row = TypeVar("Row", Cell, Effect, Difference, ContextBand)
MOST_OBSTACLES = 3  # a reader who wants all of them runs `draftproof samples --run`


def add_needed(cells: Iterable[Cell], found: SamplePlan | None, *, is_complete: bool) -> tuple[Cell, ...]:
    """Add to every undecided cell how many more prompts would show a gain there.

    Of a run that is not complete a cell without an estimate keeps what the estimate lacks: the rest may do.
    """
    return tuple(
        replace(cell, effect=replace(cell.effect, needed=find_more(found, (cell.segment, cell.load)) or None))
        if found is not None and _awaits_prompts(cell, is_complete=is_complete)
        else cell
        for cell in cells
    )


def ask_nothing(rows: tuple[Row, ...], loads: Collection[str]) -> tuple[Row, ...]:
    """Return rows of results that ask for no prompts at some loads."""
    return tuple(_mute(row) if row.load in loads else row for row in rows)


def _mute(row: Row) -> Row:
    names = [name for name in ("effect", "ratio", "simultaneous", "difference") if hasattr(row, name)]
    figures = {name: one for name in names if isinstance(one := getattr(row, name), Figure)}
    own = {"needed": None} if hasattr(row, "needed") else {}
    return replace(row, **{name: replace(one, needed=None) for name, one in figures.items()}, **own)


def list_largest(cells: Sequence[Cell], found: SamplePlan | None) -> list[Obstacle]:
    """Return what keeps the cells that are open from an answer, largest first, a few of them."""
    undecided = list_open(cells)
    remedies = Counter(cell.effect.remedy for cell in undecided if cell.effect.remedy)
    if remedies:
        remedy = remedies.most_common(1)[0][0]
        cell = next(one for one in undecided if one.effect.remedy == remedy)
        row = refer("effects", (cell.segment, cell.load))
        return [Obstacle(f"No number of prompts changes that: {remedy}.", row, remedy)]
    if found is None:
        return []
    return list_obstacles(found, [(one.segment, one.load) for one in undecided])[:MOST_OBSTACLES]


def _awaits_prompts(cell: Cell, *, is_complete: bool) -> bool:
    is_asked = is_complete or cell.effect.value is not None
    return cell.status == "inconclusive" and is_asked and cell.effect.remedy is None
