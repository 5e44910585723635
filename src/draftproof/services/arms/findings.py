"""What is wrong with an arm or not proven of it, from its probe, its contract and its settings. Pure.

An error forbids the run, a warning is carried into the report.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from draftproof.core.manifests import ArmManifest, Contract
from draftproof.plan.schema import Arm
from draftproof.services.arms.comparability import REQUEST_PREFIX, find_pinned
from draftproof.services.arms.launch import plan_section
from draftproof.services.arms.manifest import SERVED_MODEL_KEY
from draftproof.services.arms.probe import ProbeResult
from draftproof.services.arms.request_fit import (
    ContextNeed,
    find_method,
    find_replaced_fields,
    find_unknown_fields,
    find_unsupported_items,
)
from draftproof.services.engines import EngineAdapter, adapter_for
from draftproof.services.engines.proof import Proof
from draftproof.services.engines.protocol import Answer
from draftproof.workload.items import Item

Code = Literal[
    "speculation_inactive",
    "speculation_never_accepts",
    "speculation_unproven",
    "speculation_not_off",
    "speculation_undeclared",
    "unsupported_feature",
    "field_replaced",
    "field_unknown",
    "context_too_long",
    "context_unknown",
    "tokenizer_mismatch",
    "output_not_equivalent",
    "tokens_uncounted",
    "metrics_unread",
    "release_unchecked",
    "answer_at_odds",
    "same_service",
    "baseline_pinned",
    "answer_at_once",
]
# Fewer chunks may well come of one step.
_MANY_CHUNKS = 8
_SHOWN_ITEMS = 3


class PreflightFinding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is wrong or not proven, by name."""

    code: Code
    severity: Literal["error", "warning"]
    arm: str
    text: str


def judge_address(baseline: ArmManifest, other: ArmManifest) -> PreflightFinding | None:
    """Find an arm that is the baseline's own service asked alike: it can show no difference. Pure."""
    is_itself = other.arm in {"baseline", "baseline_null"} or other.url != baseline.url
    asked = [_asked(one) for one in (baseline, other)]
    if is_itself or asked[0] != asked[1]:
        return None
    text = f"the address {other.url} is the baseline's, and the same is asked there: both are one service."
    return _warn("same_service", other, text)


def judge_pinned(
    baseline: ArmManifest,
    stated: Arm,
    manifests: Sequence[ArmManifest],
    adapters: Mapping[str, EngineAdapter],
) -> list[PreflightFinding]:
    """Find a baseline that is set to do without what the candidate's method rules out. Pure."""
    pinned: dict[str, str] = {}
    for one in manifests:
        pinned |= find_pinned(baseline, stated, one, adapters[one.arm])
    return [
        _warn(
            "baseline_pinned",
            baseline,
            f"{key} is set as the method would force it ({why}), so the candidate is compared with a slower "
            f"service than one with its defaults. Leave {key} to the baseline and declare it in "
            "comparison.forced_by_method.",
        )
        for key, why in pinned.items()
    ]


def _asked(manifest: ArmManifest) -> dict[str, object]:
    """Return what of an arm's settings is sent with each request."""
    return {
        key: value
        for key, value in manifest.settings.items()
        if key == SERVED_MODEL_KEY or key.startswith(REQUEST_PREFIX)
    }


def judge_probe(
    probe: ProbeResult, adapter: EngineAdapter, *, has_tokenizer: bool = False
) -> list[PreflightFinding]:
    """Compare what the probe saw with what the arm must do and disclose. Pure.

    `probe`: what the test request showed. `has_tokenizer`: whether the target's tokenizer is at hand, to
    count after the run what is not counted.
    """
    manifest, answer = probe.manifest, probe.exchange.answer
    is_uncounted = answer.token_source is None and not has_tokenizer
    found = [
        _judge_proof(manifest, probe),
        _find_uncounted(manifest, answer) if is_uncounted else None,
        *_judge_answer(manifest, probe, adapter),
    ]
    return [finding for finding in found if finding is not None]


