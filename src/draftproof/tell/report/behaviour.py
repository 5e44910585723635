"""The view of application behaviour: probes by arm, checks by kind, judges, conversations. Pure."""

import msgspec

from draftproof.judge.results.behaviour import (
    CheckKind,
    ConversationSummary,
    ProbeResult,
)
from draftproof.judge.results.run import Results
from draftproof.tell.report.outcomes import CHECK_COLUMNS, check_cells
from draftproof.tell.report.quantities import MISSING, arm_label, format_share
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
STATUS_LABELS = {
    "passed": "✓ passed",
    "failed": "✕ failed",
    "unsupported": "– refused",
    "unknown": "? not known",
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
_TONES = {"failed": "bad", "unsupported": "strong", "unknown": "missing"}


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
    return BehaviourSection(
        sentence=probes_sentence(results),
        probes=_probes_table(results),
        kinds=make_panels(
            [(title_of_load(results, load), _kinds_table(results, load)) for load in order_loads(results)]
        ),
        judges=tuple(
            f"The judge {one.by} said the same of {one.agreed:,} of {one.answers:,} answers when asked twice."
            for one in results.judges
        ),
        conversations=_conversations_table(results),
        conversations_sentence=_conversations_sentence(results),
    )


def probes_sentence(results: Results) -> str:
    """Say in one sentence what the probes show of the candidate against the baseline."""
    probes = results.behaviour
    if not probes:
        return "The arms' behaviour was not probed in this run."
    by_arm = {arm: {p.probe: p.status for p in probes if p.arm == arm} for arm in ("baseline", "candidate")}
    lost = [
        PROBE_LABELS.get(name, name).lower()
        for name, status in by_arm["baseline"].items()
        if status == "passed" and by_arm["candidate"].get(name) in {"failed", "unsupported"}
    ]
    if lost:
        return f"The candidate loses what the baseline does, whatever its speed: {'; '.join(lost)}."
    kept = sum(
        status == "passed" and by_arm["candidate"].get(name) == "passed"
        for name, status in by_arm["baseline"].items()
    )
    passed = sum(status == "passed" for status in by_arm["baseline"].values())
    return f"Of {passed} probes that the baseline passes the candidate passes {kept}, and it fails none."


def _probes_table(results: Results) -> Table:
    arms = order_arms(results, {one.arm for one in results.behaviour})
    by_place = {(one.probe, one.arm): one for one in results.behaviour}
    rows = tuple(
        Row(
            cells=(
                text_cell(PROBE_LABELS.get(probe, probe), head=True),
                *(_probe_cell(by_place.get((probe, arm))) for arm in arms),
            ),
            tone="",
        )
        for probe in dict.fromkeys(one.probe for one in results.behaviour)
    )
    return Table(
        caption="Application behaviour by probe and arm",
        columns=(label_column("Probe"), *(label_column(arm_label(arm)) for arm in arms)),
        groups=(Group(title="", rows=rows),) if rows else (),
    )


def _probe_cell(one: ProbeResult | None) -> TableCell:
    if one is None:
        return TableCell(text=MISSING, tone="missing")
    tone = f"{_TONES.get(one.status, '')} prose".strip()
    return text_cell(STATUS_LABELS.get(one.status, one.status), tone=tone, detail=one.detail)


def _kinds_table(results: Results, load: str) -> Table:
    here = [one for one in results.check_kinds if one.load == load]
    arms = order_arms(results, {one.arm for one in here})
    kinds = [*KIND_LABELS, *sorted({one.kind for one in here} - set(KIND_LABELS))]
    groups = [Group(title=KIND_LABELS.get(kind, kind), rows=_kind_rows(here, kind, arms)) for kind in kinds]
    return Table(
        caption=f"Checks by kind, {title_of_load(results, load)}",
        columns=CHECK_COLUMNS,
        groups=tuple(group for group in groups if group.rows),
    )


def _kind_rows(here: list[CheckKind], kind: str, arms: tuple[str, ...]) -> tuple[Row, ...]:
    own = sorted((one for one in here if one.kind == kind), key=lambda one: arms.index(one.arm))
    return tuple(Row(cells=check_cells(one.arm, one)) for one in own)


def _conversations_sentence(results: Results) -> str:
    if not results.conversations:
        return "Conversations were not counted in this run."
    if not any(one.multi_turn for one in results.conversations):
        return "The workload has no conversation of several turns."
    return (
        "A conversation is completed when every turn was answered, and good when every turn was also on time "
        "and passed its checks."
    )


def _conversations_table(results: Results) -> Table:
    notes = Footnotes()
    shown = [one for one in results.conversations if one.multi_turn]
    arms = order_arms(results, {one.arm for one in shown})
    groups = [
        Group(
            title=title_of_load(results, load),
            rows=tuple(
                _conversation_row(one, notes)
                for one in sorted(shown, key=lambda one: arms.index(one.arm))
                if one.load == load
            ),
        )
        for load in order_loads(results)
    ]
    return Table(
        caption="Conversations",
        columns=(
            label_column("Arm"),
            Column(label="Conversations"),
            Column(label="Of several turns"),
            Column(label="Requests"),
            Column(label="Completed"),
            Column(label="Good"),
            Column(label="Not judged"),
        ),
        groups=tuple(group for group in groups if group.rows),
        notes=notes.notes(),
    )


def _conversation_row(one: ConversationSummary, notes: Footnotes) -> Row:
    return Row(
        cells=(
            text_cell(arm_label(one.arm), head=True, tone=f"arm {one.arm}"),
            count_cell(one.conversations),
            count_cell(one.multi_turn),
            count_cell(one.requests),
            figure_cell(one.completed_share, format_share, notes),
            figure_cell(one.good_share, format_share, notes),
            count_cell(one.unjudged, tone="" if one.unjudged else "zero"),
        )
    )
