"""Percentiles per arm, load and segment, failure-inclusive and on successes beside them; the tail's ratios.

Pure view of `Results.arm_cells` and `Results.tail_effects`.
"""

from collections.abc import Callable

import msgspec

from draftproof.judge.results.run import ArmCell, Effect, Figure, Percentiles, Results
from draftproof.tell.report import kit, words, write
from draftproof.tell.report.kit import Column, Panel, Table
from draftproof.tell.report.tokens import describe_arm_basis, describe_basis

_ALL_REQUESTS = "All requests, a failure counts as infinite (ms)"
_OK_ONLY = "Successes only (ms)"
_GAPS = "Gap between chunks (ms)"
_SMOOTHNESS: tuple[Column[ArmCell], ...] = (
    kit.ARM,
    kit.right("p50", lambda one: write.ms(one.icl_p50_ns), _GAPS),
    kit.right("p99", lambda one: write.ms(one.icl_p99_ns), _GAPS),
    kit.right("longest", lambda one: write.ms(one.longest_stall_ns), _GAPS),
    kit.right("Stalls", lambda one: write.count(one.stall_count)),
    kit.right("On time", lambda one: kit.figure(one.on_time_share, write.share)),
    kit.right("Output tokens, mean", lambda one: kit.figure(one.output_tokens_mean, write.number)),
)
_TAIL_ARMS = (("candidate", "Candidate"), ("baseline_null", "Null"))
_NOT_SHOWN = "tail_not_shown"


class LatencyPart(msgspec.Struct, frozen=True, kw_only=True):
    """One quantity over all tasks: its name, its formula in a line, its table with a group for each load."""

    title: str
    definition: str
    table: Table


def build_latency(results: Results) -> tuple[LatencyPart, ...]:
    """The three clocks and the smoothness of the stream, over all tasks; by task only their means."""
    return (
        _part(
            results,
            "Time per token",
            "(last content chunk − first content chunk) / (output tokens − tokens in it), per request",
            (*_percentiles(results, lambda cell: cell.tpot), kit.left("Basis", describe_arm_basis)),
        ),
        _part(
            results,
            "Time to first token",
            "first content chunk − the time the request was due, so waiting in the client counts",
            _percentiles(results, lambda cell: cell.ttft),
        ),
        _part(
            results,
            "End-to-end time",
            "last event − the time the request was due",
            _percentiles(results, lambda cell: cell.e2e),
        ),
        _part(
            results,
            "Smoothness of the stream",
            "gaps between content chunks; a stall is a gap above the plan's limit",
            _SMOOTHNESS,
        ),
    )


def _part(results: Results, title: str, definition: str, columns: tuple[Column[ArmCell], ...]) -> LatencyPart:
    pooled = [cell for cell in results.arm_cells if cell.segment == words.POOLED]
    return LatencyPart(
        title=title, definition=definition, table=kit.table(title, columns, kit.by_load(results, pooled))
    )


def _percentiles(results: Results, pick: Callable[[ArmCell], Percentiles]) -> tuple[Column[ArmCell], ...]:
    """Return percentiles of all requests, of successes where any failed, and the mean.

    A quantile for which every arm has too few requests at every load has no column.
    """
    failed = any(set(cell.outcomes) - {"ok"} for cell in results.arm_cells)
    pooled = [pick(cell) for cell in results.arm_cells if cell.segment == words.POOLED]

    def column(label: str, name: str, over: str) -> Column[ArmCell]:
        return kit.right(label, lambda cell: kit.figure(getattr(pick(cell), name), write.ms), over)

    def is_known(name: str) -> bool:
        return not all(getattr(one, name).value is None and getattr(one, name).needed for one in pooled)

    quantiles = [label for label in ("p50", "p95", "p99") if label == "p50" or is_known(label)]
    return (
        kit.ARM,
        kit.right("Requests", lambda cell: write.count(cell.attempted)),
        *(column(label, label, _ALL_REQUESTS) for label in quantiles),
        *(column(label, f"ok_{label}", _OK_ONLY) for label in quantiles if failed),
        column("mean", "mean_ok", _OK_ONLY),
    )


