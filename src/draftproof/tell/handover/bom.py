"""The bill of materials: CycloneDX 1.6 with the models as components.

Owns which facts of a run become which component. `cyclonedx-python-lib` tells a licence of SPDX from terms of
one's own. A hash of a model folder is the SHA-256 over names and hashes of its files (docs/handover.md). What
is not known is left out, never guessed.
"""

import json
import re
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
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
_TARGET_ROLE = "the target: verifies and commits tokens"
Part = dict[str, Any]


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
    load_extra("cyclonedx")
    workload = _component(
        "data",
        "workload",
        manifest.workload_name,
        {"evidence": manifest.evidence},
        version=manifest.workload_version,
        sha256=manifest.workload_sha256,
    )
    contracts = manifest.contracts
    runtimes = _distinct(contracts, _runtime_ref)
    parts = [workload, *(_runtime(ref, contracts) for ref in runtimes)]
    uses: dict[str, list[str]] = {"run": [one["bom-ref"] for one in parts]}
    for part, users in _list_models(contracts, approval):
        parts.append(part)
        for user in users or runtimes:
            uses.setdefault(user, []).append(part["bom-ref"])
    measured_at = datetime.fromtimestamp(manifest.created_wall_ns // 10**9, tz=UTC)
    document = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "serialNumber": f"urn:uuid:{uuid.uuid5(_NAMESPACE, content_sha256)}",
        "metadata": {
            "timestamp": measured_at.isoformat(),
            "component": _component("application", "run", manifest.run_name, {"evidence": manifest.evidence}),
            "tools": {
                "components": [
                    {"name": "draftproof", "type": "application", "version": manifest.draftproof_version},
                    {"name": LIBRARY, "type": "library", "version": library_version()},
                ]
            },
        },
        "components": sorted(parts, key=lambda one: str(one["bom-ref"])),
        "dependencies": [
            {"ref": ref} | ({"dependsOn": sorted(uses[ref])} if ref in uses else {})
            for ref in sorted(["run", *(one["bom-ref"] for one in parts)])
        ],
    }
    return (json.dumps(document, ensure_ascii=False, indent=1, sort_keys=True) + "\n").encode("utf-8")


def find_tool_version(raw: bytes) -> str | None:
    """Return the version of the library that a bill was written with, None where it does not say."""
    try:
        tools = json.loads(raw)["metadata"]["tools"]["components"]
        return next((tool["version"] for tool in tools if tool["name"] == LIBRARY), None)
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def _runtime(ref: str, contracts: Sequence[Contract]) -> Part:
    own = [one for one in contracts if _runtime_ref(one) == ref]
    facts = {f"algorithm:{one.arm}": one.algorithm for one in own}
    return _component("application", ref, own[0].runtime, facts, version=own[0].runtime_version)


def _list_models(contracts: Sequence[Contract], approval: Approval) -> Iterator[tuple[Part, tuple[str, ...]]]:
    """Yield targets, tokenizers and drafters with the runtimes that use them; () stands for all of them."""
    for ref, one in _distinct(
        contracts, lambda one: f"model:{one.target_sha256 or one.target_model}"
    ).items():
        facts = {"precision": one.target_precision}
        part = _component(
            _MODEL,
            ref,
            one.target_model,
            facts,
            version=one.target_revision,
            licence=one.target_licence,
            sha256=one.target_sha256,
        )
        yield part | _card(_TARGET_ROLE), ()
    for ref, one in _distinct(contracts, _tokenizer_ref).items():
        name = f"tokenizer of {one.target_model}"
        yield _component("data", ref, name, {}, sha256=one.tokenizer_sha256), (_runtime_ref(one),)
    for ref, one in _distinct(contracts, _drafter_ref).items():
        yield _drafter(ref, one, approval), (_runtime_ref(one),)


def _drafter(ref: str, contract: Contract, approval: Approval) -> Part:
    weightless = contract.drafter_kind in _WITHOUT_WEIGHTS
    part = _component(
        "library" if weightless else _MODEL,
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
    card = _card("proposes tokens for the target", contract.drafter_provenance)
    return part if weightless else part | card


def _component(
    kind: str,
    ref: str,
    name: str,
    facts: Mapping[str, str | None],
    *,
    version: str | None = None,
    licence: str | None = None,
    sha256: str | None = None,
) -> Part:
    # A value that is no SHA-256, such as a made-up one, is no hash that the standard takes.
    is_hash = re.fullmatch("[0-9a-f]{64}", sha256 or "") is not None
    told = {
        "version": version,
        "licenses": [] if licence is None else [_licence(licence)],
        "hashes": [{"alg": "SHA-256", "content": sha256}] if is_hash else [],
        "properties": _properties(facts),
    }
    return {"type": kind, "bom-ref": ref, "name": name} | {
        key: one for key, one in told.items() if one not in (None, [])
    }


def _properties(facts: Mapping[str, str | None]) -> list[dict[str, str]]:
    known = sorted((key, value) for key, value in facts.items() if value is not None)
    return [{"name": f"draftproof:{key}", "value": value} for key, value in known]


def _card(role: str, provenance: str | None = None) -> Part:
    facts = _properties({"role": role}) + _properties({"provenance": provenance or None})
    return {"modelCard": {"modelParameters": {"task": "text-generation"}, "properties": facts}}


def _licence(text: str) -> Part:
    """Return a licence of SPDX by its name, an expression of such, or terms of one's own."""
    spdx = load_extra("cyclonedx.spdx")
    declared = {"acknowledgement": "declared"}
    if known := spdx.fixup_id(text):
        return {"license": declared | {"id": known}}
    return (
        declared | {"expression": text}
        if spdx.is_expression(text)
        else {"license": declared | {"name": text}}
    )


def _runtime_ref(contract: Contract) -> str:
    return f"runtime:{contract.runtime}@{contract.runtime_version}"


def _tokenizer_ref(contract: Contract) -> str | None:
    return None if contract.tokenizer_sha256 is None else f"tokenizer:{contract.tokenizer_sha256}"


def _drafter_ref(contract: Contract) -> str | None:
    """Return a drafter's reference, None where there is none to list.

    One that the service keeps to itself the plan may name. A lookup is code of its runtime, so another
    runtime's is another component.
    """
    if contract.drafter_kind == "none":
        return None
    if contract.drafter_kind == "undisclosed" and contract.drafter_identity is None:
        return None
    name = contract.drafter_sha256 or contract.drafter_identity or contract.drafter_kind
    of = f" of {_runtime_ref(contract)}" if contract.drafter_kind in _WITHOUT_WEIGHTS else ""
    return f"drafter:{name}{of}"


def _distinct(contracts: Sequence[Contract], refer: Callable[[Contract], str | None]) -> dict[str, Contract]:
    """Return parts by their references; of several arms with the same part the first one's facts are kept."""
    return {ref: one for one in reversed(contracts) if (ref := refer(one)) is not None}
