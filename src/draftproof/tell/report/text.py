"""What commands print of a run: the answer on one screen, and in full every table of the results.

Deterministic and free of colour codes.

The terminal page of `draftproof samples`: what is needed and what there is, in columns.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import groupby

from draftproof.judge.inform.headline import TOKENS_PER_S
from draftproof.judge.results.run import ArmCell, Cell, Reason, Results
from draftproof.judge.results.samples import Need, SamplePlan
from draftproof.tell.report import kit, words, write
from draftproof.tell.report.answers import equivalence_sentence
from draftproof.tell.report.page import statistic_label
from draftproof.tell.report.services import render_services
from draftproof.tell.report.summary import Summary, SummaryRow, describe_envelope, summarise
from draftproof.tell.report.tokens import (
    DELIVERY,
    delivery_hints,
    delivery_sentence,
    describe_basis,
    describe_deciding_basis,
    disagreement_sentence,
    is_drafting,
    list_undisclosed,
)
from draftproof.tell.report.write import MISSING, printable

# More cells than this are told by segment, without their figures.
_LISTED_CELLS = 60

MOST_REMEDIES = 3
MOST_SIGNS = 2


MOST_LINES = 25
_MOST_NAME = 16
_BLOCK_LABELS = {"defer": "Because:", "invalid": "Because:", "adopt_limited": "Limits:"}


def render_text(results: Results, run: str = "RUN", *, has_report: bool = True) -> str:
    """Render the answer in at most `MOST_LINES` lines; `run` is the run directory as the reader names it."""
    found, shown = summarise(results, run), printable(run)
    head = [
        *_lines(f"{words.DECISIONS[found.decision].glyph} {found.answer} ({found.evidence})"),
        *_lines(found.question),
        *_lines(found.compared),
        *(_lines(found.earlier, most=1) if found.earlier else []),
    ]
    asked = (("Faster?", found.faster), ("Safe?", found.safe), ("Noise?", found.noise))
    last = [line for text in found.allowed[:2] for line in _lines(text, "May run:", 1)]
    # Not wrapped: a command is copied in one piece.
    last += [f"Next:    {printable(text)}" for text in found.next]
    report = f"Report:  {shown}/report.html"
    if not has_report:
        report = f"Report:  draftproof report {shown} writes report.html"
    every = f"{report} (all figures here: draftproof report {shown} --full)"
    last.append(every if has_report and len(every) <= write.WIDTH_COLUMNS else report)
    return _fit(head, [line for label, text in asked for line in _lines(text, label)], last, found)


def _lines(text: str, label: str = "", most: int = 2) -> list[str]:
    """Return a text as lines under a label; what is longer than `most` of them ends in an ellipsis."""
    first = f"{label:9}" if label else ""
    lines = write.wrap(text, first, " " * len(first))
    cut = [*lines[: most - 1], lines[most - 1][: write.WIDTH_COLUMNS - 2] + " …"] if len(lines) > most else []
    return cut or lines


def _fit(head: list[str], asked: list[str], last: list[str], found: Summary) -> str:
    """Put the parts together; tables take the room that is left, blank lines what is left of that."""
    room = MOST_LINES - len(head) - len(asked) - len(last)
    first = _BLOCK_LABELS.get(found.decision, "Not yet:")
    texts = [_lines(text, first if place == 0 else " ") for place, text in enumerate(found.blocks)]
    least = sum(map(len, texts[:2]))
    grid = _grid(found, room - least - len(_tables(found)[-1]))
    table = next((one for one in _tables(found) if len(one) + len(grid) + least <= room), [])
    blocks: list[str] = []
    for lines in texts:
        blocks += lines if len(table) + len(grid) + len(blocks) + len(lines) <= room else []
    parts = [part for part in (head, asked, table, grid, blocks, last) if part]
    spare = MOST_LINES - sum(map(len, parts))
    spaced = [[*([""] if 0 < place <= spare else []), *part] for place, part in enumerate(parts)]
    return "\n".join(line for part in spaced for line in part) + "\n"


def _tables(found: Summary) -> list[list[str]]:
    """Return tables of all tasks, the longer first: all times, those of tokens, those of the outer loads."""
    times = [row for row in found.rows if row.quantity != TOKENS_PER_S]
    outer = {row.load for row in (*times[:1], *times[-1:])}
    kept = [
        [row for row in times if not row.quantity.startswith(left)] for left in ("-", "e2e", ("e2e", "ttft"))
    ]
    return [_table(found, rows) for rows in (*kept, [row for row in kept[2] if row.load in outer])]


def _table(found: Summary, rows: Sequence[SummaryRow]) -> list[str]:
    """Set rows in columns; the alternative's is left out where there is no room for it."""
    rates = {row.load: row for row in found.rows if row.quantity == TOKENS_PER_S}
    header = ("All tasks", "Load", "Off", "On", "Change [interval]", "Equal services", "Alternative")
    texts = [_table_row(row, rates.get(row.load)) for row in rows]
    whole = write.table(header, texts)
    if any(row.alternative for row in rows) and _fits(whole):
        return whole
    table = write.table(header[:-1], [text[:-1] for text in texts])
    short = [(text[0], _shorten(text[1]), *text[2:-1]) for text in texts]
    return table if _fits(table) else write.table(header[:-1], short)


