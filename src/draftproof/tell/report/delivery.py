"""What delivery shows of arms that disclose nothing of their mechanism: the measures, and a hint in words.

Pure view of `Results.deliveries`. Arms whose mechanism is known are left out: their own counters say more.

How the tokens of first chunks came off, in words: they stand beside every time per token.

A time per token whose first chunk nobody counts is an interval: from one token in that chunk to as many as it
may hold (docs/metrics.md).
"""

from collections.abc import Iterable

from draftproof.judge.results.run import ArmCell, Delivery, Effect, Results
from draftproof.tell.report.quantities import (
    MISSING,
    POOLED,
    arm_label,
    format_count,
    format_ms,
    format_ratio,
    format_share,
)
from draftproof.tell.report.view import (
    Column,
    Group,
    Row,
    Table,
    label_column,
    order_arms,
    order_loads,
    text_cell,
    title_of_load,
)

UNDISCLOSED = "undisclosed"
DELIVERY_COLUMNS = (
    "Answers",
    "Tokens/chunk",
    "First chunk",
    "Characters/chunk",
    "Gaps p10, p50, p90, p99 (ms)",
    "In bursts",
    "Chunks/arrival",
)


def list_undisclosed(results: Results) -> tuple[Delivery, ...]:
    """Return the deliveries of arms whose contract calls the mechanism undisclosed, by load and arm."""
    found = [one for one in results.deliveries if (one.mechanism or "").startswith(UNDISCLOSED)]
    arms, loads = order_arms(results, {one.arm for one in found}), order_loads(results)
    return tuple(sorted(found, key=lambda one: (loads.index(one.load), arms.index(one.arm))))


def delivery_sentence(results: Results) -> str:
    """Say of which arms the mechanism is undisclosed and what follows; empty where none is."""
    shown = list_undisclosed(results)
    arms = order_arms(results, {one.arm for one in shown})
    if not arms:
        return ""
    left_out = [text for one in shown if (text := _say_left_out(results, one))]
    return (
        f"Undisclosed mechanism: {', '.join(map(arm_label, arms))}. The service does not say whether or how "
        "it drafts, so only its delivery was measured; later runs can be held against this one with "
        "draftproof compare."
        + (f" Left out, since their times are: {', '.join(left_out)}." if left_out else "")
    )


def _say_left_out(results: Results, delivery: Delivery) -> str:
    """Say how many answers are not in the table; empty where all are."""
    answered = sum(
        one.outcomes.get("ok", 0)
        for one in results.arm_cells
        if (one.arm, one.load, one.segment) == (delivery.arm, delivery.load, POOLED)
    )
    if answered <= delivery.requests:
        return ""
    where = f"{arm_label(delivery.arm)} at {title_of_load(results, delivery.load)}"
    return f"{answered - delivery.requests:,} of {answered:,} answers of {where}"


def delivery_hints(results: Results) -> tuple[str, ...]:
    """Return the hint of every arm and load, each labelled as a hint."""
    return tuple(
        f"{arm_label(one.arm)} at {title_of_load(results, one.load)}: {one.hint_text}"
        for one in list_undisclosed(results)
    )


def delivery_values(delivery: Delivery) -> tuple[str, ...]:
    """Return the figures of one arm at one load in the order of `DELIVERY_COLUMNS`."""
    gaps = (delivery.gap_p10_ns, delivery.gap_p50_ns, delivery.gap_p90_ns, delivery.gap_p99_ns)
    return (
        format_count(delivery.requests),
        _mark_basis(delivery),
        format_ratio(delivery.first_chunk_tokens),
        format_ratio(delivery.characters_per_chunk),
        ", ".join(map(format_ms, gaps)),
        format_share(delivery.burst_gap_share),
        format_ratio(delivery.chunks_per_arrival),
    )


def build_delivery(results: Results) -> Table:
    """Lay out the delivery of undisclosed arms, a group per load."""
    found = list_undisclosed(results)
    groups = [
        Group(title=title_of_load(results, load), rows=_rows(one for one in found if one.load == load))
        for load in order_loads(results)
    ]
    return Table(
        caption="Delivery of arms with an undisclosed mechanism",
        columns=(label_column("Arm"), *(Column(label=label) for label in DELIVERY_COLUMNS)),
        groups=tuple(group for group in groups if group.rows),
    )


def _rows(deliveries: Iterable[Delivery]) -> tuple[Row, ...]:
    return tuple(
        Row(
            cells=(
                text_cell(arm_label(one.arm), head=True, tone=f"arm {one.arm}"),
                *(text_cell(value) for value in delivery_values(one)),
            )
        )
        for one in deliveries
    )


def _mark_basis(delivery: Delivery) -> str:
    if delivery.tokens_per_chunk is None:
        return MISSING
    by_total = " (by usage)" if delivery.counted_by == "final_usage" else ""
    return f"{format_ratio(delivery.tokens_per_chunk)}{by_total}"


METRIC = "tpot_ns"
COUNTED, ASSUMED, PARTLY = "first chunk counted", "first chunk not counted", "first chunk counted in part"
_ASSUMED_BASIS = "single_first_token_assumed"


def describe_basis(effects: Iterable[Effect]) -> str:
    """Return how the first chunks of some effects on time per token are counted, "" where nobody noted it."""
    noted = [one for one in effects if one.metric == METRIC and one.assumed_pairs is not None and one.pairs]
    assumed, pairs = sum(one.assumed_pairs or 0 for one in noted), sum(one.pairs for one in noted)
    if not noted:
        return ""
    return PARTLY if 0 < assumed < pairs else ASSUMED if assumed else COUNTED


def describe_deciding_basis(results: Results) -> str:
    """Return the basis of the candidate's effects where time per token decides, with a comma before it."""
    decides = results.metric == METRIC
    found = describe_basis(one for one in results.effects if decides and one.arm == "candidate")
    return f", {found}" if found else ""


def describe_arm_basis(cell: ArmCell) -> str:
    """Return how an arm's first chunks are counted, and up to what the mean reaches where they are not."""
    assumed, known = cell.tpot_bases.get(_ASSUMED_BASIS, 0), sum(cell.tpot_bases.values())
    if not known:
        return ""
    if not assumed:
        return COUNTED
    most = cell.tpot_most.value if cell.tpot_most else None
    reach = "" if most is None else f": mean up to {format_ms(most)}"
    return f"{PARTLY if assumed < known else ASSUMED}{reach}"
