"""What a package holds: which files of a run are its raw data, and the documents that follow from them.

Documents are a pure function of the raw data, so whoever has these makes the same bytes again. That is what
`draftproof verify` does. `render_documents` is the one place that says which documents there are.

The bill of materials: CycloneDX 1.6 with the models as components.

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
from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec

from draftproof.core.manifests import ArmManifest, Contract, Manifest
from draftproof.core.records import SCHEMA_VERSION
from draftproof.judge.compute import compute_results
from draftproof.judge.decide.envelope import build_envelope
from draftproof.judge.observe.attempts import PeriodCount
from draftproof.judge.observe.observed import RunData
from draftproof.judge.results.run import Results, Verdict
from draftproof.measure.run.measure import plan_periods
from draftproof.plan.tables import Approval
from draftproof.services.arms.launch import list_arms
from draftproof.store import RunDirectory
from draftproof.store.run_directory import (
    ENVELOPE_NAME,
    MANIFEST_NAME,
    PLAN_NAME,
    REPORT_NAME,
    RESULTS_NAME,
    WORKLOAD_NAME,
    encode_document,
)
from draftproof.tell.handover.archive import combine
from draftproof.tell.handover.signing import load_extra
from draftproof.tell.monitoring import DASHBOARD_FILE, RULES_FILE, render_dashboard, render_rules
from draftproof.tell.report import render_html

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
    fields = {
        "version": version,
        "licenses": [] if licence is None else [_licence(licence)],
        "hashes": [{"alg": "SHA-256", "content": sha256}] if is_hash else [],
        "properties": _properties(facts),
    }
    return {"type": kind, "bom-ref": ref, "name": name} | {
        key: one for key, one in fields.items() if one not in (None, [])
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


def render_readme(contents: RunData, results: Results, *, withheld: bool) -> str:
    """Return README.txt of a package: what it is and how to check it with tools that every system has."""
    approval, name = contents.plan.approval, contents.manifest.run_name
    template = files("draftproof").joinpath("data/handover-readme.txt").read_text(encoding="utf-8")
    head, _, rest = template.partition("[withheld]\n")
    said, _, tail = rest.partition("[end]\n")
    return f"{head}{said if withheld else ''}{tail}".format(
        run=name,
        rule="=" * (len(name) + 30),
        decision=results.verdict.decision,
        sentence=results.verdict.sentence,
        evidence=results.evidence,
        approver=approval.approver or "nobody is named",
        owner=approval.owner or "nobody is named",
        rollback=(approval.rollback_artefact or "nothing is named").rstrip("."),
        version=results.draftproof_version,
    )


CONTRACT_NAME, BOM_NAME, README_NAME = "contract.json", "bom.cdx.json", "README.txt"
MONITORING_FOLDER = "monitoring"
RAW_NAMES = (PLAN_NAME, MANIFEST_NAME, WORKLOAD_NAME)
RAW_FOLDERS = ("journal", "telemetry")
_RAW_SUFFIXES = (".jsonl", ".jsonl.torn")


class HandoverContract(msgspec.Struct, frozen=True, kw_only=True):
    """What was approved: the decision, what every arm was, who answers for it, and what ends it.

    `approval` and `rollback` are the plan's sections, every default filled in. `references` is what each
    `${NAME}` in the plan and in the arms' commands stood for, secrets masked.
    """

    schema_version: int
    run_name: str
    evidence: str
    plan_sha256: str
    thresholds_sha256: str
    workload_sha256: str
    verdict: Verdict
    approval: dict[str, Any]
    rollback: dict[str, Any]
    contracts: tuple[Contract, ...]
    arms: tuple[ArmManifest, ...]
    references: dict[str, str] = {}


def list_raw(folder: Path) -> dict[str, Path]:
    """Return the raw data of a run directory or of an unpacked package, by name."""
    found = {name: folder / name for name in RAW_NAMES if (folder / name).is_file()}
    for part in RAW_FOLDERS:
        for path in sorted((folder / part).glob("*")):
            if path.is_file() and path.name.endswith(_RAW_SUFFIXES):
                found[f"{part}/{path.name}"] = path
    return found


def compute(folder: Path) -> tuple[RunData, Results]:
    """Return what a folder of raw data holds and the results that follow from it.

    Raises StoreError: something is missing or cannot be read; InvalidRunError: the plan is not the one hashed
    before the first request.
    """
    contents = RunDirectory.open(folder).load()
    return contents, compute_results(contents)


def render_documents(
    folder: Path, contents: RunData, results: Results, *, withheld: bool, with_bom: bool = True
) -> dict[str, bytes]:
    """Return every document of a package by name.

    Raises UsageError: the bill is wanted and the extra `handover` is not installed. `with_bom`: leave the
    bill of materials out where its library is not at hand.
    """
    documents = {
        RESULTS_NAME: encode_document(results),
        REPORT_NAME: render_html(results, contents.manifest).encode("utf-8"),
        CONTRACT_NAME: encode_document(make_contract(contents, results)),
        ENVELOPE_NAME: encode_document(build_envelope(results, contents.manifest)),
        README_NAME: render_readme(contents, results, withheld=withheld).encode("utf-8"),
    }
    if with_bom:
        content = combine(list_raw(folder))
        documents[BOM_NAME] = render_bom(contents.manifest, contents.plan.approval, content)
    return documents | _render_monitoring(contents, results)


def count_periods(contents: RunData) -> PeriodCount:
    """Return how many of the plan's periods have a record that they ended."""
    arms = list_arms(contents.plan)
    wanted = {
        (one.block, one.arm) for one in plan_periods(contents.plan, contents.items, arms, contents.analyses)
    }
    whole = [one for one in contents.blocks if one.completed]
    ended, twice = (
        wanted & {(one.block, one.arm) for one in whole if one.attempt == attempt} for attempt in (0, 1)
    )
    return PeriodCount(ended=len(ended), planned=len(wanted), twice=len(twice))


def can_render_bom(raw: bytes) -> bool:
    """Tell whether this installation writes a bill of materials with the library that wrote another."""
    return library_version() is not None and find_tool_version(raw) == library_version()


def make_contract(contents: RunData, results: Results) -> HandoverContract:
    """Return the contract of a run."""
    plan, manifest = contents.plan, contents.manifest
    return HandoverContract(
        schema_version=SCHEMA_VERSION,
        run_name=manifest.run_name,
        evidence=results.evidence,
        plan_sha256=manifest.plan_sha256,
        thresholds_sha256=manifest.thresholds_sha256,
        workload_sha256=manifest.workload_sha256,
        verdict=results.verdict,
        approval=plan.approval.model_dump(mode="json"),
        rollback=plan.rollback.model_dump(mode="json"),
        contracts=manifest.contracts,
        arms=manifest.arms,
        references=manifest.references,
    )


def _render_monitoring(contents: RunData, results: Results) -> dict[str, bytes]:
    """Jobs are left at their defaults: what they are called is known where they are scraped.

    Nothing where speculation may run nowhere: there is nothing to watch.
    """
    if not results.verdict.envelope:
        return {}
    plan, manifest = contents.plan, contents.manifest
    return {
        f"{MONITORING_FOLDER}/{RULES_FILE}": render_rules(results, plan, manifest).encode("utf-8"),
        f"{MONITORING_FOLDER}/{DASHBOARD_FILE}": render_dashboard(results, plan, manifest).encode("utf-8"),
    }
