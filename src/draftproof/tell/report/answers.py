"""The answers: are they the baseline's, do they pass their checks, what became of requests, how arms behave.

Pure view of `Results.equivalence`, `agreements`, `differences`, `behaviour`, `check_kinds`, `conversations`,
and of the checks and outcomes of arm cells.
"""

from statistics import median_low
from typing import Any

import msgspec

from draftproof.judge.decide.equivalence.wording import STATISTIC_WORDS
from draftproof.judge.observe.pairs import DECISIVE
from draftproof.judge.results.decide import (
    ALL_LOADS,
    ConversationSummary,
    EquivalenceTest,
    OutputEquivalence,
    ProbeResult,
)
from draftproof.judge.results.run import Agreement, ArmCell, Difference, Results
from draftproof.tell.report import kit, words, write
from draftproof.tell.report.charts import Plot, PlotLine, plot_points
from draftproof.tell.report.kit import Column, Panel, Table, TableCell

ABSENT = "These results hold no test of equivalence: compute them again with this version."
_SCOPES = {"greedy": "Greedy answers", "sampled": "Sampled answers", "length": "All answers"}
_COUNTED = frozenset({"output_tokens"})
_SHARES = frozenset({"differing_prompts", "cut_share", "distinct_share", "repeated_share", "finish_reason"})
_DIVERGENCES_SHOWN = 6


class EquivalenceSection(msgspec.Struct, frozen=True, kw_only=True):
    """The section: its sentence, the statements, the plots of where outputs part, and the tests."""

    sentence: str
    statements: Table
    plots: tuple[Plot, ...]
    arms: tuple[str, ...]
    unplaced: str
    tests: tuple[Panel, ...]