def _judge_proof(manifest: ArmManifest, probe: ProbeResult) -> PreflightFinding | None:
    """The candidate drafts and has drafts accepted; an arm set to off does not draft; the baseline is off."""
    method = find_method(manifest)
    if manifest.arm in {"baseline", "baseline_null"} and method not in {"off", None}:
        text = f"the baseline is today's service without speculation, and its settings say {method}."
        return _fail("speculation_not_off", manifest, text)
    if method not in {"off", None} or manifest.arm == "candidate":
        return _judge_drafting(manifest, probe.proof, method)
    if _has_drafted(probe.proof):
        text = f"speculation must be off here, and the service drafted {_count_drafts(probe.proof)}."
        return _fail("speculation_not_off", manifest, text)
    return None


def _judge_drafting(manifest: ArmManifest, proof: Proof, method: str | None) -> PreflightFinding | None:
    why = f" Cause: {proof.cause.rstrip('.')}." if proof.cause else ""
    which = "the drafter" if method in {"off", None} else f"the drafter of {method}"
    if method == "off" and _has_drafted(proof):
        text = (
            "the service drafts although its command says that it does not: something that the plan does not "
            "state switches speculation on."
        )
        return _fail("speculation_undeclared", manifest, text)
    if proof.state == "idle":
        text = f"speculation is not active: {which} drafted no token for an answer that repeats its prompt."
        return _fail("speculation_inactive", manifest, text + why)
    if proof.is_off:
        return _fail("speculation_inactive", manifest, f"speculation is not active.{why}")
    if proof.state == "never_accepted":
        text = f"none of {proof.num_draft_tokens} drafted tokens was accepted: {which} is not the target's."
        return _fail("speculation_never_accepts", manifest, text + why)
    if proof.state == "undisclosed":
        return _warn("speculation_unproven", manifest, _describe_unproven(manifest, proof))
    return None


def _describe_unproven(manifest: ArmManifest, proof: Proof) -> str:
    """Say what counts nothing: that is no sign that the drafter is idle."""
    likely = f" A likely cause: {proof.cause.rstrip('.')}." if proof.cause else ""
    key = f"arms.{plan_section(manifest.arm)}.metrics_urls"
    return (
        f"speculation is not proven: {proof.source}.{likely} Where a front end answers, name the engine's "
        f"own address in {key}."
    )


def _has_drafted(proof: Proof) -> bool:
    return bool(proof.num_spec_steps or proof.num_draft_tokens or proof.num_accepted_draft_tokens)


def _count_drafts(proof: Proof) -> str:
    if proof.num_spec_steps:
        return f"in {proof.num_spec_steps} steps"
    if proof.num_draft_tokens:
        return f"{proof.num_draft_tokens} tokens"
    return f"{proof.num_accepted_draft_tokens} tokens that were accepted"


def _find_uncounted(manifest: ArmManifest, answer: Answer) -> PreflightFinding:
    usage = "only its total is known" if answer.output_tokens is not None else "not even its total is known"
    text = (
        f"no chunk of the answer says how many tokens it carries; {usage}. The target's tokenizer.json, "
        "named by target.tokenizer, counts them after the run."
    )
    return _warn("tokens_uncounted", manifest, text)


def _judge_answer(
    manifest: ArmManifest, probe: ProbeResult, adapter: EngineAdapter
) -> list[PreflightFinding]:
    """Name what the answer lacks that the measures need, and what the service says at odds with itself."""
    answer, found = probe.exchange.answer, []
    if len(answer.chunks) >= _MANY_CHUNKS and answer.chunks[0].arrival_ns == answer.chunks[-1].arrival_ns:
        text = (
            f"all {len(answer.chunks)} chunks of the test answer arrived at the same moment: something on "
            "the way collects the stream, and its time per token cannot be measured."
        )
        found.append(_warn("answer_at_once", manifest, text))
    found += [
        _warn("answer_at_odds", manifest, f"the test answer: {warning}.")
        for warning in probe.exchange.warnings
    ]
    if probe.metrics_error is not None:
        found.append(_warn("metrics_unread", manifest, probe.metrics_error))
    facts = adapter.facts
    if facts.checked and facts.find_release(manifest.engine_version) is None:
        known = ", ".join(release.version for release in facts.checked)
        text = (
            f"{facts.title} {manifest.engine_version} was never checked (checked: {known}); what it does not "
            "say as they do is left unknown."
        )
        found.append(_warn("release_unchecked", manifest, text))
    return found


