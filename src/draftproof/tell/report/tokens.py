"""What tokens cost: acceptance, committed progress, delivery of undisclosed services, and other estimators.

Pure view of `ArmCell.acceptance`, `ArmCell.progress`, `Results.deliveries` and `Results.estimators`.

A time per token whose first chunk nobody counts is an interval: from one token in that chunk to as many as it
may hold (docs/metrics.md). How the tokens of first chunks came off stands in words beside it.
"""

from collections.abc import Callable, Iterable, Sequence

import msgspec

from draftproof.judge.metrics.acceptance import AcceptanceSummary, ProgressSummary
from draftproof.judge.results.run import ArmCell, Delivery, Effect, EstimatorRow, Results
from draftproof.tell.report import kit, words, write
from draftproof.tell.report.charts import Axis, Part, Tick, linear_ticks, ratio_axis, stacked_parts
from draftproof.tell.report.kit import ChartPanel, Column, Group, Panel, Table, TableCell

_POSITION = "Accepted at draft position (%), given that all before it were"


def is_drafting(cell: ArmCell) -> bool:
    """Whether the arm drafted here; the candidate always counts, so that a silent drafter is seen."""
    return cell.acceptance is not None and (cell.arm == "candidate" or cell.acceptance.num_spec_steps > 0)


def build_acceptance(results: Results) -> tuple[Panel, ...]:
    """One table per load that has an arm with drafts."""
    return kit.panels(results, lambda load: _acceptance_table(results, load))


def acceptance_sentence(results: Results) -> str:
    """How the two lengths compare over the run, in one sentence."""
    found = [
        cell.acceptance
        for cell in results.arm_cells
        if cell.acceptance and cell.arm == "candidate" and cell.segment != words.POOLED
    ]
    pairs = ((one.mean_acceptance_length, one.tokens_per_decode_step) for one in found)
    both = [(length, step) for length, step in pairs if length is not None and step is not None]
    if not both:
        return "No arm reported drafts and decode steps together, so the two lengths cannot be compared."
    lengths, steps = zip(*both, strict=True)
    return (
        f"Counted only where a draft was made, a step gave {_range(lengths)} tokens; "
        f"counted over all decode steps, {_range(steps)}. The second one bounds the speed-up."
    )


def _range(values: Sequence[float]) -> str:
    low, high = write.ratio(min(values)), write.ratio(max(values))
    return low if low == high else f"{low} to {high}"


def _acceptance_table(results: Results, load: str) -> Table:
    drafted = [
        cell for _, cells in kit.cells_by_segment(results, load) for cell in cells if is_drafting(cell)
    ]
    positions = max((len(_accepted(cell).position_acceptance) for cell in drafted), default=0)
    columns: tuple[Column[ArmCell], ...] = (
        kit.left(
            words.segment_heading(results.segments),
            lambda cell: kit.head(words.segment(cell.segment), "strong"),
        ),
        kit.left("Arm", lambda cell: kit.text(words.arm(cell.arm), f"arm {cell.arm}")),
        kit.right("Verification steps", lambda cell: write.count(_accepted(cell).num_spec_steps)),
        kit.right("Decode steps", lambda cell: write.count(_accepted(cell).decode_steps)),
        kit.right("Draft acceptance rate", lambda cell: write.share(_accepted(cell).draft_acceptance_rate)),
        kit.right(
            "Mean acceptance length (conditional)",
            lambda cell: write.ratio(_accepted(cell).mean_acceptance_length),
            "Tokens",
        ),
        kit.right(
            "Per decode step (unconditional)",
            lambda cell: kit.text(write.ratio(_accepted(cell).tokens_per_decode_step), "strong"),
            "Tokens",
        ),
        *(kit.right(str(place + 1), _position(place), _POSITION) for place in range(positions)),
    )
    return kit.table(f"Acceptance, {kit.load_title(results, load)}", columns, [("", drafted)])


def _accepted(cell: ArmCell) -> AcceptanceSummary:
    assert cell.acceptance is not None  # noqa: S101 - of cells that draft, see `is_drafting`
    return cell.acceptance


def _position(place: int) -> Callable[[ArmCell], TableCell]:
    def cell_of(cell: ArmCell) -> TableCell:
        shares = _accepted(cell).position_acceptance
        share = shares[place] if place < len(shares) else None
        if share is None:
            return kit.missing(write.MISSING)
        return TableCell(text=f"{share * 100:.0f}", heat=round(share * 100))

    return cell_of


PARTS = (
    ("draft", "Drafting"),
    ("verify", "Verification or ordinary decoding"),
    ("sample", "Sampling"),
    ("schedule", "Scheduling"),
)