def build_equivalence(results: Results) -> EquivalenceSection:
    """Lay the section out; of results without tests only what the agreements tell."""
    plots = tuple(plot for load in kit.order_loads(results) if (plot := _plot(results, load)) is not None)
    loads = (*kit.order_loads(results), ALL_LOADS)
    return EquivalenceSection(
        sentence=equivalence_sentence(results),
        statements=_statements(results),
        plots=plots,
        arms=kit.order_arms(results, {line.arm for plot in plots for line in plot.lines}),
        unplaced=_unplaced(results),
        tests=kit.panels(results, lambda load: _tests(results, load), loads=loads, first_open=False),
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
    return f"{said} Two equal services: {null.phrase}." if null else f"{said} No null arm was run."


def _statements(results: Results) -> Table:
    columns: tuple[Column[OutputEquivalence], ...] = (
        kit.ARM,
        kit.left("Statement", _statement),
        kit.left("By the contract", lambda one: one.contract or "not stated"),
        kit.left("Why", lambda one: kit.text(_why(results, one), "prose")),
    )
    loads = (ALL_LOADS, *kit.order_loads(results))
    rows = [(kit.load_title(results, load), _rows_at(results, load)) for load in loads]
    return kit.table("Equivalence of outputs with the baseline's", columns, rows)


def _why(results: Results, row: OutputEquivalence) -> str:
    """Return why, at a load only where it is not what holds over all loads."""
    over_all = [one for one in results.equivalence if (one.arm, one.load) == (row.arm, ALL_LOADS)]
    if row.load != ALL_LOADS and any(one.status == row.status for one in over_all):
        return "As over all loads."
    return " ".join(row.why)


def _statement(row: OutputEquivalence) -> TableCell:
    tone = "bad" if row.is_contradicted else "strong" if row.status == "differs" else ""
    return kit.text(row.phrase, f"prose {tone}".strip())


def _rows_at(results: Results, load: str) -> list[OutputEquivalence]:
    return kit.in_arm_order(results, (row for row in results.equivalence if row.load == load))


def _write_statistic(test: EquivalenceTest, value: float | None) -> TableCell:
    return kit.missing(write.share(value) if test.statistic in _SHARES else write.number(value))


def _reading(test: EquivalenceTest) -> TableCell:
    if test.differs is None:
        return TableCell(text="cannot tell", tone="missing")
    return kit.text("differs", "bad") if test.differs else kit.text("no difference shown")


_TESTS: tuple[Column[EquivalenceTest], ...] = (
    kit.left("Answers", lambda one: kit.head(_SCOPES[one.scope])),
    kit.left("Statistic", lambda one: STATISTIC_WORDS.get(one.statistic, one.statistic)),
    kit.right("Arm", lambda one: _write_statistic(one, one.arm_value)),
    kit.right("Baseline (null for greedy)", lambda one: _write_statistic(one, one.versus_value)),
    kit.right(
        "Difference",
        lambda one: kit.figure(one.difference, write.number if one.statistic in _COUNTED else write.points),
    ),
    kit.right("Units", lambda one: write.count(one.units)),
    kit.right("p", lambda one: kit.missing(write.probability(one.p, "< 0.001"))),
    kit.right("p, corrected", lambda one: kit.missing(write.probability(one.adjusted_p, "< 0.001"))),
    kit.left("Reading", _reading),
)


def _tests(results: Results, load: str) -> Table:
    rows = [
        (words.arm(row.arm), [one for one in row.tests if _is_shown(row, one)])
        for row in _rows_at(results, load)
    ]
    return kit.table(f"Tests of equivalence, {kit.load_title(results, load)}", _TESTS, rows)


def _is_shown(row: OutputEquivalence, test: EquivalenceTest) -> bool:
    """Whether a test is shown: the candidate's and the null's over all loads, and any that differs."""
    return bool(test.differs) or (row.load == ALL_LOADS and row.arm in ("candidate", "baseline_null"))


def _plot(results: Results, load: str) -> Plot | None:
    """Draw, by token, the share of greedy outputs that are still the baseline's; None where none part."""
    here = [row for row in results.agreements if row.load == load and row.versus == "baseline"]
    placed = [row for row in here if row.compared and row.first_divergence_tokens]
    if not placed:
        return None
    longest = max(max(row.first_divergence_tokens) for row in placed) + 1
    shown = kit.in_arm_order(results, (row for row in here if row.compared))
    return Plot(
        title=kit.load_title(results, load),
        highest="100 %",
        length=f"token {longest:,}",
        lines=tuple(_line(row, longest) for row in shown),
    )


def _line(row: Agreement, longest: int) -> PlotLine:
    """Return a falling staircase: x the token, y the share of outputs equal up to there, from 0 to 1."""
    corners: list[tuple[float, float]] = [(0, 1.0)]
    for parted, token in enumerate(sorted(row.first_divergence_tokens), start=1):
        corners += [(token, corners[-1][1]), (token, 1 - parted / row.compared)]
    corners.append((longest, corners[-1][1]))
    return PlotLine(arm=row.arm, points=plot_points(corners, longest, 1.0))


def _unplaced(results: Results) -> str:
    """Say how many outputs differ whose place is not known, for want of token ids."""
    rows = results.agreements
    count = sum(row.compared - row.identical - len(row.first_divergence_tokens) for row in rows)
    if count <= 0:
        return ""
    outputs = "output" if count == 1 else "outputs"
    return f"{count:,} differing {outputs} cannot be placed: the service states no token ids."


_AGREEMENT: tuple[Column[Agreement], ...] = (
    kit.left(
        "Arms",
        lambda one: kit.head(
            f"{words.arm(one.arm)} vs {words.arm(one.versus).lower()}", tone=f"arm {one.arm}"
        ),
    ),
    kit.right("Compared", lambda one: write.count(one.compared)),
    kit.right("Identical", lambda one: write.count(one.identical)),
    kit.right("Share identical", lambda one: kit.figure(one.identical_share, write.share)),
    kit.left("First difference, by token", lambda one: _divergences(one.first_divergence_tokens)),
)


def build_agreement(results: Results) -> Table:
    """How often two arms gave the same greedy output, and where they first part."""
    rows = kit.by_load(results, results.agreements)
    return kit.table("Greedy outputs compared with the baseline's", _AGREEMENT, rows)


def agreement_sentence(results: Results) -> str:
    """Compare the candidate's agreement with the off-off null's, pooled over the loads."""
    null, candidate = _pooled(results, "baseline_null"), _pooled(results, "candidate")
    if candidate is None:
        return "No greedy outputs were compared between candidate and baseline."
    said = f"The candidate gave the baseline's greedy output in {candidate[0]:,} of {candidate[1]:,} cases"
    if null is None:
        return f"{said}; without an off-off null, the service's own variation is not known."
    return f"{said}; the baseline repeated itself in {null[0]:,} of {null[1]:,}."


def _pooled(results: Results, arm: str) -> tuple[int, int] | None:
    rows = [a for a in results.agreements if a.arm == arm and a.versus == "baseline"]
    compared = sum(a.compared for a in rows)
    return (sum(a.identical for a in rows), compared) if compared else None


def _divergences(tokens: tuple[int, ...]) -> str:
    ordered = sorted(tokens)
    if len(ordered) <= _DIVERGENCES_SHOWN:
        return ", ".join(f"{t:,}" for t in ordered)
    return f"{ordered[0]:,} to {ordered[-1]:,}, median {median_low(ordered):,}"


def _check_columns(read: str) -> tuple[Column[Any], ...]:
    """Return what every table of checks shows of an arm's counts; a share of nothing is missing.

    `read` names where a row has its counts, "" where it is them.
    """

    def counts(one: Any) -> Any:
        return getattr(one, read) if read else one

    def share(one: Any) -> str:
        return write.share(counts(one).passed / counts(one).judged if counts(one).judged else None)

    def counted(label: str, name: str, some: str, none: str) -> Column[Any]:
        def cell(one: Any) -> TableCell:
            count = getattr(counts(one), name)
            return kit.text(write.count(count), some if count else none)

        return kit.right(label, cell)

    return (
        kit.ARM,
        counted("Judged", "judged", "", ""),
        counted("Passed", "passed", "", ""),
        kit.right("Share passed", share),
        counted("Critical failures", "critical_failed", "bad", "zero"),
        counted("Not judged", "unjudged", "", "zero"),
    )


_CHECKS = _check_columns("checks")
_KINDS = _check_columns("")


def build_checks(results: Results) -> tuple[Panel, ...]:
    """Checks per segment and arm, one table per load."""
    fallbacks: Column[ArmCell] = kit.right(
        "Fallbacks to ordinary decoding", lambda one: write.count(one.fallbacks)
    )
    return kit.panels(
        results,
        lambda load: kit.segment_table(
            results,
            load,
            "Checks of answers",
            (*_CHECKS, fallbacks),
            lambda cell: cell.checks.critical_failed > 0,
        ),
    )


def checks_sentence(results: Results) -> str:
    """Passed checks and critical failures of each arm over all loads and segments."""
    said = []
    for arm in kit.order_arms(results, {cell.arm for cell in results.arm_cells}):
        checks = [c.checks for c in _pooled_cells(results.arm_cells, arm)]
        judged, passed = sum(c.judged for c in checks), sum(c.passed for c in checks)
        critical = sum(c.critical_failed for c in checks)
        said.append(f"{words.arm(arm)}: {passed:,} of {judged:,} passed, {critical:,} critical failed")
    return "; ".join(said) + "." if said else "No answer was judged."


def _pooled_cells(cells: tuple[ArmCell, ...], arm: str) -> list[ArmCell]:
    """The arm's pooled cells, or all of its cells where none is pooled."""
    own = [cell for cell in cells if cell.arm == arm]
    return [cell for cell in own if cell.segment == words.POOLED] or own


def build_outcomes(results: Results) -> Table:
    """Every request of every arm and load by its outcome, segments pooled."""
    known = set(words.OUTCOMES)
    kinds = [*words.OUTCOMES, *sorted({k for c in results.arm_cells for k in c.outcomes} - known)]
    arms = kit.order_arms(results, {cell.arm for cell in results.arm_cells})

    def count(row: tuple[str, list[ArmCell]], kind: str) -> TableCell:
        counted = sum(cell.outcomes.get(kind, 0) for cell in row[1])
        return kit.text(write.count(counted), "" if kind == "ok" else "bad" if counted else "zero")

    def outcome(kind: str) -> Column[tuple[str, list[ArmCell]]]:
        return kit.right(words.OUTCOME_LABELS.get(kind, kind), lambda row: count(row, kind))

    columns: tuple[Column[tuple[str, list[ArmCell]]], ...] = (
        kit.left("Arm", lambda row: kit.arm_head(row[0])),
        kit.right("Attempted", lambda row: write.count(sum(cell.attempted for cell in row[1]))),
        *map(outcome, kinds),
    )
    groups = []
    for load in kit.order_loads(results):
        here = tuple(cell for cell in results.arm_cells if cell.load == load)
        rows = [(arm, _pooled_cells(here, arm)) for arm in arms]
        groups.append((kit.load_title(results, load), rows))
    return kit.table("Requests by outcome", columns, groups)


_DIFFERENCES: tuple[Column[Difference], ...] = (
    kit.left("Quantity", lambda one: kit.head(words.QUANTITIES.get(one.quantity, one.quantity))),
    kit.left("Segment", lambda one: words.segment(one.segment)),
    kit.left("Arms", lambda one: f"{words.arm(one.arm)} − {words.arm(one.versus).lower()}"),
    kit.right("Difference", lambda one: kit.figure(one.difference, write.points)),
)


def build_differences(results: Results) -> Table:
    """Differences of candidate and null over all tasks, and any whose interval leaves 0 out."""
    segments = kit.order_segments(results, {d.segment for d in results.differences})
    against = (one for one in results.differences if one.versus == "baseline")
    shown = (
        one for one in against if _is_apart(one) or (one.segment == words.POOLED and one.arm != "alternative")
    )
    rows = kit.in_arm_order(results, shown)
    ordered = sorted(rows, key=lambda one: (one.quantity, segments.index(one.segment)))
    return kit.table(
        "Differences of shares, in percentage points",
        _DIFFERENCES,
        kit.by_load(results, ordered, ordered=True),
    )


def _is_apart(one: Difference) -> bool:
    low, high = one.difference.low, one.difference.high
    return low is not None and high is not None and not low <= 0 <= high


PROBE_LABELS = {
    "streaming_shape": "Shape of the stream",
    "max_tokens": "Token limit kept",
    "stop_string": "Stop string ends the answer",
    "tool_call": "Tool call, valid arguments",
    "json_schema": "Answer valid under a JSON schema",
    "seed_repeats": "Same seed, same answer",
    "unicode": "Characters whole across chunks",
    "cancel_stops_work": "Cancelled: work stops",
    "cancel_frees_slots": "Cancelled: places are free",
}
# What a probe's status reads as, and how it looks.
_PROBE_STATUSES = {
    "passed": ("✓ passed", "prose"),
    "failed": ("✕ failed", "bad prose"),
    "unsupported": ("– refused", "strong prose"),
    "unknown": ("? not known", "missing prose"),
}
KIND_LABELS = {
    "exact": "Exact text",
    "contains": "Contains",
    "numeric": "Number",
    "regex": "Pattern",
    "json_schema": "JSON schema",
    "length": "Length",
    "tool_call": "Tool call and arguments",
    "finish_reason": "Finish reason",
    "stop": "Stop string",
    "python": "Function",
    "judge": "Judge model",
}


class BehaviourSection(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of the section; a table without groups has nothing to show."""

    sentence: str
    probes: Table
    kinds: tuple[Panel, ...]
    judges: tuple[str, ...]
    conversations: Table
    conversations_sentence: str


def build_behaviour(results: Results) -> BehaviourSection:
    """Lay out what is known of the run's behaviour beside speed."""
    talks = (one for one in results.conversations if one.multi_turn)
    return BehaviourSection(
        sentence=probes_sentence(results),
        probes=_probes_table(results),
        kinds=kit.panels(results, lambda load: _kinds_table(results, load)),
        judges=tuple(
            f"The judge {one.by} said the same of {one.agreed:,} of {one.answers:,} answers when asked twice."
            for one in results.judges
        ),
        conversations=kit.table("Conversations", _CONVERSATIONS, kit.by_load(results, talks)),
        conversations_sentence=_conversations_sentence(results),
    )


def probes_sentence(results: Results) -> str:
    """Say in one sentence what the probes show of the candidate against the baseline."""
    probes = results.behaviour
    if not probes:
        return "The arms' behaviour was not probed in this run."
    by_arm = {arm: {p.probe: p.status for p in probes if p.arm == arm} for arm in ("baseline", "candidate")}
    passed = [name for name, status in by_arm["baseline"].items() if status == "passed"]
    lost = [
        PROBE_LABELS.get(name, name).lower()
        for name in passed
        if by_arm["candidate"].get(name) in {"failed", "unsupported"}
    ]
    if lost:
        return f"The candidate loses what the baseline does, whatever its speed: {'; '.join(lost)}."
    kept = sum(by_arm["candidate"].get(name) == "passed" for name in passed)
    return f"Of {len(passed)} probes that the baseline passes the candidate passes {kept}, and it fails none."


def _probes_table(results: Results) -> Table:
    arms = kit.order_arms(results, {one.arm for one in results.behaviour})
    by_place = {(one.probe, one.arm): one for one in results.behaviour}

    def column(arm: str) -> Column[str]:
        return kit.left(words.arm(arm), lambda probe: _probe_cell(by_place.get((probe, arm))))

    names: Column[str] = kit.left("Probe", lambda probe: kit.head(PROBE_LABELS.get(probe, probe)))
    probes = dict.fromkeys(one.probe for one in results.behaviour)
    columns = (names, *map(column, arms))
    return kit.table("Application behaviour by probe and arm", columns, [("", probes)])


def _probe_cell(one: ProbeResult | None) -> TableCell:
    if one is None:
        return kit.missing(write.MISSING)
    return kit.text(*_PROBE_STATUSES[one.status], detail=one.detail)


def _kinds_table(results: Results, load: str) -> Table:
    own = (one for one in results.check_kinds if one.load == load and one.arm in DECISIVE)
    here = kit.in_arm_order(results, own)
    kinds = [*KIND_LABELS, *sorted({one.kind for one in here} - set(KIND_LABELS))]
    groups = [(KIND_LABELS.get(kind, kind), [one for one in here if one.kind == kind]) for kind in kinds]
    return kit.table(f"Checks by kind, {kit.load_title(results, load)}", _KINDS, groups)


def _conversations_sentence(results: Results) -> str:
    if not results.conversations:
        return "Conversations were not counted in this run."
    if not any(one.multi_turn for one in results.conversations):
        return "The workload has no conversation of several turns."
    return (
        "A conversation is completed when every turn was answered, and good when every turn was also on time "
        "and passed its checks."
    )


_CONVERSATIONS: tuple[Column[ConversationSummary], ...] = (
    kit.ARM,
    kit.right("Conversations", lambda one: write.count(one.conversations)),
    kit.right("Of several turns", lambda one: write.count(one.multi_turn)),
    kit.right("Requests", lambda one: write.count(one.requests)),
    kit.right("Completed", lambda one: kit.figure(one.completed_share, write.share)),
    kit.right("Good", lambda one: kit.figure(one.good_share, write.share)),
    kit.right("Not judged", lambda one: kit.text(write.count(one.unjudged), "" if one.unjudged else "zero")),
)
