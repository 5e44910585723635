"""What the first page says beside the verdict: what was compared, all tasks in units people use, counts.

Pure. Explains the verdict and cannot change it: ratios and their intervals are those of the effects; both
sides of a ratio are of the same pairs, so that the two agree.
"""

from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from draftproof.core.clock import NS_PER_S
from draftproof.core.manifests import Manifest
from draftproof.judge.decide.effects import CellKey, EffectIndex, find_usable, read_sides
from draftproof.judge.metrics.service import percentile
from draftproof.judge.observe.pairs import DECISIVE, PairTable
from draftproof.judge.observe.run_data import ALL_SEGMENTS, PreparedRun
from draftproof.judge.results.decide import Figure
from draftproof.judge.results.inform import ArmTotal, Compared, Exploratory, Headline, HeadlineRow
from draftproof.judge.results.run import Agreement, ArmCell, Cell
from draftproof.judge.stats.resampling import Floats

TOKENS_PER_S = "output_tokens_per_s"
_TIMES = ("ttft_from_schedule_ns", "tpot_ns", "e2e_from_schedule_ns")


def compute_headline(
    prepared: PreparedRun,
    pairs: PairTable,
    effects: EffectIndex,
    *,
    cells: Sequence[Cell],
    arm_cells: Sequence[ArmCell],
    agreements: Sequence[Agreement],
) -> Headline:
    """Return the figures of the first page that no other part of the results has."""
    return Headline(
        compared=describe_compared(prepared),
        rows=tuple(row for load in prepared.loads for row in _rows(prepared, pairs, effects, load)),
        exploratory=tuple(_explore(prepared, pairs, cells)),
        totals=tuple(_total(arm, arm_cells, agreements) for arm in prepared.arms),
    )


def describe_compared(prepared: PreparedRun) -> Compared:
    """Return what was compared and on how much; `measured_s` is the sum of the periods' times."""
    manifest, blocks = prepared.run.manifest, prepared.run.blocks
    loads = set(prepared.loads)
    own = [one for one in blocks if one.load in loads]
    return Compared(
        model=name_model(manifest),
        engine=_name_engine(manifest),
        methods={one.arm: name_method(one.drafter_kind, one.num_spec_tokens) for one in manifest.contracts},
        prompts=len(prepared.columns.prompt_names),
        requests=len(prepared.observations),
        blocks=len({(one.load, one.block) for one in own}),
        measured_s=sum(one.ended_ns - one.started_ns for one in own) / NS_PER_S,
    )


def name_model(manifest: Manifest) -> str:
    """Return the last part of the target's name, references to the environment replaced; "" if not known."""
    stated = next((one.target_model for one in manifest.contracts), "")
    for name, meant in manifest.references.items():
        stated = stated.replace(f"${{{name}}}", meant)
    return "" if "${" in stated else stated.rstrip("/").rpartition("/")[2].removeprefix("builtin:")


def name_method(kind: str, drafts: int | None) -> str:
    """Return "speculation off", "ngram, 4 draft tokens" or "draft model, 3 draft tokens"."""
    if kind == "none":
        return "speculation off"
    method = kind.replace("_", " ")
    return f"{method}, {drafts} draft tokens" if drafts else method


def _name_engine(manifest: Manifest) -> str:
    return ", ".join(dict.fromkeys(f"{one.engine} {one.engine_version}".strip() for one in manifest.arms))


def _rows(prepared: PreparedRun, pairs: PairTable, effects: EffectIndex, load: str) -> list[HeadlineRow]:
    """Return the three times over all tasks, and tokens per second, the inverse of the time per token."""
    rows = [_row(prepared, pairs, effects, metric, load) for metric in _TIMES]
    inverse = invert(next(row for row in rows if row.quantity == "tpot_ns"))
    return [row for one in rows for row in ((one, inverse) if one.quantity == "tpot_ns" else (one,))]


