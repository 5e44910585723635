"""Guardrails: what must not get worse while decoding gets faster, and the state of each in a cell.

Shares are shown to be non-inferior over the load, because a cell is too small for a share; one cell alone
violates them only if its whole interval is beyond the margin. Ratios are judged in the cell itself. Every
guardrail has to hold for a gain, so intervals are those of one comparison.
"""

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Literal

import msgspec
import numpy as np

from draftproof.judge.decide.effects import CellKey, EffectIndex, margin_at, null_difference_at
from draftproof.judge.observe.pairs import NULL, Pairs, PairTable
from draftproof.judge.observe.run_data import ALL_SEGMENTS, PreparedRun
from draftproof.judge.results.decide import Figure, Reference, describe, refer
from draftproof.judge.results.run import Difference, Reason
from draftproof.judge.stats.periods import count_spread, widen_count
from draftproof.judge.stats.quantiles import normal_quantile
from draftproof.judge.stats.resampling import Floats, index_labels
from draftproof.judge.stats.shares import paired_share_difference
from draftproof.plan.schema import Thresholds

GuardrailOutcome = Literal["held", "open", "violated", "shifted", "noted"]
ENDS_NOT_SHOWN = "token_limit_not_shown"
SUSPECT_PROMPTS = 2  # a single prompt more or less is chance


class ShareRule(msgspec.Struct, frozen=True):
    """How a difference of shares is evaluated. `margin` names the threshold.

    `sign`: 1 where more is worse, −1 where less is worse, 0 where a shift either way keeps a gain from being
    claimed. `unknown` says why no pair tells, `remedy` what would help then.
    """

    code: str
    words: str
    margin: str
    sign: int
    unknown: str = "no pair was judged in both arms"
    remedy: str | None = None


SHARE_RULES = {
    "failed_share": ShareRule("guardrail_failures", "share of failed requests", "failure_margin", 1),
    "passed_share": ShareRule(
        "guardrail_checks", "share of answers that pass or agree with the baseline's", "quality_margin", -1
    ),
    "limit_share": ShareRule(
        "token_limit",
        "share of answers that end at the token limit",
        "token_limit_margin",
        0,
        "no pair of answers says how it ended",
        "have the service state a finish reason",
    ),
}
QUANTITIES = tuple(SHARE_RULES)
SHOWN_SHARES = ("failed_share", "passed_share")
LATENCY_ONLY = "latency_only"
LEAST_AGREEMENT = 0.5


def find(
    standing: GuardrailOutcome, code: str, text: str, row: Reference, *, remedy: str | None = None
) -> "GuardrailFinding":
    """Return a finding; `row` is what it is read from."""
    reason = Reason(code=code, text=f"{text.removesuffix('.')}.", evidence=row, remedy=remedy)
    return GuardrailFinding(standing=standing, reason=reason)


def find_unknown(code: str, text: str, figure: Figure, row: Reference) -> "GuardrailFinding":
    """Return the open finding of an unknown figure, with what helps where no number of prompts does."""
    text, remedy = f"{text}: {figure.reason}", figure.remedy
    text += f"; no number of prompts changes that: {remedy}" if remedy else ""
    return find("open", code, text, row, remedy=remedy)


DifferenceIndex = Mapping[tuple[str, str, str, str, str], Difference]
Votes = Mapping[tuple[bool, bool], Fraction]  # (state of the arm, of the other) -> prompts


