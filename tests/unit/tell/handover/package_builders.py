"""A small run in the order in which a run writes it, and packages as a forger would re-make them."""

from pathlib import Path
from typing import Any

import msgspec
from tests.builders.records import (
    MS_NS,
    build_arm_manifest,
    build_block_record,
    build_contract,
    build_failure,
    build_item,
    build_manifest,
    build_record,
)

from draftproof.core.records import RequestRecord, ToolCall
from draftproof.plan.loading import parse_plan, plan_sha256, thresholds_sha256
from draftproof.store import RunDirectory
from draftproof.store.run_directory import encode_document
from draftproof.tell.handover.archive import (
    LISTING_NAME,
    SUMS_NAME,
    Listing,
    make_listing,
    read_member,
    render_sums,
    scan_archive,
    write_archive,
)
from draftproof.workload.items import ContainsCheck, Message

# Key 1 of RFC 8032, section 7.1: public test data.
RFC_8032_SECRET = "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60"  # noqa: S105
ARMS = ("baseline", "candidate", "baseline_null")
PROMPT, ANSWER = "The lighthouse keeper of Skagen asks", "a violet umbrella, said the heron"
PLAN = """\
name = "handover"
[[load]]
name = "single"
block_size = 8
concurrency = 1
[arms.baseline]
[arms.candidate]
settings = {{ "speculation.method" = "ngram" }}
[comparison]
resamples = 200
[thresholds]
failure_margin = {failure_margin}
quality_margin = 0.5
[approval]
owner = "team-serving"
approver = "review board"
rollback_artefact = "image@sha256:0"
drafter_retirement = "with the next target"
"""
DIGESTS = {name: letter * 64 for name, letter in (("target", "a"), ("tokenizer", "b"), ("drafter", "c"))}


def plan_text(failure_margin: float = 0.5) -> str:
    return PLAN.format(failure_margin=failure_margin)


def build_items(count: int = 4):
    return [
        build_item(
            f"item-{number}",
            messages=(Message(role="user", content=f"{PROMPT} number {number}."),),
            checks=(ContainsCheck(all_of=("violet",), critical=number == 0),),
            segments={"task": "chat"},
            stop=("THE END",),
        )
        for number in range(count)
    ]


def build_answer(arm: str, number: int, start_ns: int) -> RequestRecord:
    """Return an answer: every arm says the same, but the candidate differs in one token of item 1."""
    ids = [11, 12, 13, 12, 15, 16, 17, 18 + (arm == "candidate" and number == 1)]
    sizes = (1, 3, 4) if arm == "candidate" else (1,) * 8
    known: dict[str, Any] = {
        "arm": arm,
        "load": "single",
        "item_id": f"item-{number}",
        "order_in_block": number,
        "sent_ns": start_ns,
    }
    if arm == "candidate" and number == 3:
        return build_failure(**known, error=f"HTTP 500: {ANSWER}", end_ns=start_ns + MS_NS)
    return build_record(
        **known,
        tokens_per_chunk=sizes,
        gap_ns=(20 + number) * MS_NS,
        token_ids=tuple(ids),
        text=f"{ANSWER} {ids[-1]}",
        reasoning_text=f"thinking of {ANSWER}",
        tool_calls=(ToolCall(name="find", arguments=f'{{"what": "{ANSWER}"}}'),),
    )


def build_lines(count: int = 4):
    """Yield records and turns as a run writes them: one arm after the other, times never falling."""
    for order, arm in enumerate(ARMS):
        start = order * 10_000 * MS_NS
        for number in range(count):
            yield build_answer(arm, number, start + (1 + number) * 1_000 * MS_NS)
        yield build_block_record(
            arm=arm, load="single", order=order, started_ns=start, ended_ns=start + 9_000 * MS_NS
        )


def store_run(path: Path, *, text: str = "", lines=None, items=None) -> Path:
    """Write a small run of three arms."""
    text = text or plan_text()
    plan = parse_plan(text)
    made = build_manifest(
        plan_sha256=plan_sha256(text),
        thresholds_sha256=thresholds_sha256(plan),
        created_wall_ns=1_767_945_600_000_000_000,
        arms=tuple(build_arm_manifest(arm=arm, url="http://127.0.0.1:80") for arm in ARMS),
        contracts=tuple(build_contract_of(arm) for arm in ARMS),
    )
    with RunDirectory.create(path, text, plan, made, items or build_items()) as run:
        for line in build_lines() if lines is None else lines:
            run.journal.append(line)
    return path


def build_contract_of(arm: str):
    drafts = arm == "candidate"
    return build_contract(
        arm=arm,
        target_sha256=DIGESTS["target"],
        tokenizer_sha256=DIGESTS["tokenizer"],
        target_licence="Apache-2.0",
        drafter_kind="draft_model" if drafts else "none",
        drafter_identity="tiny-draft" if drafts else None,
        drafter_provenance="distilled from the target" if drafts else None,
        drafter_licence="our own terms" if drafts else None,
        drafter_sha256=DIGESTS["drafter"] if drafts else None,
    )


def unpack(archive: Path) -> dict[str, bytes]:
    """Return name -> content of a package."""
    return {entry.name: read_member(archive, entry) for entry in scan_archive(archive)[0]}


def repack(members: dict[str, bytes], archive: Path, *, rehash: bool = True, **listed) -> Path:
    """Write members as a package. With `rehash` all hashes are made anew, as a forger would."""
    folder = archive.with_suffix(".members")
    paths = {name: _put(folder / name, data) for name, data in members.items()}
    if rehash:
        old = msgspec.json.decode(members[LISTING_NAME], type=Listing)
        rest = {name: path for name, path in paths.items() if name not in {LISTING_NAME, SUMS_NAME}}
        paths[SUMS_NAME] = _put(folder / SUMS_NAME, render_sums(rest))
        facts: dict[str, Any] = {
            "draftproof_version": old.draftproof_version,
            "run_name": old.run_name,
            "decision": old.decision,
            "withheld": old.withheld,
            "clock_restarts": old.clock_restarts,
            "source_sha256": old.source,
        }
        listing = make_listing(rest | {SUMS_NAME: paths[SUMS_NAME]}, **(facts | listed))
        paths[LISTING_NAME] = _put(folder / LISTING_NAME, encode_document(listing))
    with archive.open("wb") as file:
        write_archive(file, paths)
    return archive


def _put(path: Path, data: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path
