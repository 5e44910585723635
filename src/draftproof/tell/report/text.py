"""The terminal summary: the verdict, the envelope, the main effects, and what to doubt, in plain lines.

Deterministic and free of colour codes.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import groupby

from draftproof.judge.results.run import ArmCell, Cell, Effect, Figure, Reason, Results
from draftproof.tell.report.acceptance import is_drafting
from draftproof.tell.report.delivery import (
    DELIVERY_COLUMNS,
    delivery_hints,
    delivery_sentence,
    delivery_values,
    describe_basis,
    describe_deciding_basis,
    list_undisclosed,
)
from draftproof.tell.report.equivalence import equivalence_sentence
from draftproof.tell.report.estimators import disagreement_sentence, rivals_sentences
from draftproof.tell.report.html import describe_envelope, statistic_label
from draftproof.tell.report.knee import knee_lines
from draftproof.tell.report.quantities import (
    DECISIONS,
    METRICS,
    OUTCOME_LABELS,
    POOLED,
    STATUSES,
    arm_label,
    comparison_label,
    format_change,
    format_ratio,
    format_share,
    metric_label,
    segment_heading,
    segment_label,
    sentence_case,
    short_hash,
)
from draftproof.tell.report.services import render_services
from draftproof.tell.report.view import (
    WIDTH_COLUMNS,
    align,
    bullets,
    format_interval,
    needed_text,
    order_arms,
    order_loads,
    order_segments,
    printable,
    section,
    title_of_load,
    wrap,
)

__all__ = ["WIDTH_COLUMNS", "printable", "render_text"]

# More cells than this are told by segment, without their figures.
_LISTED_CELLS = 60

MOST_REMEDIES = 3
MOST_SIGNS = 2


def render_text(results: Results) -> str:
    """Render the summary for a terminal; the same results give the same text."""
    sections = (
        _verdict(results),
        _envelope(results),
        _effects(results),
        _acceptance(results),
        _delivery(results),
        section("What to look at first", bullets(_first_looks(results))),
        section("Capacity knee", bullets(knee_lines(results))),
        section("Estimators of inter-token latency", _estimators(results)),
        section("Output equivalence", wrap(equivalence_sentence(results))),
        _failures(results),
        render_services(results),
        section("Warnings", bullets(results.warnings)),
        section("Not measured", bullets(results.not_measured)),
        _identity(results),
    )
    return "\n\n".join("\n".join(lines) for lines in sections if lines) + "\n"


def _first_looks(results: Results) -> list[str]:
    """The first remedies, each with the figures it rests on first; the report has all of them."""
    remedies = results.diagnoses.remedies if results.diagnoses else ()
    return [
        f"{one.title}: {'; '.join(sign.text for sign in one.evidence[:MOST_SIGNS])}."
        for one in remedies[:MOST_REMEDIES]
    ]


def _verdict(results: Results) -> list[str]:
    verdict = results.verdict
    word = DECISIONS.get(verdict.decision)
    label = (word.label if word else verdict.decision).upper()
    return [
        f"{label}   evidence: {printable(verdict.evidence_level)} ({printable(results.evidence)} workload)",
        "",
        *wrap(verdict.sentence),
        *bullets(_reason(reason) for reason in verdict.reasons),
    ]


def _reason(reason: Reason) -> str:
    return sentence_case(reason.text) + (f" [{reason.evidence}]" if reason.evidence else "")


def _envelope(results: Results) -> list[str]:
    metric = f"{metric_label(results.metric).lower()}, {statistic_label(results.statistic)}"
    title = (
        f"Envelope (change of {metric}{describe_deciding_basis(results)}, against the baseline, "
        f"{results.confidence * 100:g}% simultaneous)"
    )
    entries = bullets(f"May run {line}." for line in describe_envelope(results.verdict.envelope))
    if len(results.cells) > _LISTED_CELLS:
        return section(title, [*_statuses_by_segment(results), *entries])
    ordered = sorted(results.cells, key=lambda c: _cell_rank(results, c))
    rows = [
        (
            segment_label(c.segment),
            title_of_load(results, c.load),
            STATUSES[c.status].label,
            *_change(c.effect),
        )
        for c in ordered
    ]
    header = (segment_heading(results.segments), "Load", "Status", "Change", "Interval")
    return section(title, [*align([header, *rows]), *entries] if rows else ["  No cell was judged."])


def _statuses_by_segment(results: Results) -> list[str]:
    """Every cell's status, a segment at a time: so many changes and intervals are read in the report."""
    lines = []
    for segment in order_segments(results, {cell.segment for cell in results.cells}):
        here = {cell.load: cell.status for cell in results.cells if cell.segment == segment}
        loads = [load for load in order_loads(results) if load in here]
        told = (
            f"{STATUSES[status].label} at {_name_loads(loads, here, status)}"
            for status in dict.fromkeys(here[load] for load in loads)
        )
        lines.append(f"{segment_label(segment)}: {'; '.join(told)}.")
    return [*bullets(lines), *wrap("Changes and intervals of all cells stand in report.html.")]


