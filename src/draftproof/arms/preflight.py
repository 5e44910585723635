"""Everything that must hold before the first measured request, checked on the running services.

Comparability stops at once, by name. What remains is a list of findings: an error forbids the run, a
warning is carried into the report.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import aiohttp
import msgspec

from draftproof.arms.comparability import check_comparable, check_settings_applied
from draftproof.arms.context_fit import ContextNeed, compute_needs, load_token_counter
from draftproof.arms.contract import build_contract, drafts_target_ids, find_method, find_unsupported_items
from draftproof.arms.launch import list_arms, plan_section
from draftproof.arms.model_files import ModelFacts, load_drafter_facts, load_model_facts
from draftproof.arms.probe import ProbeResult, probe_speculation
from draftproof.arms.tokenizers_compat import TokenizerComparison, compare_tokenizers
from draftproof.errors import IncompatibleError, InvalidRunError, UsageError
from draftproof.plan.schema import Arm, Plan
from draftproof.records import ArmManifest, Contract
from draftproof.workload.items import Item

_SHOWN_ITEMS = 3
_FIXES = {
    "speculation_inactive": "switch speculation on where this service is started, and see its log.",
    "speculation_not_off": "start this service without speculation.",
    "unsupported_feature": "leave these items out with workload.where, or choose another engine.",
    "context_too_long": "leave these items out, or raise the service's context length.",
    "tokenizer_mismatch": "choose a draft with the target's own tokenizer.",
}


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is wrong or not proven, by name."""

    code: Literal[
        "speculation_inactive",
        "speculation_unproven",
        "speculation_not_off",
        "unsupported_feature",
        "context_too_long",
        "context_unknown",
        "tokenizer_mismatch",
    ]
    severity: Literal["error", "warning"]
    arm: str
    text: str


