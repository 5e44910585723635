"""The answer on one page: verdict, what was compared, three questions, figures, what blocks, what is next.

Pure view of the results. Terminal and first page of the report render the same `Summary`, so that they never
say different things. No number is computed here.
"""

import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from draftproof.judge.decide.wording import (
    LATENCY_ONLY,
    LEADING_CODES,
    find_leading,
    list_withheld,
    name_segment,
    name_withheld,
)
from draftproof.judge.inform.headline import TOKENS_PER_S
from draftproof.judge.observe.attempts import HOST_BUSY
from draftproof.judge.observe.observed import ENDED_EARLY
from draftproof.judge.results.inform import ArmTotal, Exploratory, HeadlineRow
from draftproof.judge.results.run import APPROVING, Cell, EnvelopeEntry, Figure, Reason, Results
from draftproof.tell.report import kit, words, write

MOST_WORDS = 12
MOST_BLOCKS = 4
_NAMED_TASKS = 2
_NAMED_LOADS = 3
_SHOWN_TASKS = 12
_QUANTITIES = {
    "tpot_ns": "Time per token (ms)",
    TOKENS_PER_S: "Tokens/s per request",
    "ttft_from_schedule_ns": "Time to first token (ms)",
    "e2e_from_schedule_ns": "End-to-end time (s)",
}
# What keeps a gain from being credited, by what helps: a quiet host, more prompts; else to read the cell.
_QUIET_CODES = (
    *("invalid_client", "late_by_itself", "disturbed_more", "gain_by_attempts", "null_not_exceeded"),
)
_COUNTED_CODES = (
    *("guardrail_failures", "guardrail_checks", "guardrail_tail_tpot", "guardrail_tail_ttft", "token_limit"),
)
_WHY_CODES = ("low_acceptance", "dear_verification")


class SummaryRow(msgspec.Struct, frozen=True, kw_only=True):
    """One quantity over all tasks at one load, as text; "" for an arm that was not run."""

    quantity: str
    label: str
    load: str
    off: str
    on: str
    change: str
    interval: str
    null: str
    alternative: str


class GridCell(msgspec.Struct, frozen=True, kw_only=True):
    """One task at one load: status, change and its interval; `prompts` where it is exploratory only."""

    status: str
    figure: Figure
    prompts: int | None = None

    @property
    def text(self) -> str:
        """Return "▲ −38%", or "(−12%, n = 4)" for a value below the sample floor."""
        if self.prompts is not None:
            return f"({write.change(self.figure.value)}, n = {self.prompts})"
        return f"{words.STATUSES[self.status].glyph} {write.change(self.figure.value)}"


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """The whole answer. `blocks` are the most important first; `grid` holds (task, cells by load).

    `heading` says what its rows are.
    """

    decision: str
    answer: str
    evidence: str
    question: str
    compared: str
    earlier: str
    faster: str
    safe: str
    noise: str
    rows: tuple[SummaryRow, ...]
    heading: str
    loads: tuple[str, ...]
    grid: tuple[tuple[str, tuple[GridCell | None, ...]], ...]
    counts: str
    blocks: tuple[str, ...]
    next: tuple[str, ...]
    allowed: tuple[str, ...]

    @property
    def legend(self) -> str:
        """What the marks of the grid mean, e.g. "? not settled, ▼ harmful"."""
        cells = [cell for _, row in self.grid for cell in row if cell is not None]
        used = {cell.status for cell in cells}
        marks = [f"{one.glyph} {one.adjective}" for name, one in words.STATUSES.items() if name in used]
        return ", ".join([*marks, *(["( ) exploratory"] if any(cell.prompts for cell in cells) else [])])


def summarise(results: Results, run: str = "RUN") -> Summary:
    """Return the answer that results give; `run` is what commands call the run directory."""
    return Summary(
        decision=results.verdict.decision,
        answer=answer(results),
        evidence=results.verdict.evidence_level,
        question=results.question,
        compared=_compared(results),
        earlier=_say_earlier(results),
        faster=_faster(results),
        safe=_safe(results),
        noise=_noise(results),
        rows=tuple(_row(row) for row in _sorted_rows(results) if row.baseline is not None),
        heading=words.segment_heading(results.segments),
        loads=tuple(kit.load_title(results, load) for load in kit.order_loads(results)),
        grid=_grid(results),
        counts=count_cells(results.cells),
        blocks=tuple(dict.fromkeys(map(words.sentence_case, _blocks(results))))[:MOST_BLOCKS],
        next=tuple(_next(results, shlex.quote(run))),
        allowed=tuple(map(words.sentence_case, describe_envelope(results.verdict.envelope))),
    )