class ProgressRow(msgspec.Struct, frozen=True, kw_only=True):
    """One arm: its bar and what it shows; `split` are the parts in ns in the order of `PARTS`."""

    arm: str
    parts: tuple[Part, ...]
    progress: ProgressSummary
    split: tuple[float | None, ...]


class ProgressChart(msgspec.Struct, frozen=True, kw_only=True):
    """All bars with their common axis in ms and the legend as (tone, label)."""

    ticks: tuple[Tick, ...]
    legend: tuple[tuple[str, str], ...]
    panels: tuple[ChartPanel[ProgressRow], ...]


def build_progress(results: Results) -> ProgressChart:
    """Stack the time per committed token of every arm cell that has it."""
    measured = [cell.progress for cell in results.arm_cells if _has_progress(cell) and cell.progress]
    full_ns = max(map(_total_ns, measured), default=0.0) * 1.04
    panels = tuple(
        ChartPanel(
            title=kit.load_title(results, load),
            opened=kit.panels_are_open([len(measured)]) or index == 0,
            groups=groups,
        )
        for index, load in enumerate(kit.order_loads(results))
        if (groups := _progress_groups(results, load, full_ns))
    )
    return ProgressChart(ticks=linear_ticks(full_ns / write.NS_PER_MS), legend=PARTS, panels=panels)


def _has_progress(cell: ArmCell) -> bool:
    return cell.progress is not None and cell.progress.time_per_committed_token_ns is not None


def _total_ns(progress: ProgressSummary) -> float:
    return max(progress.time_per_committed_token_ns or 0.0, sum(v or 0.0 for v in _split_ns(progress)))


def _split_ns(progress: ProgressSummary) -> tuple[float | None, ...]:
    return (progress.draft_ns, progress.verify_ns, progress.sample_ns, progress.schedule_ns)


def _progress_groups(results: Results, load: str, full_ns: float) -> tuple[Group[ProgressRow], ...]:
    kept = kit.choose_segments(results, load, kit.candidate_ratios(results, load))
    groups, present = [], 0
    for segment, cells in kit.cells_by_segment(results, load):
        measured = [(cell.arm, cell.progress) for cell in cells if cell.progress and _has_progress(cell)]
        present += bool(measured)
        if measured and (kept is None or segment in kept):
            rows = tuple(_progress_row(arm, progress, full_ns) for arm, progress in measured)
            groups.append(Group(title=words.segment(segment), rows=rows))
    left_out = kit.describe_left_out(present, len(groups))
    return (*groups, *((Group[ProgressRow](title=left_out, rows=()),) if left_out else ()))


def _progress_row(arm: str, progress: ProgressSummary, full_ns: float) -> ProgressRow:
    split = _split_ns(progress)
    triples = [
        (tone, f"{label} {write.ms(value)} ms", value)
        for (tone, label), value in zip(PARTS, split, strict=True)
    ]
    return ProgressRow(arm=arm, parts=stacked_parts(triples, full_ns), progress=progress, split=split)


UNDISCLOSED = "undisclosed"


def _mark_basis(delivery: Delivery) -> str:
    if delivery.tokens_per_chunk is None:
        return write.MISSING
    by_total = " (by usage)" if delivery.counted_by == "final_usage" else ""
    return f"{write.ratio(delivery.tokens_per_chunk)}{by_total}"


def _gaps(one: Delivery) -> str:
    return ", ".join(map(write.ms, (one.gap_p10_ns, one.gap_p50_ns, one.gap_p90_ns, one.gap_p99_ns)))


# What delivery shows of an arm, as it stands on the page and in the terminal.
DELIVERY: tuple[tuple[str, Callable[[Delivery], str]], ...] = (
    ("Answers", lambda one: write.count(one.requests)),
    ("Tokens/chunk", _mark_basis),
    ("First chunk", lambda one: write.ratio(one.first_chunk_tokens)),
    ("Characters/chunk", lambda one: write.ratio(one.characters_per_chunk)),
    ("Gaps p10, p50, p90, p99 (ms)", _gaps),
    ("In bursts", lambda one: write.share(one.burst_gap_share)),
    ("Chunks/arrival", lambda one: write.ratio(one.chunks_per_arrival)),
)


def list_undisclosed(results: Results) -> tuple[Delivery, ...]:
    """Return the deliveries of arms whose contract calls the mechanism undisclosed, by load and arm."""
    found = [one for one in results.deliveries if (one.mechanism or "").startswith(UNDISCLOSED)]
    return tuple(one for _, rows in kit.by_load(results, found) for one in rows)


