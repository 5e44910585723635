"""What the services say of themselves: use, agreement with the client, starts, and gauges over time.

Pure view of `Results.services` and its neighbours.

What is shown of a service's own figures: names of quantities, and how each is written.

Pure. One list, read by the page and by the terminal.

The section on the services' own figures for a terminal: agreement first, then what each load shows.
"""

from collections import Counter
from collections.abc import Callable, Sequence

import msgspec

from draftproof.judge.results.run import Results
from draftproof.judge.results.services import Gauge, ServiceAgreement, ServiceLine, ServiceStart, ServiceUse
from draftproof.tell.report.quantities import (
    MINUS,
    MISSING,
    arm_label,
    format_bytes,
    format_count,
    format_ms,
    format_ratio,
    format_share,
    format_significant,
    format_sizes,
)
from draftproof.tell.report.view import (
    Column,
    Footnotes,
    Group,
    Panel,
    Row,
    Table,
    TableCell,
    align,
    bullets,
    label_column,
    make_panels,
    order_arms,
    order_loads,
    section,
    text_cell,
    title_of_load,
    wrap,
)

STANDINGS = {
    "exact": "the same",
    "close": "within 1 %",
    "explained": "explained by requests broken off",
    "differs": "differs",
    "unknown": "one side only",
}
COMPARED = {
    "finished_requests": "Finished requests",
    "output_tokens": "Output tokens",
    "num_spec_steps": "Verification steps",
    "num_draft_tokens": "Drafted tokens",
    "num_accepted_draft_tokens": "Accepted drafts",
    "tokens_per_decode_step": "Tokens per decode step",
}
DRAWN = {
    "waiting": "Queue (requests)",
    "running": "Running (requests)",
    "cache_usage": "Cache in use",
    "resident_bytes": "Resident memory",
    "gpu_memory_bytes": "GPU memory",
}


def _mean_and_most(gauge: Gauge | None, write: Callable[[float | None], str]) -> str:
    return MISSING if gauge is None else f"{write(gauge.mean)}, at most {write(gauge.maximum)}"


def _whole(value: float | None) -> str:
    return MISSING if value is None else format_count(round(value))


def _processor(use: ServiceUse) -> str:
    if use.cpu_seconds is None:
        return MISSING
    cores = f" ({use.cpu_seconds / use.machine_seconds:.1f} cores)" if use.machine_seconds else ""
    return f"{format_significant(use.cpu_seconds)} s{cores}"


def _positions(use: ServiceUse) -> str:
    """Write accepted drafts by position, and of how many where the engine counts them."""
    if not use.accepted_by_position:
        return MISSING
    drafted = use.drafted_by_position
    shares = [
        format_share(accepted / drafted[place])
        if place < len(drafted) and drafted[place]
        else _whole(accepted)
        for place, accepted in enumerate(use.accepted_by_position)
    ]
    return ", ".join(shares)


def _seconds(value: float | None) -> str:
    return MISSING if value is None else f"{format_significant(value)} s"


def _joules(use: ServiceUse) -> str:
    value = use.energy_per_output_token_joules
    return MISSING if value is None else f"{format_significant(value)} J"


USE_ROWS: tuple[tuple[str, Callable[[ServiceUse], str]], ...] = (
    ("Turns used", lambda use: f"{use.turns_used} of {use.turns}"),
    ("Queue, mean", lambda use: _mean_and_most(use.waiting, format_significant)),
    ("Running requests, mean", lambda use: _mean_and_most(use.running, format_significant)),
    ("Cache in use, mean", lambda use: _mean_and_most(use.cache_usage, format_share)),
    ("Preemptions", lambda use: _whole(use.preemptions)),
    ("Generated tokens", lambda use: _whole(use.generation_tokens)),
    ("Engine steps", lambda use: _whole(use.engine_steps)),
    ("Tokens per engine step", lambda use: format_ratio(use.tokens_per_engine_step)),
    ("Draft acceptance rate", lambda use: format_share(use.draft_acceptance_rate)),
    ("Mean acceptance length", lambda use: format_ratio(use.mean_acceptance_length)),
    ("Accepted drafts by position", _positions),
    ("Drafting", lambda use: _seconds(use.draft_seconds)),
    ("Verification or ordinary decoding", lambda use: _seconds(use.verify_seconds)),
    ("Resident memory, most", lambda use: format_bytes(use.resident_max_bytes)),
    ("Processor time", _processor),
    ("GPU memory, most", lambda use: format_bytes(use.gpu_memory_max_bytes)),
    ("GPU busy, mean", lambda use: _mean_and_most(use.gpu_busy, format_share)),
    ("GPU power (W), mean", lambda use: _mean_and_most(use.gpu_power_watts, format_significant)),
    ("Energy per output token", _joules),
)
START_ROWS: tuple[tuple[str, Callable[[ServiceStart], str]], ...] = (
    ("Time to load", lambda start: _seconds(start.load_time_s)),
    ("First request: first token (ms)", lambda start: format_ms(start.cold_ttft_ns)),
    ("First request: whole answer (ms)", lambda start: format_ms(start.cold_e2e_ns)),
    ("First request: outcome", lambda start: start.cold_outcome or MISSING),
)

_SIZES: dict[str, Callable[[ServiceUse], float | None]] = {
    "Resident memory, most": lambda use: use.resident_max_bytes,
    "GPU memory, most": lambda use: use.gpu_memory_max_bytes,
}


def use_texts(label: str, write: Callable[[ServiceUse], str], uses: Sequence[ServiceUse]) -> list[str]:
    """Return a row of `USE_ROWS` as text for each arm; sizes in one unit."""
    size = _SIZES.get(label)
    return [write(use) for use in uses] if size is None else format_sizes([size(use) for use in uses])


def agreement_values(row: ServiceAgreement) -> tuple[str, str, str, str]:
    """Return client, service, difference and standing of one row as text."""
    write = format_ratio if row.quantity == "tokens_per_decode_step" else _whole
    return write(row.client), write(row.service), _difference(row, write), STANDINGS[row.standing]


def _difference(row: ServiceAgreement, write: Callable[[float | None], str]) -> str:
    if row.difference is None:
        return MISSING
    if row.difference == 0:
        return "0"
    sign = MINUS if row.difference < 0 else "+"
    return f"{sign}{write(abs(row.difference))}"


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


TITLE = "What the services say of themselves"


def render_services(results: Results) -> list[str]:
    """Return the section's lines, none for a run without telemetry."""
    if not results.services:
        return []
    lines = [*wrap(service_sentence(results)), *_disagreements(results)]
    for load in order_loads(results):
        uses = uses_at(results, load)
        if uses:
            header = (title_of_load(results, load), *(arm_label(use.arm) for use in uses))
            lines += align([header, *((label, *texts) for label, texts in list_told(uses))])
    return section(TITLE, [*lines, *bullets(service_notes(results))])


def _disagreements(results: Results) -> list[str]:
    lines = []
    for row in list_agreements(results):
        client, service, *_ = agreement_values(row)
        place = f"{arm_label(row.arm)}, {title_of_load(results, row.load)}"
        quantity = COMPARED.get(row.quantity, row.quantity)
        figures = f"{quantity} {client} by the client, {service} by the service"
        lines += [f"{place}: {figures}; {row.text}."] if row.standing == "differs" else []
    return bullets(lines)