def answer(results: Results) -> str:
    """Return the verdict in at most twelve words; a question of latency alone says so first."""
    is_partial = results.verdict.evidence_level.startswith(LATENCY_ONLY)
    first = f"{LATENCY_ONLY}. " if is_partial else ""
    return first + _answer(results, MOST_WORDS - len(first.split()))


def _answer(results: Results, most: int) -> str:
    """Return the verdict in at most `most` words; a name of a task counts as one."""
    decision, cells = results.verdict.decision, results.cells
    if decision in APPROVING:
        return _adopted(results, most)
    if decision == "invalid":
        return "Invalid run: nothing can be concluded."
    counts, total = Counter[str](cell.status for cell in cells), len(cells)
    if decision == "defer":
        if counts["harm"] == total:
            return f"Do not enable: harmful at {_every_load(results)}."
        if not counts["harm"]:
            return f"Do not enable: no task gains at {_any_load(results)}."
        said = f"Do not enable: no task gains, {counts['harm']} of {total} cells harmful."
        return said if len(said.split()) <= most else said.replace(" cells", "")
    return f"Inconclusive: {_open(results, counts, total, most - 1)}."


def _open(results: Results, counts: Counter[str], total: int, most: int) -> str:
    leading = find_leading(results.verdict.reasons)
    if leading is not None and leading.code in (ENDED_EARLY, "incomplete"):
        busy = any(reason.code == HOST_BUSY for reason in results.verdict.reasons)
        return "the run is not complete" + (", the host was busy" if busy else "")
    if leading is not None and leading.code == "gain_above_gap":
        return "gains, but not from the lowest load up"
    if leading is not None:
        return f"the client was late in {counts['invalid']} of {total} cells"
    held, _ = name_withheld(results.cells)
    if held:
        return f"faster in {held} of {total} cells, other conditions open"
    if counts["inconclusive"] == total:
        return f"no task settled at {_any_load(results)}"
    settled = [
        f"{counts[one]} {words.STATUSES[one].adjective}" for one in words.STATUSES if one != "inconclusive"
    ]
    said = f"{counts['inconclusive']} of {total} cells not settled"
    for text in settled:
        longer = f"{said}, {text}"
        said = said if text.startswith("0") or len(longer.split()) > most else longer
    return said


def _adopted(results: Results, most: int) -> str:
    adopt = "Adopt" if results.evidence == "representative" else "Adopt on trial"
    envelope = results.verdict.envelope
    names = list(dict.fromkeys(name_segment(entry.segment) for entry in envelope))
    total, limits = len(results.segments), {entry.limit for entry in envelope}
    if len(names) <= _NAMED_TASKS:
        tasks = " and ".join(names) or "no task"
    else:
        tasks = "every task" if len(names) == total else f"{len(names)} of {total} tasks"
    wheres = [f"up to {limits.pop().short}"] if len(limits) == 1 else []
    wheres += ["within the limits below", "limits below"]
    named = 2 * len(names) - 1 if len(names) <= _NAMED_TASKS else len(tasks.split())
    room = most - len(adopt.split()) - named
    return f"{adopt}: {tasks}, {next(one for one in wheres if len(one.split()) <= room)}."


def _any_load(results: Results) -> str:
    return {1: "this load", 2: "either load"}.get(len(results.loads), "any load")


def _every_load(results: Results) -> str:
    return {1: "this load", 2: "both loads"}.get(len(results.loads), "every load")


def _compared(results: Results) -> str:
    found = results.headline.compared if results.headline else None
    if found is None:
        return ""
    arms = [found.methods.get("candidate", "candidate"), "against", found.methods.get("baseline", "baseline")]
    others = {"alternative": "an alternative too", "baseline_null": "the baseline twice"}
    where = " on ".join(part for part in (found.model, found.engine) if part)
    named = "; ".join((" ".join(arms), *(text for arm, text in others.items() if arm in results.arms)))
    size = (
        _count(found.prompts, "prompt"),
        _count(found.requests, "request"),
        _count_blocks(results, found.blocks),
        _count(len(results.loads), "load"),
        write.hours(found.measured_s / 3600),
    )
    return f"{f'{where}: ' if where else ''}{named}. {', '.join(size)}."


