"""What keeps a gain from being credited although its interval is clear. Pure.

Each rule names a way in which an arm looks faster without being so: answers whose length shifts within its
margin, times per token reckoned by two formulas, and turns of which there are
too few to tell what a turn does to all of its prompts.
"""

import itertools
from collections import defaultdict
from collections.abc import Iterable

import numpy as np
from msgspec.structs import replace

from draftproof.stats.turns import MINIMUM_BLOCKS
from draftproof.verdict.cells import compute_noise, decide_effect, describe
from draftproof.verdict.columns import NO_BASIS
from draftproof.verdict.effects import CellKey, EffectIndex, compare_arms
from draftproof.verdict.equal_length import read_at_equal_length
from draftproof.verdict.guardrails import Finding
from draftproof.verdict.pairs import Pairs, PairTable
from draftproof.verdict.results import Figure, Reason
from draftproof.verdict.run_data import ALL_SEGMENTS, PreparedRun
from draftproof.verdict.wording import METRIC_WORDS

E2E = "e2e_from_schedule_ns"
DECISIVE = ("candidate", "baseline")


def judge_credit(
    prepared: PreparedRun, pairs: PairTable, effects: EffectIndex, *, is_representative: bool
) -> dict[CellKey, tuple[Finding, ...]]:
    """Return, by cell, what keeps a gain from being credited there.

    Args:
        prepared: the run.
        pairs: of every comparison.
        effects: the run's own.
        is_representative: whether turns that nobody can tell from prompts withhold a gain.
    """
    found: defaultdict[CellKey, list[Finding]] = defaultdict(list)
    for cell, finding in (
        *_find_by_length(prepared, pairs[DECISIVE], effects),
        *_find_mixed_bases(prepared, pairs[DECISIVE]),
        *_find_disturbed_more(prepared),
        *(_find_few_turns(prepared, pairs[DECISIVE]) if is_representative else ()),
    ):
        found[cell].append(finding)
    return {cell: tuple(findings) for cell, findings in found.items()}


def _find_by_length(
    prepared: PreparedRun, pairs: Pairs, effects: EffectIndex
) -> Iterable[tuple[CellKey, Finding]]:
    """Find gains that do not survive the shift of length: less its upper limit, and over shared tokens."""
    metric, thresholds = prepared.plan.comparison.metric, prepared.plan.thresholds
    words = METRIC_WORDS[metric]
    common = _compare_at_equal_length(prepared, pairs, metric)
    for segment, load in _list_cells(prepared):
        cell = (segment, load)
        noise = compute_noise(effects.get((metric, "baseline_null", "baseline", ALL_SEGMENTS, load)))
        gain = effects[(metric, *DECISIVE, *cell)].simultaneous
        shift = compute_length_shift(effects[("output_tokens", *DECISIVE, *cell)].ratio, metric)
        if decide_effect(gain, thresholds, noise) != "gain" or gain.high is None:
            continue
        text = None
        if decide_effect(common.get(cell, gain), thresholds, noise) != "gain":
            text = (
                f"Over the tokens that both answers have, {words} is {describe(common[cell])} of the "
                "baseline's: the rest of the gain is the length of answers."
            )
        elif decide_effect(replace(gain, high=gain.high + shift), thresholds, noise) != "gain":
            text = (
                f"Answers may differ from the baseline's in length by {100 * shift:.1f} %; less that, "
                f"{words} of {describe(gain)} is no gain beyond the minimum."
            )
        if text:
            yield cell, _open("gain_by_length", text, cell)


def compute_length_shift(ratio: Figure, metric: str) -> float:
    """Return the upper limit of the shift of length as a share of the baseline's; 0 where it is not known.

    Shorter answers end sooner. A time per token can also fall because cheap tokens are added.
    """
    if ratio.low is None or ratio.high is None:
        return 0.0  # the guardrail of length withholds then
    longer = ratio.high - 1 if metric != E2E else 0.0
    return max(0.0, 1 - ratio.low, longer)


def _compare_at_equal_length(prepared: PreparedRun, pairs: Pairs, metric: str) -> dict[CellKey, Figure]:
    """Return the simultaneous interval at equal length by cell; none where all answers have equal lengths."""
    values = read_at_equal_length(pairs, metric)
    if values is None:
        return {}
    found = compare_arms(prepared, pairs, DECISIVE, f"{metric} at equal length", values)
    return {(one.segment, one.load): one.simultaneous for one in found}


def _list_cells(prepared: PreparedRun) -> list[CellKey]:
    return [(segment, load) for load in prepared.loads for segment in prepared.segments]


def _find_mixed_bases(prepared: PreparedRun, pairs: Pairs) -> Iterable[tuple[CellKey, Finding]]:
    """Find cells in which the arms' times per token are reckoned by different formulas."""
    if prepared.plan.comparison.metric != "tpot_ns":
        return
    bases = prepared.columns.tpot_basis
    for cell, inside in pairs.cells.items():
        mine, theirs = bases[inside.mine], bases[inside.theirs]
        known = inside.is_ok & (mine != NO_BASIS) & (theirs != NO_BASIS)
        differing, compared = int((known & (mine != theirs)).sum()), int(known.sum())
        is_mixed = differing > prepared.plan.thresholds.failure_margin * compared
        if cell[0] != ALL_SEGMENTS and is_mixed:
            text = (
                f"In {differing} of {compared} pairs one arm counts the tokens of its first chunk and "
                "the other does not, so their times per token are not of one formula."
            )
            yield cell, _open("tpot_basis_differs", text, cell)


def _find_disturbed_more(prepared: PreparedRun) -> Iterable[tuple[CellKey, Finding]]:
    """Find that the host disturbed the candidate more often than chance does: it may disturb itself."""
    text = prepared.disturbed_more.get("candidate")
    for cell in itertools.product(prepared.segments, prepared.loads if text else ()):
        yield cell, _open("disturbed_more", f"{text}, so no gain is credited.", cell)


def _find_few_turns(prepared: PreparedRun, pairs: Pairs) -> Iterable[tuple[CellKey, Finding]]:
    """Find loads with so few blocks that what a turn does to all of its prompts is in no interval."""
    columns = prepared.columns
    for (segment_of, load), inside in pairs.cells.items():
        timed = inside.is_ok & columns.timed[inside.mine] & columns.timed[inside.theirs]
        blocks = len(np.unique(columns.blocks[inside.mine[timed]]))
        if segment_of == ALL_SEGMENTS and 0 < blocks < MINIMUM_BLOCKS:
            text = (
                f"Load {load} has {blocks} of at least {MINIMUM_BLOCKS} blocks, so nobody can tell what a "
                "turn did to all of its prompts at once; a smaller block_size makes more of them."
            )
            for segment in prepared.segments:
                yield (segment, load), _open("turns_unmeasured", text, (segment, load))


def _open(code: str, text: str, cell: CellKey) -> Finding:
    evidence = f"effects: candidate / baseline, {cell[0]} × {cell[1]}"
    return Finding(standing="open", reason=Reason(code=code, text=text, evidence=evidence))