def _name_loads(loads: Sequence[str], statuses: Mapping[str, str], wanted: str) -> str:
    """Return the loads of a status; neighbours in the plan's order as "from to"."""
    runs = [list(run) for status, run in groupby(loads, key=statuses.__getitem__) if status == wanted]
    return ", ".join(f"{run[0]} to {run[-1]}" if len(run) > 2 else ", ".join(run) for run in runs)


def _cell_rank(results: Results, cell: Cell) -> tuple[int, int]:
    segments = order_segments(results, {c.segment for c in results.cells})
    return segments.index(cell.segment), order_loads(results).index(cell.load)


def _change(figure: Figure) -> tuple[str, str]:
    interval = format_interval(figure, format_change)
    return format_change(figure.value), interval or needed_text(figure) or figure.reason or ""


def _effects(results: Results) -> list[str]:
    pooled = [e for e in results.effects if e.segment == POOLED]
    metrics = sorted({e.metric for e in pooled}, key=lambda m: (_metric_rank(m), m))
    rows = [
        (
            metric_label(metric),
            title_of_load(results, load),
            comparison_label(effect.arm, effect.versus),
            format_ratio(effect.ratio.value),
            format_interval(effect.ratio, format_ratio) or needed_text(effect.ratio),
            describe_basis([effect]),
        )
        for metric in metrics
        for load in order_loads(results)
        for effect in _in_arm_order(results, pooled, metric, load)
    ]
    header = ("Metric", "Load", "Arm", "Ratio", "Interval", "Basis")
    shown = len(header) if any(row[-1] for row in rows) else len(header) - 1
    table = align([row[:shown] for row in (header, *rows)]) if rows else []
    return section("Ratios between arms, all segments (below 1 is faster)", table)


def _metric_rank(metric: str) -> int:
    return list(METRICS).index(metric) if metric in METRICS else len(METRICS)


def _in_arm_order(results: Results, effects: Sequence[Effect], metric: str, load: str) -> list[Effect]:
    here = [e for e in effects if e.metric == metric and e.load == load]
    arms = order_arms(results, {e.arm for e in here})
    return sorted(here, key=lambda e: arms.index(e.arm))


def _acceptance(results: Results) -> list[str]:
    rows = [
        (
            title_of_load(results, c.load),
            arm_label(c.arm),
            format_share(c.acceptance.draft_acceptance_rate),
            format_ratio(c.acceptance.mean_acceptance_length),
            format_ratio(c.acceptance.tokens_per_decode_step),
        )
        for c in _pooled_cells(results)
        if c.acceptance and is_drafting(c)
    ]
    header = ("Load", "Arm", "Accepted", "Length where drafted", "Tokens per decode step")
    return section("Acceptance, all segments", align([header, *rows]) if rows else [])


def _delivery(results: Results) -> list[str]:
    """A table per load: with the load as a column it would be too wide for a terminal."""
    found, lines = list_undisclosed(results), []
    for load in order_loads(results):
        rows = [(arm_label(one.arm), *delivery_values(one)) for one in found if one.load == load]
        if rows:
            lines += [*wrap(f"{title_of_load(results, load)}:"), *align([("Arm", *DELIVERY_COLUMNS), *rows])]
    told = [*wrap(delivery_sentence(results)), *lines, *bullets(delivery_hints(results))]
    return section("Delivery of undisclosed services", told)


def _estimators(results: Results) -> list[str]:
    lines = wrap(rivals_sentences(results)[0]) if results.rival_verdicts else []
    for load in order_loads(results):
        rows = [row for row in results.estimators if row.load == load]
        if rows:
            lines += wrap(f"{title_of_load(results, load)}: {disagreement_sentence(rows)}")
    return lines


def _failures(results: Results) -> list[str]:
    rows = [
        (title_of_load(results, c.load), arm_label(c.arm), f"{c.attempted:,}", _outcomes(c.outcomes))
        for c in _pooled_cells(results)
    ]
    header = ("Load", "Arm", "Requests", "Outcomes")
    return section("Requests", align([header, *rows]) if rows else [])


def _outcomes(outcomes: dict[str, int]) -> str:
    counts = Counter(outcomes)
    named = [f"{n:,} {OUTCOME_LABELS.get(k, k)}" for k, n in sorted(counts.items()) if n and k != "ok"]
    return ", ".join([f"{counts['ok']:,} OK", *named])


def _pooled_cells(results: Results) -> list[ArmCell]:
    pooled = [c for c in results.arm_cells if c.segment == POOLED]
    arms, loads = order_arms(results, {c.arm for c in pooled}), order_loads(results)
    return sorted(pooled, key=lambda c: (loads.index(c.load), arms.index(c.arm)))


def _identity(results: Results) -> list[str]:
    facts = (
        f"Run {results.run_name}",
        f"plan {short_hash(results.plan_sha256)}",
        f"thresholds {short_hash(results.thresholds_sha256)}",
        f"workload {short_hash(results.workload_sha256)}",
        f"draftproof {results.draftproof_version}",
    )
    return [printable(" · ".join(facts))]
