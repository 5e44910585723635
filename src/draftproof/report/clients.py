"""What the load client did: rates, requests in flight, how late it was, connections, and where it was unfit.

Pure view of `Results.clients`.
"""

import msgspec

from draftproof.report.grouping import label_column, order_arms, order_loads, title_of_load
from draftproof.report.labels import arm_label
from draftproof.report.quantities import (
    MISSING,
    format_count,
    format_ms,
    format_share,
    format_significant,
)
from draftproof.report.view import Column, Group, Row, Table, TableCell, text_cell
from draftproof.verdict.clients.results import ClientUse
from draftproof.verdict.results import Results

_RATES = (Column(label="offered", over="Requests/s"), Column(label="sent", over="Requests/s"))
_COLUMNS = (
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
                _row(one, is_rated=is_rated)
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
            columns=(label_column("Arm"), *(_RATES if is_rated else ()), *_COLUMNS),
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


def _row(one: ClientUse, *, is_rated: bool) -> Row:
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
