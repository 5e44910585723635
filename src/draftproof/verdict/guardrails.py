"""Guardrails: what must not get worse while decoding gets faster, and where each of them stands in a cell.

Pure. Shares (failures, passed checks) are shown to be non-inferior at the load level, pooled over segments,
because a cell is too small for a share; one cell alone violates them only if its whole interval lies beyond
the margin. Ratios (first token, end to end, output length) are judged in the cell itself. Every guardrail has
to hold for a gain, so no correction for their number is needed. Intervals are those of one comparison.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Literal

import msgspec
import numpy as np
from scipy.stats import norm

from draftproof.plan.schema import Thresholds
from draftproof.stats.shares import paired_share_difference
from draftproof.verdict.effects import CellKey, EffectIndex
from draftproof.verdict.pairs import Pairs, PairTable
from draftproof.verdict.results import Difference, Figure, Reason
from draftproof.verdict.run_data import ALL_SEGMENTS, PreparedRun

Standing = Literal["held", "open", "violated", "shifted", "noted"]
QUANTITIES = ("failed_share", "passed_share")
SUSPECT_PROMPTS = 2  # a single prompt more or less is chance

DifferenceIndex = Mapping[tuple[str, str, str, str, str], Difference]
Votes = Mapping[tuple[bool, bool], Fraction]  # (state of the arm, of the other) -> prompts


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """Where one guardrail stands in one cell.

    `held`: non-inferior. `violated`: the whole interval lies beyond the margin. `shifted`: the answers'
    length changed by more than the margin, so a gain is not credited. `open`: the interval does not tell.
    `noted`: it does not tell, and with such evidence this is said beside a gain instead of withholding it.
    """

    standing: Standing
    reason: Reason


def compute_differences(prepared: PreparedRun, pairs: PairTable) -> tuple[Difference, ...]:
    """Return the differences of failed and passed shares: comparison × quantity × cell, "all" first."""
    return tuple(
        _compute_difference(prepared, pairs[comparison], comparison, quantity, (segment, load))
        for comparison in pairs
        for quantity in QUANTITIES
        for load in prepared.loads
        for segment in (ALL_SEGMENTS, *prepared.segments)
    )


def index_differences(differences: Iterable[Difference]) -> DifferenceIndex:
    """Return the differences by (quantity, arm, versus, segment, load)."""
    return {(one.quantity, one.arm, one.versus, one.segment, one.load): one for one in differences}


def pairs_needed_for_margin(margin: float, level: float) -> int:
    """Return how many pairs without any discordance show that a share grew by less than `margin`.

    With no discordant pair Tango's interval ends at z² / (n + z²); it lies within the margin from
    n = z² (1 − margin) / margin on.
    """
    if margin <= 0:
        raise ValueError(f"a margin of {margin} cannot be shown by any number of pairs")
    z = float(norm.ppf(0.5 + level / 2))
    return math.floor(z * z * (1 - margin) / margin) + 1


def count_new_critical(pairs: Pairs) -> dict[CellKey, int]:
    """Return the critical checks that the arm failed and its partner passed, by cell; failures not counted.

    A request that was not answered is no wrong answer: the failure guardrail counts it.
    """
    critical_failed = pairs.columns.checks[:, 2]
    new: Counter[CellKey] = Counter()
    for pair in pairs.where(pairs.is_ok & (critical_failed[pairs.mine] > 0)):
        new[pair.segment, pair.load] += sum(
            mine.critical and mine.passed is False and theirs.passed is True
            for mine, theirs in zip(pair.arm.checks, pair.versus.checks, strict=True)
        )
    return dict(new)


def list_hidden_failures(pairs: Pairs) -> Pairs:
    """Return the pairs in which the arm failed and its partner did not."""
    is_ok = pairs.columns.is_ok
    return pairs.where(is_ok[pairs.theirs] & ~is_ok[pairs.mine])


def judge_guardrails(
    cell: CellKey,
    effects: EffectIndex,
    differences: DifferenceIndex,
    critical: Mapping[CellKey, int],
    thresholds: Thresholds,
) -> tuple[Finding, ...]:
    """Return where every guardrail of the candidate against the baseline stands in a cell."""
    ratio = {
        metric: effects[(metric, "candidate", "baseline", *cell)].ratio
        for metric in ("ttft_from_schedule_ns", "e2e_from_schedule_ns", "output_tokens")
    }
    return (
        judge_failures(cell, differences, thresholds.failure_margin),
        judge_checks(cell, differences, thresholds.quality_margin),
        judge_critical(cell, critical, thresholds.critical_errors),
        judge_time("ttft", cell, ratio["ttft_from_schedule_ns"], thresholds.ttft_margin),
        judge_time("e2e", cell, ratio["e2e_from_schedule_ns"], thresholds.e2e_margin),
        judge_length(cell, ratio["output_tokens"], thresholds.output_length_margin),
    )


def judge_failures(cell: CellKey, differences: DifferenceIndex, margin: float) -> Finding:
    """Judge the share of failed requests: non-inferior at the load, violated in the cell or at the load."""
    return _judge_share(cell, differences, "failed_share", margin, sign=1)


def judge_checks(cell: CellKey, differences: DifferenceIndex, margin: float) -> Finding:
    """Judge the share of answers that pass their checks; a share that cannot be judged is never held."""
    return _judge_share(cell, differences, "passed_share", margin, sign=-1)


def judge_critical(cell: CellKey, critical: Mapping[CellKey, int], allowed: int) -> Finding:
    """Judge new critical failures: above the allowed number at a load, each cell that has one is at fault."""
    at_load = sum(count for (_, load), count in critical.items() if load == cell[1])
    here = critical.get(cell, 0)
    standing: Standing = "violated" if at_load > allowed and here else "held"
    text = (
        f"{at_load} new failures of critical checks against the baseline at load {cell[1]} "
        f"({here} in this cell); the plan allows {allowed}"
    )
    return _find(standing, "critical_errors", text, _row("checks", cell))


def judge_time(name: str, cell: CellKey, ratio: Figure, margin: float) -> Finding:
    """Judge a time's ratio against 1 + margin."""
    words = {"ttft": "time to first token", "e2e": "end-to-end time"}[name]
    code, row = f"guardrail_{name}", _row(f"effects {name}", cell)
    if ratio.value is None or ratio.low is None or ratio.high is None:
        return _find("open", code, f"{words} could not be compared: {ratio.reason}", row)
    span = f"{words} is {_span(ratio)} of the baseline's, at most {1 + margin:.2f} is allowed"
    if ratio.low > 1 + margin:
        return _find("violated", code, span, row)
    return _find("held" if ratio.high <= 1 + margin else "open", code, span, row)


