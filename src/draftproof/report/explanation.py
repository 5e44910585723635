"""An explanation as a tree of plain lines: verdict, rule, cells, intervals, guardrails, prompts, requests.

Pure. Without a named cell the tree is cut to a size that a person reads; what is left out is counted.
"""

from collections.abc import Iterator, Sequence
from typing import TypeVar

from draftproof.report.labels import comparison_label, metric_label, sentence_case
from draftproof.report.lines import printable
from draftproof.report.quantities import MISSING
from draftproof.verdict.explain import CellView, Explanation, PromptView, RequestView
from draftproof.verdict.figure import Figure
from draftproof.verdict.wording import name_segment

MOST_CELLS, MOST_REASONS, MOST_PROMPTS, MOST_REQUESTS = 12, 12, 3, 2
HELD = "held"
_STEP = "  "
T = TypeVar("T")


def render_explanation(explanation: Explanation) -> str:
    """Render the tree; everything of a cell that was asked for by name, else the ends of long lists."""
    whole = explanation.cell is not None
    cells, more = _cut(explanation.cells, MOST_CELLS, whole=whole)
    lines = [
        f"{explanation.decision}: {explanation.sentence}",
        f"{_STEP}evidence: {explanation.evidence_level}",
        f"{_STEP}rule: {explanation.rule}",
        f"{_STEP}decides: {_decides(explanation)}",
        f"{_STEP}why",
        *_reasons(explanation, whole=whole),
        f"{_STEP}cells",
    ]
    for cell in cells:
        lines += [f"{_STEP * 2}{line}" for line in _cell(cell, explanation, whole=whole)]
    if more:
        lines.append(f"{_STEP * 2}… {more} more; --cell SEGMENT@LOAD for one of them, --json for all")
    return "\n".join(printable(line) for line in lines)


def _decides(explanation: Explanation) -> str:
    words = f"the {explanation.statistic} {metric_label(explanation.metric).lower()}"
    return f"candidate / baseline of {words}, {explanation.confidence * 100:g} % simultaneous"


def _reasons(explanation: Explanation, *, whole: bool) -> Iterator[str]:
    reasons, more = _cut(explanation.reasons, MOST_REASONS, whole=whole)
    for reason in reasons:
        yield f"{_STEP * 2}- {sentence_case(reason.text)} [{reason.evidence}]"
    if more:
        yield f"{_STEP * 2}… {more} more; --cell SEGMENT@LOAD or --json for all"


def _cell(cell: CellView, explanation: Explanation, *, whole: bool) -> Iterator[str]:
    yield f"{name_segment(cell.segment)}@{cell.load} ({cell.load_size.short}): {cell.status}"
    for name, figure in (
        ("simultaneous, decides", cell.simultaneous),
        ("alone", cell.single),
        (comparison_label("baseline_null", "baseline"), cell.null),
        (comparison_label("candidate", "alternative"), cell.versus_alternative),
    ):
        if figure is not None:
            yield f"{_STEP}{name}: {_figure(figure)}"
    yield from (f"{_STEP}{line}" for line in _guardrails(cell, whole=whole))
    for band in cell.bands:
        span = Figure(value=band.ratio, low=band.low, high=band.high, n=band.pairs, reason=band.reason)
        yield (
            f"{_STEP}contexts of {band.min_context_tokens} to {band.max_context_tokens} tokens: "
            f"{band.reading}, {_figure(span)}"
        )
    told = {one.text for one in cell.guardrails}
    for reason in (one for one in cell.reasons if one.text not in told):
        yield f"{_STEP}- {reason.code}: {sentence_case(reason.text)} [{reason.evidence}]"
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
    return MISSING if value_ns is None else f"{value_ns / 1e6:.2f} ms"


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