class PreflightReport(msgspec.Struct, frozen=True, kw_only=True):
    """Contracts of all arms and what was found."""

    contracts: tuple[Contract, ...]
    findings: tuple[Finding, ...]

    @property
    def errors(self) -> tuple[Finding, ...]:
        """The findings that forbid a run."""
        return tuple(finding for finding in self.findings if finding.severity == "error")

    def raise_errors(self) -> None:
        """Do nothing if the run may begin.

        Raises:
            IncompatibleError: the draft has another tokenizer.
            UsageError: items ask for more than an arm can do.
            InvalidRunError: an arm does not speculate where it must, or does where it must not.
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


async def run_preflight(
    plan: Plan,
    manifests: Sequence[ArmManifest],
    items: Sequence[Item],
    *,
    session: aiohttp.ClientSession,
    model_folder: Path | None = None,
) -> PreflightReport:
    """Check the running arms against the plan and each other.

    Args:
        plan: the plan.
        manifests: what each running arm is, the baseline among them.
        items: the chosen items.
        session: for the probe requests.
        model_folder: the target's folder, where it is at hand: hashes and exact token counts come from it.

    Raises:
        IncompatibleError: arms differ where the plan does not declare it, or run with other settings.
        PlanError: a model folder lacks a file.
        EngineError: a service does not answer the probe.
    """
    arms = list_arms(plan)
    for manifest in manifests:
        check_settings_applied(arms[manifest.arm].settings, manifest)
    check_comparable(manifests, plan.comparison)
    target = load_model_facts(model_folder) if model_folder else None
    needs = compute_needs(
        items, plan.workload.max_tokens, load_token_counter(model_folder) if model_folder else None
    )
    contracts = tuple(_build(manifest, plan, arms, target, model_folder) for manifest in manifests)
    probes = {
        manifest.arm: await probe_speculation(session, manifest, plan.limits.request_s)
        for manifest in manifests
    }
    findings = [
        finding
        for manifest, contract in zip(manifests, contracts, strict=True)
        for finding in (
            *judge_probe(manifest, probes[manifest.arm]),
            *judge_contract(contract, items),
            *judge_context(contract, needs),
        )
    ]
    return PreflightReport(contracts=contracts, findings=tuple(findings))


def judge_probe(manifest: ArmManifest, probe: ProbeResult) -> list[Finding]:
    """Compare what the probe saw with what the arm must do. Pure.

    The candidate drafts; an arm set to off does not.
    """
    method = find_method(manifest)
    must_draft = method not in {"off", None} or (method is None and manifest.arm == "candidate")
    if must_draft and probe.num_spec_steps == 0:
        which = "it" if method is None else f"the drafter of {method}"
        text = f"speculation is not active: {which} drafted no token for an answer that repeats its prompt."
        return [_finding("speculation_inactive", "error", manifest, text)]
    if must_draft and probe.num_spec_steps is None:
        text = f"speculation is not proven: the service discloses no counters ({probe.source})."
        return [_finding("speculation_unproven", "warning", manifest, text)]
    if not must_draft and probe.num_spec_steps:
        text = f"speculation must be off here, and the service drafted in {probe.num_spec_steps} steps."
        return [_finding("speculation_not_off", "error", manifest, text)]
    return []


def judge_contract(contract: Contract, items: Sequence[Item]) -> list[Finding]:
    """Find items that ask for what the arm lacks, and a draft with another tokenizer. Pure."""
    findings = [
        Finding(
            code="unsupported_feature",
            severity="error",
            arm=contract.arm,
            text=f"{len(ids)} item(s) ask for {feature}, which {contract.runtime} lacks: {_list(ids)}.",
        )
        for feature, ids in find_unsupported_items(items, contract).items()
    ]
    if contract.tokenizer_compatible is False:
        text = f"the draft has another tokenizer: {'; '.join(contract.tokenizer_differences)}."
        findings.append(Finding(code="tokenizer_mismatch", severity="error", arm=contract.arm, text=text))
    return findings


def judge_context(contract: Contract, needs: Sequence[ContextNeed]) -> list[Finding]:
    """Find items that do not fit the arm's context; an estimate only warns. Pure."""
    limit = contract.max_context_tokens
    if limit is None:
        text = "the context length is not disclosed: whether every item fits is not checked."
        return [Finding(code="context_unknown", severity="warning", arm=contract.arm, text=text)]
    long = [need for need in needs if need.total_tokens > limit]
    if not long:
        return []
    worst = max(long, key=lambda need: need.total_tokens)
    about = "about (an estimate) " if worst.estimated else ""
    return [
        Finding(
            code="context_too_long",
            severity="warning" if worst.estimated else "error",
            arm=contract.arm,
            text=f"{len(long)} item(s) do not fit the context of {limit} tokens: "
            f"{_list([need.item_id for need in long])}; the longest needs {about}{worst.total_tokens}.",
        )
    ]


def _build(
    manifest: ArmManifest,
    plan: Plan,
    arms: Mapping[str, Arm],
    target: ModelFacts | None,
    model_folder: Path | None,
) -> Contract:
    arm = arms[manifest.arm]
    draft_folder = Path(arm.drafter["path"]) if "path" in arm.drafter else None
    tokenizers: TokenizerComparison | None = None
    key = f"arms.{manifest.arm}.drafter.path"
    draft = load_drafter_facts(draft_folder, key) if draft_folder else None
    if draft_folder and model_folder and not drafts_target_ids(manifest):
        tokenizers = compare_tokenizers(model_folder, draft_folder)
    return build_contract(manifest, plan, arm, target=target, draft=draft, tokenizers=tokenizers)


def _finding(
    code: Literal["speculation_inactive", "speculation_unproven", "speculation_not_off"],
    severity: Literal["error", "warning"],
    manifest: ArmManifest,
    text: str,
) -> Finding:
    return Finding(code=code, severity=severity, arm=manifest.arm, text=text)


def _list(ids: Sequence[str]) -> str:
    shown = ", ".join(ids[:_SHOWN_ITEMS])
    return shown if len(ids) <= _SHOWN_ITEMS else f"{shown} and {len(ids) - _SHOWN_ITEMS} more"
