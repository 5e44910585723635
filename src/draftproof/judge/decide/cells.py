"""The status of every cell: gain, harm, neutral, no_gain, inconclusive or invalid, each with its reasons.

Pure. The rules are those of docs/metrics.md, Effects. The order matters: a fault beats everything, harm beats
gain, and whatever stays open makes a cell inconclusive.
"""

from collections.abc import Iterable, Sequence

import msgspec

from draftproof.judge.decide.effects import (
    CellKey,
    EffectIndex,
    choose_interval,
    is_gain,
    margin_at,
    null_difference_at,
)
from draftproof.judge.decide.faults import Faults
from draftproof.judge.decide.guardrails import GuardrailFinding
from draftproof.judge.observe.pairs import DECISIVE
from draftproof.judge.observe.run_data import ALL_SEGMENTS, PreparedRun
from draftproof.judge.results.decide import Figure, GuardrailStanding, Reference, describe
from draftproof.judge.results.run import Cell, CellStatus, Reason
from draftproof.plan.limits import LoadSize
from draftproof.plan.schema import Thresholds


class CellEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """What the status of one cell is based on. Figures are simultaneous intervals of the deciding metric.

    `effect` is that in sequence where the loads below are admissible and it alone shows a gain.

    `null_difference` is that at this load, a ratio of 1 or more: what makes two equal arms differ for a
    whole run (a process, its position in memory) is in no interval, but in the null. `widened`: by which
    factor it widens the margins.
    """

    cell: CellKey
    effect: Figure
    alternative_effect: Figure | None
    versus_alternative: Figure | None
    pooled_versus_alternative: Figure | None
    null_effect: Figure | None
    null_difference: float
    widened: float
    verification_steps: int | None
    prompts: int
    findings: tuple[GuardrailFinding, ...]
    fault_reasons: tuple[Reason, ...]


def gather_evidence(
    prepared: PreparedRun,
    cell: CellKey,
    effects: EffectIndex,
    findings: Sequence[GuardrailFinding],
    faults: Faults,
    *,
    steps: int | None,
    in_sequence: bool,
) -> CellEvidence:
    """Collect the figures that decide one cell; `steps` are the candidate's verification steps there.

    `in_sequence`: whether every load below is admissible for the segment.
    """
    metric = prepared.plan.comparison.metric
    effect, widened = effects[(metric, *DECISIVE, *cell)], margin_at(effects, metric, cell[1])
    chosen = (
        choose_interval(effect, prepared.plan.thresholds, widened) if in_sequence else effect.simultaneous
    )

    def simultaneous(arm: str, versus: str) -> Figure | None:
        effect = effects.get((metric, arm, versus, *cell))
        return effect.simultaneous if effect else None

    pooled = effects.get((metric, "candidate", "alternative", ALL_SEGMENTS, cell[1]))
    return CellEvidence(
        cell=cell,
        effect=chosen,
        alternative_effect=simultaneous("alternative", "baseline"),
        versus_alternative=simultaneous("candidate", "alternative"),
        pooled_versus_alternative=pooled.ratio if pooled else None,
        null_effect=simultaneous("baseline_null", "baseline"),
        null_difference=null_difference_at(effects, metric, cell[1]),
        widened=widened,
        verification_steps=steps,
        prompts=effect.prompts,
        findings=tuple(findings),
        fault_reasons=(*faults.run, *faults.by_load.get(cell[1], ())),
    )


def decide_cell(evidence: CellEvidence, thresholds: Thresholds, metric: str, size: LoadSize) -> Cell:
    """Return the cell with its status and every reason for it."""
    status, reasons = _decide_status(evidence, thresholds, metric)
    return Cell(
        segment=evidence.cell[0],
        load=evidence.cell[1],
        concurrency=size.concurrency,
        status=status,
        effect=evidence.effect,
        alternative_effect=evidence.alternative_effect,
        reasons=(*reasons, *([] if status == "invalid" else _reasons(evidence.findings, "noted"))),
        guardrails=tuple(_state_guardrail(finding) for finding in evidence.findings),
        offered_rps=size.offered_rps,
        load_shape=size.shape,
    )


def _state_guardrail(finding: GuardrailFinding) -> GuardrailStanding:
    reason = finding.reason
    return GuardrailStanding(
        code=reason.code, standing=finding.standing, text=reason.text, evidence=reason.evidence
    )