def _fits(table: Sequence[str]) -> bool:
    return max(map(len, table), default=0) <= write.WIDTH_COLUMNS


def _shorten(name: str) -> str:
    """Return a long name by its two ends; a size behind it stays whole."""
    name, comma, size = name.partition(", ")
    half = _MOST_NAME // 2
    return f"{name if len(name) <= _MOST_NAME else f'{name[:half]}…{name[1 - half :]}'}{comma}{size}"


def _table_row(row: SummaryRow, rate: SummaryRow | None) -> tuple[str, ...]:
    """Return the texts of a row; the time per token has the tokens per second in brackets."""
    has_rate = rate is not None and row.quantity == "tpot_ns"
    return (
        "ms per token (tokens/s)" if has_rate else row.label,
        row.load,
        f"{row.off} ({rate.off})" if rate and has_rate else row.off,
        f"{row.on} ({rate.on})" if rate and has_rate else row.on,
        f"{row.change} {row.interval}".strip(),
        row.null,
        row.alternative,
    )


def _grid(found: Summary, room: int) -> list[str]:
    """Return status and change of every task at every load; of more than there is room for, the counts."""
    rows = [(task, *(cell.text if cell else "" for cell in cells)) for task, cells in found.grid]
    short = [(_shorten(row[0]), *row[1:]) for row in rows]
    tables = (
        write.table((f"{found.heading} ({found.legend})", *found.loads), rows),
        write.table((found.heading, *found.loads), rows),
        write.table((found.heading, *map(_shorten, found.loads)), short),
    )
    table = next(filter(_fits, tables), [])
    if not table or len(table) > room:
        return _lines(f"{found.counts} {'Every cell is in the report.' if rows else ''}".strip())
    return table


def render_full(results: Results, run: str = "RUN") -> str:
    """Render every table of the results for a terminal; the same results give the same text."""
    knee = results.knee
    return write.join(
        (
            _verdict(results),
            _envelope(results),
            _effects(results),
            _acceptance(results),
            _delivery(results),
            write.section("What to look at first", write.bullets(_first_looks(results))),
            write.section("Capacity knee", write.bullets([knee.sentence, *knee.notes] if knee else ())),
            write.section("Estimators of inter-token latency", _estimators(results)),
            write.section("Output equivalence", write.wrap(equivalence_sentence(results))),
            _failures(results),
            render_services(results),
            write.section("Warnings", write.bullets(results.warnings)),
            write.section("Not measured", write.bullets(results.not_measured)),
            [*_identity(results), f"Report: {printable(run)}/report.html"],
        )
    )


def _first_looks(results: Results) -> list[str]:
    """The first remedies, each with the figures it is based on first; the report has all of them."""
    remedies = results.diagnoses.remedies if results.diagnoses else ()
    return [
        f"{one.title}: {'; '.join(sign.text for sign in one.evidence[:MOST_SIGNS])}."
        for one in remedies[:MOST_REMEDIES]
    ]


def _verdict(results: Results) -> list[str]:
    verdict = results.verdict
    label = words.DECISIONS[verdict.decision].label.upper()
    return [
        f"{label}   evidence: {printable(verdict.evidence_level)} ({printable(results.evidence)} workload)",
        "",
        *write.wrap(verdict.sentence),
        *write.bullets(_reason(reason) for reason in verdict.reasons),
    ]


def _reason(reason: Reason) -> str:
    return words.sentence_case(reason.text) + (f" [{reason.evidence}]" if reason.evidence else "")


