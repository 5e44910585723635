"""The costs for a terminal: plain lines, the same for the same costs. Pure."""

import textwrap
from collections.abc import Callable, Iterable, Sequence

from draftproof.costs.results import Costs, StepCost, StepSplit
from draftproof.report.quantities import MISSING, format_ms, format_ratio, format_share
from draftproof.report.text import printable
from draftproof.verdict.results import Figure

WIDTH_COLUMNS = 100
SOURCES = {
    "rounds": "the engine's rounds",
    "device_timer": "the engine's device timer",
    "ngram": "n-gram steps",
}


def render_costs_text(costs: Costs) -> str:
    """Render what was found for a terminal."""
    sections = (
        _head(costs),
        _section(
            "What a step costs and needs (a step that commits more tokens than needed pays)", _steps(costs)
        ),
        _section(f"Where the time of a step goes, ms, told by {_source(costs)}", _splits(costs)),
        _section("Beside the run", [f"  {line}" for line in comparison_lines(costs)]),
        _section("Warnings", _bullets(costs.warnings)),
        _section("Taken for granted", _bullets(costs.assumptions)),
    )
    return "\n\n".join("\n".join(lines) for lines in sections if lines) + "\n"


def format_figure(figure: Figure, write: Callable[[float], str]) -> str:
    """Write a value with its interval, or a dash."""
    if figure.value is None:
        return MISSING
    if figure.low is None and figure.high is None:
        return write(figure.value)
    low = MISSING if figure.low is None else write(figure.low)
    high = "none" if figure.high is None else write(figure.high)
    return f"{write(figure.value)} [{low}, {high}]"


def acceptance_text(step: StepCost) -> str:
    """Write the acceptance that breaks even; "none pays" where even accepting all is not enough."""
    return "none pays" if step.acceptance.value is None else format_figure(step.acceptance, format_share)


def limit_text(split: StepSplit) -> str:
    """Write the longest drafting time that pays."""
    return "none pays" if split.draft_limit_ns.value is None else format_ms(split.draft_limit_ns.value)


def comparison_lines(costs: Costs) -> list[str]:
    """Return a sentence for every cell of the run that was compared."""
    return [f"{printable(one.segment)} × {printable(one.load)}: {one.sentence}" for one in costs.comparisons]


def step_title(step: StepCost) -> str:
    """Return what a step drafts, in words."""
    if not step.draft_length:
        return "ordinary"
    return f"{step.draft_length}{' (n-gram)' if step.drafting == 'ngram' else ''}"


def _head(costs: Costs) -> list[str]:
    engine = f"{printable(costs.engine)} {printable(costs.engine_version)}, {printable(costs.method)}"
    how = (
        f"acceptance while timing: {costs.acceptance_while_timing}; {costs.repeats} waves a start, "
        f"answers of {costs.answer_tokens} tokens; intervals of {costs.confidence:.0%}"
    )
    return [f"Step costs of {printable(costs.plan_name)}: {engine}", f"  {how}"]


def _steps(costs: Costs) -> list[str]:
    header = ("Drafts", "Batch", "Step, ms", "Needs tokens per step", "Needs acceptance", "Waves")
    rows = [
        (
            step_title(step),
            str(step.batch),
            format_figure(step.step_ns, format_ms),
            format_figure(step.ratio, format_ratio) if step.draft_length else "1",
            acceptance_text(step) if step.draft_length else "",
            str(step.waves),
        )
        for step in costs.steps
    ]
    return _align([header, *rows])


def _splits(costs: Costs) -> list[str]:
    if not costs.splits:
        return []
    header = ("Drafts", "Batch", "Ordinary step", "Checking adds", "Drafting", "Drafting may take")
    rows = [
        (
            str(split.draft_length),
            str(split.batch),
            format_ms(split.ordinary_ns.value),
            format_figure(split.verification_ns, format_ms),
            format_figure(split.draft_ns, format_ms),
            limit_text(split),
        )
        for split in costs.splits
    ]
    last = f"  The last column is the longest drafting that pays at an acceptance of {costs.acceptance:.0%}."
    return [*_align([header, *rows]), last]


def _source(costs: Costs) -> str:
    return " and ".join(SOURCES[source] for source in dict.fromkeys(split.source for split in costs.splits))


def _section(title: str, lines: Sequence[str]) -> list[str]:
    return [title, *lines] if lines else []


def _bullets(texts: Iterable[str]) -> list[str]:
    return [
        line
        for text in texts
        for line in textwrap.wrap(
            printable(text), WIDTH_COLUMNS, initial_indent="  - ", subsequent_indent="    "
        )
    ]


def _align(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  " + "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows
    ]
