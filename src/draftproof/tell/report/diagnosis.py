"""Where the time goes and what decoding can give, what the drafter costs, and what to look at first.

Pure view of `Results.diagnosis` and `Results.diagnoses`. All bars stand for the same whole, so they share one
axis of per cent.
"""

import msgspec

from draftproof.judge.results.inform import BreakEven, Diagnoses, DrafterFact, Remedy, TimeParts
from draftproof.judge.results.run import Diagnosis, Figure, Results
from draftproof.tell.report import kit, words, write
from draftproof.tell.report.charts import Part, Tick, linear_ticks, stacked_parts
from draftproof.tell.report.kit import ChartPanel, Column, Group, Panel, Table, TableCell

TONES = (
    ("queue", "Queue"),
    ("prefill", "Prefill"),
    ("before_first", "Before the first token, where the engine does not split it"),
    ("decode", "Decoding"),
    ("other", "Other: client, network, tools, between steps"),
)
_SHARES = "Share of the baseline's time"
_GAIN = "End-to-end gain (baseline / candidate)"


def build_diagnosis(results: Results) -> Table:
    """One row per load level."""
    columns: tuple[Column[Diagnosis], ...] = (
        kit.left("Load", lambda one: kit.head(kit.load_title(results, one.load))),
        kit.left("Bound by", lambda one: one.bound),
        kit.right("queue", lambda one: write.share(one.queue_share), _SHARES),
        kit.right("prefill", lambda one: write.share(one.prefill_share), _SHARES),
        kit.right("decode", lambda one: write.share(one.decode_share), _SHARES),
        kit.right("other", lambda one: write.share(one.other_share), _SHARES),
        kit.right("Decode speed-up", lambda one: write.times(one.decode_speedup)),
        kit.right("ceiling", lambda one: write.times(one.ceiling_gain), _GAIN),
        kit.right("predicted", lambda one: write.times(one.predicted_gain), _GAIN),
        kit.right("measured", lambda one: write.times(one.measured_gain), _GAIN),
        kit.left("Reading", lambda one: kit.text(one.text, "prose")),
    )
    caption = "Where the baseline's time goes, and what faster decoding can give"
    return kit.table(caption, columns, [("", results.diagnosis)])


class TimeRow(msgspec.Struct, frozen=True, kw_only=True):
    """One arm: its bar, and (value, interval) of decode share, ceiling, predicted and measured gain."""

    parts: tuple[Part, ...]
    found: TimeParts
    figures: tuple[tuple[str, str], ...]


class TimeSection(msgspec.Struct, frozen=True, kw_only=True):
    """All bars, the remedies in their order as (remedy, loads), and the bounds that no trace tells of."""

    ticks: tuple[Tick, ...]
    legend: tuple[tuple[str, str], ...]
    panels: tuple[ChartPanel[TimeRow], ...]
    remedies: tuple[tuple[Remedy, str], ...]
    not_measured: tuple[tuple[str, str], ...]


def build_time_section(results: Results) -> TimeSection | None:
    """Lay out where time goes; None for results of an earlier version, which lack it."""
    found = results.diagnoses
    if found is None:
        return None
    told = [one for one in found.parts if one.source != "none" and one.segment == words.POOLED]
    used = {tone for one in told for tone, _, _ in _triples(one)}
    is_short = kit.panels_are_open([len(told)])
    panels = tuple(
        ChartPanel(
            title=kit.load_title(results, load), opened=is_short or index == 0, groups=_groups(results, here)
        )
        for index, load in enumerate(kit.order_loads(results))
        if (here := [one for one in told if one.load == load])
    )
    return TimeSection(
        ticks=linear_ticks(100),
        legend=tuple((tone, label) for tone, label in TONES if tone in used),
        panels=panels,
        remedies=tuple(
            (one, "; ".join(kit.load_title(results, load) for load in one.loads)) for one in found.remedies
        ),
        not_measured=found.not_measured,
    )


def _groups(results: Results, here: list[TimeParts]) -> tuple[Group[TimeRow], ...]:
    return tuple(
        Group(title=title, rows=tuple(map(_time_row, rows))) for title, rows in kit.by_segment(results, here)
    )


def _time_row(parts: TimeParts) -> TimeRow:
    triples = [(tone, f"{label} {write.share(value)}", value) for tone, label, value in _triples(parts)]
    gains = (parts.ceiling, parts.predicted, parts.measured)
    return TimeRow(
        parts=stacked_parts(triples, max(1.0, sum(value or 0.0 for _, _, value in triples))),
        found=parts,
        figures=(_figure(parts.decode, write.share), *(_figure(gain, write.times) for gain in gains)),
    )


def _figure(figure: Figure | None, write_value: write.Write) -> tuple[str, str]:
    """Return (value, interval); the dash and why where there is none, nothing where none is asked for."""
    if figure is None:
        return "", ""
    span = write.interval(figure, write_value) if figure.value is not None else ""
    return write_value(figure.value), span or figure.reason or ""