class GuardrailFinding(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one guardrail in one cell.

    `held`: non-inferior. `violated`: the whole interval is beyond the margin. `shifted`: the answers'
    length or their ends changed by more than the margin, so a gain is not claimed. `open`: the interval does
    not tell. `noted`: it does not tell, and with such evidence this is said beside a gain instead of
    withholding it.
    """

    standing: GuardrailOutcome
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

    With no discordant pair Tango's interval ends at z² / (n + z²); it is within the margin from
    n = z² (1 − margin) / margin on.
    """
    if margin <= 0:
        raise ValueError(f"a margin of {margin} cannot be shown by any number of pairs")
    z = normal_quantile(0.5 + level / 2)
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


def evaluate_guardrails(
    cell: CellKey,
    effects: EffectIndex,
    differences: DifferenceIndex,
    critical: Mapping[CellKey, int],
    thresholds: Thresholds,
    *,
    withholds: bool,
    asks_quality: bool = True,
) -> tuple[GuardrailFinding, ...]:
    """Return the state of every guardrail of the candidate against the baseline in a cell.

    `withholds`: whether ends of answers that are not shown to be the baseline's keep a gain from being
    claimed; else they are noted. `asks_quality`: whether the question is of more than latency.
    """
    ratio = {
        metric: effects[(metric, "candidate", "baseline", *cell)].ratio
        for metric in ("ttft_from_schedule_ns", "e2e_from_schedule_ns", "output_tokens")
    }
    return (
        evaluate_share(cell, differences, "failed_share", thresholds),
        evaluate_quality(cell, differences, thresholds, is_asked=asks_quality),
        evaluate_ends(cell, differences, thresholds, withholds=withholds),
        evaluate_critical(cell, critical, thresholds.critical_errors),
        *(
            evaluate_time(
                name,
                cell,
                ratio[metric],
                margin,
                null_difference_at(effects, metric, cell[1]),
                widened=margin_at(effects, metric, cell[1]),
            )
            for name, metric, margin in (
                ("ttft", "ttft_from_schedule_ns", thresholds.ttft_margin),
                ("e2e", "e2e_from_schedule_ns", thresholds.e2e_margin),
            )
        ),
        evaluate_length(cell, ratio["output_tokens"], thresholds.output_length_margin),
    )


def evaluate_critical(cell: CellKey, critical: Mapping[CellKey, int], allowed: int) -> GuardrailFinding:
    """Evaluate new critical failures: above the allowed number at a load, each cell with one is at fault."""
    at_load = sum(count for (_, load), count in critical.items() if load == cell[1])
    here = critical.get(cell, 0)
    standing: GuardrailOutcome = "violated" if at_load > allowed and here else "held"
    text = (
        f"{at_load} new failures of critical checks against the baseline at load {cell[1]} "
        f"({here} in this cell); the plan allows {allowed}"
    )
    return find(standing, "critical_errors", text, refer("checks", cell))


def evaluate_time(
    name: str,
    cell: CellKey,
    ratio: Figure,
    margin: float,
    null: float = 1.0,
    *,
    widened: float | None = None,
) -> GuardrailFinding:
    """Evaluate a time's ratio against 1 + margin; `null` is what equal arms differ by there, 1 or more.

    `widened`: by which factor that widens the margin; None: by itself.
    """
    words = {"ttft": "time to first token", "e2e": "end-to-end time"}[name]
    code, row = f"guardrail_{name}", refer("effects", cell, name)
    if ratio.low is None or ratio.high is None:
        return find_unknown(code, f"{words} could not be compared", ratio, row)
    span = f"{words} is {describe(ratio)} times the baseline's, at most {1 + margin:.2f} allowed"
    standing: GuardrailOutcome = "held" if ratio.high <= 1 + margin else "open"
    standing = "violated" if ratio.low > (1 + margin) * (widened or null) else standing
    return find(standing, code, span + beside_null(null), row)


def beside_null(null: float) -> str:
    """Return what two equal arms differ by, to set beside a limit; nothing below a tenth of a percent."""
    return f" (equal services differ by {100 * (null - 1):.1f} %)" if null > 1.001 else ""


def evaluate_length(cell: CellKey, ratio: Figure, margin: float) -> GuardrailFinding:
    """Evaluate the mean length of answers: a shift beyond the margin either way means no gain is claimed."""
    code, row = "output_length", refer("effects", cell, "output_tokens")
    if ratio.low is None or ratio.high is None:
        return find_unknown(code, "output length could not be compared", ratio, row)
    span = f"answers are {describe(ratio)} times as long as the baseline's, a shift of {margin:.2f} allowed"
    if ratio.low > 1 + margin or ratio.high < 1 - margin:
        return find("shifted", code + "_shift", span + "; a gain is not claimed", row)
    held = ratio.low >= 1 - margin and ratio.high <= 1 + margin
    return find("held" if held else "open", code, span, row)


def evaluate_share(
    cell: CellKey, differences: DifferenceIndex, quantity: str, thresholds: Thresholds
) -> GuardrailFinding:
    """Evaluate a share: non-inferior over the load, violated or shifted in the cell or over the load.

    A share that cannot be compared is never held.
    """
    segment, load = cell
    rule, margin = SHARE_RULES[quantity], margin_of(thresholds, quantity)
    here = differences[quantity, "candidate", "baseline", segment, load].difference
    pooled = differences[quantity, "candidate", "baseline", ALL_SEGMENTS, load].difference
    own, whole = (refer("differences", one, quantity) for one in (cell, (ALL_SEGMENTS, load)))
    worst: GuardrailOutcome = "violated" if rule.sign else "shifted"
    code = rule.code if rule.sign else f"{rule.code}_shift"
    if _is_beyond(here, margin, rule.sign):
        return find(worst, code, _share_text(rule, here, margin, f"in {segment}"), own)
    text = _share_text(rule, pooled, margin, "over all tasks")
    if _is_beyond(pooled, margin, rule.sign) and _worse(here, rule.sign) > margin:
        return find(worst, code, text, whole)
    if pooled.value is None:
        text = f"{rule.words} could not be compared over all tasks"
        return find_unknown(rule.code, text, pooled, whole)
    if not _is_within(pooled, margin, rule.sign):
        return find("open", rule.code, text, whole)
    if _is_suspect(here, margin, rule.sign):
        text = _share_text(rule, here, margin, f"in {segment}, though it holds over the load")
        return find("open", rule.code, text, own)
    return find("held", rule.code, text, whole)


def evaluate_ends(
    cell: CellKey, differences: DifferenceIndex, thresholds: Thresholds, *, withholds: bool
) -> GuardrailFinding:
    """Evaluate the share of answers cut at the token limit; a shift that shows always withholds a gain."""
    found = evaluate_share(cell, differences, "limit_share", thresholds)
    cells = (cell, (ALL_SEGMENTS, cell[1]))
    here = [differences["limit_share", "candidate", "baseline", *one].difference for one in cells]
    shows = max(_worse(one, 0) for one in here) > thresholds.token_limit_margin
    if found.standing != "open" or withholds or shows:
        return found
    return GuardrailFinding(
        standing="noted", reason=msgspec.structs.replace(found.reason, code=ENDS_NOT_SHOWN)
    )


def evaluate_quality(
    cell: CellKey, differences: DifferenceIndex, thresholds: Thresholds, *, is_asked: bool
) -> GuardrailFinding:
    """Judge the share of answers that pass; of a question of latency alone it is only noted."""
    found = evaluate_share(cell, differences, "passed_share", thresholds)
    if is_asked:
        return found
    return GuardrailFinding(standing="noted", reason=msgspec.structs.replace(found.reason, code=LATENCY_ONLY))


def find_low_agreement(
    prepared: PreparedRun, pairs: PairTable
) -> dict[CellKey, tuple[GuardrailFinding, ...]]:
    """Return an open finding for each cell in which even two equal services seldom answer alike.

    A loss shows only in answers that the null arm gives as the baseline does. Where these are fewer than
    `LEAST_AGREEMENT` of all, more than twice the plan's margin could be lost unseen.
    """
    null = pairs.get(NULL)
    if null is None or prepared.plan.comparison.quality != "agreement":
        return {}
    found: dict[CellKey, tuple[GuardrailFinding, ...]] = {}
    for load, segment in itertools.product(prepared.loads, prepared.segments):
        inside = null.cell(segment, load)
        held = inside.is_ok & inside.columns.is_held_to_baseline[inside.theirs]
        share = float(inside.is_same[held].mean()) if held.any() else 1.0
        if share < LEAST_AGREEMENT:
            text = (
                f"two equal services give the same answer to {100 * share:.0f} % of prompts in {segment}, "
                "too few to show by agreement that the candidate's are as good; add checks"
            )
            row = refer("differences", (segment, load), "passed_share")
            found[segment, load] = (find("open", "low_agreement", text, row, remedy="add checks"),)
    return found


def _is_suspect(here: Figure, margin: float, sign: int) -> bool:
    """Return whether a cell's own share is beyond the margin by more than one prompt.

    Its interval cannot tell, being that of few prompts; but what holds over the load is then no evidence for
    this cell, or an average over many segments would hide one.
    """
    worse = _worse(here, sign)
    return worse > margin and worse * (here.n or 0) >= SUSPECT_PROMPTS


def _worse(figure: Figure, sign: int) -> float:
    """Return by how much a share is worse than the other arm's, or how far off where both ways count."""
    value = figure.value or 0.0
    return sign * value if sign else abs(value)


def _is_beyond(figure: Figure, margin: float, sign: int) -> bool:
    """Return whether the whole interval is beyond the margin, on the side that counts."""
    if figure.low is None or figure.high is None:
        return False
    return (sign >= 0 and figure.low > margin) or (sign <= 0 and figure.high < -margin)


def _is_within(figure: Figure, margin: float, sign: int) -> bool:
    """Return whether the whole interval is within the margin, on the side that counts."""
    if figure.low is None or figure.high is None:
        return False
    return (sign < 0 or figure.high <= margin) and (sign > 0 or figure.low >= -margin)


def _share_text(rule: ShareRule, figure: Figure, margin: float, where: str) -> str:
    if figure.value is None or figure.low is None or figure.high is None:
        return f"{rule.words} could not be compared {where}: {figure.reason}"
    return (
        f"{rule.words}: {100 * figure.value:+.1f} points ({100 * figure.low:+.1f} to "
        f"{100 * figure.high:+.1f}) against the baseline {where}, {100 * margin:.1f} allowed"
    )


def _compute_difference(
    prepared: PreparedRun, pairs: Pairs, comparison: tuple[str, str], quantity: str, cell: CellKey
) -> Difference:
    inside, choice, rule = pairs.cell(*cell), prepared.plan.comparison, SHARE_RULES[quantity]
    margin, level = (
        margin_of(prepared.plan.thresholds, quantity),
        prepared.level_at(cell[1]),
    )
    votes = count_votes(inside, quantity)
    n = int(sum(votes.values()))
    figure = Figure(value=None, level=level, reason=rule.unknown, remedy=rule.remedy)
    if n:
        effective = _count_effective(inside, quantity, choice.cluster_by, level)
        states = ((True, True), (True, False), (False, True), (False, False))
        both, arm_only, versus_only, neither = (effective * float(votes.get(one, 0)) for one in states)
        found = paired_share_difference(both, arm_only, versus_only, neither, level)
        needed = max(pairs_needed_for_margin(margin, level) - n, 0) or None if margin > 0 else None
        figure = Figure(value=found.value, low=found.low, high=found.high, level=level, n=n, needed=needed)
    return Difference(
        quantity=quantity,
        arm=comparison[0],
        versus=comparison[1],
        segment=cell[0],
        load=cell[1],
        difference=figure,
    )


def count_votes(pairs: Pairs, quantity: str) -> Votes:
    """Return how often the arm and the other had the quantity, one vote for each prompt.

    Repeats of a prompt and the turns of a conversation rise and fall together, so they share their prompt's
    vote: five repeats of ten prompts say no more than ten prompts. Exact, so that no order of pairs shows.
    """
    mine, theirs = _read_states(pairs, quantity)
    judged = ~(np.isnan(mine) | np.isnan(theirs))
    kinds = (2 * mine[judged] + theirs[judged]).astype(np.intp)
    counts = np.bincount(4 * pairs.columns.prompts[pairs.mine[judged]] + kinds, minlength=4)
    votes: defaultdict[tuple[bool, bool], Fraction] = defaultdict(Fraction)
    for index in np.flatnonzero(counts).tolist():
        first = index - index % 4
        total = int(counts[first : first + 4].sum())
        votes[index % 4 >= 2, index % 2 == 1] += Fraction(int(counts[index]), total)
    return votes


def _count_effective(pairs: Pairs, quantity: str, cluster_by: str | None, level: float) -> float:
    """Return the effective number of votes per vote: below 1 where few blocks or labels hold what differs.

    Prompts of one label (`cluster_by`) that never differ between the arms show no correlation, so each of
    them keeps its vote.
    """
    mine, theirs = _read_states(pairs, quantity)
    judged = ~(np.isnan(mine) | np.isnan(theirs))
    voters = pairs.columns.prompts[pairs.mine[judged]]
    labels = pairs.columns.clusters(cluster_by)[pairs.mine[judged]]
    differing = (mine - theirs)[judged] / np.bincount(voters)[voters]
    of_prompts = float((np.bincount(voters, weights=differing) ** 2).sum())
    if of_prompts == 0.0:
        return 1.0
    variance = max(of_prompts, float((np.bincount(labels, weights=differing) ** 2).sum()))
    blocks = index_labels(pairs.columns.blocks[pairs.mine[judged]])
    sizes = np.bincount(blocks).astype(np.float64)
    spread = count_spread(differing, blocks, sizes)
    return of_prompts / widen_count(variance, spread, sizes, (1.0 - level) / 2.0)


def margin_of(thresholds: Thresholds, quantity: str) -> float:
    """Return the margin of a share."""
    margin: float = getattr(thresholds, SHARE_RULES[quantity].margin)
    return margin


def _read_states(pairs: Pairs, quantity: str) -> tuple[Floats, Floats]:
    """Return of both requests of each pair 1 where it has the quantity, 0 where not, NaN where unknown."""
    columns, mine, theirs = pairs.columns, pairs.mine, pairs.theirs
    if quantity == "failed_share":
        failed = np.where(columns.is_ok, 0.0, 1.0)
        return failed[mine], failed[theirs]
    if quantity == "passed_share":
        return pairs.passed[mine], pairs.passed[theirs]
    # Where one arm alone does not say how an answer ended it is taken to be cut: an arm that hides its cuts
    # would otherwise take their pairs out.
    ends = columns.is_cut[mine], columns.is_cut[theirs]
    known = pairs.is_ok & ~(np.isnan(ends[0]) & np.isnan(ends[1]))
    filled = [np.where(known, np.where(np.isnan(one), 1.0, one), np.nan) for one in ends]
    return filled[0], filled[1]
