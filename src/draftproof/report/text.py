"""The terminal summary: the verdict, the envelope, the main effects, and what to doubt, in plain lines.

Deterministic and free of colour codes. Control characters in strings from outside are replaced, so that a
name cannot steer the reader's terminal.
"""

import textwrap
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence

from draftproof.report.acceptance import is_drafting
from draftproof.report.estimators import disagreement_sentence
from draftproof.report.grouping import order_arms, order_loads, order_segments, title_of_load
from draftproof.report.labels import (
    DECISIONS,
    METRICS,
    OUTCOME_LABELS,
    POOLED,
    STATUSES,
    arm_label,
    comparison_label,
    metric_label,
    segment_heading,
    segment_label,
    sentence_case,
)
from draftproof.report.model import describe_envelope, statistic_label
from draftproof.report.outcomes import agreement_sentence
from draftproof.report.quantities import MISSING, format_change, format_ratio, format_share, short_hash
from draftproof.report.view import format_interval, needed_text
from draftproof.verdict.results import ArmCell, Cell, Effect, Figure, Reason, Results

WIDTH_COLUMNS = 100
_INDENT = "  "


def render_text(results: Results) -> str:
    """Render the summary for a terminal; the same results give the same text."""
    sections = (
        _verdict(results),
        _envelope(results),
        _effects(results),
        _acceptance(results),
        _section("Estimators of inter-token latency", _estimators(results)),
        _section("Output agreement", _wrap(agreement_sentence(results))),
        _failures(results),
        _section("Warnings", _bullets(results.warnings)),
        _section("Not measured", _bullets(results.not_measured)),
        _identity(results),
    )
    return "\n\n".join("\n".join(lines) for lines in sections if lines) + "\n"


def printable(text: str) -> str:
    """Replace control and formatting characters, line breaks included, by a visible stand-in."""
    return "".join("\N{REPLACEMENT CHARACTER}" if unicodedata.category(c)[0] == "C" else c for c in text)


def _verdict(results: Results) -> list[str]:
    verdict = results.verdict
    word = DECISIONS.get(verdict.decision)
    label = (word.label if word else verdict.decision).upper()
    return [
        f"{label}   evidence: {printable(verdict.evidence_level)} ({printable(results.evidence)} workload)",
        "",
        *_wrap(verdict.sentence),
        *_bullets(_reason(reason) for reason in verdict.reasons),
    ]


def _reason(reason: Reason) -> str:
    return sentence_case(reason.text) + (f" [{reason.evidence}]" if reason.evidence else "")


def _envelope(results: Results) -> list[str]:
    metric = f"{metric_label(results.metric).lower()}, {statistic_label(results.statistic)}"
    title = f"Envelope (change of {metric}, against the baseline, {results.confidence * 100:g}% simultaneous)"
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
    entries = _bullets(f"May run {line}." for line in describe_envelope(results.verdict.envelope))
    return _section(title, [*_align([header, *rows]), *entries] if rows else ["  No cell was judged."])


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
        )
        for metric in metrics
        for load in order_loads(results)
        for effect in _in_arm_order(results, pooled, metric, load)
    ]
    header = ("Metric", "Load", "Arm", "Ratio", "Interval")
    return _section(
        "Ratios between arms, all segments (below 1 is faster)", _align([header, *rows]) if rows else []
    )


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
    return _section("Acceptance, all segments", _align([header, *rows]) if rows else [])


def _estimators(results: Results) -> list[str]:
    lines: list[str] = []
    for load in order_loads(results):
        rows = [row for row in results.estimators if row.load == load]
        if rows:
            lines += _wrap(f"{title_of_load(results, load)}: {disagreement_sentence(rows)}")
    return lines


def _failures(results: Results) -> list[str]:
    rows = [
        (title_of_load(results, c.load), arm_label(c.arm), f"{c.attempted:,}", _outcomes(c.outcomes))
        for c in _pooled_cells(results)
    ]
    header = ("Load", "Arm", "Requests", "Outcomes")
    return _section("Requests", _align([header, *rows]) if rows else [])


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


def _section(title: str, lines: list[str]) -> list[str]:
    return [title, *lines] if lines else []


def _wrap(text: str) -> list[str]:
    return textwrap.wrap(
        printable(text),
        WIDTH_COLUMNS,
        initial_indent=_INDENT,
        subsequent_indent=_INDENT,
        break_on_hyphens=False,
    )


def _bullets(texts: Iterable[str]) -> list[str]:
    return [
        line
        for text in texts
        for line in textwrap.wrap(
            printable(text),
            WIDTH_COLUMNS,
            initial_indent=f"{_INDENT}- ",
            subsequent_indent=f"{_INDENT}  ",
            break_on_hyphens=False,
        )
    ]


def _align(rows: Sequence[Sequence[str]]) -> list[str]:
    """Set rows in columns, two spaces apart; a missing text shows the dash."""
    clean = [[printable(text) or MISSING for text in row] for row in rows]
    widths = [max(map(_width, column)) for column in zip(*clean, strict=True)]
    return [
        (_INDENT + "  ".join(t + " " * (w - _width(t)) for t, w in zip(row, widths, strict=True))).rstrip()
        for row in clean
    ]


def _width(text: str) -> int:
    """Columns on a terminal: wide East Asian characters take two, combining marks none."""
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text
    )
