"""What services and client say of a run: counters, agreement, gauges, starts, phases, the client's limits.

Pure view of `Results.services` and its neighbours, `Results.phases` and `Results.clients`; for the page, and
the services as lines for a terminal.
"""

from collections import Counter
from collections.abc import Callable, Sequence

import msgspec

from draftproof.judge.observe.pairs import DECISIVE
from draftproof.judge.results.inform import (
    ClientUse,
    Gauge,
    PhaseSummary,
    ServiceAgreement,
    ServiceLine,
    ServiceStart,
    ServiceUse,
)
from draftproof.judge.results.run import Results
from draftproof.tell.report import kit, words, write
from draftproof.tell.report.charts import Plot, PlotLine, plot_points
from draftproof.tell.report.kit import Column, Panel, Table, TableCell
from draftproof.tell.report.write import MISSING

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


def _mean_and_most(gauge: Gauge | None, write_value: write.Write) -> str:
    return MISSING if gauge is None else f"{write_value(gauge.mean)}, at most {write_value(gauge.maximum)}"


def _processor(use: ServiceUse) -> str:
    if use.cpu_seconds is None:
        return MISSING
    cores = f" ({use.cpu_seconds / use.machine_seconds:.1f} cores)" if use.machine_seconds else ""
    return f"{write.seconds(use.cpu_seconds)}{cores}"


def _positions(use: ServiceUse) -> str:
    """Write accepted drafts by position, and of how many where the engine counts them."""
    drafted = use.drafted_by_position
    shares = [
        write.share(accepted / drafted[place])
        if place < len(drafted) and drafted[place]
        else write.count(accepted)
        for place, accepted in enumerate(use.accepted_by_position)
    ]
    return ", ".join(shares) or MISSING


def _joules(use: ServiceUse) -> str:
    value = use.energy_per_output_token_joules
    return MISSING if value is None else f"{write.number(value)} J"


USE_ROWS: tuple[tuple[str, Callable[[ServiceUse], str]], ...] = (
    ("Periods used", lambda use: f"{use.periods_used} of {use.periods}"),
    ("Queue, mean", lambda use: _mean_and_most(use.waiting, write.number)),
    ("Running requests, mean", lambda use: _mean_and_most(use.running, write.number)),
    ("Cache in use, mean", lambda use: _mean_and_most(use.cache_usage, write.share)),
    ("Preemptions", lambda use: write.count(use.preemptions)),
    ("Generated tokens", lambda use: write.count(use.generation_tokens)),
    ("Engine steps", lambda use: write.count(use.engine_steps)),
    ("Tokens per engine step", lambda use: write.ratio(use.tokens_per_engine_step)),
    ("Draft acceptance rate", lambda use: write.share(use.draft_acceptance_rate)),
    ("Mean acceptance length", lambda use: write.ratio(use.mean_acceptance_length)),
    ("Accepted drafts by position", _positions),
    ("Drafting", lambda use: write.seconds(use.draft_seconds)),
    ("Verification or ordinary decoding", lambda use: write.seconds(use.verify_seconds)),
    ("Resident memory, most", lambda use: write.size(use.resident_max_bytes)),
    ("Processor time", _processor),
    ("GPU memory, most", lambda use: write.size(use.gpu_memory_max_bytes)),
    ("GPU busy, mean", lambda use: _mean_and_most(use.gpu_busy, write.share)),
    ("GPU power (W), mean", lambda use: _mean_and_most(use.gpu_power_watts, write.number)),
    ("Energy per output token", _joules),
)
START_ROWS: tuple[tuple[str, Callable[[ServiceStart], str]], ...] = (
    ("Time to load", lambda start: write.seconds(start.load_time_s)),
    ("First request: first token (ms)", lambda start: write.ms(start.cold_ttft_ns)),
    ("First request: whole answer (ms)", lambda start: write.ms(start.cold_e2e_ns)),
    ("First request: outcome", lambda start: start.cold_outcome or MISSING),
)
_SIZES: dict[str, Callable[[ServiceUse], float | None]] = {
    "Resident memory, most": lambda use: use.resident_max_bytes,
    "GPU memory, most": lambda use: use.gpu_memory_max_bytes,
}


