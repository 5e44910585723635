"""The tail: ratios of a far quantile with failed requests in it, candidate and null beside each other.

Pure view of `Results.tail_effects`.
"""

from draftproof.report.basis import describe_basis
from draftproof.report.grouping import (
    candidate_ratios,
    choose_segments,
    describe_left_out,
    label_column,
    make_panels,
    order_loads,
    order_segments,
    title_of_load,
)
from draftproof.report.labels import metric_label, segment_label
from draftproof.report.quantities import format_ratio, format_share
from draftproof.report.view import (
    Column,
    Footnotes,
    Group,
    Panel,
    Row,
    Table,
    TableCell,
    figure_cell,
    text_cell,
)
from draftproof.verdict.results import Effect, Figure, Results

_ARMS = (("candidate", "Candidate"), ("baseline_null", "Null"))
_NOT_SHOWN = "tail_not_shown"

Key = tuple[str, str, str, str]  # metric, arm, segment, load


def build_tails(results: Results) -> tuple[Panel, ...]:
    """One panel per load: the pooled segment first, each metric with the candidate and the null."""
    index = {(one.metric, one.arm, one.segment, one.load): one for one in results.tail_effects}
    return make_panels(
        [
            (title_of_load(results, load), _table(results, index, load))
            for load in order_loads(results)
            if any(key[3] == load for key in index)
        ]
    )


def tails_title(results: Results) -> str:
    """Return "The tail: p95 against the baseline"; the quantile is the plan's."""
    return f"The tail: {_quantile(results)} against the baseline"


def tails_sentence(results: Results) -> str:
    """Say what is compared, the margin, and in how many cells the tail is not shown to hold."""
    if not results.tail_effects:
        return "These results hold no comparison of the tail; re-compute them with draftproof report."
    margin, basis = results.thresholds.get("tail_margin"), describe_basis(results.tail_effects)
    allowed = "" if margin is None else f" It may grow by at most {format_share(margin)}."
    unseen = sum(any(r.code == _NOT_SHOWN for r in cell.reasons) for cell in results.cells)
    shown = (
        f" In {unseen} of {len(results.cells)} cells this is not shown; with this evidence that is noted and "
        "withholds no gain."
        if unseen
        else ""
    )
    return (
        f"{_quantile(results)} of the same pairs, every failed request counted as infinitely slow, shown "
        f"over the whole load and blamed on a cell only where its own requests agree.{allowed}{shown}"
        f"{f' Time per token: {basis}.' if basis else ''}"
    )


def _quantile(results: Results) -> str:
    return next((one.statistic for one in results.tail_effects), "p95")


def _table(results: Results, index: dict[Key, Effect], load: str) -> Table:
    metrics = list(dict.fromkeys(key[0] for key in index))
    arms = [(arm, label) for arm, label in _ARMS if any(key[1] == arm for key in index)]
    columns = [label_column("Segment")]
    for metric in metrics:
        columns += [Column(label=label, over=metric_label(metric)) for _, label in arms]
        columns.append(Column(label="Pairs / prompts", over=metric_label(metric)))
    notes = Footnotes()
    present = order_segments(results, {key[2] for key in index if key[3] == load})
    chosen = choose_segments(results, load, candidate_ratios(results, load))
    shown = [segment for segment in present if chosen is None or segment in chosen]
    rows = tuple(
        Row(
            cells=(
                text_cell(segment_label(segment), head=True),
                *(
                    cell
                    for metric in metrics
                    for cell in _cells(
                        {arm: index.get((metric, arm, segment, load)) for arm, _ in arms}, notes
                    )
                ),
            )
        )
        for segment in shown
    )
    left_out = describe_left_out(len(present), len(shown))
    groups = (Group(title="", rows=rows),) if rows else ()
    return Table(
        caption=f"Ratio of {_quantile(results)} to the baseline, {title_of_load(results, load)}",
        columns=tuple(columns),
        groups=(*groups, *((Group(title=left_out, rows=()),) if left_out and groups else ())),
        notes=notes.notes(),
    )


def _cells(found: dict[str, Effect | None], notes: Footnotes) -> list[TableCell]:
    """Return one metric of one segment: a ratio per arm, then the candidate's pairs."""
    first = found.get("candidate")
    return [
        *(figure_cell(_ratio(one), format_ratio, notes) for one in found.values()),
        text_cell(f"{first.pairs:,} / {first.prompts:,}" if first else ""),
    ]


def _ratio(effect: Effect | None) -> Figure:
    return effect.ratio if effect else Figure(value=None, reason="not compared")
