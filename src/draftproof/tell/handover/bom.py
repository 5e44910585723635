"""The bill of materials: CycloneDX 1.6 with the models as components, made with `cyclonedx-python-lib`.

Owns which facts of a run become which component. A hash of a model folder is the SHA-256 over names and
hashes of its files (docs/handover.md). What is not known is left out, never guessed.
"""

import json
import uuid
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from importlib import metadata
from typing import Any

from draftproof.core.manifests import Contract, Manifest
from draftproof.plan.tables import Approval
from draftproof.tell.handover.signing import load_extra

LIBRARY = "cyclonedx-python-lib"
_MODEL = "machine-learning-model"
_NAMESPACE = uuid.uuid5(uuid.NAMESPACE_URL, "urn:draftproof:package")
# These draft by looking up text: code without a model, whatever brings it.
_WITHOUT_WEIGHTS = frozenset({"ngram", "suffix", "prompt_lookup"})


def library_version() -> str | None:
    """Return the installed version of the library, None without it."""
    try:
        return metadata.version(LIBRARY)
    except metadata.PackageNotFoundError:
        return None


def render_bom(manifest: Manifest, approval: Approval, content_sha256: str) -> bytes:
    """Return the bill of materials of a run as JSON; the same run gives the same bytes.

    Raises UsageError: the extra `handover` is not installed. The serial number follows from `content_sha256`,
    which names the raw data; the plan's retirement note belongs to the drafter.
    """
    bom = _build(manifest, approval, content_sha256)
    output = load_extra("cyclonedx.output.json").JsonV1Dot6(bom)
    document: dict[str, Any] = json.loads(output.output_as_string())
    _add_model_cards(document, manifest)
    _sort_lists(document)
    return (json.dumps(document, ensure_ascii=False, indent=1, sort_keys=True) + "\n").encode("utf-8")


