"""What the drafter costs in compute, memory and scheduling, and what its steps must commit to pay.

Pure view of `Results.diagnoses`.
"""

from collections.abc import Callable, Iterable

import msgspec

from draftproof.judge.results.diagnosis import BreakEven, DrafterFact
from draftproof.judge.results.run import Results
from draftproof.tell.report.quantities import (
    MISSING,
    format_change,
    format_ms,
    format_ratio,
    format_share,
    format_significant,
    format_sizes,
    segment_heading,
    segment_label,
)
from draftproof.tell.report.view import (
    Column,
    Footnotes,
    Group,
    Panel,
    Row,
    Table,
    TableCell,
    figure_cell,
    label_column,
    make_panels,
    order_loads,
    text_cell,
    title_of_load,
)

QUANTITIES = {
    "step_time": "Time of a step",
    "verify_time_per_step": "of it verification or ordinary decoding",
    "draft_time_per_step": "of it drafting",
    "draft_share_of_step": "Drafting's share of the step",
    "resident_memory": "Resident memory of the process",
    "gpu_memory": "GPU memory in use",
    "cache_capacity": "Capacity of the key-value cache (tokens)",
    "cache_limited_concurrency": "Requests of this load's mean length that it holds",
    "schedule_time_per_step": "Scheduling in a step",
    "batch_size": "Mean batch of a step",
    "running": "Running requests, mean",
    "preemptions_per_1000_requests": "Preemptions per 1,000 requests",
}
PARTS = (("compute", "Compute"), ("memory", "Memory"), ("scheduling", "Scheduling"))
NO_ROUNDS = (
    "The engine does not disclose its steps, so what a step commits and costs is not known from this run; "
    "draftproof costs measures it."
)


class DrafterSection(msgspec.Struct, frozen=True, kw_only=True):
    """Costs by load, what the memory means for the load, and break-even by cell."""

    costs: tuple[Panel, ...]
    sentences: tuple[str, ...]
    break_evens: tuple[Panel, ...]
    no_break_even: str


def build_drafter(results: Results) -> DrafterSection | None:
    """Lay out the drafter's cost; None for results of an earlier version, which lack it."""
    found = results.diagnoses
    if found is None:
        return None
    loads = order_loads(results)
    return DrafterSection(
        costs=make_panels(
            [(title_of_load(results, load), _cost_table(results, load, found.drafter)) for load in loads]
        ),
        sentences=tuple(sentence for load in loads for sentence in _read_cache(results, load, found.drafter)),
        break_evens=make_panels(
            [(title_of_load(results, load), _even_table(results, load, found.break_evens)) for load in loads]
        ),
        no_break_even=NO_ROUNDS,
    )


def _cost_table(results: Results, load: str, facts: Iterable[DrafterFact]) -> Table:
    notes = Footnotes()
    here = [one for one in facts if one.load == load]
    groups = tuple(
        Group(title=label, rows=tuple(_cost_row(one, notes) for one in here if one.part == part))
        for part, label in PARTS
    )
    return Table(
        caption=f"Cost of the drafter, {title_of_load(results, load)}",
        columns=(
            label_column("Quantity"),
            Column(label="Baseline"),
            Column(label="Candidate"),
            Column(label="Change"),
            label_column("Source"),
        ),
        groups=tuple(group for group in groups if group.rows),
        notes=notes.notes(),
    )


def _cost_row(fact: DrafterFact, notes: Footnotes) -> Row:
    write = _writer(fact)
    known = fact.baseline is not None and fact.candidate is not None
    change = (
        format_change(fact.candidate / fact.baseline) if known and fact.baseline and fact.candidate else ""
    )
    return Row(
        cells=(
            text_cell(QUANTITIES.get(fact.quantity, fact.quantity), head=True),
            text_cell(write(fact.baseline)),
            TableCell(
                text=write(fact.candidate),
                tone="strong" if fact.candidate is not None else "missing",
                mark=notes.mark(fact.reason) if fact.reason else "",
            ),
            text_cell(change),
            text_cell(fact.source if fact.candidate is not None else ""),
        )
    )


def _writer(fact: DrafterFact) -> Callable[[float | None], str]:
    unit = fact.unit
    if unit == "bytes":
        sizes = (fact.baseline, fact.candidate)
        return dict(zip(sizes, format_sizes(sizes), strict=True)).__getitem__
    if unit == "ns":
        return lambda value: MISSING if value is None else f"{format_ms(value)} ms"
    return format_share if unit == "share" else format_significant


def _read_cache(results: Results, load: str, facts: Iterable[DrafterFact]) -> list[str]:
    """Say what the cache that the drafter took means for the requests that fit, where both are known."""
    here = {one.quantity: one for one in facts if one.load == load}
    cache, lanes = here.get("cache_capacity"), here.get("cache_limited_concurrency")
    if cache is None or lanes is None or None in (cache.baseline, cache.candidate, lanes.baseline):
        return []
    lost = (cache.baseline or 0.0) - (cache.candidate or 0.0)
    kept = dict(results.loads).get(load)
    limits = "" if kept is None or lanes.candidate is None else _compare_lanes(kept, lanes.candidate)
    took = f"takes {lost:,.0f} tokens of cache" if lost > 0 else "takes no cache from the target"
    fit, before = format_significant(lanes.candidate), format_significant(lanes.baseline)
    sentence = (
        f"At load {load} the candidate {took}: about {fit} requests of this load's mean length fit, "
        f"{before} in the baseline{limits}."
    )
    return [sentence]


def _compare_lanes(in_flight: int, lanes: float) -> str:
    if lanes < in_flight:
        return f", fewer than the {in_flight} in flight: the cache moves the knee to a lower load"
    return f", more than the {in_flight} in flight: at this load the cache is not what limits"


def _even_table(results: Results, load: str, evens: Iterable[BreakEven]) -> Table:
    notes = Footnotes()
    rows = tuple(_even_row(one, notes) for one in evens if one.load == load)
    return Table(
        caption=f"What breaks even, {title_of_load(results, load)}",
        columns=(
            label_column(segment_heading(results.segments)),
            Column(label="Mean batch"),
            Column(label="has", over="Tokens per step"),
            Column(label="needs", over="Tokens per step"),
            Column(label="has / needs", over="Tokens per step"),
            Column(label="Draft length"),
            Column(label="has", over="Acceptance"),
            Column(label="needs", over="Acceptance"),
            Column(label="takes (ms)", over="Drafting a step"),
            Column(label="pays below (ms)", over="Drafting a step"),
        ),
        groups=(Group(title="", rows=rows),) if rows else (),
        notes=notes.notes(),
    )


def _even_row(one: BreakEven, notes: Footnotes) -> Row:
    return Row(
        cells=(
            text_cell(segment_label(one.segment), head=True, tone="strong"),
            text_cell(format_significant(one.batch_size)),
            text_cell(format_ratio(one.tokens_per_step)),
            text_cell(format_ratio(one.needed_tokens)),
            figure_cell(one.margin, format_ratio, notes),
            text_cell(format_significant(one.draft_length)),
            text_cell(format_share(one.acceptance)),
            _limit_cell(format_share(one.needed_acceptance), one.acceptance_reason, notes),
            text_cell(format_ms(one.draft_ns)),
            _limit_cell(format_ms(one.draft_limit_ns), one.draft_reason, notes),
        )
    )


def _limit_cell(text: str, reason: str | None, notes: Footnotes) -> TableCell:
    return TableCell(text=text, mark=notes.mark(reason) if reason else "", tone="missing" if reason else "")
