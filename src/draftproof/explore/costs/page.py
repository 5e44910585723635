"""What the page shows, in the order in which it is shown. Pure: from the costs to texts and positions.

The page of an experiment: one file in the report's style, readable without a network or a script. Pure.

The costs for a terminal: plain lines, the same for the same costs. Pure.
"""

from collections.abc import Callable, Sequence

import msgspec

from draftproof.explore.costs.plot import Plot, Reading, Scale, Series, draw_plot, scale_for
from draftproof.explore.costs.results import Costs, StepCost, StepSplit
from draftproof.judge.results.run import Figure
from draftproof.tell.report import plain, write
from draftproof.tell.report.charts import Part, Tick, linear_ticks, stacked_parts
from draftproof.tell.report.page import render_page
from draftproof.tell.report.plain import printable
from draftproof.tell.report.write import MISSING

SOURCES = {
    "rounds": "the engine's rounds",
    "device_timer": "the engine's device timer",
    "ngram": "n-gram steps",
}


def render_costs_text(costs: Costs) -> str:
    """Render what was found for a terminal."""
    steps = "What a step costs and needs (a step that commits more tokens than needed pays)"
    return plain.join(
        (
            _head(costs),
            plain.section(steps, _steps(costs)),
            plain.section(f"Where the time of a step goes, ms, told by {_source(costs)}", _splits(costs)),
            plain.section("Beside the run", [f"  {line}" for line in comparison_lines(costs)]),
            plain.section("Warnings", plain.bullets(costs.warnings)),
            plain.section("Taken for granted", plain.bullets(costs.assumptions)),
        )
    )


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
    return "none pays" if step.acceptance.value is None else format_figure(step.acceptance, write.share)


def limit_text(split: StepSplit) -> str:
    """Write the longest drafting time that pays."""
    return "none pays" if split.draft_limit_ns.value is None else write.ms(split.draft_limit_ns.value)


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
            format_figure(step.step_ns, write.ms),
            format_figure(step.ratio, write.ratio) if step.draft_length else "1",
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
            write.ms(split.ordinary_ns.value),
            format_figure(split.verification_ns, write.ms),
            format_figure(split.draft_ns, write.ms),
            limit_text(split),
        )
        for split in costs.splits
    ]
    last = f"  The last column is the longest drafting that pays at an acceptance of {costs.acceptance:.0%}."
    return [*_align([header, *rows]), last]


def _source(costs: Costs) -> str:
    return " and ".join(SOURCES[source] for source in dict.fromkeys(split.source for split in costs.splits))


def _align(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  " + "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows
    ]


_PAYS = {
    "pays": "pays",
    "does_not_pay": "does not pay",
    "too_close": "too close to call",
    "unknown": "not known",
}
_TONES = {"pays": "gain", "does_not_pay": "harm", "too_close": "inconclusive", "unknown": "missing"}