def decide_effect(effect: Figure, thresholds: Thresholds, null: float = 1.0) -> CellStatus:
    """Return the status of an interval against the margins alone, the null difference counted against it.

    `no_gain`: neither harm nor neutral is shown, but that no minimum gain is there. Two equal services that
    differ could hide one.
    """
    if effect.low is None or effect.high is None:
        return "inconclusive"
    if effect.low > (1 + thresholds.harm_margin) * null:
        return "harm"
    if is_gain(effect, thresholds, null):
        return "gain"
    least = 1 - thresholds.minimum_gain
    if effect.low >= least and effect.high <= 1 + thresholds.harm_margin:
        return "neutral"
    return "no_gain" if effect.low >= least * null else "inconclusive"


def is_null_at_odds(null_effect: Figure | None, thresholds: Thresholds) -> bool:
    """Return whether two equal arms differ by more than the margins in this cell."""
    if null_effect is None or null_effect.low is None or null_effect.high is None:
        return False
    return null_effect.high < 1 - thresholds.minimum_gain or null_effect.low > 1 + thresholds.harm_margin


def exceeds_null(effect: Figure, null_effect: Figure | None) -> bool:
    """Return whether the effect is beyond what two equal arms show.

    The whole interval must be below the null's interval and below its reciprocal, because the arm that
    happened to be the slower of two equal ones could as well have been the other.
    """
    if effect.high is None or null_effect is None or not null_effect.low or not null_effect.high:
        return False
    return effect.high < min(null_effect.low, 1 / null_effect.high)


def is_dominated(versus_alternative: Figure | None, margin: float) -> bool:
    """Return whether alternative / candidate is wholly below 1 − margin."""
    if versus_alternative is None or versus_alternative.low is None:
        return False
    return versus_alternative.low > 1 / (1 - margin)


def _decide_status(
    evidence: CellEvidence, thresholds: Thresholds, metric: str
) -> tuple[CellStatus, list[Reason]]:
    if evidence.fault_reasons:
        return "invalid", list(evidence.fault_reasons)
    standing = decide_effect(evidence.effect, thresholds, evidence.widened)
    effect_reason = _explain_effect(evidence, standing, thresholds, metric)
    violated = _reasons(evidence.findings, "violated")
    if violated:
        return "harm", [*violated, effect_reason]
    if standing == "gain":
        withheld = [*_find_objections(evidence, thresholds), *_reasons(evidence.findings, "open", "shifted")]
        return ("inconclusive" if withheld else "gain"), [effect_reason, *withheld]
    if standing == "neutral":
        unclear = _reasons(evidence.findings, "open")
        return ("inconclusive" if unclear else "neutral"), [
            effect_reason,
            *_find_dominance(evidence, thresholds.dominated_margin),
            *unclear,
            *_reasons(evidence.findings, "shifted"),
        ]
    return standing, [effect_reason, *_reasons(evidence.findings, "open", "shifted")]


def _reasons(findings: Iterable[GuardrailFinding], *standings: str) -> list[Reason]:
    return [finding.reason for finding in findings if finding.standing in standings]


def _find_objections(evidence: CellEvidence, thresholds: Thresholds) -> list[Reason]:
    """Return what keeps an effect from being claimed: a better alternative, or equal arms that differ."""
    found = [*_find_missing_arms(evidence), *_find_idle_drafter(evidence)]
    found += _find_dominance(evidence, thresholds.dominated_margin) or _find_open_rivalry(
        evidence, thresholds.dominated_margin
    )
    null_effect = evidence.null_effect
    at_odds = null_effect is not None and is_null_at_odds(null_effect, thresholds)
    if at_odds and not exceeds_null(evidence.effect, null_effect):
        text = (
            f"Two equal services differ by {describe(null_effect)} here, and the gain is not shown to be "
            "larger."
        )
        row = _row("baseline_null", "baseline", evidence.cell)
        found.append(Reason(code="null_not_exceeded", text=text, evidence=row))
    return found


