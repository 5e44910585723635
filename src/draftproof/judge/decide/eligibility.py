"""What keeps a gain from being claimed although its interval is clear.

Each rule names a way in which an arm looks faster without being so: by the length of its answers, by how
tokens are counted or joined, by few periods, or by what the host did.
"""

from collections import defaultdict
from collections.abc import Iterable

import numpy as np
from msgspec.structs import replace

from draftproof.judge.decide.counting import read_at_equal_length, read_tokens_per_character
from draftproof.judge.decide.effects import (
    CellKey,
    EffectIndex,
    choose_interval,
    compare_arms,
    compare_metric,
    index_effects,
    is_gain,
    margin_at,
)
from draftproof.judge.decide.forecast import find_few_blocks
from draftproof.judge.decide.guardrails import GuardrailFinding, find
from draftproof.judge.decide.near_copies import join_near_copies
from draftproof.judge.metrics.request import METRIC_WORDS
from draftproof.judge.observe.attempts import may_disturb_itself, take_first_attempts
from draftproof.judge.observe.observed import RunData
from draftproof.judge.observe.pairs import DECISIVE, Pairs, PairTable, pair_observations
from draftproof.judge.observe.run_data import PreparedRun, prepare_run
from draftproof.judge.results.decide import describe, refer
from draftproof.judge.results.run import Effect, Figure
from draftproof.workload.blocks import least_blocks

TPOT, E2E = "tpot_ns", "e2e_from_schedule_ns"


def evaluate_gain_eligibility(
    prepared: PreparedRun, pairs: PairTable, effects: EffectIndex, *, is_representative: bool
) -> dict[CellKey, tuple[GuardrailFinding, ...]]:
    """Return, by cell, what keeps a gain from being claimed; representative traffic takes more blocks."""
    found: defaultdict[CellKey, list[GuardrailFinding]] = defaultdict(list)
    for cell, finding in (
        *_find_by_length(prepared, pairs[DECISIVE], effects),
        *_find_contradicted(prepared, pairs[DECISIVE], effects),
        *_find_by_counting(prepared, pairs[DECISIVE], effects),
        *_find_disturbed_more(prepared),
        *_find_by_attempts(prepared, effects),
        *_find_by_near_copies(prepared, pairs[DECISIVE], effects),
        *_find_few_blocks(prepared, pairs[DECISIVE], least_blocks(is_representative=is_representative)),
        *_find_late_by_itself(prepared),
    ):
        found[cell].append(finding)
    return {cell: tuple(findings) for cell, findings in found.items()}


def _find_by_length(
    prepared: PreparedRun, pairs: Pairs, effects: EffectIndex
) -> Iterable[tuple[CellKey, GuardrailFinding]]:
    """Find gains that do not survive the shift of length: less its upper limit, and over shared tokens."""
    metric, thresholds = prepared.plan.comparison.metric, prepared.plan.thresholds
    gains = dict(_list_gains(prepared, effects))
    common = _compare_at_equal_length(prepared, pairs, metric) if gains else {}
    words = METRIC_WORDS[metric]
    for cell, gain in gains.items():
        null = _margin_at(prepared, effects, cell[1])
        shift = compute_length_shift(effects[("output_tokens", *DECISIVE, *cell)].ratio, metric)
        text = None
        alike = choose_interval(common[cell], thresholds, null) if cell in common else gain
        if not is_gain(alike, thresholds, null):
            text = (
                f"Over the tokens that both answers have, {words} is {describe(alike)} of the "
                "baseline's: the rest of the gain is the length of answers."
            )
        elif not is_gain(replace(gain, high=(gain.high or 0.0) + shift), thresholds, null):
            text = (
                f"Answers may differ from the baseline's in length by {100 * shift:.1f} %; less that, "
                f"{words} of {describe(gain)} is no gain beyond the minimum."
            )
        if text:
            yield cell, _open("gain_by_length", text, cell)


def _list_gains(prepared: PreparedRun, effects: EffectIndex) -> Iterable[tuple[CellKey, Figure]]:
    """Return the cells whose effect is a gain, with its interval."""
    metric = prepared.plan.comparison.metric
    for load in prepared.loads:
        null = _margin_at(prepared, effects, load)
        for segment in prepared.segments:
            gain = choose_interval(
                effects[(metric, *DECISIVE, segment, load)], prepared.plan.thresholds, null
            )
            if is_gain(gain, prepared.plan.thresholds, null):
                yield (segment, load), gain


def _margin_at(prepared: PreparedRun, effects: EffectIndex, load: str) -> float:
    return margin_at(effects, prepared.plan.comparison.metric, load)