def delivery_sentence(results: Results) -> str:
    """Say of which arms the mechanism is undisclosed and what follows; empty where none is."""
    shown = list_undisclosed(results)
    arms = kit.order_arms(results, {one.arm for one in shown})
    if not arms:
        return ""
    left_out = [said for one in shown if (said := _say_left_out(results, one))]
    return (
        f"Undisclosed mechanism: {', '.join(map(words.arm, arms))}. The service does not say whether or how "
        "it drafts, so only its delivery was measured; later runs can be held against this one with "
        "draftproof compare."
        + (f" Left out, since their times are: {', '.join(left_out)}." if left_out else "")
    )


def _say_left_out(results: Results, delivery: Delivery) -> str:
    """Say how many answers are not in the table; empty where all are."""
    answered = sum(
        one.outcomes.get("ok", 0)
        for one in results.arm_cells
        if (one.arm, one.load, one.segment) == (delivery.arm, delivery.load, words.POOLED)
    )
    if answered <= delivery.requests:
        return ""
    return f"{answered - delivery.requests:,} of {answered:,} answers of {_name_place(results, delivery)}"


def _name_place(results: Results, delivery: Delivery) -> str:
    return f"{words.arm(delivery.arm)} at {kit.load_title(results, delivery.load)}"


def delivery_hints(results: Results) -> tuple[str, ...]:
    """Return the hint of every arm and load, each labelled as a hint."""
    return tuple(f"{_name_place(results, one)}: {one.hint_text}" for one in list_undisclosed(results))


def build_delivery(results: Results) -> Table:
    """Lay out the delivery of undisclosed arms, a group per load."""
    columns = (kit.ARM, *(kit.right(label, write_cell) for label, write_cell in DELIVERY))
    rows = kit.by_load(results, list_undisclosed(results))
    return kit.table("Delivery of arms with an undisclosed mechanism", columns, rows)


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
    reach = "" if most is None else f": mean up to {write.ms(most)}"
    return f"{PARTLY if assumed < known else ASSUMED}{reach}"


class EstimatorPanel(msgspec.Struct, frozen=True, kw_only=True):
    """How far estimators disagree at one load in a sentence; at the first load all of them, ours first."""

    title: str
    opened: bool
    sentence: str
    rows: tuple[EstimatorRow, ...]


class EstimatorChart(msgspec.Struct, frozen=True, kw_only=True):
    """All loads on one axis."""

    axis: Axis
    panels: tuple[EstimatorPanel, ...]


def build_estimators(results: Results) -> EstimatorChart:
    """Lay the estimators of each load on one ratio axis."""
    ends = [r for row in results.estimators for r in (row.ratio_mean, row.ratio_p99)]
    loads = [(title, rows) for title, rows in kit.by_load(results, results.estimators, ordered=True) if rows]
    return EstimatorChart(
        axis=ratio_axis(ends, below=None, above=None),
        panels=tuple(
            EstimatorPanel(
                title=title,
                opened=len(loads) <= 4 or index == 0,
                sentence=disagreement_sentence(rows),
                rows=() if index else tuple(sorted(rows, key=lambda row: not is_ours(row))),
            )
            for index, (title, rows) in enumerate(loads)
        ),
    )


def is_ours(row: EstimatorRow) -> bool:
    """Whether it is the estimator by which this report judges."""
    return row.estimator == METRIC or "draftproof" in row.used_by.lower()


def disagreement_sentence(rows: list[EstimatorRow]) -> str:
    """Say the range that the same requests span over the estimators, and how many see a gain."""
    known = [(row.ratio_mean, row.null_ratio_mean) for row in rows if row.ratio_mean is not None]
    if not known:
        return "No estimator had both arms to compare."
    ratios, sides = [ratio for ratio, _ in known], [_read_side(ratio, null) for ratio, null in known]
    beyond = (
        " by more than it sees two equal services differ" if any(row.null_ratio_mean for row in rows) else ""
    )
    return (
        f"The same requests read as {write.change(min(ratios))} by one estimator's mean and "
        f"{write.change(max(ratios))} by another's: {sides.count(-1)} of {len(ratios)} see the candidate "
        f"faster, {sides.count(1)} slower{beyond}."
    )


def _read_side(ratio: float, null: float | None) -> int:
    """Return −1 where a ratio lies below 1 by more than that of two equal arms, 1 above, 0 where neither."""
    floor = max(null, 1 / null) if null else 1.0
    return -1 if ratio * floor < 1 else int(ratio > floor)