def _envelope(results: Results) -> list[str]:
    metric = f"{words.metric(results.metric).lower()}, {statistic_label(results.statistic)}"
    title = (
        f"Envelope (change of {metric}{describe_deciding_basis(results)}, against the baseline, "
        f"{results.confidence * 100:g}% simultaneous)"
    )
    entries = write.bullets(f"May run {line}." for line in describe_envelope(results.verdict.envelope))
    if len(results.cells) > _LISTED_CELLS:
        return write.section(title, [*_statuses_by_segment(results), *entries])
    loads = kit.order_loads(results)
    by_load = sorted(results.cells, key=lambda cell: loads.index(cell.load))
    rows = [
        (segment, *_cell(results, cell))
        for segment, cells in kit.by_segment(results, by_load)
        for cell in cells
    ]
    header = (words.segment_heading(results.segments), "Load", "Status", "Change", "Interval")
    table = [*write.table(header, rows), *entries] if rows else ["  No cell was judged."]
    return write.section(title, table)


def _cell(results: Results, cell: Cell) -> tuple[str, ...]:
    return (
        kit.load_title(results, cell.load),
        words.STATUSES[cell.status].label,
        write.change(cell.effect.value),
        write.interval_or_why(cell.effect, write.change),
    )


def _statuses_by_segment(results: Results) -> list[str]:
    """Every cell's status, a segment at a time: so many changes and intervals are read in the report."""
    said = []
    for segment, cells in kit.by_segment(results, results.cells):
        here = {cell.load: cell.status for cell in cells}
        loads = [load for load in kit.order_loads(results) if load in here]
        told = (
            f"{words.STATUSES[status].label} at {_name_loads(loads, here, status)}"
            for status in dict.fromkeys(here[load] for load in loads)
        )
        said.append(f"{segment}: {'; '.join(told)}.")
    return [*write.bullets(said), *write.wrap("Changes and intervals of all cells stand in report.html.")]


def _name_loads(loads: Sequence[str], statuses: Mapping[str, str], wanted: str) -> str:
    """Return the loads of a status; neighbours in the plan's order as "from to"."""
    runs = [list(run) for status, run in groupby(loads, key=statuses.__getitem__) if status == wanted]
    return ", ".join(f"{run[0]} to {run[-1]}" if len(run) > 2 else ", ".join(run) for run in runs)


def _effects(results: Results) -> list[str]:
    pooled = [e for e in results.effects if e.segment == words.POOLED]
    known = list(words.METRICS)
    rank = {name: place for place, name in enumerate(known)}
    metrics = sorted({e.metric for e in pooled}, key=lambda name: (rank.get(name, len(known)), name))
    rows = [
        (
            words.metric(metric),
            title,
            words.comparison(effect.arm, effect.versus),
            write.ratio(effect.ratio.value),
            write.interval(effect.ratio, write.ratio) or write.needed(effect.ratio),
            describe_basis([effect]),
        )
        for metric in metrics
        for title, effects in kit.by_load(results, (e for e in pooled if e.metric == metric))
        for effect in effects
    ]
    header = ("Metric", "Load", "Arm", "Ratio", "Interval", "Basis")
    shown = len(header) if any(row[-1] for row in rows) else len(header) - 1
    table = write.table(header[:shown], [row[:shown] for row in rows])
    return write.section("Ratios between arms, all tasks (below 1 is faster)", table)


def _acceptance(results: Results) -> list[str]:
    rows = [
        (
            title,
            words.arm(c.arm),
            write.share(c.acceptance.draft_acceptance_rate),
            write.ratio(c.acceptance.mean_acceptance_length),
            write.ratio(c.acceptance.tokens_per_decode_step),
        )
        for title, c in _pooled_cells(results)
        if c.acceptance and is_drafting(c)
    ]
    header = ("Load", "Arm", "Accepted", "Length where drafted", "Tokens per decode step")
    return write.section("Acceptance, all tasks", write.table(header, rows))


def _delivery(results: Results) -> list[str]:
    """A table per load: with the load as a column it would be too wide for a terminal."""
    told = write.wrap(delivery_sentence(results))
    header = ("Arm", *(label for label, _ in DELIVERY))
    for title, found in kit.by_load(results, list_undisclosed(results)):
        rows = [(words.arm(one.arm), *(write_one(one) for _, write_one in DELIVERY)) for one in found]
        told += [*write.wrap(f"{title}:"), *write.table(header, rows)] if rows else []
    told += write.bullets(delivery_hints(results))
    return write.section("Delivery of undisclosed services", told)


def _estimators(results: Results) -> list[str]:
    by_load = kit.by_load(results, results.estimators, ordered=True)
    return [
        line
        for title, rows in by_load
        if rows
        for line in write.wrap(f"{title}: {disagreement_sentence(rows)}")
    ]


def _failures(results: Results) -> list[str]:
    rows = [
        (title, words.arm(c.arm), f"{c.attempted:,}", _outcomes(c.outcomes))
        for title, c in _pooled_cells(results)
    ]
    return write.section("Requests", write.table(("Load", "Arm", "Requests", "Outcomes"), rows))


