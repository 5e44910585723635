"""Everything that must hold before the first measured request, judged from running services that were probed.

Comparability stops at once, by name. What remains is a list of findings: an error forbids the run, a
warning is carried into the report. Reads the target's and the drafter's files; asks no service.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from draftproof.core.errors import IncompatibleError, InvalidRunError, UsageError
from draftproof.core.manifests import ArmManifest, Contract
from draftproof.plan.environment import find_secrets, resolve_plan
from draftproof.plan.schema import Arm, Plan
from draftproof.services.arms.comparability import (
    check_comparable,
    check_devices,
    check_settings_applied,
    describe_confounds,
    describe_forced,
    find_known_forced,
)
from draftproof.services.arms.contract import (
    UNDISCLOSED,
    build_contract,
    drafts_target_ids,
)
from draftproof.services.arms.findings import (
    PreflightFinding,
    judge_address,
    judge_context,
    judge_contract,
    judge_features,
    judge_pinned,
    judge_probe,
)
from draftproof.services.arms.launch import list_arms, plan_section
from draftproof.services.arms.model_files import (
    ModelFacts,
    TokenizerComparison,
    compare_tokenizers,
    load_drafter_facts,
    load_target_facts,
    locate_drafter,
)
from draftproof.services.arms.probe import ProbeResult
from draftproof.services.arms.request_fit import (
    compute_needs,
    find_method,
    find_tokenizer,
    load_token_counter,
)
from draftproof.services.engines import adapter_for
from draftproof.services.engines.proof import Proof
from draftproof.workload.items import Item

_FIXES = {
    "speculation_inactive": "switch speculation on where this service is started, and see its log.",
    "speculation_never_accepts": "choose a drafter made for this target, and see the service's log.",
    "speculation_undeclared": "state the method with flags in the command, not in a file or the environment.",
    "speculation_not_off": "start this service without speculation.",
    "unsupported_feature": "leave these items out with workload.where, or choose another engine.",
    "context_too_long": "leave these items out, or raise the service's context length.",
    "tokenizer_mismatch": "choose a draft with the target's own tokenizer.",
}


class PreflightReport(msgspec.Struct, frozen=True, kw_only=True):
    """Contracts of all arms and what was found."""

    contracts: tuple[Contract, ...]
    findings: tuple[PreflightFinding, ...]

    @property
    def errors(self) -> tuple[PreflightFinding, ...]:
        """The findings that forbid a run."""
        return tuple(finding for finding in self.findings if finding.severity == "error")

    def raise_errors(self) -> None:
        """Do nothing if the run may begin.

        Raises IncompatibleError: the draft has another tokenizer; UsageError: items ask for more than an arm
        can do; InvalidRunError: an arm does not speculate where it must, or does where it must not.
        """
        if not self.errors:
            return
        first, further = self.errors[0], len(self.errors) - 1
        kind: type[IncompatibleError | UsageError | InvalidRunError] = UsageError
        if first.code == "tokenizer_mismatch":
            kind = IncompatibleError
        elif first.code.startswith("speculation"):
            kind = InvalidRunError
        count = f" ({further} further finding{'s' if further > 1 else ''})" if further else ""
        place = f"arms.{plan_section(first.arm)}"
        raise kind(first.text.rstrip(".") + count, place=place, fix=_FIXES.get(first.code))


def run_preflight(
    plan: Plan,
    probes: Sequence[ProbeResult],
    items: Sequence[Item],
    *,
    model: Path | None = None,
) -> PreflightReport:
    """Check the probed arms against the plan and each other.

    `probes`: what each running arm is and what its test request showed, the baseline among them. `model`: the
    target's folder or file, where it is at hand: hashes and exact token counts come from it. Raises
    IncompatibleError: arms differ where the plan does not declare it, or run with other settings; PlanError:
    a model folder lacks a file.
    """
    plan = resolve_plan(plan, os.environ, find_secrets(list_arms(plan).values(), os.environ))
    arms = list_arms(plan)
    manifests = [probe.manifest for probe in probes]
    adapters = {name: adapter_for(arm.engine) for name, arm in arms.items()}
    for manifest in manifests:
        arm, facts = arms[manifest.arm], adapters[manifest.arm].facts
        check_settings_applied(arm.settings, manifest, facts.name_method)
        check_devices(manifest, arm.devices, facts.count_devices(manifest.settings))
    known = {one.arm: find_known_forced(adapters[one.arm], find_method(one)) for one in manifests}
    check_comparable(manifests, plan.comparison, known)
    target = load_target_facts(model) if model else None
    tokenizer = find_tokenizer(plan, model, os.environ)
    counter = load_token_counter(tokenizer) if tokenizer else None
    needs = compute_needs(items, plan.workload.max_tokens, counter)
    baseline = next(one for one in manifests if one.arm == "baseline")
    contracts = tuple(
        _tell_counts(
            _build(probe.manifest, plan, arms, target=target, model=model, baseline=baseline), probe.proof
        )
        for probe in probes
    )
    findings = [
        finding
        for probe, contract in zip(probes, contracts, strict=True)
        for finding in (
            *judge_probe(probe, adapters[contract.arm], has_tokenizer=counter is not None),
            *judge_features(probe.manifest, arms[contract.arm], items),
            *judge_contract(contract),
            *judge_context(contract, needs),
        )
    ]
    findings += [found for one in manifests if (found := judge_address(baseline, one)) is not None]
    findings += judge_pinned(baseline, plan.arms.baseline, manifests, adapters)
    return PreflightReport(contracts=contracts, findings=tuple(findings))


def _build(
    manifest: ArmManifest,
    plan: Plan,
    arms: Mapping[str, Arm],
    *,
    target: ModelFacts | None,
    model: Path | None,
    baseline: ArmManifest,
) -> Contract:
    arm = arms[manifest.arm]
    adapter = adapter_for(arm.engine)
    key = f"arms.{manifest.arm}.drafter.path"
    draft_folder = locate_drafter(arm)
    tokenizers: TokenizerComparison | None = None
    draft = load_drafter_facts(draft_folder, key) if draft_folder else None
    folders = draft_folder and draft_folder.is_dir() and model and model.is_dir()
    if draft_folder and model and folders and not drafts_target_ids(manifest, adapter):
        tokenizers = compare_tokenizers(model, draft_folder)
    return build_contract(
        manifest,
        plan,
        arm,
        adapter,
        target=target,
        draft=draft,
        tokenizers=tokenizers,
        confounds=describe_confounds(baseline, manifest, adapter),
        forced=describe_forced(baseline, manifest, plan.comparison),
    )


def _tell_counts(contract: Contract, proof: Proof) -> Contract:
    """Say of a service that discloses nothing else when its answers or metrics count drafts all the same."""
    if proof.state == "undisclosed" or not contract.algorithm.startswith(UNDISCLOSED):
        return contract
    algorithm = f"not told how, but drafts are counted in {proof.source}"
    return msgspec.structs.replace(contract, algorithm=algorithm)