def compute_length_shift(ratio: Figure, metric: str) -> float:
    """Return the upper limit of the shift of length as a share of the baseline's; 0 where it is not known.

    Shorter answers end sooner. A time per token can also fall because cheap tokens are added.
    """
    if ratio.low is None or ratio.high is None:
        return 0.0  # the guardrail of length withholds then
    longer = ratio.high - 1 if metric != E2E else 0.0
    return max(0.0, 1 - ratio.low, longer)


def _compare_at_equal_length(prepared: PreparedRun, pairs: Pairs, metric: str) -> dict[CellKey, Effect]:
    """Return the effect at equal length by cell; none where all answers have equal lengths."""
    values = read_at_equal_length(pairs, metric)
    if values is None:
        return {}
    alone = pairs.with_twins(None)  # each pair has a length of its own
    found = compare_arms(prepared, alone, DECISIVE, f"{metric} at equal length", values)
    return {(one.segment, one.load): one for one in found}


def _find_contradicted(
    prepared: PreparedRun, pairs: Pairs, effects: EffectIndex
) -> Iterable[tuple[CellKey, GuardrailFinding]]:
    """Find gains of time per token that end-to-end time does not show, whatever their cause.

    With a share f of the baseline's time after its first token, an end-to-end ratio R implies 1 − (1 − R)/f
    for that part. Where that is more than the gain says, beyond both intervals, and no gain itself, no token
    came sooner.
    """
    if prepared.plan.comparison.metric != TPOT:
        return
    for cell, gain in _list_gains(prepared, effects):
        whole, share = effects[(E2E, *DECISIVE, *cell)].ratio, _share_after_first(pairs.cell(*cell))
        implied = _imply(whole, share)
        if implied.low is None or gain.high is None or implied.low <= gain.high:
            continue
        null = _margin_at(prepared, effects, cell[1])
        if not is_gain(implied, prepared.plan.thresholds, null):
            text = (
                f"Time per token is {describe(gain)} of the baseline's, so end-to-end time would be "
                f"{1 - share * (1 - (gain.value or 0)):.2f}, but it is {describe(whole)}."
            )
            yield cell, _open("contradicted_end_to_end", text, cell)


def _share_after_first(pairs: Pairs) -> float:
    """Return the share of the other arm's end-to-end time that is after its first token; 0 if unknown."""
    columns, theirs = pairs.columns, pairs.theirs[pairs.is_ok]
    whole, first = columns.metric(E2E)[theirs], columns.metric("ttft_from_schedule_ns")[theirs]
    known = ~np.isnan(first) & columns.timed[theirs]
    total = float(whole[known].sum())
    return 1.0 - float(first[known].sum()) / total if total > 0 else 0.0


def _imply(whole: Figure, share: float) -> Figure:
    """Return what an end-to-end ratio implies for the part after the first token, None where it has none."""
    if whole.value is None or whole.low is None or whole.high is None or share <= 0:
        return Figure(value=None)
    value, low, high = (1 - (1 - ratio) / share for ratio in (whole.value, whole.low, whole.high))
    return Figure(value=value, low=low, high=high, level=whole.level, n=whole.n)


def _find_by_counting(
    prepared: PreparedRun, pairs: Pairs, effects: EffectIndex
) -> Iterable[tuple[CellKey, GuardrailFinding]]:
    """Find gains of time per token that are none for each character of text, where tokens hold less of it.

    An arm that states more tokens for its text looks faster by as much.
    """
    gains = dict(_list_gains(prepared, effects)) if prepared.plan.comparison.metric == TPOT else {}
    density = read_tokens_per_character(prepared.columns)
    if not gains or np.array_equal(density[pairs.mine], density[pairs.theirs], equal_nan=True):
        return
    values = prepared.columns.metric(TPOT) * density
    by_text = compare_arms(prepared, pairs, DECISIVE, "time per character", values)
    tokens = compare_arms(prepared, pairs, DECISIVE, "tokens per character", density)
    for one, counted in zip(by_text, tokens, strict=True):
        cell, low = (one.segment, one.load), counted.ratio.low
        if cell not in gains or low is None or low <= 1:
            continue
        null = _margin_at(prepared, effects, one.load)
        chosen = choose_interval(one, prepared.plan.thresholds, null)
        if not is_gain(chosen, prepared.plan.thresholds, null):
            text = (
                f"The candidate states {describe(counted.ratio)} times the baseline's tokens for the same "
                f"amount of text, and time per character is {describe(chosen)} of the baseline's: "
                "the rest of the gain is how tokens are counted."
            )
            yield cell, _open("gain_by_counting", text, cell)