def _say_earlier(results: Results) -> str:
    """Say how many runs of this question came before, and how they ended."""
    earlier = results.earlier
    if earlier is None or earlier.runs == 0:
        return ""
    if earlier.runs is None:
        return "Earlier runs unknown."
    ended = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in earlier.decisions.items())
    return f"{_count(earlier.runs, 'earlier run')} of this question: {ended}."


def _count_blocks(results: Results, blocks: int) -> str:
    """Return "9 blocks", of a run whose loads ended where they were settled "9 of 14 blocks"."""
    spared = sum(one.planned - one.blocks for one in results.analyses if one.ended)
    return f"{blocks:,} of {_count(blocks + spared, 'block')}" if spared else _count(blocks, "block")


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def find_deciding(results: Results) -> list[HeadlineRow]:
    """Return the deciding quantity over all tasks, a row for each load."""
    rows = results.headline.rows if results.headline else ()
    return [row for row in rows if row.quantity == results.metric]


def _pooled(results: Results) -> list[HeadlineRow]:
    """Return the deciding quantity's rows: of all loads, or of the first and the last of many."""
    rows = find_deciding(results)
    return rows if len(rows) <= _NAMED_LOADS else [rows[0], rows[-1]]


def _at_loads(rows: Iterable[tuple[str, Figure]]) -> str:
    return ", ".join(
        f"{write.change(one.value)} {write.interval(one, write.change)}".rstrip() + f" at {load}"
        for load, one in rows
    )


def _faster(results: Results) -> str:
    rows = _pooled(results)
    if all(row.change.value is None for row in rows):
        return "Not known: too few pairs of answers have times that count."
    return f"{words.metric(results.metric)}, all tasks: {_at_loads((row.load, row.change) for row in rows)}."


def _noise(results: Results) -> str:
    rows = [(row.load, row.null_change) for row in _pooled(results) if row.null_change is not None]
    if not rows:
        return "Not known: the plan has no null arm."
    if all(change.value is None for _, change in rows):
        return "Not known: too few answers of two equal services have times that count."
    return f"Two equal services differed by {_at_loads(rows)}."


def _safe(results: Results) -> str:
    totals = {one.arm: one for one in (results.headline.totals if results.headline else ())}
    if "candidate" not in totals or "baseline" not in totals:
        return "Not known: no request was measured."
    on, off, null = totals["candidate"], totals["baseline"], totals.get("baseline_null")
    failed = f"Failed {on.failed:,} of {on.requests:,} (off {off.failed:,})"
    return " ".join(
        f"{part}." for part in (failed, _checks(on, off), _changed(results, on, null), _tail(results)) if part
    )


def _checks(on: ArmTotal, off: ArmTotal) -> str:
    if not on.checks_judged:
        return "No answer was checked"
    return f"Checks passed {on.checks_passed:,} of {on.checks_judged:,} (off {off.checks_passed:,})"


def _changed(results: Results, on: ArmTotal, null: ArmTotal | None) -> str:
    if not on.answers_compared:
        return "No greedy answers to compare"
    beside = f"{null.answers_changed:,} of {null.answers_compared:,}" if null else "not run"
    most = _name_most_changed(results)
    return (
        f"Answers changed {on.answers_changed:,} of {on.answers_compared:,} ({most}equal services {beside})"
    )


_FEW_CHANGED = 5  # with fewer changed answers it is chance at which load they are


def _name_most_changed(results: Results) -> str:
    """Return "13 of 35 at busy; " where one of several loads changes half as many again as all do."""
    rows = [one for one in results.agreements if (one.arm, one.versus) == ("candidate", "baseline")]
    rows = [one for one in rows if one.load in {load for load, _ in results.loads} and one.compared]
    shares = {one.load: 1 - one.identical / one.compared for one in rows}
    whole = sum(one.compared - one.identical for one in rows) / max(1, sum(one.compared for one in rows))
    worst = max(rows, key=lambda one: shares[one.load], default=None)
    changed = 0 if worst is None else worst.compared - worst.identical
    if worst is None or changed < _FEW_CHANGED or len(rows) < 2 or shares[worst.load] <= 1.5 * whole:
        return ""
    return f"{changed:,} of {worst.compared:,} at {worst.load}; "


