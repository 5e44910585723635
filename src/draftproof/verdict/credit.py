"""What keeps a gain from being credited although its interval is clear. Pure.

Each rule names a way in which an arm looks faster without being so: answers that got shorter within their
margin where end-to-end time decides, times per token reckoned by two formulas, and turns of which there are
too few to tell what a turn does to all of its prompts.
"""

import itertools
from collections import defaultdict
from collections.abc import Iterable

import numpy as np

from draftproof.stats.turns import MINIMUM_BLOCKS
from draftproof.verdict.cells import compute_noise, decide_effect, describe
from draftproof.verdict.columns import NO_BASIS
from draftproof.verdict.effects import CellKey, EffectIndex, Reader, compare_arms, value_of
from draftproof.verdict.guardrails import Finding
from draftproof.verdict.pairs import Pair, Pairs, PairTable
from draftproof.verdict.results import Reason
from draftproof.verdict.run_data import ALL_SEGMENTS, Observation, PreparedRun

E2E, AT_EQUAL_LENGTH = "e2e_from_schedule_ns", "e2e_at_equal_length_ns"
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
        *_find_shortened(prepared, pairs, effects),
        *_find_mixed_bases(prepared, pairs[DECISIVE]),
        *_find_disturbed_more(prepared),
        *(_find_few_turns(prepared, pairs[DECISIVE]) if is_representative else ()),
    ):
        found[cell].append(finding)
    return {cell: tuple(findings) for cell, findings in found.items()}


def read_at_equal_length(pairs: Iterable[Pair]) -> Reader:
    """Return what reads end-to-end time as if the arm's answers had the length of their partners.

    e2e + tpot × (N of the partner − N) for the arm, plain end-to-end time for the partner. None where one of
    these is not known.
    """
    partners = {(pair.arm.record.arm, pair.arm.key): pair.versus for pair in pairs}

    def read(seen: Observation) -> float | None:
        partner, whole = partners.get((seen.record.arm, seen.key)), value_of(seen, E2E)
        if partner is None or whole is None:
            return whole
        rate, tokens = value_of(seen, "tpot_ns"), value_of(seen, "output_tokens")
        wanted = value_of(partner, "output_tokens")
        if rate is None or tokens is None or wanted is None:
            return None
        return whole + rate * (wanted - tokens)

    return read


def _find_shortened(
    prepared: PreparedRun, pairs: PairTable, effects: EffectIndex
) -> Iterable[tuple[CellKey, Finding]]:
    """Find cells whose end-to-end time falls only because the answers are shorter than the baseline's."""
    if prepared.plan.comparison.metric != E2E:
        return
    decisive, thresholds = pairs[DECISIVE], prepared.plan.thresholds
    read = read_at_equal_length(decisive)
    for one in compare_arms(prepared, decisive, DECISIVE, AT_EQUAL_LENGTH, prepared.columns.read(read)):
        if one.segment == ALL_SEGMENTS:
            continue
        noise = compute_noise(effects.get((E2E, "baseline_null", "baseline", ALL_SEGMENTS, one.load)))
        raw = effects[(E2E, *DECISIVE, one.segment, one.load)].simultaneous
        if decide_effect(raw, thresholds, noise) != "gain":
            continue
        if decide_effect(one.simultaneous, thresholds, noise) != "gain":
            text = (
                "At the length of the baseline's answers end-to-end time is "
                f"{describe(one.simultaneous)} of the baseline's: the rest of the gain is shorter answers."
            )
            yield (one.segment, one.load), _open("gain_by_length", text, (one.segment, one.load))


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
