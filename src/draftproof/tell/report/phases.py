"""How each arm got to its steady state: cold start, warm-up, and the parts of its turns. Pure view.

What the load client did: rates, requests in flight, how late it was, connections, and where it was unfit.

Pure view of `Results.clients`.
"""

import msgspec

from draftproof.judge.results.clients import ClientUse
from draftproof.judge.results.phases import PhaseSummary
from draftproof.judge.results.run import Results
from draftproof.tell.report.quantities import (
    MISSING,
    arm_label,
    format_count,
    format_ms,
    format_share,
    format_significant,
)
from draftproof.tell.report.view import (
    Column,
    Group,
    Row,
    Table,
    TableCell,
    label_column,
    order_arms,
    order_loads,
    text_cell,
    title_of_load,
)

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


_RATES = (Column(label="offered", over="Requests/s"), Column(label="sent", over="Requests/s"))
_CLIENT_COLUMNS = (
    Column(label="On time"),
    Column(label="Good requests/s"),
    Column(label="mean", over="In flight"),
    Column(label="most", over="In flight"),
    Column(label="Due to sent p99 (ms)"),
    Column(label="opened", over="Connections"),
    Column(label="median, longest (ms)", over="Connections"),
    Column(label="event loop late", over="At most (ms)"),
    Column(label="garbage pause", over="At most (ms)"),
    Column(label="Of a core"),
    Column(label="Turns beyond a limit"),
)


class ClientSection(msgspec.Struct, frozen=True, kw_only=True):
    """The sentence and the table; a table without groups has nothing to show."""

    sentence: str
    table: Table


def build_clients(results: Results) -> ClientSection:
    """Lay out what the client did at every load; offered rates only where a load has one."""
    arms = order_arms(results, {one.arm for one in results.clients})
    is_rated = any(one.offered_rps is not None for one in results.clients)
    groups = (
        Group(
            title=title_of_load(results, load),
            rows=tuple(
                _client_row(one, is_rated=is_rated)
                for one in sorted(results.clients, key=lambda one: arms.index(one.arm))
                if one.load == load
            ),
        )
        for load in order_loads(results)
    )
    return ClientSection(
        sentence=_sentence(results),
        table=Table(
            caption="What the client did",
            columns=(label_column("Arm"), *(_RATES if is_rated else ()), *_CLIENT_COLUMNS),
            groups=tuple(group for group in groups if group.rows),
        ),
    )


def _sentence(results: Results) -> str:
    turns, unfit = (sum(getattr(one, name) for one in results.clients) for name in ("turns", "unfit"))
    if unfit:
        return (
            f"In {unfit:,} of {turns:,} turns the client itself was beyond a limit of its own: the times of "
            "such turns are left out, and the warnings say which limit it was."
        )
    return f"The client kept within its own limits in all {turns:,} turns."


def _client_row(one: ClientUse, *, is_rated: bool) -> Row:
    rates = (format_significant(one.offered_rps), format_significant(one.achieved_rps))
    return Row(
        cells=(
            text_cell(arm_label(one.arm), tone=f"arm {one.arm}", head=True),
            *(map(text_cell, rates) if is_rated else ()),
            text_cell(format_share(one.on_time_share)),
            text_cell(format_significant(one.goodput_rps)),
            text_cell(format_significant(one.in_flight_mean)),
            text_cell(format_count(one.in_flight_max)),
            text_cell(format_ms(one.send_lag_p99_ns)),
            text_cell(format_count(one.connections)),
            text_cell(_connects(one)),
            text_cell(format_ms(one.lag_max_ns)),
            text_cell(format_ms(one.gc_pause_max_ns)),
            _core_cell(one),
            text_cell(f"{one.unfit} of {one.turns}", tone="bad" if one.unfit else ""),
        )
    )


def _connects(one: ClientUse) -> str:
    if one.connect_p50_ns is None:
        return MISSING
    return f"{format_ms(one.connect_p50_ns)}, {format_ms(one.connect_max_ns)}"


def _core_cell(one: ClientUse) -> TableCell:
    several = f"{one.workers} processes" if one.workers is not None and one.workers > 1 else ""
    return text_cell(format_share(one.core_share), detail=several)
