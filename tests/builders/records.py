"""Records with sensible values, for tests that care about a few of their fields."""

from collections.abc import Sequence
from typing import Any

from draftproof.core.manifests import ArmManifest, Contract, Manifest
from draftproof.core.records import SCHEMA_VERSION, BlockRecord, Chunk, RequestRecord, Round, SpecCounts
from draftproof.workload.items import Item, Message

MS_NS = 1_000_000


def build_chunks(
    tokens_per_chunk: Sequence[int], *, first_ns: int, gap_ns: int | Sequence[int]
) -> tuple[Chunk, ...]:
    """Return chunks with so many tokens each: the first at `first_ns`, the others one gap later each."""
    gaps = [gap_ns] * (len(tokens_per_chunk) - 1) if isinstance(gap_ns, int) else list(gap_ns)
    arrivals = [first_ns + sum(gaps[:index]) for index in range(len(tokens_per_chunk))]
    totals = [sum(tokens_per_chunk[: index + 1]) for index in range(len(tokens_per_chunk))]
    return tuple(Chunk(arrival, total) for arrival, total in zip(arrivals, totals, strict=True))


def build_record(
    *,
    arm: str = "baseline",
    load: str = "low",
    block: int = 0,
    repeat: int = 0,
    item_id: str = "item-1",
    sent_ns: int = 0,
    tokens_per_chunk: Sequence[int] = (1, 1, 1, 1),
    ttft_ns: int = 50 * MS_NS,
    gap_ns: int | Sequence[int] = 20 * MS_NS,
    **fields: Any,
) -> RequestRecord:
    """Return a record, by default of an `ok` request whose times and counts follow from the arguments.

    Any field of `RequestRecord` may be given in `fields` and then stands as it is.
    """
    chunks = build_chunks(tokens_per_chunk, first_ns=sent_ns + ttft_ns, gap_ns=gap_ns)
    values: dict[str, Any] = {
        "request_id": f"{load}/{block}/{repeat}/{arm}/{item_id}",
        "phase": "measure",
        "order_in_block": 0,
        "concurrency": 1,
        "seed": 1,
        "scheduled_ns": sent_ns,
        "headers_ns": chunks[0].arrival_ns if chunks else sent_ns,
        "end_ns": chunks[-1].arrival_ns if chunks else sent_ns,
        "outcome": "ok",
        "http_status": 200,
        "chunks": chunks,
        "token_source": "token_ids" if chunks else None,
        "prompt_tokens": 5,
        "output_tokens": sum(tokens_per_chunk),
        "finish_reason": "stop",
        "text": "answer",
    }
    fixed = {"arm": arm, "load": load, "block": block, "repeat": repeat, "item_id": item_id}
    known: dict[str, Any] = {"sent_ns": sent_ns, **fixed}
    return RequestRecord(**(known | values | fields))


def build_failure(outcome: str = "http_error", **fields: Any) -> RequestRecord:
    """Return the record of a request that got no token."""
    nothing: dict[str, Any] = {
        "outcome": outcome,
        "tokens_per_chunk": (),
        "output_tokens": None,
        "finish_reason": None,
        "text": "",
        "error": f"{outcome} on purpose",
    }
    return build_record(**(nothing | fields))


def build_round(**fields: Any) -> Round:
    """Return a round that drafted four tokens and kept two of them."""
    values = {
        "proposed": 4,
        "accepted": 2,
        "committed": 3,
        "draft_ns": 1 * MS_NS,
        "verify_ns": 20 * MS_NS,
        "sample_ns": 1 * MS_NS,
        "schedule_ns": 1 * MS_NS,
        "batch_size": 1,
        "prefill_tokens": 0,
    }
    return Round(**(values | fields))


def count_rounds(rounds: Sequence[Round]) -> SpecCounts:
    """Return the counters that agree with some rounds."""
    drafted = [one for one in rounds if one.proposed > 0]
    highest = max((one.accepted for one in drafted), default=-1)
    histogram = tuple(sum(one.accepted == count for one in drafted) for count in range(highest + 1))
    return SpecCounts(
        num_spec_steps=len(drafted),
        num_draft_tokens=sum(one.proposed for one in drafted),
        num_accepted_draft_tokens=sum(one.accepted for one in drafted),
        acceptance_histogram=histogram,
    )


def build_block_record(**fields: Any) -> BlockRecord:
    """Return the record of a completed period by a client that kept up."""
    values: dict[str, Any] = {
        "block": 0,
        "load": "low",
        "arm": "baseline",
        "order": 0,
        "started_ns": 0,
        "ended_ns": 1_000 * MS_NS,
        "completed": True,
        "event_loop_lag_max_ns": 1 * MS_NS,
        "client_cpu_s": 0.05,
    }
    return BlockRecord(**(values | fields))


def build_item(item_id: str = "item-1", **fields: Any) -> Item:
    """Return an item that asks for a few tokens."""
    values: dict[str, Any] = {
        "id": item_id,
        "messages": (Message(role="user", content=f"Say something about {item_id}."),),
        "segments": {"task": "chat", "language": "en"},
        "max_tokens": 16,
    }
    return Item(**(values | fields))


def build_arm_manifest(**fields: Any) -> ArmManifest:
    """Return the manifest of an arm without speculation."""
    values: dict[str, Any] = {
        "arm": "baseline",
        "engine": "reference",
        "engine_version": "0.1.0",
        "command": None,
        "url": "http://127.0.0.1:8000",
        "settings": {"speculation.method": "off"},
    }
    return ArmManifest(**(values | fields))


def build_contract(**fields: Any) -> Contract:
    """Return a contract about which little is known."""
    values: dict[str, Any] = dict.fromkeys(Contract.__struct_fields__) | {
        "confounds": (),
        "forced": (),
        "arm": "baseline",
        "target_model": "tiny",
        "drafter_kind": "none",
        "tokenizer_differences": (),
        "runtime": "reference",
        "runtime_version": "0.1.0",
        "algorithm": "ordinary decoding",
        "unsupported_features": (),
        "fallback": "none needed",
    }
    return Contract(**(values | fields))


def build_manifest(**fields: Any) -> Manifest:
    """Return the manifest of a small run with one arm."""
    values: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "draftproof_version": "0.1.0",
        "run_name": "test-run",
        "created_wall_ns": 1,
        "anchor_wall_ns": 1,
        "anchor_monotonic_ns": 1,
        "plan_sha256": "0" * 64,
        "thresholds_sha256": "1" * 64,
        "workload_sha256": "2" * 64,
        "workload_name": "tiny",
        "workload_version": "1",
        "evidence": "smoke",
        "seed": 1,
        "host": {"cpus": 2},
        "arms": (build_arm_manifest(),),
        "contracts": (build_contract(),),
    }
    return Manifest(**(values | fields))