def _outcomes(outcomes: dict[str, int]) -> str:
    counts = Counter(outcomes)
    named = [f"{n:,} {words.OUTCOME_LABELS.get(k, k)}" for k, n in sorted(counts.items()) if n and k != "ok"]
    return ", ".join([f"{counts['ok']:,} OK", *named])


def _pooled_cells(results: Results) -> list[tuple[str, ArmCell]]:
    """Return (load, cell) of every arm over all segments."""
    pooled = [c for c in results.arm_cells if c.segment == words.POOLED]
    return [(title, cell) for title, cells in kit.by_load(results, pooled) for cell in cells]


def _identity(results: Results) -> list[str]:
    facts = (
        f"Run {results.run_name}",
        f"plan {write.digest(results.plan_sha256)}",
        f"thresholds {write.digest(results.thresholds_sha256)}",
        f"workload {write.digest(results.workload_sha256)}",
        f"draftproof {results.draftproof_version}",
    )
    return [printable(" · ".join(facts))]


_TITLES = {
    "gain": "A gain in every cell ({level}, for all tasks together)",
    "tail": "The tail is no worse than its margin, over each load ({level})",
    "share": "Failures, checks and ends of answers are no worse than their margins, over each load ({level})",
}


def render_samples(found: SamplePlan) -> str:
    """Render what a plan takes; the same answer gives the same text."""
    gains = [need for need in found.needs if need.aim == "gain"]
    tails = [need for need in found.needs if need.aim == "tail"]
    shares = [need for need in found.needs if need.aim in ("failures", "checks", "limit")]
    return write.join(
        (
            write.wrap(found.sentence),
            _sample_table("gain", gains, found),
            _sample_table("tail", tails, found),
            _sample_table("share", shares, found),
            write.bullets(_explain(found)),
        )
    )


def _sample_table(kind: str, needs: list[Need], found: SamplePlan) -> list[str]:
    has = ("Workload", "Measured") if found.run else ("Workload",)
    header = ("What", "Load", "Spread", "Needed", *has, "More", "Unit")
    rows = [_row(need, measured=bool(found.run)) for need in needs]
    title = _TITLES[kind].format(level=f"{100 * needs[0].level:.4g}%") if needs else ""
    return write.section(title, [*write.table(header, rows), *write.bullets(_list_reasons(needs))])


def _list_reasons(needs: list[Need]) -> list[str]:
    """Return why no number helps, each reason once with the rows that it holds for."""
    rows: dict[str, list[str]] = {}
    for need in needs:
        if need.reason is not None:
            rows.setdefault(need.reason, []).append(f"{_name(need)} at {need.load}")
    return [f"{', '.join(names)}: {reason}." for reason, names in rows.items()]


def _row(need: Need, *, measured: bool) -> tuple[str, ...]:
    counted = (f"{need.have:,}", "" if need.measured is None else f"{need.measured:,}")
    return (
        _name(need),
        need.load,
        _spreads(need),
        _needed(need),
        *(counted if measured else counted[:1]),
        MISSING if need.more is None else f"{need.more:,}",
        need.unit,
    )


def _name(need: Need) -> str:
    if need.aim == "gain":
        return words.segment(need.segment)
    if need.aim == "tail":
        return f"{need.statistic} of {words.METRICS.get(need.quantity, need.quantity).lower()}"
    return words.QUANTITIES.get(need.quantity, need.quantity)


def _spreads(need: Need) -> str:
    form = write.share if need.statistic == "share" else write.number
    ends = list(dict.fromkeys((form(need.spreads[0]), form(need.spreads[-1]))))
    return "–".join(ends) + ("" if need.source == "run" else " assumed")


def _needed(need: Need) -> str:
    ends = list(dict.fromkeys(f"{count:,}" for count in (*need.needed[:1], *need.needed[-1:])))
    return "–".join(ends)


def _explain(found: SamplePlan) -> list[str]:
    source = (
        f"Spreads come from {found.run}, with the upper end of their 80 % interval. More: prompts missing "
        "beyond those that it measured, at the larger spread."
        if found.run
        else "Spreads are assumed; --run takes those of an earlier run. More: prompts missing in the "
        "workload, at the larger spread."
    )
    meaning = (
        "Spread: how much the ratio differs between prompts, for a quantile the times between requests "
        "(standard deviation of logarithms); for shares, the part of pairs that disagree."
    )
    return [
        source,
        meaning,
        "Needed prompts are different ones: repeating a prompt adds none.",
    ]