def find_tool_version(raw: bytes) -> str | None:
    """Return the version of the library that a bill was written with, None where it does not say."""
    try:
        tools = json.loads(raw)["metadata"]["tools"]["components"]
        return next((tool["version"] for tool in tools if tool["name"] == LIBRARY), None)
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def _build(manifest: Manifest, approval: Approval, content_sha256: str) -> Any:
    model, component = load_extra("cyclonedx.model.bom"), load_extra("cyclonedx.model.component")
    kinds = component.ComponentType
    root = _component(kinds.APPLICATION, "run", manifest.run_name, {"evidence": manifest.evidence})
    parts = list(_list_parts(manifest, approval))
    bom = model.Bom(
        serial_number=uuid.uuid5(_NAMESPACE, content_sha256),
        metadata=model.BomMetaData(
            component=root,
            timestamp=datetime.fromtimestamp(manifest.created_wall_ns // 10**9, tz=UTC),
        ),
        components=[part for part, _ in parts],
    )
    bom.metadata.tools.components.update(
        (
            component.Component(
                name="draftproof", version=manifest.draftproof_version, type=kinds.APPLICATION
            ),
            component.Component(name=LIBRARY, version=library_version(), type=kinds.LIBRARY),
        )
    )
    bom.register_dependency(root, [part for part, used_by in parts if used_by is None])
    for runtime in [part for part, _ in parts if part.bom_ref.value.startswith("runtime:")]:
        bom.register_dependency(
            runtime, [p for p, used_by in parts if runtime.bom_ref.value in (used_by or ())]
        )
    return bom


def _list_parts(manifest: Manifest, approval: Approval) -> Iterator[tuple[Any, tuple[str, ...] | None]]:
    """Yield components with the runtimes that use them; None: the run itself does."""
    contracts = manifest.contracts
    everywhere = tuple(_by_runtime(contracts))
    yield from ((part, None) for part in _list_runtimes(manifest))
    yield from ((_target(ref, one), everywhere) for ref, one in _distinct_targets(contracts).items())
    for ref, contract in _distinct_tokenizers(contracts).items():
        yield _tokenizer(ref, contract), (_runtime_ref(contract),)
    for ref, contract in _distinct_drafters(contracts).items():
        yield _drafter(ref, contract, approval), (_runtime_ref(contract),)
    yield _workload(manifest), None


def _target(ref: str, contract: Contract) -> Any:
    return _component(
        load_extra("cyclonedx.model.component").ComponentType.MACHINE_LEARNING_MODEL,
        ref,
        contract.target_model,
        {"precision": contract.target_precision},
        version=contract.target_revision,
        licence=contract.target_licence,
        sha256=contract.target_sha256,
    )


def _tokenizer(ref: str, contract: Contract) -> Any:
    kind = load_extra("cyclonedx.model.component").ComponentType.DATA
    name = f"tokenizer of {contract.target_model}"
    return _component(kind, ref, name, {}, sha256=contract.tokenizer_sha256)


def _workload(manifest: Manifest) -> Any:
    return _component(
        load_extra("cyclonedx.model.component").ComponentType.DATA,
        "workload",
        manifest.workload_name,
        {"evidence": manifest.evidence},
        version=manifest.workload_version,
        sha256=manifest.workload_sha256,
    )


def _list_runtimes(manifest: Manifest) -> Iterator[Any]:
    kinds = load_extra("cyclonedx.model.component").ComponentType
    for ref, contracts in _by_runtime(manifest.contracts).items():
        facts = {f"algorithm:{one.arm}": one.algorithm for one in contracts}
        first = contracts[0]
        yield _component(kinds.APPLICATION, ref, first.runtime, facts, version=first.runtime_version)


def _drafter(ref: str, contract: Contract, approval: Approval) -> Any:
    kinds = load_extra("cyclonedx.model.component").ComponentType
    weightless = contract.drafter_kind in _WITHOUT_WEIGHTS
    return _component(
        kinds.LIBRARY if weightless else kinds.MACHINE_LEARNING_MODEL,
        ref,
        contract.drafter_identity or contract.drafter_kind,
        {
            "kind": contract.drafter_kind,
            "weights": "none: it drafts by looking up text" if weightless else None,
            "provenance": contract.drafter_provenance,
            "retirement": approval.drafter_retirement,
            "owner": approval.owner,
        },
        licence=contract.drafter_licence,
        sha256=contract.drafter_sha256,
    )


def _component(
    kind: Any,
    ref: str,
    name: str,
    facts: Mapping[str, str | None],
    *,
    version: str | None = None,
    licence: str | None = None,
    sha256: str | None = None,
) -> Any:
    model, component = load_extra("cyclonedx.model"), load_extra("cyclonedx.model.component")
    known = {key: value for key, value in facts.items() if value is not None}
    return component.Component(
        type=kind,
        bom_ref=ref,
        name=name,
        version=version,
        licenses=() if licence is None else (_licence(licence),),
        hashes=() if sha256 is None else _hashes(model, sha256),
        properties=[model.Property(name=f"draftproof:{key}", value=value) for key, value in known.items()],
    )


def _hashes(model: Any, sha256: str) -> tuple[Any, ...]:
    """A value that is no SHA-256, such as a made-up one, is no hash that the standard takes."""
    is_hash = len(sha256) == 64 and all(char in "0123456789abcdef" for char in sha256)
    return (model.HashType(alg=model.HashAlgorithm.SHA_256, content=sha256),) if is_hash else ()


def _licence(text: str) -> Any:
    factory, licence = (
        load_extra("cyclonedx.contrib.license.factories"),
        load_extra("cyclonedx.model.license"),
    )
    return factory.LicenseFactory().make_from_string(
        text, license_acknowledgement=licence.LicenseAcknowledgement.DECLARED
    )


def _add_model_cards(document: dict[str, Any], manifest: Manifest) -> None:
    """The library knows no model cards yet; the standard has them since 1.5."""
    drafters = _distinct_drafters(manifest.contracts)
    for part in document.get("components", []):
        if part["type"] == _MODEL:
            drafter = drafters.get(part["bom-ref"])
            role = "proposes tokens for the target" if drafter else "the target: verifies and commits tokens"
            card: dict[str, Any] = {"modelParameters": {"task": "text-generation"}}
            card["properties"] = [{"name": "draftproof:role", "value": role}]
            if drafter is not None and drafter.drafter_provenance:
                card["properties"].append(
                    {"name": "draftproof:provenance", "value": drafter.drafter_provenance}
                )
            part["modelCard"] = card


def _sort_lists(document: dict[str, Any]) -> None:
    """The standard's sets have no order of their own; here they have the order of their references."""
    for name in ("components", "dependencies"):
        document.get(name, []).sort(key=lambda one: one.get("bom-ref", one.get("ref", "")))


def _runtime_ref(contract: Contract) -> str:
    return f"runtime:{contract.runtime}@{contract.runtime_version}"


def _by_runtime(contracts: Iterable[Contract]) -> dict[str, list[Contract]]:
    grouped: dict[str, list[Contract]] = {}
    for contract in contracts:
        grouped.setdefault(_runtime_ref(contract), []).append(contract)
    return grouped


def _distinct_targets(contracts: Iterable[Contract]) -> dict[str, Contract]:
    return {f"model:{one.target_sha256 or one.target_model}": one for one in _backwards(contracts)}


def _distinct_tokenizers(contracts: Iterable[Contract]) -> dict[str, Contract]:
    return {
        f"tokenizer:{one.tokenizer_sha256}": one
        for one in _backwards(contracts)
        if one.tokenizer_sha256 is not None
    }


def _distinct_drafters(contracts: Iterable[Contract]) -> dict[str, Contract]:
    return {_drafter_ref(one): one for one in _backwards(contracts) if _has_drafter(one)}


def _has_drafter(contract: Contract) -> bool:
    """Tell whether there is a drafter to list; one that the service keeps to itself the plan may name."""
    is_known = contract.drafter_kind != "undisclosed" or contract.drafter_identity is not None
    return is_known and contract.drafter_kind != "none"


def _drafter_ref(contract: Contract) -> str:
    """A lookup is code of its runtime, so another runtime's is another component."""
    name = contract.drafter_sha256 or contract.drafter_identity or contract.drafter_kind
    of = f" of {_runtime_ref(contract)}" if contract.drafter_kind in _WITHOUT_WEIGHTS else ""
    return f"drafter:{name}{of}"


def _backwards(contracts: Iterable[Contract]) -> Iterator[Contract]:
    """Of several arms with the same part the first one's facts are kept."""
    return reversed(tuple(contracts))
