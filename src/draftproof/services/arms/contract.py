"""The compatibility contract of an arm (requirements B1-B9), put together from plan, service and files.

Pure. What is not known is None, never assumed.
"""

from typing import Literal

import msgspec

from draftproof.core.manifests import ArmManifest, Contract
from draftproof.plan.limits import describe_topology
from draftproof.plan.schema import Arm, Plan, Scalar
from draftproof.services.arms.model_files import COMPATIBLE_BY_CONSTRUCTION, ModelFacts, TokenizerComparison
from draftproof.services.arms.request_fit import find_method, list_unsupported
from draftproof.services.engines.adapter import EngineAdapter

Equivalence = Literal["guaranteed by method", "tested", "assumed", "approximate"]

UNDISCLOSED = "undisclosed"
_LAYERS_PREFIX = "layers:"
_NO_TRAINING = "no training: the target's own layers"
_STATED_FACTS = ("sha256", "licence", "provenance")
_SKIPPING = "the target itself drafts with some of its layers skipped"
_PROPOSALS = {
    "ngram": "n-gram lookup in the request's own tokens",
    "draft_model": "a smaller model drafts",
    "attached": "a trained head drafts from the target's hidden states",
    "self": "the target's first layers draft through a trained exit",
}
_WITHOUT_WEIGHTS = {"off", "ngram"}
_IN_TARGET_IDS = {"ngram", "attached", "self"}
_POLICIES = {
    "adaptive": ", by recent acceptance and measured times",
    "batch": ", by the number of decoding requests",
    "auto": ", by recent acceptance and measured times, and none while drafting does not pay",
}


class StatedDrafter(msgspec.Struct, frozen=True, kw_only=True):
    """What the service says of the drafter in force, each None where it says nothing.

    `sha256` is that of trained weights which ship with a record.
    """

    name: str | None = None
    sha256: str | None = None
    licence: str | None = None
    provenance: str | None = None

    @property
    def skips_layers(self) -> bool:
        """Whether the drafter is the target without some of its layers, with no weights of its own."""
        return self.name is not None and self.name.startswith(_LAYERS_PREFIX)


def build_contract(
    manifest: ArmManifest,
    plan: Plan,
    arm: Arm,
    adapter: EngineAdapter,
    *,
    target: ModelFacts | None = None,
    draft: ModelFacts | None = None,
    tokenizers: TokenizerComparison | None = None,
    confounds: tuple[str, ...] = (),
    forced: tuple[str, ...] = (),
) -> Contract:
    """Return the contract of one arm.

    `manifest`: what the running service is. `arm`: the plan's section of this arm. `target`: facts of the
    target's folder, where it is at hand. `draft`: facts of the drafter's folder, where there is one.
    `tokenizers`: comparison of target and draft, where the drafter has a tokenizer. `confounds`: what else
    changes with speculation, a sentence each. `forced`: what the method forces, as the plan declares it.
    """
    target = target or ModelFacts()
    method, stated = find_method(manifest), find_stated_drafter(manifest)
    draft = (draft or ModelFacts()) if method != "off" else ModelFacts()
    compared = COMPATIBLE_BY_CONSTRUCTION if drafts_target_ids(manifest, adapter) else tokenizers
    drafter = arm.drafter if method != "off" else {}
    target_licence = plan.target.licence or target.licence
    borrowed = target_licence if stated.skips_layers else None
    # Something with weights drafts, which has to run on a device.
    has_drafter = method not in {"off", None} and adapter.facts.families.get(method or "") != "ngram"
    return Contract(
        arm=manifest.arm,
        target_model=plan.target.model,
        target_revision=plan.target.revision,
        target_precision=_as_text(manifest.settings.get("dtype", plan.target.dtype)),
        target_licence=target_licence,
        target_sha256=target.sha256 or _as_text(manifest.settings.get("model.sha256")),
        tokenizer_sha256=target.tokenizer_sha256 or _as_text(manifest.settings.get("tokenizer.sha256")),
        drafter_kind="none" if method == "off" else method or UNDISCLOSED,
        drafter_identity=drafter.get("identity") or stated.name,
        drafter_provenance=drafter.get("provenance") or stated.provenance or draft.provenance,
        drafter_licence=drafter.get("licence") or stated.licence or draft.licence or borrowed,
        drafter_sha256=stated.sha256 or draft.sha256,
        tokenizer_compatible=compared.compatible if compared else None,
        tokenizer_differences=compared.differences if compared else (),
        runtime=manifest.engine,
        runtime_version=manifest.engine_version,
        algorithm=_describe_algorithm(manifest, stated, adapter),
        equivalence=decide_equivalence(manifest, adapter),
        num_spec_tokens=None if method == "off" else _as_int(manifest, "speculation.num_spec_tokens"),
        draft_policy=_describe_policy(manifest),
        max_context_tokens=find_context_limit(manifest, target),
        max_output_tokens=plan.workload.max_tokens,
        unsupported_features=tuple(one.text for one in list_unsupported(manifest, adapter)),
        fallback="not needed: nothing is drafted" if method == "off" else adapter.facts.fallback,
        confounds=confounds,
        forced=forced,
        topology=describe_topology(arm, has_drafter=has_drafter),
    )