def _row(
    prepared: PreparedRun, pairs: PairTable, effects: EffectIndex, metric: str, load: str
) -> HeadlineRow:
    def change(arm: str) -> Figure | None:
        found = effects.get((metric, arm, "baseline", ALL_SEGMENTS, load))
        return found.ratio if found else None

    sides = _sides(prepared, pairs, metric, (ALL_SEGMENTS, load))
    return HeadlineRow(
        quantity=metric,
        load=load,
        baseline=_summarise(prepared, sides[1]),
        candidate=_summarise(prepared, sides[0]),
        change=change("candidate") or Figure(value=None, reason="not compared"),
        null_change=change("baseline_null"),
        alternative_change=change("alternative"),
    )


def _sides(prepared: PreparedRun, pairs: PairTable, metric: str, cell: CellKey) -> tuple[Floats, Floats]:
    """Return candidate's and baseline's values of the pairs that the effect of a cell is based on."""
    values = prepared.columns.metric(metric)
    usable = find_usable(prepared, pairs[DECISIVE].cell(*cell), values)
    return read_sides(usable, values)


def _summarise(prepared: PreparedRun, values: Floats) -> float | None:
    if not len(values):
        return None
    return float(values.mean()) if prepared.plan.comparison.statistic == "mean" else percentile(values, 0.5)


def invert(row: HeadlineRow) -> HeadlineRow:
    """Return the row of output tokens per second of a request after its first chunk: 1 / time per token."""
    return HeadlineRow(
        quantity=TOKENS_PER_S,
        load=row.load,
        baseline=NS_PER_S / row.baseline if row.baseline else None,
        candidate=NS_PER_S / row.candidate if row.candidate else None,
        change=_invert(row.change),
        null_change=row.null_change and _invert(row.null_change),
        alternative_change=row.alternative_change and _invert(row.alternative_change),
    )


def _invert(figure: Figure) -> Figure:
    value, low, high = (1 / one if one else None for one in (figure.value, figure.high, figure.low))
    return replace(figure, value=value, low=low, high=high)


def _explore(prepared: PreparedRun, pairs: PairTable, cells: Sequence[Cell]) -> list[Exploratory]:
    """Return the bare ratio of every cell that has too few prompts for an interval, but some."""
    found = []
    for cell in cells:
        if cell.effect.value is not None:
            continue
        sides = _sides(prepared, pairs, prepared.plan.comparison.metric, (cell.segment, cell.load))
        above, below = (_summarise(prepared, side) for side in sides)
        if above and below:
            prompts = _count_prompts(prepared, pairs, (cell.segment, cell.load))
            found.append(
                Exploratory(segment=cell.segment, load=cell.load, ratio=above / below, prompts=prompts)
            )
    return found


def _count_prompts(prepared: PreparedRun, pairs: PairTable, cell: CellKey) -> int:
    values = prepared.columns.metric(prepared.plan.comparison.metric)
    usable = find_usable(prepared, pairs[DECISIVE].cell(*cell), values)
    return len(np.unique(prepared.columns.prompts[usable.mine]))


def _total(arm: str, arm_cells: Sequence[ArmCell], agreements: Sequence[Agreement]) -> ArmTotal:
    own = [cell for cell in arm_cells if (cell.arm, cell.segment) == (arm, ALL_SEGMENTS)]
    compared = [one for one in agreements if (one.arm, one.versus) == (arm, "baseline")]
    return ArmTotal(
        arm=arm,
        requests=sum(cell.attempted for cell in own),
        failed=sum(cell.attempted - cell.outcomes.get("ok", 0) for cell in own),
        checks_judged=sum(cell.checks.judged for cell in own),
        checks_passed=sum(cell.checks.passed for cell in own),
        critical_failed=sum(cell.checks.critical_failed for cell in own),
        answers_compared=sum(one.compared for one in compared),
        answers_changed=sum(one.compared - one.identical for one in compared),
    )