_MEANS: tuple[tuple[str, Callable[[ArmCell], Percentiles]], ...] = (
    ("Time per token (ms)", lambda cell: cell.tpot),
    ("First token (ms)", lambda cell: cell.ttft),
    ("End to end (ms)", lambda cell: cell.e2e),
)


def build_means(results: Results) -> tuple[Panel, ...]:
    """Return the mean times of every task, baseline beside candidate; a table for each load."""
    return kit.panels(results, lambda load: _means(results, load))


def _means(results: Results, load: str) -> Table:
    index = {(cell.segment, cell.arm): cell for cell in results.arm_cells if cell.load == load}
    found = kit.order_segments(results, {segment for segment, _ in index if segment != words.POOLED})
    kept = kit.choose_segments(results, load, kit.candidate_ratios(results, load))
    shown = [name for name in found if kept is None or name in kept]

    def column(arm: str, label: str, over: str, pick: Callable[[ArmCell], Percentiles]) -> Column[str]:
        def cell(segment: str) -> str:
            one = index.get((segment, arm))
            return write.ms(pick(one).mean_ok.value) if one else ""

        return kit.right(label, cell, over)

    columns: list[Column[str]] = [
        kit.left(words.segment_heading(results.segments), lambda segment: kit.head(words.segment(segment)))
    ]
    for over, pick in _MEANS:
        columns += [column("baseline", "off", over, pick), column("candidate", "on", over, pick)]
    return kit.table(
        f"Mean times of answered requests by task, {kit.load_title(results, load)}",
        columns,
        [("", shown)],
        left_out=kit.describe_left_out(len(found), len(shown)),
    )


def build_tails(results: Results) -> tuple[Panel, ...]:
    """One panel per load: the pooled segment first, each metric with the candidate and the null."""
    return kit.panels(results, lambda load: _tail_table(results, load))


def tails_title(results: Results) -> str:
    """Return "The tail: p95 against the baseline"; the quantile is the plan's."""
    return f"The tail: {_quantile(results)} against the baseline"


def tails_sentence(results: Results) -> str:
    """Say what is compared, the margin, and in how many cells the tail is not shown to hold."""
    if not results.tail_effects:
        return "These results hold no comparison of the tail; re-compute them with draftproof report."
    margin, basis = results.thresholds.get("tail_margin"), describe_basis(results.tail_effects)
    allowed = "" if margin is None else f" It may grow by at most {write.share(margin)}."
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


def _tail_table(results: Results, load: str) -> Table:
    index = {(one.metric, one.arm, one.segment): one for one in results.tail_effects if one.load == load}
    columns: list[Column[str]] = [
        kit.left(words.segment_heading(results.segments), lambda segment: kit.head(words.segment(segment)))
    ]
    for metric in dict.fromkeys(one.metric for one in results.tail_effects):
        columns += _tail_columns(results, index, metric)
    worse = {
        cell.segment
        for cell in results.cells
        if cell.load == load
        and any("tail" in one.code and one.standing == "violated" for one in cell.guardrails)
    }
    present = kit.order_segments(results, {segment for _, _, segment in index})
    shown = [segment for segment in present if segment == words.POOLED or segment in worse]
    return kit.table(
        f"Ratio of {_quantile(results)} to the baseline, {kit.load_title(results, load)}",
        columns,
        [("", shown)],
    )


def _tail_columns(
    results: Results, index: dict[tuple[str, str, str], Effect], metric: str
) -> list[Column[str]]:
    """Return one metric of a segment: a ratio per arm, then the candidate's pairs."""
    known, over = {one.arm for one in results.tail_effects}, words.metric(metric)

    def ratio(arm: str, label: str) -> Column[str]:
        return kit.right(
            label, lambda segment: kit.figure(_ratio(index.get((metric, arm, segment))), write.ratio), over
        )

    def pairs(segment: str) -> str:
        found = index.get((metric, "candidate", segment))
        return f"{found.pairs:,} / {found.prompts:,}" if found else ""

    return [
        *(ratio(arm, label) for arm, label in _TAIL_ARMS if arm in known),
        kit.right("Pairs / prompts", pairs, over),
    ]


def _ratio(effect: Effect | None) -> Figure:
    return effect.ratio if effect else Figure(value=None, reason="not compared")
