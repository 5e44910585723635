"""The way from a verdict down to raw requests: rule, cells, intervals, guardrails, prompts, requests. Pure.

Nothing is decided here. Prompts show what a cell's effect is made of: each with its own ratio, and what the
cell's ratio would be without it.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

import msgspec
import numpy as np

from draftproof.core.errors import UsageError
from draftproof.judge.decide.effects import find_usable, index_effects, read_sides
from draftproof.judge.decide.wording import RULES, name_segment
from draftproof.judge.metrics.request import name_outcome
from draftproof.judge.metrics.service import percentile
from draftproof.judge.observe.columns import Bools
from draftproof.judge.observe.pairs import DECISIVE, NO_PAIRS, Pairs, pair_observations
from draftproof.judge.observe.run_data import Observation, PreparedRun, RunData, prepare_run
from draftproof.judge.results.decide import ContextBand, GuardrailStanding
from draftproof.judge.results.run import Cell, Figure, Reason, Results
from draftproof.plan.limits import LoadSize

Locations = Mapping[str, Sequence[str]]
_COMPARED = (DECISIVE, ("baseline_null", "baseline"), ("candidate", "alternative"))


class RequestView(msgspec.Struct, frozen=True, kw_only=True):
    """One raw request and where it is in the run directory; times in ns. `timed`: its times count."""

    request_id: str
    places: tuple[str, ...]
    arm: str
    block: int
    repeat: int
    outcome: str
    timed: bool
    tpot_ns: float | None
    ttft_from_schedule_ns: int | None
    e2e_from_schedule_ns: int | None
    output_tokens: int | None
    error: str | None
    tpot_most_ns: float | None = None


class PromptView(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt of a cell: its own ratio, and the cell's ratio without it.

    `ratio` is None where no pair of it has the metric in both arms; `why` then says so.
    """

    item_id: str
    pairs: int
    ratio: float | None
    ratio_without: float | None
    why: str | None
    requests: tuple[RequestView, ...]


class CellView(msgspec.Struct, frozen=True, kw_only=True):
    """One cell with all that decided it, prompts with the lowest ratio first.

    `simultaneous` decides. `null` and `alternative` compare the same statistic in the same cell. The range
    holds the cell's ratio with any one prompt left out. `carried_by` is the least number of prompts whose
    removal takes the ratio out of the gain, None where the cell is no gain.
    """

    segment: str
    load: str
    concurrency: int | None
    status: str
    simultaneous: Figure
    single: Figure | None
    null: Figure | None
    versus_alternative: Figure | None
    guardrails: tuple[GuardrailStanding, ...]
    reasons: tuple[Reason, ...]
    bands: tuple[ContextBand, ...]
    leave_one_out_low: float | None
    leave_one_out_high: float | None
    carried_by: int | None
    prompts: tuple[PromptView, ...]
    load_size: LoadSize


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """A verdict from its sentence down to the requests; `cell` is the one that was asked for."""

    run_name: str
    decision: str
    sentence: str
    evidence_level: str
    metric: str
    statistic: str
    confidence: float
    rule: str
    reasons: tuple[Reason, ...]
    thresholds: dict[str, float | int]
    cell: str | None
    cells: tuple[CellView, ...]


def explain(run: RunData, results: Results, locations: Locations, cell: str | None = None) -> Explanation:
    """Return the way from the verdict to the requests, for every cell or for the one that is named.

    Raises UsageError: there is no such cell. `locations`: request id -> where it is in the run directory;
    `cell`: "SEGMENT@LOAD", the segment by its key or its labels.
    """
    prepared = prepare_run(run)
    pairs = pair_observations(prepared).get(DECISIVE, NO_PAIRS)
    chosen = results.cells if cell is None else (find_cell(results, cell),)
    verdict = results.verdict
    return Explanation(
        run_name=results.run_name,
        decision=verdict.decision,
        sentence=verdict.sentence,
        evidence_level=verdict.evidence_level,
        metric=results.metric,
        statistic=results.statistic,
        confidence=results.confidence,
        rule=RULES[verdict.decision],
        reasons=verdict.reasons,
        thresholds=results.thresholds,
        cell=cell,
        cells=tuple(_view_cell(prepared, results, one, pairs, locations) for one in chosen),
    )


def find_cell(results: Results, text: str) -> Cell:
    """Return the cell that "SEGMENT@LOAD" names. Raises UsageError: there is none."""
    for cell in results.cells:
        if text in (f"{cell.segment}@{cell.load}", f"{name_segment(cell.segment)}@{cell.load}"):
            return cell
    known = [f"{name_segment(cell.segment)}@{cell.load}" for cell in results.cells]
    shown = ", ".join(known[:12]) + (f" and {len(known) - 12} more" if len(known) > 12 else "")
    raise UsageError(f"the run has no cell {text!r}.", place="--cell", fix=f"name one of: {shown or 'none'}.")


