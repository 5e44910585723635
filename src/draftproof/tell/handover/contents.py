"""What a package holds: which files of a run are its raw data, and the documents that follow from them.

Documents are a pure function of the raw data, so whoever has these makes the same bytes again. That is what
`draftproof verify` does. `render_documents` is the one place that says which documents there are.
"""

from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec

from draftproof.core.manifests import ArmManifest, Contract
from draftproof.core.records import SCHEMA_VERSION
from draftproof.judge.compute import compute_results
from draftproof.judge.decide.envelope import build_envelope
from draftproof.judge.observe.observed import RunData
from draftproof.judge.results.run import Results, Verdict
from draftproof.measure.run.measure import plan_periods
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
from draftproof.tell.handover.bom import find_tool_version, library_version, render_bom
from draftproof.tell.monitoring import DASHBOARD_FILE, RULES_FILE, render_dashboard, render_rules
from draftproof.tell.report import render_html


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


def count_missing_periods(contents: RunData) -> tuple[int, int]:
    """Return how many of the plan's periods have no record that they ended, and how many there are."""
    arms = list_arms(contents.plan)
    wanted = {(one.block, one.arm) for one in plan_periods(contents.plan, contents.items, arms)}
    return len(wanted - {(one.block, one.arm) for one in contents.blocks if one.completed}), len(wanted)


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
    """Jobs are left at their defaults: what they are called is known where they are scraped."""
    plan, manifest = contents.plan, contents.manifest
    return {
        f"{MONITORING_FOLDER}/{RULES_FILE}": render_rules(results, plan, manifest).encode("utf-8"),
        f"{MONITORING_FOLDER}/{DASHBOARD_FILE}": render_dashboard(results, plan, manifest).encode("utf-8"),
    }