class ServiceSection(msgspec.Struct, frozen=True, kw_only=True):
    """The whole section; `plots` are (load, plots)."""

    sentence: str
    use: tuple[Panel, ...]
    untold: str
    agreement: tuple[Panel, ...]
    starts: Table
    plots: tuple[tuple[str, tuple[Plot, ...]], ...]
    arms: tuple[str, ...]
    notes: tuple[str, ...]


def build_services(results: Results) -> ServiceSection:
    """Lay the section out; without telemetry its parts are empty and the sentence says so."""
    starts = kit.in_arm_order(results, results.service_starts)
    start_texts = [(label, [write_one(start) for start in starts]) for label, write_one in START_ROWS]
    by_load = [(kit.load_title(results, load), _plots(results, load)) for load in kit.order_loads(results)]
    return ServiceSection(
        sentence=service_sentence(results),
        use=kit.panels(results, lambda load: _use(results, load)),
        untold=_untold(results),
        agreement=kit.panels(results, lambda load: _agreement(results, load)),
        starts=kit.side_by_side(
            "Starts", "Start", [one.arm for one in starts], [("", start_texts)], kit.missing
        ),
        plots=tuple((title, plots) for title, plots in by_load if plots),
        arms=kit.order_arms(results, {line.arm for line in results.service_lines}),
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
        f"have made, and {count['differs']} apart otherwise. The verdict is based on the client's."
    )


def service_notes(results: Results) -> tuple[str, ...]:
    """Return which periods' counters were not used, and why, one line for each arm and load."""
    return tuple(
        f"{words.arm(use.arm)} at {kit.load_title(results, use.load)}: {_shorten(use.unused)}."
        for use in results.services
        if use.unused
    )


def _shorten(unused: Sequence[str]) -> str:
    return unused[0] if len(unused) == 1 else f"{unused[0]}, and {len(unused) - 1} more periods"


def list_agreements(results: Results) -> list[ServiceAgreement]:
    """Return the figures of both sides, without those that are zero on both: they agree on nothing."""
    return [row for row in results.service_agreements if row.client or row.service]


def list_told(results: Results, load: str) -> tuple[list[str], list[tuple[str, list[str]]]]:
    """Return the arms at a load, and (quantity, text per arm) of what at least one of them tells."""
    uses = kit.in_arm_order(results, (use for use in results.services if use.load == load))
    rows = []
    for label, write_one in USE_ROWS:
        size = _SIZES.get(label)
        texts = write.sizes([size(use) for use in uses]) if size else [write_one(use) for use in uses]
        rows += [(label, texts)] if any(text != MISSING for text in texts) else []
    return [use.arm for use in uses], rows


def _use(results: Results, load: str) -> Table:
    """Return the counters of baseline and candidate; those of other arms are in the full text and results."""
    caption = f"The services by their own counters, {kit.load_title(results, load)}"
    every, found = list_told(results, load)
    kept = [place for place, arm in enumerate(every) if arm in DECISIVE] or range(len(every))
    arms = [every[place] for place in kept]
    rows = [(label, [texts[place] for place in kept]) for label, texts in found]
    return kit.side_by_side(caption, "Quantity", arms, [("", rows)], kit.missing)


def _untold(results: Results) -> str:
    """Name the quantities that no service tells."""
    told = {label for load in kit.order_loads(results) for label, _ in list_told(results, load)[1]}
    unnamed = [_in_sentence(label) for label, _ in USE_ROWS if label not in told]
    return f"Told by no service: {', '.join(unnamed)}." if unnamed and results.services else ""


def _in_sentence(label: str) -> str:
    name = label.partition(",")[0].partition(" (")[0]
    return name if name.startswith("GPU") else name[:1].lower() + name[1:]


def _write_side(row: ServiceAgreement, value: float | None) -> str:
    return write.ratio(value) if row.quantity == "tokens_per_decode_step" else write.count(value)


def _difference(row: ServiceAgreement) -> str:
    if not row.difference:
        return MISSING if row.difference is None else "0"
    sign = write.MINUS if row.difference < 0 else "+"
    return f"{sign}{_write_side(row, abs(row.difference))}"


