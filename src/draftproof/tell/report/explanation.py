"""What a verdict based on: a tree of plain lines down to requests, and the rows that its reasons point to.

Without a named cell the tree is cut to a size that a person reads; what is left out is counted. Each row has
an anchor, to which the reasons at the top of the page link. Pure.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

import msgspec

from draftproof.judge.decide.wording import name_segment
from draftproof.judge.inform.diagnosis.steps import compute_step_ns
from draftproof.judge.inform.evidence import EvidenceRow, find_evidence
from draftproof.judge.inform.explain import CellView, Explanation, PromptView, RequestView
from draftproof.judge.metrics.acceptance import ProgressSummary
from draftproof.judge.results.decide import Figure, Reference
from draftproof.judge.results.run import Reason, Results
from draftproof.tell.report import kit, words, write
from draftproof.tell.report.effects import band_figure
from draftproof.tell.report.kit import Table, TableCell
from draftproof.tell.report.write import printable

MOST_CELLS, MOST_REASONS, MOST_PROMPTS, MOST_REQUESTS = 12, 12, 3, 2
HELD = "held"
_STEP = "  "
T = TypeVar("T")


def render_explanation(explanation: Explanation, blocks: Sequence[str] = ()) -> str:
    """Render the tree; everything of a cell that was asked for by name, else the ends of long lists.

    `blocks`: what the answer says is in the way; the reasons begin with it, so that both say the same.
    """
    whole = explanation.cell is not None
    cells, more = _cut(explanation.cells, MOST_CELLS, whole=whole)
    lines = [
        f"{explanation.decision}: {explanation.sentence}",
        f"{_STEP}evidence: {explanation.evidence_level}",
        f"{_STEP}rule: {explanation.rule}",
        f"{_STEP}decides: {_decides(explanation)}",
        f"{_STEP}why",
        *_reasons(explanation, blocks, whole=whole),
        f"{_STEP}cells",
    ]
    for cell in cells:
        lines += [f"{_STEP * 2}{line}" for line in _cell(cell, explanation, whole=whole)]
    if more:
        lines.append(f"{_STEP * 2}… {more} more; --cell SEGMENT@LOAD for one of them, --json for all")
    return "\n".join(printable(line) for line in lines)


def _decides(explanation: Explanation) -> str:
    metric = f"{explanation.statistic} {words.metric(explanation.metric).lower()}"
    return f"candidate / baseline of the {metric}, {explanation.confidence * 100:g} % simultaneous"


def _reasons(explanation: Explanation, blocks: Sequence[str], *, whole: bool) -> Iterator[str]:
    known = {words.sentence_case(one.text): f" [{one.evidence}]" for one in explanation.reasons}
    texts, more = _cut(list(dict.fromkeys((*blocks, *known))), MOST_REASONS, whole=whole)
    for text in texts:
        yield f"{_STEP * 2}- {text}{known.get(text, '')}"
    if more:
        yield f"{_STEP * 2}… {more} more; --cell SEGMENT@LOAD or --json for all"


def _cell(cell: CellView, explanation: Explanation, *, whole: bool) -> Iterator[str]:
    yield f"{name_segment(cell.segment)}@{cell.load} ({cell.load_size.short}): {cell.status}"
    for name, figure in (
        ("simultaneous, decides", cell.simultaneous),
        ("alone", cell.single),
        (words.comparison("baseline_null", "baseline"), cell.null),
        (words.comparison("candidate", "alternative"), cell.versus_alternative),
    ):
        if figure is not None:
            yield f"{_STEP}{name}: {_figure(figure)}"
    yield from (f"{_STEP}{line}" for line in _guardrails(cell, whole=whole))
    for band in cell.bands:
        yield (
            f"{_STEP}contexts of {band.min_context_tokens} to {band.max_context_tokens} tokens: "
            f"{band.reading}, {_figure(band_figure(band))}"
        )
    told = {one.text for one in cell.guardrails}
    for reason in (one for one in cell.reasons if one.text not in told):
        yield f"{_STEP}- {reason.code}: {words.sentence_case(reason.text)} [{reason.evidence}]"
    yield from (f"{_STEP}{line}" for line in _prompts(cell, explanation, whole=whole))


def _guardrails(cell: CellView, *, whole: bool) -> Iterator[str]:
    held = [one.code for one in cell.guardrails if one.standing == HELD]
    for one in cell.guardrails:
        if whole or one.standing != HELD:
            yield f"guardrail {one.code}: {one.standing} ({one.text}) [{one.evidence}]"
    if held and not whole:
        yield f"guardrails held: {', '.join(held)}"


def _prompts(cell: CellView, explanation: Explanation, *, whole: bool) -> Iterator[str]:
    usable = [one for one in cell.prompts if one.ratio is not None]
    lost = [one for one in cell.prompts if one.ratio is None]
    yield f"prompts: {len(usable)} compared, {len(lost)} not" + _leave_one_out(cell)
    if whole or len(usable) <= 2 * MOST_PROMPTS:
        shown, more = usable, 0
    else:
        shown, more = [*usable[:MOST_PROMPTS], *usable[-MOST_PROMPTS:]], len(usable) - 2 * MOST_PROMPTS
    for place, prompt in enumerate(shown):
        if more and place == MOST_PROMPTS:
            yield f"{_STEP}… {more} more; --cell {name_segment(cell.segment)}@{cell.load} for all"
        yield from (f"{_STEP}{line}" for line in _prompt(prompt, explanation, whole=whole))
    missing, hidden = _cut(lost, MOST_PROMPTS, whole=whole)
    for prompt in missing:
        yield from (f"{_STEP}{line}" for line in _prompt(prompt, explanation, whole=whole))
    if hidden:
        yield f"{_STEP}… {hidden} more; --cell {name_segment(cell.segment)}@{cell.load} for all"


def _leave_one_out(cell: CellView) -> str:
    if cell.leave_one_out_low is None or cell.leave_one_out_high is None:
        return ""
    text = (
        f"; with any one left out the ratio is {cell.leave_one_out_low:.3f} to {cell.leave_one_out_high:.3f}"
    )
    if cell.carried_by is not None and cell.carried_by == sum(one.ratio is not None for one in cell.prompts):
        text += "; even the least favourable alone is a gain"
    elif cell.carried_by is not None:
        text += f"; without the {cell.carried_by} most favourable it is no gain"
    return text


def _prompt(prompt: PromptView, explanation: Explanation, *, whole: bool) -> Iterator[str]:
    if prompt.ratio is None:
        yield f"{prompt.item_id}: no ratio, {prompt.why}"
    else:
        without = "" if prompt.ratio_without is None else f", {prompt.ratio_without:.3f} without it"
        pairs = "1 pair" if prompt.pairs == 1 else f"{prompt.pairs} pairs"
        yield f"{prompt.item_id}: {prompt.ratio:.3f} over {pairs}{without}"
    requests, more = _cut(prompt.requests, MOST_REQUESTS, whole=whole)
    for request in requests:
        yield f"{_STEP}{_request(request, explanation.metric)}"
    if more:
        yield f"{_STEP}… {more} more requests"


def _request(request: RequestView, metric: str) -> str:
    times = [_rate(request)]
    times += [
        f"{name} {_ms(value)}"
        for name, value in (
            ("ttft", request.ttft_from_schedule_ns),
            *((("e2e", request.e2e_from_schedule_ns),) if metric.startswith("e2e") else ()),
        )
    ]
    late = "" if request.timed else ", client late or host disturbed: times not used"
    error = f", {request.error}" if request.error else ""
    place = ", ".join(request.places) or "not found on disk"
    return f"{request.arm} {request.request_id} [{place}]: {request.outcome}, {', '.join(times)}{late}{error}"


def _rate(request: RequestView) -> str:
    """Return the time per token; as an interval where the tokens of the first chunk are not counted."""
    least, most = request.tpot_ns, request.tpot_most_ns
    reach = f" to {_ms(most)}, first chunk not counted" if least != most and most is not None else ""
    return f"tpot {_ms(least)}{reach}"


def _ms(value_ns: float | None) -> str:
    return write.MISSING if value_ns is None else f"{value_ns / 1e6:.2f} ms"


def _figure(figure: Figure) -> str:
    if figure.value is None:
        return f"none: {figure.reason or 'not known'}"
    if figure.low is None or figure.high is None:
        return f"{figure.value:.3f}"
    level = f" at {figure.level * 100:.4g} %" if figure.level else ""
    return f"{figure.value:.3f} ({figure.low:.3f} to {figure.high:.3f}){level}, n = {figure.n}"


def _cut(items: Sequence[T], most: int, *, whole: bool) -> tuple[Sequence[T], int]:
    """Return the items to show and how many are left out."""
    return (items, 0) if whole else (items[:most], max(len(items) - most, 0))


MOST_LINKED = 60
MOST_ROWS = 6


class LinkedReason(msgspec.Struct, frozen=True, kw_only=True):
    """A reason at the top of the page, with the anchor of what it is based on; no anchor, no link."""

    text: str
    evidence: str
    anchor: str


def anchor_of(references: Iterable[str], evidence: str) -> str:
    """Return the anchor of a reference among those that the page shows, "" if it is not among them."""
    shown = list(dict.fromkeys(references))[:MOST_LINKED]
    return f"evidence-{shown.index(evidence) + 1}" if evidence in shown else ""


def link_reasons(results: Results, reasons: Iterable[Reason]) -> tuple[LinkedReason, ...]:
    """Return the reasons with their links into the table of cited rows."""
    references = [one.evidence for one in results.verdict.reasons]
    return tuple(
        LinkedReason(
            text=words.sentence_case(one.text),
            evidence=one.evidence,
            anchor=anchor_of(references, one.evidence),
        )
        for one in reasons
    )


def build_evidence(results: Results) -> tuple[Table, int]:
    """Return the rows that the verdict's reasons rest on, each reference once, and how many are left out."""
    references = list(dict.fromkeys(one.evidence for one in results.verdict.reasons))
    columns: tuple[kit.Column[_Cited], ...] = (
        kit.left("Reference", _reference),
        kit.left("Row of results.json", lambda one: kit.text(one.place, "nowrap" if one.row else "")),
        kit.left("Where", lambda one: TableCell(text=one.where)),
        kit.left("What it says", lambda one: TableCell(text=one.says, tone="prose" if one.row else "")),
    )
    groups = [("", list(_cite(results, one, anchor_of(references, one)))) for one in references[:MOST_LINKED]]
    table = kit.table("Rows behind the verdict", columns, groups)
    return table, max(len(references) - MOST_LINKED, 0)