def _find_disturbed_more(prepared: PreparedRun) -> Iterable[tuple[CellKey, GuardrailFinding]]:
    """Find that the host disturbed the candidate more often than chance does: it may disturb itself."""
    text = prepared.disturbed_more.get("candidate")
    for load in prepared.loads if text else ():
        yield from _open_load(prepared, load, "disturbed_more", f"{text}, so no gain is claimed.")


def _find_by_attempts(
    prepared: PreparedRun, effects: EffectIndex
) -> Iterable[tuple[CellKey, GuardrailFinding]]:
    """Find gains that only the second attempts show, where hardly any but the candidate's were needed.

    A candidate that stalls by itself may have let the host look disturbed: its first attempts count then too.
    """
    arms = [period.arm for period in prepared.periods.values()]
    if not may_disturb_itself(prepared.attempts, arms, "candidate"):
        return
    count, words = sum(one.arm == "candidate" for one in prepared.attempts), _words(prepared)
    for cell, effect in _list_lost(prepared, effects, take_first_attempts(prepared.every, "candidate")):
        text = (
            f"Of the disturbed periods {count} of {len(prepared.attempts)} are the candidate's, so what "
            f"disturbs may be the candidate itself; with its first attempts {words} is {describe(effect)} of "
            "the baseline's."
        )
        yield cell, _open("gain_by_attempts", text, cell)


def _find_by_near_copies(
    prepared: PreparedRun, pairs: Pairs, effects: EffectIndex
) -> Iterable[tuple[CellKey, GuardrailFinding]]:
    """Find gains based on near copies which answer alike: with each group as one prompt they are none.

    Where all prompts are of one or two groups, nothing tells whether they answer alike; a warning says so.
    """
    joined = join_near_copies(prepared, pairs) if any(_list_gains(prepared, effects)) else None
    for cell, effect in _list_lost(prepared, effects, joined) if joined else ():
        if effect.value is not None:
            text = (
                f"With near copies of a prompt taken together {_words(prepared)} is {describe(effect)} of "
                "the baseline's: name their template or document in comparison.cluster_by, or add others."
            )
            yield cell, _open("gain_by_near_copies", text, cell)


def _list_lost(
    prepared: PreparedRun, effects: EffectIndex, other: RunData
) -> Iterable[tuple[CellKey, Figure]]:
    """Return the gains that the run does not show when it is read as another, with the interval it gives."""
    gains = dict(_list_gains(prepared, effects))
    if not gains:
        return
    read, metric = prepare_run(other), prepared.plan.comparison.metric
    found = index_effects(compare_metric(read, pair_observations(read)[DECISIVE], DECISIVE, metric))
    for cell in gains:
        null = _margin_at(prepared, effects, cell[1])
        effect = choose_interval(found[(metric, *DECISIVE, *cell)], prepared.plan.thresholds, null)
        if not is_gain(effect, prepared.plan.thresholds, null):
            yield cell, effect


def _words(prepared: PreparedRun) -> str:
    return METRIC_WORDS[prepared.plan.comparison.metric]


def _find_late_by_itself(prepared: PreparedRun) -> Iterable[tuple[CellKey, GuardrailFinding]]:
    """Find loads at which the candidate may have made the client late, so that its slow times are left out.

    Times of a late client's periods do not count. Where the run's own processes filled the host in one of the
    candidate's, no other program was in the way.
    """
    for load in prepared.loads:
        periods = (
            period for period in prepared.periods.values() if (period.load, period.arm) == (load, "candidate")
        )
        if count := sum(period.late_by_itself for period in periods):
            text = (
                f"At load {load} the client was late in {count} of the candidate's periods while the run's "
                "own processes filled the host: the candidate may have made it late, and its times there are "
                "left out."
            )
            yield from _open_load(prepared, load, "late_by_itself", text)


def _find_few_blocks(
    prepared: PreparedRun, pairs: Pairs, least: int
) -> Iterable[tuple[CellKey, GuardrailFinding]]:
    """Find loads with so few blocks that what a period does to all of its prompts is in no interval."""
    for load, text in find_few_blocks(prepared, pairs, least):
        yield from _open_load(prepared, load, "periods_unmeasured", text)


def _open_load(
    prepared: PreparedRun, load: str, code: str, text: str
) -> Iterable[tuple[CellKey, GuardrailFinding]]:
    yield from (((name, load), _open(code, text, (name, load))) for name in prepared.segments)


def _open(code: str, text: str, cell: CellKey) -> GuardrailFinding:
    return find("open", code, text, refer("effects", cell))
