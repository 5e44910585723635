"""The one entry: two runs to everything that changed between them. Pure; both are computed from records."""

from collections.abc import Sequence

import draftproof
from draftproof.core.errors import UsageError
from draftproof.core.records import SCHEMA_VERSION
from draftproof.core.rounding import round_figures
from draftproof.judge.compare.comparison import (
    CHANGES,
    ArmChange,
    Conclusion,
    DeliveryChange,
    EffectChange,
    FactChange,
    FailureChange,
    RunComparison,
    RunIdentity,
    find_triggers,
    find_uncompared,
)
from draftproof.judge.compare.configuration import (
    compare_arm_facts,
    compare_arm_names,
    compare_run_facts,
    find_arm_facts,
)
from draftproof.judge.compare.delivery import build_side, compare_delivery
from draftproof.judge.compare.outcomes import (
    Overlap,
    compare_effects,
    compare_envelopes,
    compare_reasons,
    find_overlap,
)
from draftproof.judge.compute import compute_results
from draftproof.judge.observe.run_data import PreparedRun, RunData, prepare_run
from draftproof.judge.results.run import Results

UNDISCLOSED = "undisclosed"


def compare_runs(before: RunData, after: RunData, arm: str | None = None) -> RunComparison:
    """Return what changed from run A to run B, for every arm of both or for one.

    Raises:
        UsageError: a run lacks the arm, the runs share no prompt or load, or too few answers can be compared.
    """
    old, new = prepare_run(before), prepare_run(after)
    arms = _choose_arms(old, new, arm)
    overlap = find_overlap(old, new)
    _check_overlap(old, new, overlap)
    results = compute_results(before), compute_results(after)
    deliveries, failures = compare_delivery(build_side(old), build_side(new), overlap, arms)
    facts = _compare_facts(old, new, arms, only_arm=arm)
    concluded = results if arm in (None, "candidate") else None
    effects = compare_effects(*concluded) if concluded else ()
    envelope = compare_envelopes(*concluded) if concluded else ()
    decision_changed = bool(concluded) and results[0].verdict.decision != results[1].verdict.decision
    conclusion = _conclude(
        results,
        changes=bool(facts) or bool(envelope) or decision_changed or any(one.is_apart for one in effects),
        deliveries=deliveries,
        failures=failures,
        effects=effects,
    )
    found = RunComparison(
        schema_version=SCHEMA_VERSION,
        draftproof_version=draftproof.__version__,
        only_arm=arm,
        before=_identify(before, results[0]),
        after=_identify(after, results[1]),
        prompts=overlap.counts,
        loads=tuple((name, size.concurrency) for name, size in overlap.loads.items()),
        load_sizes=overlap.loads,
        confidence=before.plan.comparison.confidence,
        arms=tuple(_compare_arm(old, new, name) for name in arms),
        facts=facts,
        deliveries=deliveries,
        failures=failures,
        effects=effects,
        envelope=envelope,
        decision_changed=decision_changed,
        not_compared=overlap.other_loads,
        conclusion=conclusion,
        reasons=compare_reasons(*concluded) if concluded else (),
    )
    return round_figures(found)


def list_changes(
    comparison: RunComparison,
) -> tuple[tuple[DeliveryChange, ...], tuple[FailureChange, ...], tuple[EffectChange, ...]]:
    """Return the rows of delivery, failures and effects that are changes."""
    return (
        tuple(one for one in comparison.deliveries if one.reading in CHANGES),
        tuple(one for one in comparison.failures if one.reading in CHANGES),
        tuple(one for one in comparison.effects if one.is_apart),
    )


def _choose_arms(before: PreparedRun, after: PreparedRun, arm: str | None) -> tuple[str, ...]:
    common = tuple(name for name in before.arms if name in after.arms)
    if arm is None:
        return common
    if arm not in common:
        lacking = " and ".join(name for name, run in (("A", before), ("B", after)) if arm not in run.arms)
        raise UsageError(
            f"the arm {arm!r} is not in run {lacking}.",
            place="--arm",
            fix=f"name one of: {', '.join(common)}.",
        )
    return (arm,)


def _check_overlap(before: PreparedRun, after: PreparedRun, overlap: Overlap) -> None:
    if not overlap.items:
        same = before.run.manifest.workload_sha256 == after.run.manifest.workload_sha256
        why = "chose no prompt in common" if same else "have different workloads and no prompt in common"
        raise UsageError(
            f"the two runs {why} (same id, same content), so nothing can be compared.",
            fix="measure both with the same workload; a package with withheld texts has prompts in common "
            "only with one of the same salt.",
        )
    if not overlap.loads:
        raise UsageError(
            "the two runs have no load level in common (same name, same requests in flight or arrivals), so "
            "nothing can be compared.",
            fix="measure both with the same [[load]] levels.",
        )


def _compare_facts(
    before: PreparedRun, after: PreparedRun, arms: Sequence[str], *, only_arm: str | None
) -> tuple[FactChange, ...]:
    manifests = before.run.manifest, after.run.manifest
    return (
        *(compare_arm_names(before.arms, after.arms) if only_arm is None else ()),
        *compare_run_facts(before, after),
        *(
            change
            for arm in arms
            for change in compare_arm_facts(arm, *(find_arm_facts(one, arm) for one in manifests))
        ),
    )


def _compare_arm(before: PreparedRun, after: PreparedRun, arm: str) -> ArmChange:
    facts = [find_arm_facts(run.run.manifest, arm) for run in (before, after)]
    contracts = [one.contract for one in facts]
    return ArmChange(
        arm=arm,
        triggers=find_triggers(*facts),
        undisclosed=any(one is not None and one.algorithm.startswith(UNDISCLOSED) for one in contracts),
    )


def _identify(run: RunData, results: Results) -> RunIdentity:
    manifest = run.manifest
    return RunIdentity(
        name=manifest.run_name,
        started_wall_ns=manifest.created_wall_ns,
        draftproof_version=manifest.draftproof_version,
        evidence=results.evidence,
        plan_sha256=manifest.plan_sha256,
        thresholds_sha256=manifest.thresholds_sha256,
        workload_sha256=manifest.workload_sha256,
        decision=results.verdict.decision,
        sentence=results.verdict.sentence,
    )


def _conclude(
    results: tuple[Results, Results],
    *,
    changes: bool,
    deliveries: Sequence[DeliveryChange],
    failures: Sequence[FailureChange],
    effects: Sequence[EffectChange],
) -> Conclusion:
    """An invalid run beats everything; what could not be compared is never called unchanged."""
    if any(one.verdict.decision == "invalid" for one in results):
        return "invalid"
    readings = {one.reading for one in deliveries} | {one.reading for one in failures}
    if changes or readings & CHANGES:
        return "changed"
    if all(one.reading == "not_compared" for one in deliveries):
        reasons = sorted({one.ratio.reason or "no answer has the quantity" for one in deliveries})
        raise UsageError(
            f"too few answers of both runs can be compared to say that nothing changed: {reasons[0]}.",
            fix="measure more prompts that both runs share.",
        )
    return "not_comparable" if any(find_uncompared(deliveries, effects)) else "unchanged"