def judge_features(manifest: ArmManifest, arm: Arm, items: Sequence[Item]) -> list[PreflightFinding]:
    """Find items that ask for what the arm lacks or gives in another way than the target would. Pure."""
    adapter = adapter_for(arm.engine)
    findings = []
    for feature, ids in find_unsupported_items(items, arm.request, manifest, adapter).items():
        asked = f"{len(ids)} item(s) ask for what {adapter.facts.title}"
        if feature.is_inexact:
            text = f"{asked} serves in another way than the target alone: {feature.text} ({_list(ids)})."
            findings.append(_warn("output_not_equivalent", manifest, text))
        else:
            text = f"{asked} does not give: {feature.text} ({_list(ids)})."
            findings.append(_fail("unsupported_feature", manifest, text))
    for field, ids in find_unknown_fields(items, arm.request, adapter).items():
        asked = f"{len(ids)} item(s) state `{field}`"
        text = f"{asked}, which {adapter.facts.title} does not know and ignores ({_list(ids)})."
        findings.append(_warn("field_unknown", manifest, text))
    for field, ids in find_replaced_fields(items, arm.request, adapter).items():
        text = f"{len(ids)} item(s) state another `{field}` than this arm is sent ({_list(ids)})."
        findings.append(_warn("field_replaced", manifest, text))
    return findings


def judge_contract(contract: Contract) -> list[PreflightFinding]:
    """Find a draft with another tokenizer, and outputs that are not the target's own. Pure."""
    findings = []
    if contract.tokenizer_compatible is False:
        text = f"the draft has another tokenizer: {'; '.join(contract.tokenizer_differences)}."
        findings.append(_fail("tokenizer_mismatch", contract, text))
    if contract.equivalence == "approximate":
        text = f"the outputs are not the target's own: {contract.algorithm}."
        findings.append(_warn("output_not_equivalent", contract, text))
    return findings


def judge_context(contract: Contract, needs: Sequence[ContextNeed]) -> list[PreflightFinding]:
    """Find items that do not fit the arm's context; an estimate only warns. Pure."""
    limit = contract.max_context_tokens
    if limit is None:
        text = "the context length is not disclosed: whether every item fits is not checked."
        return [_warn("context_unknown", contract, text)]
    long = [need for need in needs if need.total_tokens > limit]
    if not long:
        return []
    worst = max(long, key=lambda need: need.total_tokens)
    about = "about (an estimate) " if worst.estimated else ""
    listed = _list([one.item_id for one in long])
    text = (
        f"{len(long)} item(s) do not fit the context of {limit} tokens: {listed}; the longest needs "
        f"{about}{worst.total_tokens}."
    )
    return [(_warn if worst.estimated else _fail)("context_too_long", contract, text)]


def _warn(code: Code, about: ArmManifest | Contract, text: str) -> PreflightFinding:
    return PreflightFinding(code=code, severity="warning", arm=about.arm, text=text)


def _fail(code: Code, about: ArmManifest | Contract, text: str) -> PreflightFinding:
    return PreflightFinding(code=code, severity="error", arm=about.arm, text=text)


def _list(ids: Sequence[str]) -> str:
    shown = ", ".join(ids[:_SHOWN_ITEMS])
    return shown if len(ids) <= _SHOWN_ITEMS else f"{shown} and {len(ids) - _SHOWN_ITEMS} more"