def decide_equivalence(manifest: ArmManifest, adapter: EngineAdapter) -> Equivalence | None:
    """Return how far the arm's answers are known to be the target's own.

    Ordinary decoding is the target itself. The reference engine has one verifier for the drafts of all its
    methods, and it is exact whatever they propose (Leviathan et al. 2023, section 2.3); of another engine
    that is an assumption until the run's own outputs are compared, and settings that are known to change the
    distribution make it approximate.
    """
    method = find_method(manifest)
    if method == "off" and adapter.name != "generic":
        return "guaranteed by method"
    if method is None or adapter.name == "generic":
        return None
    if adapter.find_lossy(manifest.settings) is not None:
        return "approximate"
    return (
        "guaranteed by method" if adapter.facts.is_exact and method in adapter.facts.families else "assumed"
    )


def find_stated_drafter(manifest: ArmManifest) -> StatedDrafter:
    """Return what the service says of the drafter of the method in force; other drafters are idle."""
    method = find_method(manifest)
    if method is None or method in _WITHOUT_WEIGHTS:
        return StatedDrafter()
    key = f"drafter.{method}"
    name = _as_text(manifest.settings.get(key))
    facts = {fact: _as_text(manifest.settings.get(f"{key}.{fact}")) for fact in _STATED_FACTS}
    made = StatedDrafter(name=name, **facts)
    return msgspec.structs.replace(made, provenance=_NO_TRAINING) if made.skips_layers else made


def drafts_target_ids(manifest: ArmManifest, adapter: EngineAdapter) -> bool:
    """Return whether drafts are token ids of the target by construction, with no second tokenizer.

    So it is with lookup, with heads on the target's states, with the target's own layers, and with every
    drafter that the reference engine has a record of, whose vocabulary is a part of the target's ids. A
    foreign draft model has its own.
    """
    method = find_method(manifest)
    if method is None:
        return False
    family = adapter.facts.families.get(method)
    recorded = adapter.name == "reference" and find_stated_drafter(manifest).sha256 is not None
    return method == "off" or family in _IN_TARGET_IDS or recorded


def find_context_limit(manifest: ArmManifest, target: ModelFacts) -> int | None:
    """Return the most tokens of prompt plus answer: the service's limit or the model's, the smaller one."""
    limits = (_as_int(manifest, "max_model_len"), target.max_context_tokens)
    return min((limit for limit in limits if limit is not None), default=None)


def _describe_algorithm(manifest: ArmManifest, stated: StatedDrafter, adapter: EngineAdapter) -> str:
    method = find_method(manifest)
    if adapter.name == "generic":
        # Nothing that such a service says of itself is read: a method in its settings is the plan's word.
        return UNDISCLOSED if method is None else f"{UNDISCLOSED}; the plan states {method}"
    if method == "off":
        return "ordinary decoding, one token a step"
    family = adapter.facts.families.get(method or "")
    if family is None:
        return UNDISCLOSED if method is None else f"{method}, a method of which nothing more is known"
    lossy = adapter.find_lossy(manifest.settings)
    how = "verified exactly" if adapter.facts.is_exact else "verified"
    named = "" if method == family else f" ({method})"
    proposal = _SKIPPING if stated.skips_layers else _PROPOSALS[family]
    return f"{proposal}{named}, {how} by the target" + (f"; changes the output: {lossy}" if lossy else "")


def _describe_policy(manifest: ArmManifest) -> str | None:
    method, count = find_method(manifest), _as_int(manifest, "speculation.num_spec_tokens")
    if method in {"off", None} or count is None:
        return None
    policy = _as_text(manifest.settings.get("speculation.policy"))
    limit = f"at most {count} drafted tokens a step"
    how = limit if policy is None else f"{policy}: {limit}{_POLICIES.get(policy, '')}"
    low, high = (_as_int(manifest, f"speculation.ngram_{end}") for end in ("min", "max"))
    if method != "ngram" or low is None or high is None:
        return how
    return f"{how}, matching the last {low} to {high} tokens"


def _as_text(value: Scalar | None) -> str | None:
    return None if value is None else str(value)


def _as_int(manifest: ArmManifest, key: str) -> int | None:
    value = manifest.settings.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else None