def _tail(results: Results) -> str:
    """Say what the tail's guardrails come to: worse somewhere, not shown somewhere, or no worse."""
    found = {guard.standing for cell in results.cells for guard in cell.guardrails if "tail" in guard.code}
    if not found:
        return ""
    quantile = next((one.statistic for one in results.tail_effects), "The tail")
    if "violated" in found:
        return f"{quantile} is worse"
    return f"{quantile} is no worse" if found == {"held"} else f"{quantile} is not shown to be no worse"


def _sorted_rows(results: Results) -> list[HeadlineRow]:
    rows = list(results.headline.rows if results.headline else ())
    return sorted(rows, key=lambda row: list(_QUANTITIES).index(row.quantity))


def _row(row: HeadlineRow) -> SummaryRow:
    def side(value: float | None) -> str:
        if row.quantity.startswith("e2e"):
            return write.seconds(value and value / 1e9).removesuffix(" s")
        return write.ms(value) if row.quantity.endswith("_ns") else write.number(value)

    def change(figure: Figure | None) -> str:
        return write.change(figure.value) if figure else ""

    return SummaryRow(
        quantity=row.quantity,
        label=_QUANTITIES[row.quantity],
        load=row.load,
        off=side(row.baseline),
        on=side(row.candidate),
        change=change(row.change),
        interval=write.interval(row.change, write.change),
        null=change(row.null_change),
        alternative=change(row.alternative_change),
    )


def _grid(results: Results) -> tuple[tuple[str, tuple[GridCell | None, ...]], ...]:
    explored = {
        (one.segment, one.load): one for one in (results.headline.exploratory if results.headline else ())
    }
    cells = {(cell.segment, cell.load): cell for cell in results.cells}
    segments = kit.order_segments(results, {segment for segment, _ in cells})
    loads = kit.order_loads(results)

    def field(segment: str, load: str) -> GridCell | None:
        cell = cells.get((segment, load))
        return _grid_cell(cell, explored.get((segment, load))) if cell else None

    return tuple((words.segment(s), tuple(field(s, load) for load in loads)) for s in segments)


def _grid_cell(cell: Cell, explored: Exploratory | None) -> GridCell:
    if cell.effect.value is None and explored is not None:
        return GridCell(status=cell.status, figure=Figure(value=explored.ratio), prompts=explored.prompts)
    return GridCell(status=cell.status, figure=cell.effect)


def count_cells(cells: Sequence[Cell]) -> str:
    """Return "Of 8 cells: 3 gain, 5 not settled.", naming harm and what is not shown apart."""
    if not cells:
        return "No cell was measured."
    counts = Counter[str](cell.status for cell in cells)
    named = [
        f"{counts[one]:,} {word.adjective} ({word.glyph})"
        for one, word in words.STATUSES.items()
        if counts[one]
    ]
    return f"Of {_count(len(cells), 'cell')}: {', '.join(named)}."


def _blocks(results: Results) -> Iterator[str]:
    """Yield what keeps speculation from being adopted, most important first, each with what to do."""
    reasons, decision = results.verdict.reasons, results.verdict.decision
    if decision == "adopt":
        return
    if decision == "invalid":
        yield from (reason.text for reason in reasons[:MOST_BLOCKS])
        return
    yield from (reason.text for reason in _leading(reasons))
    yield from _harms(results.cells)
    yield from _held(results.cells)
    yield from (reason.text for reason in reasons if reason.code == "obstacle")
    yield from (reason.text for reason in reasons if reason.code in _WHY_CODES)


def _leading(reasons: Sequence[Reason]) -> list[Reason]:
    """Return what keeps a run open whatever its cells show, and the host, where nothing has named it yet."""
    codes = {reason.code for reason in reasons}
    order = [*LEADING_CODES[:2], *([] if ENDED_EARLY in codes else [HOST_BUSY]), *LEADING_CODES[2:]]
    return [reason for code in order for reason in reasons if reason.code == code]