def _view_cell(
    prepared: PreparedRun, results: Results, cell: Cell, pairs: Pairs, locations: Locations
) -> CellView:
    key = (cell.segment, cell.load)
    inside = pairs.cell(*key)
    prompts = _view_prompts(prepared, inside, locations, _unpaired(prepared, key, inside))
    without = [one.ratio_without for one in prompts if one.ratio_without is not None]
    effects = index_effects(results.effects)
    own, null, rival = (effects.get((results.metric, *arms, *key)) for arms in _COMPARED)
    return CellView(
        segment=cell.segment,
        load=cell.load,
        concurrency=cell.concurrency,
        status=cell.status,
        simultaneous=cell.effect,
        single=own.ratio if own else None,
        null=null.simultaneous if null else None,
        versus_alternative=rival.simultaneous if rival else None,
        guardrails=cell.guardrails,
        reasons=cell.reasons,
        bands=tuple(one for one in results.context_bands if (one.segment, one.load) == key),
        leave_one_out_low=min(without, default=None),
        leave_one_out_high=max(without, default=None),
        carried_by=_count_carriers(prepared, inside) if cell.status == "gain" else None,
        prompts=prompts,
        load_size=cell.size,
    )


def _view_prompts(
    prepared: PreparedRun, inside: Pairs, locations: Locations, unpaired: Sequence[Observation]
) -> tuple[PromptView, ...]:
    """Return the prompts of a cell by their ratio; those without a ratio come last."""
    requests: defaultdict[str, list[RequestView]] = defaultdict(list)
    twins = inside.twins[inside.twins != inside.theirs].tolist()
    asked = [one for pair in inside for one in (pair.arm, pair.versus)]
    for seen in (*asked, *(prepared.observations[index] for index in twins), *unpaired):
        requests[seen.record.item_id].append(_view_request(seen, locations))
    usable = _usable(prepared, inside)
    views = [_view_prompt(prepared, item_id, usable, tuple(found)) for item_id, found in requests.items()]
    return tuple(sorted(views, key=lambda one: (one.ratio is None, one.ratio or 0.0, one.item_id)))


def _view_prompt(
    prepared: PreparedRun, item_id: str, usable: Pairs, requests: tuple[RequestView, ...]
) -> PromptView:
    is_own = _are_of(usable, {item_id})
    own, others = usable.where(is_own), usable.where(~is_own)
    return PromptView(
        item_id=item_id,
        pairs=len(own),
        ratio=_ratio(prepared, own),
        ratio_without=_ratio(prepared, others) if own else None,
        why=None if own else _explain_absence(requests),
        requests=requests,
    )


def _explain_absence(requests: Sequence[RequestView]) -> str:
    failed = [f"{one.arm} {one.outcome}" for one in requests if one.outcome != "ok"]
    if failed:
        return f"not answered by both: {', '.join(failed)}"
    if len({one.arm for one in requests}) < len(DECISIVE):
        return f"asked of {requests[0].arm} alone"
    if any(not one.timed for one in requests):
        return "the client was late in its period, or the host disturbed it"
    return "the metric is not known in both arms"


def _view_request(seen: Observation, locations: Locations) -> RequestView:
    record, metrics = seen.record, seen.metrics
    return RequestView(
        request_id=record.request_id,
        places=tuple(locations.get(record.request_id, ())),
        arm=record.arm,
        block=record.block,
        repeat=record.repeat,
        outcome=name_outcome(record),
        timed=seen.timed,
        tpot_ns=metrics.tpot_ns,
        ttft_from_schedule_ns=metrics.ttft_from_schedule_ns,
        e2e_from_schedule_ns=metrics.e2e_from_schedule_ns,
        output_tokens=metrics.output_tokens,
        error=record.error,
        tpot_most_ns=metrics.tpot_most_ns,
    )


def _unpaired(prepared: PreparedRun, key: tuple[str, str], inside: Pairs) -> list[Observation]:
    """Return requests of the two arms that no pair of the cell holds: partners missing, attempts repeated."""
    paired = {one.record.request_id for pair in inside for one in (pair.arm, pair.versus)}
    segment, load = key
    return [
        seen
        for arm in DECISIVE
        for seen in prepared.of_arm(arm, load, segment)
        if seen.record.request_id not in paired
    ]


def _usable(prepared: PreparedRun, inside: Pairs) -> Pairs:
    return find_usable(prepared, inside, prepared.columns.metric(prepared.plan.comparison.metric))


def _are_of(pairs: Pairs, items: Collection[str]) -> Bools:
    """Return which pairs ask one of the items, shape (pairs,)."""
    columns, wanted = pairs.columns, frozenset(items)
    is_wanted = np.array([name in wanted for name in columns.item_ids], dtype=np.bool_)
    found: Bools = is_wanted[columns.items[pairs.mine]]
    return found


def _ratio(prepared: PreparedRun, pairs: Pairs) -> float | None:
    """Return the deciding ratio over usable pairs, that of the cell if these are all of its pairs."""
    choice = prepared.plan.comparison
    above, below = read_sides(pairs, prepared.columns.metric(choice.metric))
    if not len(below):
        return None
    if choice.statistic == "mean":
        return float(above.sum() / below.sum())
    high, low = percentile(above, 0.5), percentile(below, 0.5)
    return high / low if high and low else None


def _count_carriers(prepared: PreparedRun, inside: Pairs) -> int | None:
    """Count how many of the most favourable prompts have to go before the ratio is no gain any more."""
    usable = _usable(prepared, inside)
    items = {pair.item_id for pair in usable}
    ordered = sorted(
        items, key=lambda item: (_ratio(prepared, usable.where(_are_of(usable, {item}))) or 0.0, item)
    )
    for count in range(1, len(ordered)):
        ratio = _ratio(prepared, usable.where(_are_of(usable, ordered[count:])))
        if ratio is None or ratio >= 1 - prepared.plan.thresholds.minimum_gain:
            return count
    return len(ordered) or None
