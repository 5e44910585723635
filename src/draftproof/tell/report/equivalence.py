"""Whether each arm's outputs are the baseline's: the statements, where greedy outputs part, and the tests.

Pure view of `Results.equivalence` and `Results.agreements`.
"""

from collections.abc import Sequence

import msgspec

from draftproof.judge.decide.equivalence.wording import STATISTIC_WORDS
from draftproof.judge.results.equivalence import ALL_LOADS, EquivalenceTest, OutputEquivalence
from draftproof.judge.results.run import Agreement, Results
from draftproof.tell.report.outcomes import agreement_sentence
from draftproof.tell.report.quantities import (
    MISSING,
    arm_label,
    format_points,
    format_share,
    format_significant,
)
from draftproof.tell.report.services import PLOT_HEIGHT, PLOT_WIDTH, Plot, PlotLine
from draftproof.tell.report.view import (
    Column,
    Footnotes,
    Group,
    Panel,
    Row,
    Table,
    TableCell,
    count_cell,
    figure_cell,
    label_column,
    make_panels,
    order_arms,
    order_loads,
    text_cell,
    title_of_load,
)

ABSENT = "These results hold no test of equivalence: compute them again with this version."
_SCOPES = {"greedy": "Greedy answers", "sampled": "Sampled answers", "length": "All answers"}
_COUNTED = frozenset({"output_tokens"})
_SHARES = frozenset({"differing_prompts", "cut_share", "distinct_share", "repeated_share", "finish_reason"})


class EquivalenceSection(msgspec.Struct, frozen=True, kw_only=True):
    """The section: its sentence, the statements, the plots of where outputs part, and the tests."""

    sentence: str
    statements: Table
    plots: tuple[Plot, ...]
    arms: tuple[tuple[str, str], ...]
    unplaced: str
    tests: tuple[Panel, ...]


def build_equivalence(results: Results) -> EquivalenceSection:
    """Lay the section out; of results without tests only what the agreements tell."""
    plots = tuple(plot for load in order_loads(results) if (plot := _plot(results, load)) is not None)
    drawn = {line.tone for plot in plots for line in plot.lines}
    return EquivalenceSection(
        sentence=equivalence_sentence(results),
        statements=_statements(results),
        plots=plots,
        arms=tuple((arm, arm_label(arm)) for arm in order_arms(results, drawn)),
        unplaced=_unplaced(results.agreements),
        tests=make_panels(
            [(_title(results, load), _tests(results, load)) for load in (*order_loads(results), ALL_LOADS)],
            first_open=False,
        ),
    )


def equivalence_sentence(results: Results) -> str:
    """Say what the candidate's outputs are over all loads, beside the null's."""
    over_all = {row.arm: row for row in results.equivalence if row.load == ALL_LOADS}
    if "candidate" not in over_all:
        return f"{agreement_sentence(results)} {ABSENT}" if not over_all else agreement_sentence(results)
    row, null = over_all["candidate"], over_all.get("baseline_null")
    said = f"Over all loads, the candidate's outputs against the baseline's: {row.phrase}."
    if row.is_contradicted:
        said += " The contract calls them guaranteed by method, and the outputs contradict it."
    return f"{said} Two equal arms: {null.phrase}." if null else f"{said} No null arm was run."


def _statements(results: Results) -> Table:
    groups = []
    for load in (ALL_LOADS, *order_loads(results)):
        rows = _rows_at(results, load)
        if rows:
            groups.append(Group(title=_title(results, load), rows=tuple(_statement_row(row) for row in rows)))
    return Table(
        caption="Equivalence of outputs with the baseline's",
        columns=(
            label_column("Arm"),
            Column(label="Statement", numeric=False),
            Column(label="By the contract", numeric=False),
            Column(label="Why", numeric=False),
        ),
        groups=tuple(groups),
    )


def _statement_row(row: OutputEquivalence) -> Row:
    tone = "bad" if row.is_contradicted else "strong" if row.status == "differs" else ""
    return Row(
        cells=(
            text_cell(arm_label(row.arm), head=True, tone=f"arm {row.arm}"),
            text_cell(row.phrase, tone=f"prose {tone}".strip()),
            text_cell(row.contract or "not stated"),
            text_cell(" ".join(row.why), tone="prose"),
        )
    )