def _standing(row: ServiceAgreement) -> TableCell:
    tone = {"exact": "strong", "differs": "bad"}.get(row.standing, "")
    return kit.text(STANDINGS[row.standing], tone, reason=row.text)


_AGREEMENT: tuple[Column[ServiceAgreement], ...] = (
    kit.left("Quantity", lambda row: kit.head(COMPARED.get(row.quantity, row.quantity))),
    kit.right("Client", lambda row: kit.missing(_write_side(row, row.client))),
    kit.right("Service", lambda row: kit.missing(_write_side(row, row.service))),
    kit.right("Service − client", lambda row: kit.missing(_difference(row))),
    kit.left("Standing", _standing),
)


def _agreement(results: Results, load: str) -> Table:
    """Return the figures in which the two sides are apart; the sentence counts the others."""
    here = [row for row in list_agreements(results) if row.load == load and row.standing == "differs"]
    arms = kit.order_arms(results, {row.arm for row in here})
    groups = [(words.arm(arm), [row for row in here if row.arm == arm]) for arm in arms]
    return kit.table(f"Client and service, {kit.load_title(results, load)}", _AGREEMENT, groups)


def _plots(results: Results, load: str) -> tuple[Plot, ...]:
    return tuple(
        _plot(quantity, found)
        for quantity in DRAWN
        if (found := [one for one in results.service_lines if (one.load, one.quantity) == (load, quantity)])
        and max(max(one.values) for one in found) > 0
    )


def _plot(quantity: str, found: Sequence[ServiceLine]) -> Plot:
    highest = max(max(one.values) for one in found)
    length_s = max(one.times_s[-1] for one in found)
    write_value = {"cache_usage": write.share}.get(
        quantity, write.size if quantity.endswith("_bytes") else write.number
    )
    return Plot(
        title=DRAWN[quantity],
        highest=write_value(highest),
        length=write.seconds(length_s),
        lines=tuple(
            PlotLine(
                arm=one.arm,
                points=plot_points(zip(one.times_s, one.values, strict=True), length_s, highest),
            )
            for one in found
        ),
    )


def render_services(results: Results) -> list[str]:
    """Return the section's lines for a terminal, none for a run without telemetry."""
    if not results.services:
        return []
    told = [*write.wrap(service_sentence(results)), *write.bullets(_list_disagreements(results))]
    for load in kit.order_loads(results):
        arms, rows = list_told(results, load)
        header = (kit.load_title(results, load), *map(words.arm, arms))
        told += write.table(header, [(label, *texts) for label, texts in rows])
    told += write.bullets(service_notes(results))
    return write.section("What the services say of themselves", told)


def _list_disagreements(results: Results) -> list[str]:
    return [
        f"{words.arm(row.arm)}, {kit.load_title(results, row.load)}: "
        f"{COMPARED.get(row.quantity, row.quantity)} {_write_side(row, row.client)} by the client, "
        f"{_write_side(row, row.service)} by the service; {row.text}."
        for row in list_agreements(results)
        if row.standing == "differs"
    ]


class Spoken(msgspec.Struct, frozen=True, kw_only=True):
    """A table with the sentence above it; a table without groups has nothing to show."""

    sentence: str
    table: Table


def _first_tokens(one: PhaseSummary) -> str:
    if one.warmup_first_ttft_ns is None or one.warmup_last_ttft_ns is None:
        return MISSING
    return f"{write.ms(one.warmup_first_ttft_ns)} → {write.ms(one.warmup_last_ttft_ns)}"


def _stable(one: PhaseSummary) -> TableCell:
    """Whether the warm-ups became stable, and the largest of their last changes."""
    if not one.warmups:
        return kit.missing(MISSING)
    is_stable = one.warmups_stable == one.warmups
    word = "yes" if is_stable else "no"
    text = word if one.warmups == 1 else f"{one.warmups_stable} of {one.warmups}"
    change = "" if one.warmup_change is None else f"last change {write.share(one.warmup_change)}"
    return kit.text(text, "" if is_stable else "bad", detail=change)


def _write_ns(value_ns: float | None) -> str:
    if value_ns is not None and value_ns < 5e5:  # below what three decimals show
        return "0"
    return MISSING if value_ns is None else write.number(value_ns / 1e9)