def _harms(cells: Sequence[Cell]) -> Iterator[str]:
    harmful = [cell for cell in cells if cell.status == "harm"]
    if not harmful:
        return
    worst = max(harmful, key=lambda cell: cell.effect.value or 0)
    figure = f"{write.change(worst.effect.value)} {write.interval(worst.effect, write.change)}".strip()
    where = f"{name_segment(worst.segment)} at {worst.load}, {figure}"
    if len(harmful) > 1:
        where = f"{len(harmful)} of {len(cells)} cells, most in {where}"
    yield f"Harmful in {where}: leave speculation off there."


def _held(cells: Sequence[Cell]) -> Iterator[str]:
    """Yield what keeps cells that are fast enough from being gains, in one sentence."""
    held, names = name_withheld(cells)
    if names:
        yield f"Fast enough in {_count(held, 'cell')}, and still open there: {', '.join(names)}."


def _next(results: Results, run: str) -> Iterator[str]:
    """Yield one or two lines of what to do."""
    codes = {reason.code for reason in results.verdict.reasons}
    decision = results.verdict.decision
    if ENDED_EARLY in codes or "incomplete" in codes:
        is_loud = ENDED_EARLY in codes or HOST_BUSY in codes
        yield f"draftproof run --resume {run}" + (" --wait-for-quiet" if is_loud else "")
    elif decision in APPROVING and results.evidence == "representative":
        yield f"draftproof rules {run}"
        yield f"draftproof package {run}"
    elif decision in APPROVING:
        yield 'Measure enough of your own traffic (evidence = "representative") before you rely on it.'
    elif decision == "inconclusive":
        yield _settle(results, run)
    elif decision == "invalid":
        yield "Remove the fault that is named first, then measure again."
    else:
        remedies = [one.title for one in results.diagnoses.remedies[:2]] if results.diagnoses else []
        yield (
            f"Look elsewhere first: {', '.join(remedies)}."
            if remedies
            else "Leave speculation off for this traffic."
        )


def _settle(results: Results, run: str) -> str:
    """Return what to do about the first thing that keeps a run open."""
    reasons = results.verdict.reasons
    leading = find_leading(reasons)
    held = next(((cell, own[0]) for cell in results.cells if (own := list_withheld(cell))), None)
    obstacles = [one for one in reasons if one.code == "obstacle"]
    first = leading or (held[1] if held else next(iter(obstacles), None))
    # More prompts do not help beside noise that is as large as what they are to show.
    beside = [leading] if leading else [*(list_withheld(held[0]) if held else []), *obstacles]
    if any(_is_of_the_host(one) for one in beside):
        return f"draftproof run {run}/plan.toml --wait-for-quiet"
    if first is not None and first.evidence.table == "plan" and first.evidence.name != "workload":
        return "Change the plan as said above, check it, and measure again."
    if first is not None and first.remedy is not None:
        return f"{words.sentence_case(first.remedy)}, and measure again."
    if held is None or first is not held[1] or first.code in _COUNTED_CODES:
        return f"draftproof samples {run}/plan.toml --run {run}"
    if first.code == "critical_unjudged":
        return f"draftproof judge {run}"
    return f"draftproof verdict {run} --cell {shlex.quote(f'{name_segment(held[0].segment)}@{held[0].load}')}"


def _is_of_the_host(reason: Reason) -> bool:
    """Tell whether a quieter host is what helps; of an obstacle its evidence says so."""
    said = reason.evidence
    is_noise = said.table == "periods" or said.arm == "baseline_null"
    return reason.code in _QUIET_CODES or (reason.code == "obstacle" and is_noise)


def describe_envelope(entries: tuple[EnvelopeEntry, ...], most: int = _SHOWN_TASKS) -> tuple[str, ...]:
    """One line per limit, e.g. "up to 4 requests in flight, context up to 1,024 tokens: rewriting, chat"."""
    by_limit: dict[str, list[str]] = {}
    for entry in sorted(entries, key=lambda e: e.limit.order, reverse=True):
        by_limit.setdefault(_limit(entry), []).append(words.segment(entry.segment))
    return tuple(f"{limit}: {_list_tasks(names, most)}" for limit, names in by_limit.items())


def _list_tasks(names: Sequence[str], most: int) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _limit(entry: EnvelopeEntry) -> str:
    context = entry.max_context_tokens
    tail = "" if context is None else f", context up to {context:,} tokens"
    tail += " (longer ones show harm)" if entry.context == "limited" else ""
    return f"up to {entry.limit.label}{tail}"