class StepRow(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the table of steps."""

    batch: str
    step: str
    ratio: str
    acceptance: str
    drafted: str
    sample: str


class SplitRow(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the chart of parts."""

    batch: str
    parts: tuple[Part, ...]
    ordinary: str
    checking: str
    drafting: str
    limit: str


class ComparisonRow(msgspec.Struct, frozen=True, kw_only=True):
    """A cell of the run beside its break-even."""

    segment: str
    load: str
    needs: str
    has: str
    word: str
    tone: str
    sentence: str


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """Everything the template lays out."""

    title: str
    headline: str
    version: str
    confidence: str
    acceptance: str
    facts: tuple[tuple[str, str], ...]
    acceptance_plot: Plot
    ratio_plot: Plot
    steps: tuple[tuple[str, tuple[StepRow, ...]], ...]
    lookup_steps: tuple[tuple[str, tuple[StepRow, ...]], ...]
    split_source: str
    split_ticks: tuple[Tick, ...]
    splits: tuple[tuple[str, tuple[SplitRow, ...]], ...]
    run: str | None
    comparisons: tuple[ComparisonRow, ...]
    drifts: tuple[tuple[str, str], ...]
    commands: tuple[tuple[str, str], ...]
    warnings: tuple[str, ...]
    assumptions: tuple[str, ...]


def build_page(costs: Costs) -> Page:
    """Return what the page shows."""
    own = [step for step in costs.steps if step.draft_length and step.drafting == "own"]
    full_ms = max((_total_ns(split) for split in costs.splits), default=0.0) / write.NS_PER_MS
    return Page(
        title=costs.plan_name,
        headline=_headline(own),
        version=costs.draftproof_version,
        confidence=f"{costs.confidence:.0%}",
        acceptance=f"{costs.acceptance:.0%}",
        facts=_facts(costs),
        acceptance_plot=_plot_acceptance(costs, own),
        ratio_plot=_plot_ratio(costs, own),
        steps=_step_groups([step for step in costs.steps if step.drafting == "own"]),
        lookup_steps=_step_groups([step for step in costs.steps if step.drafting == "ngram"]),
        split_source=_source(costs),
        split_ticks=linear_ticks(full_ms),
        splits=_split_groups(costs, full_ms),
        run=costs.run,
        comparisons=_comparison_rows(costs),
        drifts=tuple((str(one.batch), write.ratio(one.ratio)) for one in costs.drifts),
        commands=tuple((title, " ".join(command)) for title, command in costs.commands),
        warnings=costs.warnings,
        assumptions=costs.assumptions,
    )


def _headline(own: list[StepCost]) -> str:
    """Say in one sentence where drafts pay most easily and where hardest."""
    known = [(step.acceptance.value, step) for step in own if step.acceptance.value is not None]
    never = [step for step in own if step.acceptance.value is None]
    if not known:
        return "Drafts never pay here: every step costs more than all its tokens."
    low, easy = min(known, key=lambda pair: pair[0])
    high, hard = max(known, key=lambda pair: pair[0])
    best = f"Drafts pay from an acceptance of {write.share(low)} at best ({_name(easy)})"
    if never:
        return f"{best}; with {_name(never[-1])}, none is enough."
    return f"{best} and of {write.share(high)} at worst ({_name(hard)})."


def _name(step: StepCost) -> str:
    drafts = "1 draft" if step.draft_length == 1 else f"{step.draft_length} drafts"
    return f"{drafts}, batch {step.batch}"


def _facts(costs: Costs) -> tuple[tuple[str, str], ...]:
    prompts = {step.prompt_tokens for step in costs.steps if step.prompt_tokens is not None}
    memory = costs.host.get("memory_bytes")
    host = [str(costs.host[key]) for key in ("cpu", "system", "kernel") if costs.host.get(key)]
    return (
        ("Engine", f"{costs.engine} {costs.engine_version}"),
        ("Drafter", costs.method),
        ("Target", costs.target),
        ("Acceptance while timing", costs.acceptance_while_timing),
        ("Waves a start", str(costs.repeats)),
        ("Tokens of an answer", str(costs.answer_tokens)),
        ("Tokens of a prompt", _span(prompts)),
        ("Host", ", ".join(host) or MISSING),
        (
            "Cores, memory",
            f"{costs.host.get('cores')}, {write.size(memory if isinstance(memory, int) else None)}",
        ),
    )


def _span(numbers: set[int]) -> str:
    if not numbers:
        return MISSING
    low, high = min(numbers), max(numbers)
    return str(low) if low == high else f"{low} to {high}"


def _plot_acceptance(costs: Costs, own: list[StepCost]) -> Plot:
    series = _by_length(costs, own, lambda step: step.acceptance)
    scale = Scale(low=0.0, high=1.0, step=0.2, as_share=True)
    return draw_plot("Acceptance needed to break even", series, costs.batches, scale)


def _plot_ratio(costs: Costs, own: list[StepCost]) -> Plot:
    series = _by_length(costs, own, lambda step: step.ratio)
    highest = [s.ratio.value for s in own if s.ratio.value is not None]
    return draw_plot("Step with drafts / ordinary step", series, costs.batches, scale_for(highest, unity=1.0))


def _by_length(costs: Costs, own: list[StepCost], read: Callable[[StepCost], Figure]) -> list[Series]:
    """Return one curve over the batch for each draft length."""
    return [
        Series(
            label=f"K = {length}",
            readings=tuple(
                Reading(batch=s.batch, value=read(s).value, low=read(s).low, high=read(s).high)
                for s in own
                if s.draft_length == length
            ),
        )
        for length in costs.draft_lengths
    ]


def _step_groups(steps: list[StepCost]) -> tuple[tuple[str, tuple[StepRow, ...]], ...]:
    titles = dict.fromkeys(step_title(step) for step in steps)
    return tuple(
        (title, tuple(_step_row(step) for step in steps if step_title(step) == title)) for title in titles
    )


def _step_row(step: StepCost) -> StepRow:
    drafted = MISSING if step.drafted is None else f"{step.drafted:.2f}"
    return StepRow(
        batch=str(step.batch),
        step=format_figure(step.step_ns, write.ms),
        ratio=format_figure(step.ratio, write.ratio) if step.draft_length else "1",
        acceptance=acceptance_text(step) if step.draft_length else "",
        drafted=drafted if step.draft_length else "",
        sample=f"{step.waves} / {step.requests}",
    )


def _split_groups(costs: Costs, full_ms: float) -> tuple[tuple[str, tuple[SplitRow, ...]], ...]:
    return tuple(
        (
            "1 draft" if length == 1 else f"{length} drafts",
            tuple(_split_row(split, full_ms) for split in costs.splits if split.draft_length == length),
        )
        for length in costs.draft_lengths
        if any(split.draft_length == length for split in costs.splits)
    )


def _split_row(split: StepSplit, full_ms: float) -> SplitRow:
    parts = (
        ("ordinary", "ordinary step", split.ordinary_ns.value),
        ("verify", "checking", split.verification_ns.value),
        ("draft", "drafting", split.draft_ns.value),
    )
    in_ms = [
        (tone, label, None if value is None else value / write.NS_PER_MS) for tone, label, value in parts
    ]
    return SplitRow(
        batch=str(split.batch),
        parts=stacked_parts(in_ms, full_ms),
        ordinary=write.ms(split.ordinary_ns.value),
        checking=format_figure(split.verification_ns, write.ms),
        drafting=format_figure(split.draft_ns, write.ms),
        limit=limit_text(split),
    )


def _total_ns(split: StepSplit) -> float:
    parts = (split.ordinary_ns.value, split.verification_ns.value, split.draft_ns.value)
    return sum(max(value or 0.0, 0.0) for value in parts)


def _comparison_rows(costs: Costs) -> tuple[ComparisonRow, ...]:
    return tuple(
        ComparisonRow(
            segment=one.segment,
            load=one.load,
            needs=format_figure(one.needs, write.ratio),
            has=write.ratio(one.has),
            word=_PAYS[one.pays],
            tone=_TONES[one.pays],
            sentence=one.sentence,
        )
        for one in costs.comparisons
    )


def render_costs_html(costs: Costs) -> str:
    """Render the whole page; the same costs give the same bytes."""
    return render_page("costs.html.j2", "draftproof.explore.costs", page=build_page(costs))
