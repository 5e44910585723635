"""The compatibility contract of an arm (requirements B1-B9), put together from plan, service and files.

Pure. What is not known is None, never assumed.
"""

from collections.abc import Iterable
from typing import Literal

from draftproof.arms.manifest import REFERENCE_ENGINE
from draftproof.arms.model_files import ModelFacts
from draftproof.arms.tokenizers_compat import COMPATIBLE_BY_CONSTRUCTION, TokenizerComparison
from draftproof.plan.schema import Arm, Plan, Scalar
from draftproof.records import ArmManifest, Contract
from draftproof.workload.items import Item

Equivalence = Literal["guaranteed by method", "tested", "assumed", "approximate"]

METHOD_KEY = "speculation.method"
# Features an item may ask for, and those the reference engine lacks: it does not constrain decoding.
RESPONSE_SCHEMA = "response_schema"
_REFERENCE_LACKS = (RESPONSE_SCHEMA, "logprobs", "n > 1", "penalties", "min_p")
_ALGORITHMS = {
    "off": "ordinary decoding, one token a step",
    "ngram": "n-gram lookup in the request's own tokens, verified exactly by the target",
}


def build_contract(
    manifest: ArmManifest,
    plan: Plan,
    arm: Arm,
    *,
    target: ModelFacts | None = None,
    draft: ModelFacts | None = None,
    tokenizers: TokenizerComparison | None = None,
) -> Contract:
    """Return the contract of one arm.

    Args:
        manifest: what the running service is.
        plan: the plan.
        arm: the plan's section of this arm.
        target: facts of the target's folder, where it is at hand.
        draft: facts of the drafter's folder, where there is one.
        tokenizers: comparison of target and draft, where the drafter has a tokenizer.
    """
    target, draft = target or ModelFacts(), draft or ModelFacts()
    method = find_method(manifest)
    compared = COMPATIBLE_BY_CONSTRUCTION if method in {"off", "ngram"} else tokenizers
    drafter = arm.drafter if method != "off" else {}
    return Contract(
        arm=manifest.arm,
        target_model=plan.target.model,
        target_revision=plan.target.revision,
        target_precision=_as_text(manifest.settings.get("dtype", plan.target.dtype)),
        target_licence=plan.target.licence or target.licence,
        target_sha256=target.sha256 or _as_text(manifest.settings.get("model.sha256")),
        tokenizer_sha256=target.tokenizer_sha256 or _as_text(manifest.settings.get("tokenizer.sha256")),
        drafter_kind=_name_kind(method),
        drafter_identity=drafter.get("identity"),
        drafter_provenance=drafter.get("provenance"),
        drafter_licence=drafter.get("licence") or draft.licence,
        drafter_sha256=draft.sha256,
        tokenizer_compatible=compared.compatible if compared else None,
        tokenizer_differences=compared.differences if compared else (),
        runtime=manifest.engine,
        runtime_version=manifest.engine_version,
        algorithm=_ALGORITHMS.get(method or "", "undisclosed"),
        equivalence=decide_equivalence(manifest),
        num_spec_tokens=None if method == "off" else _as_int(manifest, "speculation.num_spec_tokens"),
        draft_policy=_describe_policy(manifest),
        max_context_tokens=find_context_limit(manifest, target),
        max_output_tokens=plan.workload.max_tokens,
        unsupported_features=list_unsupported(manifest),
        fallback=_describe_fallback(manifest),
    )


def find_method(manifest: ArmManifest) -> str | None:
    """Return the speculation method in force, None where the service does not disclose it."""
    return _as_text(manifest.settings.get(METHOD_KEY))


def decide_equivalence(manifest: ArmManifest) -> Equivalence | None:
    """Return how far the arm's answers are known to be the target's own.

    Ordinary decoding is the target itself. The reference engine verifies drafts exactly (Leviathan et al.
    2023, section 2.3); of another engine that is an assumption until the run's own outputs are compared.
    """
    method = find_method(manifest)
    if method == "off" or (method == "ngram" and manifest.engine == REFERENCE_ENGINE):
        return "guaranteed by method"
    return None if method is None else "assumed"


def list_unsupported(manifest: ArmManifest) -> tuple[str, ...]:
    """Return the features the engine is known to lack; nothing is known of a generic one."""
    return _REFERENCE_LACKS if manifest.engine == REFERENCE_ENGINE else ()


def find_unsupported_items(items: Iterable[Item], contract: Contract) -> dict[str, tuple[str, ...]]:
    """Return feature -> ids of the items that ask for a feature this arm lacks."""
    if RESPONSE_SCHEMA not in contract.unsupported_features:
        return {}
    asking = tuple(item.id for item in items if item.response_schema is not None)
    return {RESPONSE_SCHEMA: asking} if asking else {}


def find_context_limit(manifest: ArmManifest, target: ModelFacts) -> int | None:
    """Return the most tokens of prompt plus answer: the service's limit or the model's, the smaller one."""
    limits = (_as_int(manifest, "max_model_len"), target.max_context_tokens)
    return min((limit for limit in limits if limit is not None), default=None)


def _describe_policy(manifest: ArmManifest) -> str | None:
    count = _as_int(manifest, "speculation.num_spec_tokens")
    if find_method(manifest) in {"off", None} or count is None:
        return None
    low, high = (_as_int(manifest, f"speculation.ngram_{end}") for end in ("min", "max"))
    span = f", matching the last {low} to {high} tokens" if low is not None and high is not None else ""
    return f"fixed: at most {count} drafted tokens a step{span}"


def _describe_fallback(manifest: ArmManifest) -> str:
    if find_method(manifest) == "off":
        return "not needed: nothing is drafted"
    if manifest.engine == REFERENCE_ENGINE:
        return "a request whose drafter fails is completed by ordinary decoding and counted"
    return "unknown"


def _name_kind(method: str | None) -> str:
    return "none" if method == "off" else method or "undisclosed"


def _as_text(value: Scalar | None) -> str | None:
    return None if value is None else str(value)


def _as_int(manifest: ArmManifest, key: str) -> int | None:
    value = manifest.settings.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else None