class _Cited(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the table: a reference, in its first row only, and one row that it leads to."""

    reference: str = ""
    anchor: str = ""
    row: EvidenceRow | None = None
    place: str = ""
    where: str = ""
    says: str = ""


def _reference(one: _Cited) -> TableCell:
    if not one.reference:
        return TableCell(text="")
    return TableCell(text=one.reference, head=True, anchor=one.anchor, tone="prose")


def _cite(results: Results, reference: Reference, anchor: str) -> Iterator[_Cited]:
    found = find_evidence(results, reference)
    if not found:
        says = "no such row in these results"
        yield _Cited(reference=reference, anchor=anchor, where=write.MISSING, says=says)
    for place, one in enumerate(found[:MOST_ROWS]):
        yield _Cited(
            reference="" if place else reference,
            anchor=anchor,
            row=one,
            place=f"{one.table}[{one.index}]",
            where=_where(one.row) or write.MISSING,
            says=_say(one.row) or write.MISSING,
        )
    if len(found) > MOST_ROWS:
        yield _Cited(place=f"{len(found) - MOST_ROWS:,} more rows of {found[0].table}")


def _where(row: object) -> str:
    segment, load = getattr(row, "segment", None), getattr(row, "load", None)
    place = "all tasks" if segment == words.POOLED else words.segment(segment) if segment else ""
    return " × ".join(part for part in (place, str(load or "")) if part)


def _say(row: object) -> str:
    """Return what a row holds, in one line."""
    arm, versus = getattr(row, "arm", None), getattr(row, "versus", None)
    who = words.comparison(arm, versus) if arm and versus else words.arm(arm) if arm else ""
    parts = [who, *_list_figures(row)]
    return ", ".join(part for part in parts if part)


def _list_figures(row: object) -> list[str]:
    told = []
    if (metric := getattr(row, "metric", None)) is not None:
        told.append(f"{words.metric(metric).lower()}, {getattr(row, 'statistic', '')}".rstrip(", "))
    for name, write_value in (("effect", write.ratio), ("ratio", write.ratio), ("difference", write.points)):
        figure = getattr(row, name, None)
        if isinstance(figure, Figure):
            told.append(_evidence_figure(figure, write_value))
    if isinstance(getattr(row, "simultaneous", None), Figure):
        joint = row.simultaneous  # type: ignore[attr-defined]
        told += [f"simultaneous {_evidence_figure(joint, write.ratio)}"] if joint.low is not None else []
    return told + _list_plain(row)


def _list_plain(row: object) -> list[str]:
    """Return the counts and words of rows that are no ratio."""
    named = dict.fromkeys(("status", "bound", "reading", "phrase", "detail"), "{}")
    named["attempted"] = "{} requests"
    told = [form.format(getattr(row, name)) for name, form in named.items() if hasattr(row, name)]
    outcomes = getattr(row, "outcomes", None)
    if isinstance(outcomes, dict):
        told.append(", ".join(f"{write.count(n)} {name}" for name, n in outcomes.items()))
    acceptance = getattr(row, "acceptance", None)
    if acceptance is not None and acceptance.draft_acceptance_rate is not None:
        told.append(f"{write.share(acceptance.draft_acceptance_rate)} of drafts accepted")
    progress = getattr(row, "progress", None)
    if progress is not None and progress.rounds:
        told += _list_step(progress)
    if hasattr(row, "periods") and hasattr(row, "completed"):
        told.append(f"{row.periods} periods, {row.completed} ended, {row.lagged} with a late client")  # type: ignore[attr-defined]
    return told


def _list_step(progress: ProgressSummary) -> list[str]:
    """Return what a step brings and takes; the arms' rows beside each other give the cost in steps."""
    told = [f"{write.ratio(progress.committed_tokens / progress.rounds)} tokens a step"]
    step_ns = compute_step_ns(progress)
    return told if step_ns is None else [*told, f"{step_ns / write.NS_PER_MS:,.4g} ms a step"]


def _evidence_figure(figure: Figure, write_value: write.Write) -> str:
    if figure.value is None:
        return f"none ({figure.reason or 'not known'})"
    span = f" {write.interval(figure, write_value)}" if figure.low is not None else ""
    return f"{write_value(figure.value)}{span}"