def _rows_at(results: Results, load: str) -> list[OutputEquivalence]:
    here = [row for row in results.equivalence if row.load == load]
    arms = order_arms(results, {row.arm for row in here})
    return sorted(here, key=lambda row: arms.index(row.arm))


def _title(results: Results, load: str) -> str:
    return "All loads" if load == ALL_LOADS else title_of_load(results, load)


def _tests(results: Results, load: str) -> Table:
    notes = Footnotes()
    groups = tuple(
        Group(title=arm_label(row.arm), rows=tuple(_test_row(test, notes) for test in row.tests))
        for row in _rows_at(results, load)
        if row.tests
    )
    return Table(
        caption=f"Tests of equivalence, {_title(results, load)}",
        columns=(
            label_column("Answers"),
            label_column("Statistic"),
            Column(label="Arm"),
            Column(label="Baseline (null for greedy)"),
            Column(label="Difference"),
            Column(label="Units"),
            Column(label="p"),
            Column(label="p, corrected"),
            Column(label="Reading", numeric=False),
        ),
        groups=groups,
        notes=notes.notes(),
    )


def _test_row(test: EquivalenceTest, notes: Footnotes) -> Row:
    return Row(
        cells=(
            text_cell(_SCOPES[test.scope], head=True),
            text_cell(STATISTIC_WORDS.get(test.statistic, test.statistic)),
            _value_cell(test.statistic, test.arm_value),
            _value_cell(test.statistic, test.versus_value),
            figure_cell(
                test.difference,
                format_significant if test.statistic in _COUNTED else format_points,
                notes,
            ),
            count_cell(test.units),
            _p_cell(test.p),
            _p_cell(test.adjusted_p),
            _reading_cell(test),
        )
    )


def _value_cell(statistic: str, value: float | None) -> TableCell:
    if value is None:
        return TableCell(text=MISSING, tone="missing")
    return TableCell(text=format_share(value) if statistic in _SHARES else format_significant(value))


def _p_cell(value: float | None) -> TableCell:
    if value is None:
        return TableCell(text=MISSING, tone="missing")
    return TableCell(text=f"{value:.3f}" if value >= 0.001 else "< 0.001")


def _reading_cell(test: EquivalenceTest) -> TableCell:
    if test.differs is None:
        return TableCell(text="cannot tell", tone="missing")
    return TableCell(
        text="differs" if test.differs else "no difference shown", tone="bad" if test.differs else ""
    )


def _plot(results: Results, load: str) -> Plot | None:
    """Draw, by token, the share of greedy outputs that are still the baseline's; None where none part."""
    here = [row for row in results.agreements if row.load == load and row.versus == "baseline"]
    placed = [row for row in here if row.compared and row.first_divergence_tokens]
    if not placed:
        return None
    longest = max(max(row.first_divergence_tokens) for row in placed) + 1
    shown = order_arms(results, {row.arm for row in here if row.compared})
    lines = tuple(_line(row, longest) for arm in shown for row in here if row.arm == arm)
    return Plot(title=title_of_load(results, load), highest="100 %", length=f"token {longest:,}", lines=lines)


def _line(row: Agreement, longest: int) -> PlotLine:
    """Return a falling staircase: x the token, y the share of outputs equal up to there, from 0 to 1."""
    corners: list[tuple[float, float]] = [(0, 1.0)]
    for parted, token in enumerate(sorted(row.first_divergence_tokens), start=1):
        corners += [(token, corners[-1][1]), (token, 1 - parted / row.compared)]
    corners.append((longest, corners[-1][1]))
    return PlotLine(tone=row.arm, arm=arm_label(row.arm), points=_points(corners, longest))


def _points(corners: Sequence[tuple[float, float]], longest: int) -> str:
    return " ".join(
        f"{PLOT_WIDTH * token / longest:.2f},{PLOT_HEIGHT - (PLOT_HEIGHT - 2) * share - 1:.2f}"
        for token, share in corners
    )


def _unplaced(agreements: Sequence[Agreement]) -> str:
    """Say how many outputs differ whose place is not known, for want of token ids."""
    count = sum(row.compared - row.identical - len(row.first_divergence_tokens) for row in agreements)
    if count <= 0:
        return ""
    outputs = "output" if count == 1 else "outputs"
    return f"{count:,} differing {outputs} cannot be placed: the service states no token ids."