def judge_length(cell: CellKey, ratio: Figure, margin: float) -> Finding:
    """Judge the mean length of answers: a shift beyond the margin either way means no gain is credited."""
    code, row = "output_length", _row("effects output_tokens", cell)
    if ratio.value is None or ratio.low is None or ratio.high is None:
        return _find("open", code, f"output length could not be compared: {ratio.reason}", row)
    span = f"answers are {_span(ratio)} of the baseline's in length, a shift of {margin:.2f} is allowed"
    if ratio.low > 1 + margin or ratio.high < 1 - margin:
        return _find("shifted", code + "_shift", span + "; a gain is not credited", row)
    held = ratio.low >= 1 - margin and ratio.high <= 1 + margin
    return _find("held" if held else "open", code, span, row)


def _judge_share(
    cell: CellKey, differences: DifferenceIndex, quantity: str, margin: float, *, sign: int
) -> Finding:
    """Judge a difference of shares; `sign` 1 where more is worse, −1 where less is worse."""
    segment, load = cell
    code = {"failed_share": "guardrail_failures", "passed_share": "guardrail_checks"}[quantity]
    here = differences[quantity, "candidate", "baseline", segment, load].difference
    pooled = differences[quantity, "candidate", "baseline", ALL_SEGMENTS, load].difference
    worse_here, worse_pooled = _worsening(here, sign), _worsening(pooled, sign)
    row = _row(f"differences {quantity}", cell)
    if worse_here is not None and worse_here[0] > margin:
        return _find("violated", code, _share_text(quantity, here, margin, f"in {segment}"), row)
    text = _share_text(quantity, pooled, margin, "over all segments")
    row = _row(f"differences {quantity}", (ALL_SEGMENTS, load))
    if worse_pooled is None:
        return _find("open", code, text, row)
    if worse_pooled[0] > margin and here.value is not None and sign * here.value > margin:
        return _find("violated", code, text, row)
    if worse_pooled[1] <= margin and _is_suspect(here, margin, sign):
        text = _share_text(quantity, here, margin, f"in {segment}, though it holds over the load")
        return _find("open", code, text, _row(f"differences {quantity}", cell))
    return _find("held" if worse_pooled[1] <= margin else "open", code, text, row)


