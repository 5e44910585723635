"""Whether a cell's effect holds over the lengths of its contexts: bands of prompts, judged each by itself.

Pure. The band of a prompt is chosen by the baseline alone, so that what the candidate does to a prompt cannot
move it to another band. Bands only ever restrict: they take contexts away from an envelope, never add any.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

import numpy as np

from draftproof.judge.decide.bounds import read_bounds, span_limits
from draftproof.judge.decide.cells import decide_effect
from draftproof.judge.decide.effects import (
    CellKey,
    EffectIndex,
    LoadSpread,
    estimate_ratio,
    margin_at,
    spread_at,
)
from draftproof.judge.decide.guardrails import GuardrailFinding, find
from draftproof.judge.observe.pairs import DECISIVE, Pairs, PairTable
from draftproof.judge.observe.run_data import ALL_SEGMENTS, PreparedRun
from draftproof.judge.results.decide import ContextBand, refer
from draftproof.judge.results.run import Figure

MOST_BANDS = 3


def compute_context_bands(
    prepared: PreparedRun, pairs: PairTable, effects: EffectIndex
) -> tuple[ContextBand, ...]:
    """Return the effect in every context band of every cell; no row for a segment that has no two bands."""
    rows: list[ContextBand] = []
    decisive, metric = pairs[DECISIVE], prepared.plan.comparison.metric
    values = prepared.columns.metric(metric)
    spreads = {
        load: spread_at(prepared, decisive.cell(ALL_SEGMENTS, load), values) for load in prepared.loads
    }
    for segment in prepared.segments:
        contexts = measure_contexts(prepared, segment)
        bands = divide_into_bands(contexts, prepared.plan.comparison.minimum_prompts)
        for load in prepared.loads if bands else ():
            null = margin_at(effects, metric, load)
            inside = decisive.cell(segment, load)
            rows += [
                _evaluate_band(
                    prepared,
                    (segment, load),
                    (number, bands),
                    contexts,
                    pairs=inside,
                    spread=spreads[load],
                    null=null,
                )
                for number in range(len(bands))
            ]
    return tuple(rows)


def measure_contexts(prepared: PreparedRun, segment: str) -> dict[str, int]:
    """Return item -> its longest context in tokens (prompt + answer) over the baseline's answers."""
    columns, indices = prepared.columns, prepared.indices_of("baseline", segment=segment)
    contexts: dict[str, int] = {}
    for item, length in zip(columns.items[indices], columns.context_tokens[indices], strict=True):
        if not np.isnan(length):
            name = columns.item_ids[item]
            contexts[name] = max(int(length), contexts.get(name, 0))
    return contexts


def divide_into_bands(contexts: Mapping[str, int], minimum: int) -> tuple[tuple[str, ...], ...]:
    """Return up to three bands of items, shortest contexts first, of at least `minimum` items each.

    Items of one length stay in one band. Empty where two such bands cannot be made.
    """
    ordered = sorted(contexts, key=lambda item: (contexts[item], item))
    lengths = [contexts[item] for item in ordered]
    for count in range(min(MOST_BANDS, len(ordered) // minimum), 1, -1):
        edges = [0, *(_raise_cut(lengths, k * len(ordered) // count) for k in range(1, count)), len(ordered)]
        if all(high - low >= minimum for low, high in pairwise(edges)):
            return tuple(tuple(ordered[low:high]) for low, high in pairwise(edges))
    return ()


def evaluate_contexts(cell: CellKey, bands: Iterable[ContextBand]) -> tuple[GuardrailFinding, ...]:
    """Return an open finding where the shortest contexts show harm: no limit could leave them out."""
    return tuple(
        _explain_harm(one)
        for one in bands
        if (one.segment, one.load) == cell and one.band == 1 and one.reading == "harm"
    )


def limit_context(bands: Sequence[ContextBand], segment: str, loads: Iterable[str]) -> int | None:
    """Return the longest context below any band that shows harm at these loads, None without such a band."""
    wanted = set(loads)
    harmed = [
        one.band
        for one in bands
        if one.segment == segment and one.load in wanted and one.reading == "harm" and one.band > 1
    ]
    below = [
        one.max_context_tokens
        for one in bands
        if one.segment == segment and one.band < min(harmed, default=0)
    ]
    return max(below, default=None)


def _raise_cut(lengths: Sequence[int], cut: int) -> int:
    """Move a cut up until it does not part equal lengths."""
    while cut < len(lengths) and lengths[cut] == lengths[cut - 1]:
        cut += 1
    return cut


def _evaluate_band(
    prepared: PreparedRun,
    cell: CellKey,
    band_of: tuple[int, tuple[tuple[str, ...], ...]],
    contexts: Mapping[str, int],
    *,
    pairs: Pairs,
    spread: LoadSpread,
    null: float,
) -> ContextBand:
    number, bands = band_of
    items, columns, metric = set(bands[number]), prepared.columns, prepared.plan.comparison.metric
    inside = pairs.where(np.array([name in items for name in columns.item_ids])[columns.items[pairs.mine]])
    # The band is part of the seed, so every band has draws of its own.
    named = (cell[0], f"{cell[1]} band {number + 1} of {len(bands)}")
    found, *others = [
        estimate_ratio(prepared, inside, DECISIVE, metric, named, values=values, spread=spread)
        for values in (columns.metric(metric), *(read_bounds(inside, metric) or ()))
    ]
    low, high = span_limits((found, *others))
    figure = Figure(value=found.value, low=low, high=high)
    reading = decide_effect(figure, prepared.plan.thresholds, null)
    return ContextBand(
        segment=cell[0],
        load=cell[1],
        band=number + 1,
        bands=len(bands),
        min_context_tokens=min(contexts[item] for item in items),
        max_context_tokens=max(contexts[item] for item in items),
        prompts=found.n_clusters,
        pairs=found.n_pairs,
        ratio=found.value,
        low=low,
        high=high,
        level=found.level,
        reading="inconclusive" if reading == "invalid" else reading,
        reason=found.reason,
        needed=found.needed,
    )


def _explain_harm(band: ContextBand) -> GuardrailFinding:
    text = (
        f"The {band.prompts} prompts with the shortest contexts ({band.min_context_tokens} to "
        f"{band.max_context_tokens} tokens) show harm: candidate / baseline is {band.ratio:.2f} "
        f"({band.low:.2f} to {band.high:.2f}); no limit on the context could leave them out."
    )
    return find("open", "context_harm", text, refer("context_bands", (band.segment, band.load)))