_PHASES: tuple[Column[PhaseSummary], ...] = (
    kit.ARM,
    kit.right("Load (s)", lambda one: write.number(one.load_time_s), "Cold start"),
    kit.right("First token (ms)", lambda one: write.ms(one.cold_ttft_ns), "Cold start"),
    kit.right("Requests", lambda one: write.count(one.warmup_requests), "Warm-up"),
    kit.right("Time (s)", lambda one: write.number(one.warmup_s), "Warm-up"),
    kit.right("First token (ms), first → last group", _first_tokens, "Warm-up"),
    kit.right("Stable", _stable, "Warm-up"),
    kit.right("Ramp (s)", lambda one: _write_ns(one.ramp_ns), "Periods"),
    kit.right("Steady (s)", lambda one: _write_ns(one.steady_ns), "Periods"),
    kit.right("Drain (s)", lambda one: _write_ns(one.drain_ns), "Periods"),
    kit.right("First token (ms)", lambda one: write.ms(one.warm_ttft_ns), "Counted"),
)


def build_phases(results: Results) -> Spoken:
    """Lay out the phases of baseline and candidate, and of an arm whose warm-up did not become stable."""
    told = [
        one
        for one in results.phases
        if (one.periods or one.warmups or one.warmup_requests)
        and (one.arm in DECISIVE or one.warmups_stable < one.warmups)
    ]
    table = kit.table("How each arm got to its steady state", _PHASES, kit.by_load(results, told))
    return Spoken(sentence=phases_sentence(results), table=table)


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


def _connects(one: ClientUse) -> str:
    if one.connect_p50_ns is None:
        return MISSING
    return f"{write.ms(one.connect_p50_ns)}, {write.ms(one.connect_max_ns)}"


def _core(one: ClientUse) -> TableCell:
    several = f"{one.workers} processes" if one.workers is not None and one.workers > 1 else ""
    return kit.text(write.share(one.core_share), detail=several)


_RATES: tuple[Column[ClientUse], ...] = (
    kit.right("offered", lambda one: write.number(one.offered_rps), "Requests/s"),
    kit.right("sent", lambda one: write.number(one.achieved_rps), "Requests/s"),
)
_CLIENT: tuple[Column[ClientUse], ...] = (
    kit.right("On time", lambda one: write.share(one.on_time_share)),
    kit.right("Good requests/s", lambda one: write.number(one.goodput_rps)),
    kit.right("mean", lambda one: write.number(one.in_flight_mean), "In flight"),
    kit.right("most", lambda one: write.count(one.in_flight_max), "In flight"),
    kit.right("Due to sent p99 (ms)", lambda one: write.ms(one.send_lag_p99_ns)),
    kit.right("opened", lambda one: write.count(one.connections), "Connections"),
    kit.right("median, longest (ms)", _connects, "Connections"),
    kit.right("event loop late", lambda one: write.ms(one.lag_max_ns), "At most (ms)"),
    kit.right("garbage pause", lambda one: write.ms(one.gc_pause_max_ns), "At most (ms)"),
    kit.right("Of a core", _core),
    kit.right(
        "Periods beyond a limit",
        lambda one: kit.text(f"{one.unfit} of {one.periods}", "bad" if one.unfit else ""),
    ),
)


def build_clients(results: Results) -> Spoken:
    """Lay out what the client did for baseline and candidate, and wherever it was beyond its limits.

    Offered rates only where a load has one.
    """
    shown = [one for one in results.clients if one.arm in DECISIVE or one.unfit]
    is_rated = any(one.offered_rps is not None for one in results.clients)
    columns = (kit.ARM, *(_RATES if is_rated else ()), *_CLIENT)
    table = kit.table("What the client did", columns, kit.by_load(results, shown))
    periods, unfit = (sum(getattr(one, name) for one in results.clients) for name in ("periods", "unfit"))
    sentence = f"The client kept within its own limits in all {periods:,} periods."
    if unfit:
        sentence = (
            f"In {unfit:,} of {periods:,} periods the client itself was beyond a limit of its own: "
            f"the times of "
            "such periods are left out, and the warnings say which limit it was."
        )
    return Spoken(sentence=sentence, table=table)