def _triples(parts: TimeParts) -> list[tuple[str, str, float | None]]:
    """Return (tone, label, share) of what is known; by the client's clock the first token stands for two."""
    shown = [(tone, label) for tone, label in TONES if tone != "before_first" or parts.source == "client"]
    figures: list[tuple[str, str, Figure]] = [(tone, label, getattr(parts, tone)) for tone, label in shown]
    return [(tone, label, figure.value) for tone, label, figure in figures if figure.value is not None]


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
    loads = kit.order_loads(results)
    return DrafterSection(
        costs=kit.panels(results, lambda load: _cost_table(results, load, found)),
        sentences=(
            *(said for load in loads if (said := _read_cache(results, load, found))),
            *_list_unknown(found),
        ),
        break_evens=kit.panels(results, lambda load: _even_table(results, load, found)),
        no_break_even=NO_ROUNDS,
    )


_COSTS: tuple[Column[DrafterFact], ...] = (
    kit.left("Quantity", lambda one: kit.head(QUANTITIES.get(one.quantity, one.quantity))),
    kit.right("Baseline", lambda one: _write_fact(one)[0]),
    kit.right(
        "Candidate",
        lambda one: kit.text(
            _write_fact(one)[1],
            "strong" if one.candidate is not None else "missing",
            reason=one.reason,
        ),
    ),
    kit.right(
        "Change",
        lambda one: write.change(one.candidate / one.baseline) if one.baseline and one.candidate else "",
    ),
    kit.left("Source", lambda one: one.source if one.candidate is not None else ""),
)


def _is_unknown(one: DrafterFact) -> bool:
    return one.baseline is None and one.candidate is None


def _list_unknown(found: Diagnoses) -> list[str]:
    """Return what no source reports at any load, once for each reason."""
    known = {one.quantity for one in found.drafter if not _is_unknown(one)}
    names: dict[str, list[str]] = {}
    for one in found.drafter:
        label = QUANTITIES.get(one.quantity, one.quantity).lower()
        if one.quantity not in known and label not in names.setdefault(one.reason or "not reported", []):
            names[one.reason or "not reported"].append(label)
    return [f"Not known: {', '.join(labels)} ({reason})." for reason, labels in names.items() if labels]


def _cost_table(results: Results, load: str, found: Diagnoses) -> Table:
    here = [one for one in found.drafter if one.load == load and not _is_unknown(one)]
    groups = [(label, [one for one in here if one.part == part]) for part, label in PARTS]
    return kit.table(f"Cost of the drafter, {kit.load_title(results, load)}", _COSTS, groups)


def _write_fact(fact: DrafterFact) -> list[str]:
    """Return the values of baseline and candidate; sizes in one unit."""
    values = (fact.baseline, fact.candidate)
    if fact.unit == "bytes":
        return write.sizes(values)
    if fact.unit == "ns":
        return [write.MISSING if one is None else f"{write.ms(one)} ms" for one in values]
    return [write.share(one) if fact.unit == "share" else write.number(one) for one in values]


def _read_cache(results: Results, load: str, found: Diagnoses) -> str:
    """Say what the cache that the drafter took means for the requests that fit, where both are known."""
    here = {one.quantity: one for one in found.drafter if one.load == load}
    cache, lanes = here.get("cache_capacity"), here.get("cache_limited_concurrency")
    if cache is None or lanes is None or None in (cache.baseline, cache.candidate, lanes.baseline):
        return ""
    lost = (cache.baseline or 0.0) - (cache.candidate or 0.0)
    if lost <= 0:
        return ""
    kept = dict(results.loads).get(load)
    limits = "" if kept is None or lanes.candidate is None else _compare_lanes(kept, lanes.candidate)
    took = f"takes {lost:,.0f} tokens of cache"
    return (
        f"At load {load} the candidate {took}: about {write.number(lanes.candidate)} requests of this load's "
        f"mean length fit, {write.number(lanes.baseline)} in the baseline{limits}."
    )


def _compare_lanes(in_flight: int, lanes: float) -> str:
    if lanes < in_flight:
        return f", fewer than the {in_flight} in flight: the cache moves the knee to a lower load"
    return f", more than the {in_flight} in flight: at this load the cache is not what limits"


def _even_table(results: Results, load: str, found: Diagnoses) -> Table:
    heading = words.segment_heading(results.segments)
    columns: tuple[Column[BreakEven], ...] = (
        kit.left(heading, lambda one: kit.head(words.segment(one.segment), "strong")),
        kit.right("Mean batch", lambda one: write.number(one.batch_size)),
        kit.right("has", lambda one: write.ratio(one.tokens_per_step), "Tokens per step"),
        kit.right("needs", lambda one: write.ratio(one.needed_tokens), "Tokens per step"),
        kit.right("has / needs", lambda one: kit.figure(one.margin, write.ratio), "Tokens per step"),
        kit.right("Draft length", lambda one: write.number(one.draft_length)),
        kit.right("has", lambda one: write.share(one.acceptance), "Acceptance"),
        kit.right("needs", _needed_acceptance, "Acceptance"),
        kit.right("takes (ms)", lambda one: write.ms(one.draft_ns), "Drafting a step"),
        kit.right("pays below (ms)", _draft_limit, "Drafting a step"),
    )
    rows = [one for one in found.break_evens if one.load == load]
    return kit.table(f"What breaks even, {kit.load_title(results, load)}", columns, [("", rows)])


def _needed_acceptance(one: BreakEven) -> TableCell:
    return kit.explained(write.share(one.needed_acceptance), one.acceptance_reason)


def _draft_limit(one: BreakEven) -> TableCell:
    return kit.explained(write.ms(one.draft_limit_ns), one.draft_reason)