def _is_suspect(here: Figure, margin: float, sign: int) -> bool:
    """Return whether a cell's own share lies beyond the margin by more than one prompt.

    Its interval cannot tell, being that of few prompts; but what holds over the load is then no evidence for
    this cell, or an average over many segments would hide one.
    """
    worse = sign * (here.value or 0.0)
    return worse > margin and worse * (here.n or 0) >= SUSPECT_PROMPTS


def _worsening(figure: Figure, sign: int) -> tuple[float, float] | None:
    """Return the interval of the worsening, least first, None where there is none."""
    if figure.low is None or figure.high is None:
        return None
    return (figure.low, figure.high) if sign > 0 else (-figure.high, -figure.low)


def _share_text(quantity: str, figure: Figure, margin: float, where: str) -> str:
    words = {"failed_share": "share of failed requests", "passed_share": "share of answers passing checks"}
    if figure.value is None or figure.low is None or figure.high is None:
        return f"the {words[quantity]} could not be compared {where}: {figure.reason}"
    text = (
        f"the {words[quantity]} differs from the baseline's by {100 * figure.value:+.1f} points "
        f"({100 * figure.low:+.1f} to {100 * figure.high:+.1f}) {where}, {100 * margin:.1f} are allowed"
    )
    if figure.needed:
        text += f"; about {figure.needed} more prompts would be needed to show it"
    return text


def _compute_difference(
    prepared: PreparedRun, pairs: Pairs, comparison: tuple[str, str], quantity: str, cell: CellKey
) -> Difference:
    votes = count_votes(pairs.cell(*cell), quantity, prepared.plan.comparison.cluster_by)
    margin = _margin(prepared.plan.thresholds, quantity)
    return Difference(
        quantity=quantity,
        arm=comparison[0],
        versus=comparison[1],
        segment=cell[0],
        load=cell[1],
        difference=_difference_figure(votes, margin, prepared.plan.comparison.confidence),
    )


def count_votes(pairs: Pairs, quantity: str, cluster_by: str | None = None) -> Votes:
    """Return how often the arm and the other had the quantity, one vote for each cluster of prompts.

    Repeats of a prompt and the turns of a conversation rise and fall together, so they share their prompt's
    vote: five repeats of ten prompts say no more than ten prompts. Exact, so that no order of pairs shows.
    """
    columns = pairs.columns
    states = np.where(columns.is_ok, 0.0, 1.0) if quantity == "failed_share" else columns.passed
    mine, theirs = pairs.mine, pairs.theirs
    judged = ~(np.isnan(states[mine]) | np.isnan(states[theirs]))
    mine, theirs = mine[judged], theirs[judged]
    kinds = (2 * states[mine] + states[theirs]).astype(np.intp)
    counts = np.bincount(4 * columns.clusters(cluster_by)[mine] + kinds, minlength=4).reshape(-1)
    votes: defaultdict[tuple[bool, bool], Fraction] = defaultdict(Fraction)
    for place in np.flatnonzero(counts).tolist():
        first = place - place % 4
        total = int(counts[first : first + 4].sum())
        votes[place % 4 >= 2, place % 2 == 1] += Fraction(int(counts[place]), total)
    return votes


def _margin(thresholds: Thresholds, quantity: str) -> float:
    return thresholds.failure_margin if quantity == "failed_share" else thresholds.quality_margin


def _difference_figure(votes: Votes, margin: float, level: float) -> Figure:
    n = int(sum(votes.values()))
    if n == 0:
        return Figure(value=None, level=level, reason="no pair was judged in both arms")
    both, arm_only, versus_only, neither = (
        float(votes.get(state, 0)) for state in ((True, True), (True, False), (False, True), (False, False))
    )
    found = paired_share_difference(both, arm_only, versus_only, neither, level)
    needed = max(pairs_needed_for_margin(margin, level) - n, 0) if margin > 0 else None
    return Figure(
        value=found.difference, low=found.low, high=found.high, level=level, n=n, needed=needed or None
    )


def _find(standing: Standing, code: str, text: str, evidence: str) -> Finding:
    return Finding(standing=standing, reason=Reason(code=code, text=text + ".", evidence=evidence))


def _row(table: str, cell: CellKey) -> str:
    return f"{table}: candidate / baseline, {cell[0]} × {cell[1]}"


def _span(ratio: Figure) -> str:
    return f"{ratio.value:.2f} ({ratio.low:.2f} to {ratio.high:.2f})"
