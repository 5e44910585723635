"""What the services say of themselves: use, agreement with the client, starts, and gauges over time.

Pure view of `Results.services` and its neighbours.
"""

from collections import Counter
from collections.abc import Sequence

import msgspec

from draftproof.report.grouping import label_column, make_panels, order_arms, order_loads, title_of_load
from draftproof.report.labels import arm_label
from draftproof.report.quantities import MISSING, format_bytes, format_share, format_significant
from draftproof.report.service_rows import COMPARED, DRAWN, START_ROWS, USE_ROWS, agreement_values, use_texts
from draftproof.report.view import Column, Footnotes, Group, Panel, Row, Table, TableCell, text_cell
from draftproof.verdict.results import Results
from draftproof.verdict.services.results import ServiceAgreement, ServiceLine, ServiceUse

PLOT_WIDTH, PLOT_HEIGHT = 100.0, 30.0


class PlotLine(msgspec.Struct, frozen=True, kw_only=True):
    """One arm's line: the points of an SVG polyline, x from 0 to 100 and y from 30 (zero) up to 0."""

    tone: str
    arm: str
    points: str


class Plot(msgspec.Struct, frozen=True, kw_only=True):
    """One gauge at one load: its highest value, how long the axis is, and a line for each arm."""

    title: str
    highest: str
    length: str
    lines: tuple[PlotLine, ...]


class PlotRow(msgspec.Struct, frozen=True, kw_only=True):
    """The plots of one load."""

    title: str
    plots: tuple[Plot, ...]


class ServiceSection(msgspec.Struct, frozen=True, kw_only=True):
    """The whole section."""

    sentence: str
    use: tuple[Panel, ...]
    untold: str
    agreement: tuple[Panel, ...]
    starts: Table
    plots: tuple[PlotRow, ...]
    arms: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]


def build_services(results: Results) -> ServiceSection:
    """Lay the section out; without telemetry its parts are empty and the sentence says so."""
    shown = order_arms(results, {line.arm for line in results.service_lines})
    return ServiceSection(
        sentence=service_sentence(results),
        use=make_panels(
            [(title_of_load(results, load), _use(results, load)) for load in order_loads(results)]
        ),
        untold=_untold(results),
        agreement=make_panels(
            [(title_of_load(results, load), _agreement(results, load)) for load in order_loads(results)]
        ),
        starts=_starts(results),
        plots=tuple(row for load in order_loads(results) if (row := _plots(results, load)).plots),
        arms=tuple((arm, arm_label(arm)) for arm in shown),
        notes=service_notes(results),
    )


def service_sentence(results: Results) -> str:
    """Say whether the services' figures agree with the client's."""
    if not results.services:
        return "No service's metrics were read during the run, so only the client's figures are known."
    rows = [row for row in list_agreements(results) if row.standing != "unknown"]
    if not rows:
        return "The services count nothing that the client counts as well."
    count = Counter(row.standing for row in rows)
    return (
        f"Of {len(rows)} figures that client and service both tell, {count['exact']} are the same, "
        f"{count['close']} within 1 %, {count['explained']} apart by what requests that were broken off may "
        f"have made, and {count['differs']} apart otherwise. The verdict rests on the client's."
    )


def service_notes(results: Results) -> tuple[str, ...]:
    """Return which turns' counters were not used, and why, one line for each arm and load."""
    return tuple(
        f"{arm_label(use.arm)} at {title_of_load(results, use.load)}: {_shorten(use.unused)}."
        for use in results.services
        if use.unused
    )


def list_agreements(results: Results) -> list[ServiceAgreement]:
    """Return the figures of both sides, without those that are zero on both: they agree on nothing."""
    return [row for row in results.service_agreements if row.client or row.service]


def list_told(uses: Sequence[ServiceUse]) -> list[tuple[str, list[str]]]:
    """Return (quantity, text per arm) of what at least one of the arms tells."""
    rows = [(label, use_texts(label, write, uses)) for label, write in USE_ROWS]
    return [(label, texts) for label, texts in rows if any(text != MISSING for text in texts)]


def uses_at(results: Results, load: str) -> list[ServiceUse]:
    """Return the services of one load in the order of the arms."""
    here = [use for use in results.services if use.load == load]
    arms = order_arms(results, {use.arm for use in here})
    return sorted(here, key=lambda use: arms.index(use.arm))