def _find_dominance(evidence: CellEvidence, margin: float) -> list[Reason]:
    """Return the objection that the alternative is better: in the cell, or over all segments of the load.

    The budget is spent once, so an alternative that wins over a whole load makes its cells ineligible for a
    gain, unless the candidate is shown to beat it in the cell itself.
    """
    here, pooled = evidence.versus_alternative, evidence.pooled_versus_alternative
    wins_here = here is not None and here.high is not None and here.high < 1
    if is_dominated(here, margin):
        figure, where, cell = here, "", evidence.cell
    elif is_dominated(pooled, margin) and not wins_here:
        figure, where = pooled, f" over all tasks at load {evidence.cell[1]}"
        cell = (ALL_SEGMENTS, evidence.cell[1])
    else:
        return []
    text = (
        f"The alternative is better{where}: candidate / alternative is {describe(figure)}, at most "
        f"{1 / (1 - margin):.2f} allowed."
    )
    return [Reason(code="dominated", text=text, evidence=_row("candidate", "alternative", cell))]


def _find_open_rivalry(evidence: CellEvidence, margin: float) -> list[Reason]:
    """Return the objection that nobody can tell whether the alternative dominates, here or over the load.

    What is not shown is not held: an interval that reaches beyond the margin leaves open that the budget is
    better spent on the alternative.
    """
    here, pooled = evidence.versus_alternative, evidence.pooled_versus_alternative
    limits = [one.high for one in (here, pooled) if one is not None and one.high is not None]
    if not limits or min(limits) <= 1 / (1 - margin):
        return []
    text = (
        f"The alternative may be better: candidate / alternative is {describe(here)} here and "
        f"{describe(pooled)} over all tasks, at most {1 / (1 - margin):.2f} allowed."
    )
    return [Reason(code="rival_open", text=text, evidence=_row("candidate", "alternative", evidence.cell))]


def _find_missing_arms(evidence: CellEvidence) -> list[Reason]:
    """Return the objections that an alternative or a null arm of the plan could not be compared."""
    found = []
    versus, null = evidence.versus_alternative, evidence.null_effect
    if versus is not None and versus.low is None:
        text = f"The alternative could not be compared, so it may be the better choice: {versus.reason}."
        row = _row("candidate", "alternative", evidence.cell)
        found.append(Reason(code="alternative_unmeasured", text=text, evidence=row))
    if null is not None and null.low is None:
        text = f"How much two equal services differ here is not known: {null.reason}."
        row = _row("baseline_null", "baseline", evidence.cell)
        found.append(Reason(code="null_unmeasured", text=text, evidence=row))
    return found


def _find_idle_drafter(evidence: CellEvidence) -> list[Reason]:
    """Return the objection that the candidate never drafted in a cell, if so."""
    if evidence.verification_steps != 0:
        return []
    text = (
        "The candidate shows no verification step in this cell, so speculation did not make the difference."
    )
    row = Reference("acceptance", "candidate", at=evidence.cell)
    return [Reason(code="no_speculation_here", text=text, evidence=row)]


def _explain_effect(
    evidence: CellEvidence, standing: CellStatus, thresholds: Thresholds, metric: str
) -> Reason:
    effect, row = evidence.effect, _row("candidate", "baseline", evidence.cell, metric)
    if effect.value is None or effect.low is None:
        text = f"No interval: {effect.reason}{_advise(effect)}."
        return Reason(code="no_effect_estimate", text=text, evidence=row, remedy=effect.remedy)
    words = {
        "gain": f"even the pessimistic end is at least {100 * thresholds.minimum_gain:g} % faster",
        "harm": f"even the optimistic end is more than {100 * thresholds.harm_margin:g} % slower",
        "neutral": "the whole interval is within the margins",
        "no_gain": f"even the optimistic end is less than {100 * thresholds.minimum_gain:g} % faster",
        "inconclusive": "too wide to settle it",
    }
    text = f"candidate / baseline is {describe(effect)}: {words[standing]}"
    if standing == "inconclusive" != decide_effect(effect, thresholds):
        apart = f"{100 * (evidence.null_difference - 1):.1f} %"
        text = (
            f"candidate / baseline is {describe(effect)}: not beyond its margin by the {apart} that two "
            "equal services differ by."
        )
        return Reason(code="within_noise", text=text, evidence=row)
    text += _advise(effect) if standing == "inconclusive" else ""
    remedy = effect.remedy if standing == "inconclusive" else None
    return Reason(code=f"effect_{standing}", text=text + ".", evidence=row, remedy=remedy)


def _advise(effect: Figure) -> str:
    """Say what helps where no number of prompts does."""
    return f"; no number of prompts changes that: {effect.remedy}" if effect.remedy else ""


def _row(arm: str, versus: str, cell: CellKey, metric: str | None = None) -> Reference:
    return Reference("effects", arm, versus, name=metric, at=cell)
