"""How each arm got to its steady state: cold start, warm-up, and the parts of its turns. Pure view."""

import msgspec

from draftproof.report.grouping import label_column, order_arms, order_loads, title_of_load
from draftproof.report.labels import arm_label
from draftproof.report.quantities import MISSING, format_count, format_ms, format_share, format_significant
from draftproof.report.view import Column, Group, Row, Table, TableCell, text_cell
from draftproof.verdict.phase_results import PhaseSummary
from draftproof.verdict.results import Results

_COLUMNS = (
    label_column("Arm"),
    Column(label="Load (s)", over="Cold start"),
    Column(label="First token (ms)", over="Cold start"),
    Column(label="Requests", over="Warm-up"),
    Column(label="Time (s)", over="Warm-up"),
    Column(label="First token (ms), first → last group", over="Warm-up"),
    Column(label="Stable", over="Warm-up"),
    Column(label="Ramp (s)", over="Turns"),
    Column(label="Steady (s)", over="Turns"),
    Column(label="Drain (s)", over="Turns"),
    Column(label="First token (ms)", over="Counted"),
)


class PhaseSection(msgspec.Struct, frozen=True, kw_only=True):
    """The sentence and the table; a table without groups has nothing to show."""

    sentence: str
    table: Table


def build_phases(results: Results) -> PhaseSection:
    """Lay out the phases of every arm at every load."""
    arms = order_arms(results, {one.arm for one in results.phases})
    groups = (
        Group(
            title=title_of_load(results, load),
            rows=tuple(
                _row(one)
                for one in sorted(results.phases, key=lambda one: arms.index(one.arm))
                if one.load == load and _is_told(one)
            ),
        )
        for load in order_loads(results)
    )
    return PhaseSection(
        sentence=phases_sentence(results),
        table=Table(
            caption="How each arm got to its steady state",
            columns=_COLUMNS,
            groups=tuple(group for group in groups if group.rows),
        ),
    )


def phases_sentence(results: Results) -> str:
    """Say in one sentence how the warm-ups ended."""
    warmups = sum(one.warmups for one in results.phases)
    if not warmups:
        return "The run does not say how its warm-ups went."
    stable = sum(one.warmups_stable for one in results.phases)
    if stable == warmups:
        return f"All {warmups:,} warm-ups went on until two groups of requests took as long as each other."
    return (
        f"Of {warmups:,} warm-ups {stable:,} went on until two groups of requests took as long as each "
        f"other; {warmups - stable:,} ended before that."
    )


def _is_told(one: PhaseSummary) -> bool:
    return bool(one.turns or one.warmups or one.warmup_requests)


def _row(one: PhaseSummary) -> Row:
    return Row(
        cells=(
            text_cell(arm_label(one.arm), head=True, tone=f"arm {one.arm}"),
            text_cell(format_significant(one.load_time_s)),
            text_cell(format_ms(one.cold_ttft_ns)),
            text_cell(format_count(one.warmup_requests)),
            text_cell(format_significant(one.warmup_s)),
            text_cell(_first_tokens(one)),
            _standing_cell(one),
            text_cell(_seconds(one.ramp_ns)),
            text_cell(_seconds(one.steady_ns)),
            text_cell(_seconds(one.drain_ns)),
            text_cell(format_ms(one.warm_ttft_ns)),
        )
    )


def _first_tokens(one: PhaseSummary) -> str:
    if one.warmup_first_ttft_ns is None or one.warmup_last_ttft_ns is None:
        return MISSING
    return f"{format_ms(one.warmup_first_ttft_ns)} → {format_ms(one.warmup_last_ttft_ns)}"


def _standing_cell(one: PhaseSummary) -> TableCell:
    """Whether the warm-ups became stable, and the largest of their last changes."""
    if not one.warmups:
        return TableCell(text=MISSING, tone="missing")
    is_stable = one.warmups_stable == one.warmups
    word = "yes" if is_stable else "no"
    text = word if one.warmups == 1 else f"{one.warmups_stable} of {one.warmups}"
    change = "" if one.warmup_change is None else f"last change {format_share(one.warmup_change)}"
    return text_cell(text, tone="" if is_stable else "bad", detail=change)


def _seconds(value_ns: float | None) -> str:
    if value_ns is not None and value_ns < 5e5:  # below what three decimals show
        return "0"
    return MISSING if value_ns is None else format_significant(value_ns / 1e9)