def _shorten(unused: Sequence[str]) -> str:
    return unused[0] if len(unused) == 1 else f"{unused[0]}, and {len(unused) - 1} more turns"


def _use(results: Results, load: str) -> Table:
    uses = uses_at(results, load)
    rows = tuple(
        Row(cells=(text_cell(label, head=True), *(_value(text) for text in texts)))
        for label, texts in list_told(uses)
    )
    return Table(
        caption=f"The services by their own counters, {title_of_load(results, load)}",
        columns=(label_column("Quantity"), *(Column(label=arm_label(use.arm)) for use in uses)),
        groups=(Group(title="", rows=rows),) if uses else (),
    )


def _untold(results: Results) -> str:
    """Name the quantities that no service tells."""
    told = {label for load in order_loads(results) for label, _ in list_told(uses_at(results, load))}
    missing = [_in_sentence(label) for label, _ in USE_ROWS if label not in told]
    return f"Told by no service: {', '.join(missing)}." if missing and results.services else ""


def _in_sentence(label: str) -> str:
    name = label.partition(",")[0].partition(" (")[0]
    return name if name.startswith("GPU") else name[:1].lower() + name[1:]


def _agreement(results: Results, load: str) -> Table:
    here = [row for row in list_agreements(results) if row.load == load]
    arms, notes = order_arms(results, {row.arm for row in here}), Footnotes()
    groups = tuple(
        Group(title=arm_label(arm), rows=tuple(_agreement_row(row, notes) for row in here if row.arm == arm))
        for arm in arms
    )
    return Table(
        caption=f"Client and service, {title_of_load(results, load)}",
        columns=(
            label_column("Quantity"),
            Column(label="Client"),
            Column(label="Service"),
            Column(label="Service − client"),
            label_column("Standing"),
        ),
        groups=groups,
        notes=notes.notes(),
    )


def _agreement_row(row: ServiceAgreement, notes: Footnotes) -> Row:
    client, service, difference, standing = agreement_values(row)
    tone = {"exact": "strong", "differs": "bad"}.get(row.standing, "")
    return Row(
        cells=(
            text_cell(COMPARED.get(row.quantity, row.quantity), head=True),
            *(_value(text) for text in (client, service, difference)),
            TableCell(text=standing, tone=tone, mark=notes.mark(row.text)),
        )
    )


def _starts(results: Results) -> Table:
    arms = order_arms(results, {start.arm for start in results.service_starts})
    starts = sorted(results.service_starts, key=lambda start: arms.index(start.arm))
    rows = tuple(
        Row(cells=(text_cell(label, head=True), *(_value(write(start)) for start in starts)))
        for label, write in START_ROWS
    )
    return Table(
        caption="Starts",
        columns=(label_column("Start"), *(Column(label=arm_label(start.arm)) for start in starts)),
        groups=(Group(title="", rows=rows),) if starts else (),
    )


def _plots(results: Results, load: str) -> PlotRow:
    plots = tuple(
        _plot(quantity, lines)
        for quantity in DRAWN
        if (lines := [one for one in results.service_lines if (one.load, one.quantity) == (load, quantity)])
        and max(max(one.values) for one in lines) > 0
    )
    return PlotRow(title=title_of_load(results, load), plots=plots)


def _plot(quantity: str, lines: Sequence[ServiceLine]) -> Plot:
    highest = max(max(one.values) for one in lines)
    length_s = max(one.times_s[-1] for one in lines)
    return Plot(
        title=DRAWN[quantity],
        highest=_write(quantity, highest),
        length=f"{format_significant(length_s)} s",
        lines=tuple(
            PlotLine(tone=one.arm, arm=arm_label(one.arm), points=_points(one, length_s, highest))
            for one in lines
        ),
    )


def _points(line: ServiceLine, length_s: float, highest: float) -> str:
    """Place a line in the plot; the uppermost value leaves room for half of the stroke."""
    return " ".join(
        f"{PLOT_WIDTH * time_s / length_s if length_s else 0:.2f},"
        f"{PLOT_HEIGHT - (PLOT_HEIGHT - 2) * value / highest - 1:.2f}"
        for time_s, value in zip(line.times_s, line.values, strict=True)
    )


def _write(quantity: str, value: float) -> str:
    if quantity.endswith("_bytes"):
        return format_bytes(round(value))
    return format_share(value) if quantity == "cache_usage" else format_significant(value)


def _value(text: str) -> TableCell:
    return TableCell(text=text, tone="missing" if text == MISSING else "")
