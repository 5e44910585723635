"""Records as Parquet tables for other tools, and back. The same content as the journal, in the same order.

Nested parts keep their shape: `chunks` and `rounds` are lists of structs. None is null, an empty list is an
empty list. A table written before a column was added loads with that field's default.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import polars as pl

from draftproof.core.errors import StoreError
from draftproof.core.records import (
    BehaviourProbe,
    BlockRecord,
    Chunk,
    Judgement,
    Notice,
    RequestRecord,
    Round,
    TelemetrySample,
    Warmup,
)
from draftproof.store.columns import build_frame
from draftproof.store.lines import write_error

T = TypeVar("T")

# A row as a dict takes several times the memory of its record: only so many are held at once.
_ROWS_AT_ONCE = 8_192
_ROW_GROUP = 131_072

_INT, _TEXT = pl.Int64(), pl.String()
_CHUNK = pl.Struct(dict.fromkeys(Chunk.__struct_fields__, _INT))
_ROUND = pl.Struct(dict.fromkeys(Round.__struct_fields__, _INT))
_ACCELERATOR = pl.Struct(
    dict.fromkeys(("index", "samples", "throttled"), _INT)
    | dict.fromkeys(("clock_mhz", "power_limit_w", "temperature_c"), pl.Float64())
)
_HOST = pl.Struct(
    {"span_s": pl.Float64(), "cores": _INT}
    | dict.fromkeys(("busy_s", "own_s", "steal_s", "pressure_s"), pl.Float64())
    | {"accelerators": pl.List(_ACCELERATOR)}
)

RECORD_SCHEMA: dict[str, pl.DataType] = {
    "request_id": _TEXT,
    "arm": _TEXT,
    "load": _TEXT,
    "block": _INT,
    "repeat": _INT,
    "item_id": _TEXT,
    "phase": _TEXT,
    "order_in_block": _INT,
    "concurrency": _INT,
    "seed": _INT,
    "scheduled_ns": _INT,
    "sent_ns": _INT,
    "headers_ns": _INT,
    "end_ns": _INT,
    "outcome": _TEXT,
    "http_status": _INT,
    "error": _TEXT,
    "chunks": pl.List(_CHUNK),
    "token_source": _TEXT,
    "prompt_tokens": _INT,
    "output_tokens": _INT,
    "finish_reason": _TEXT,
    "text": _TEXT,
    "token_ids": pl.List(_INT),
    "speculation": pl.Struct(
        {
            "num_spec_steps": _INT,
            "num_draft_tokens": _INT,
            "num_accepted_draft_tokens": _INT,
            "acceptance_histogram": pl.List(_INT),
            "per_step_drafted": pl.List(_INT),
            "per_step_accepted": pl.List(_INT),
        }
    ),
    "rounds": pl.List(_ROUND),
    "server": pl.Struct({"queue_ns": _INT, "prefill_ns": _INT, "decode_ns": _INT}),
    "fallbacks": _INT,
    "malformed_raw": _TEXT,
    "reasoning_text": _TEXT,
    "tool_calls": pl.List(pl.Struct({"name": _TEXT, "arguments": _TEXT})),
    "warnings": pl.List(_TEXT),
    "decode_steps": _INT,
    "withheld": pl.Struct(
        {
            "checks": pl.List(pl.Struct({"kind": _TEXT, "passed": pl.Boolean(), "critical": pl.Boolean()})),
            "characters": _INT,
            "sequence": pl.Struct(
                {
                    "first": _INT,
                    "distinct_share": pl.Float64(),
                    "repeated_share": pl.Float64(),
                    "bigrams": pl.List(_INT),
                }
            ),
            "first_bytes": _INT,
        }
    ),
    "top_two_margins": pl.List(pl.Float64()),
    "conversation_turn": _INT,
    "connect_ns": _INT,
    "attempt": _INT,
    "finish_ns": _INT,
    "unstreamed_tokens": _INT,
    "piece_chars": pl.List(_INT),
}
BLOCK_SCHEMA: dict[str, pl.DataType] = {
    "block": _INT,
    "load": _TEXT,
    "arm": _TEXT,
    "order": _INT,
    "started_ns": _INT,
    "ended_ns": _INT,
    "completed": pl.Boolean(),
    "event_loop_lag_max_ns": _INT,
    "client_cpu_s": pl.Float64(),
    "note": _TEXT,
    "counted_from_ns": _INT,
    "lag_p99_ns": _INT,
    "send_lag_p99_ns": _INT,
    "send_lag_max_ns": _INT,
    "gc_pause_max_ns": _INT,
    "gc_pause_total_ns": _INT,
    "connections": _INT,
    "in_flight_max": _INT,
    "workers": _INT,
    "clocks": pl.List(pl.Struct({"worker": _TEXT, "offset_ns": _INT, "error_ns": _INT})),
    "started_wall_ns": _INT,
    "boot": _TEXT,
    "wall_step_ns": _INT,
    "suspended_ns": _INT,
    "unreached": _INT,
    "conductor_cpu_s": pl.Float64(),
    "held_back": _INT,
    "client_cpu_max_s": pl.Float64(),
    "broken": _INT,
    "unstamped": _INT,
    "lead_end": _TEXT,
    "lead_asks_counted": pl.Boolean(),
    "host": _HOST,
    "attempt": _INT,
    "process": _INT,
    "end_lag_max_ns": _INT,
}
TELEMETRY_SCHEMA: dict[str, pl.DataType] = {
    "arm": _TEXT,
    "at_ns": _INT,
    "values": pl.List(pl.Struct({"series": _TEXT, "value": pl.Float64()})),
    "source": _TEXT,
    "replica": _INT,
    "turn": _TEXT,
    "mark": _TEXT,
    "attempt": _INT,
}

JUDGEMENT_SCHEMA: dict[str, pl.DataType] = {
    "request_id": _TEXT,
    "item_id": _TEXT,
    "check": _INT,
    "kind": _TEXT,
    "passed": pl.Boolean(),
    "detail": _TEXT,
    "by": _TEXT,
    "source_sha256": _TEXT,
    "answer_sha256": _TEXT,
    "attempt": _INT,
}
BEHAVIOUR_SCHEMA: dict[str, pl.DataType] = {
    "arm": _TEXT,
    "probe": _TEXT,
    "status": _TEXT,
    "detail": _TEXT,
    "at_ns": _INT,
    "http_status": _INT,
}
NOTICE_SCHEMA: dict[str, pl.DataType] = {
    "code": _TEXT,
    "severity": _TEXT,
    "text": _TEXT,
    "remedy": _TEXT,
    "at_ns": _INT,
}
WARMUP_SCHEMA: dict[str, pl.DataType] = {
    "arm": _TEXT,
    "load": _TEXT,
    "block": _INT,
    "start": _INT,
    "started_ns": _INT,
    "ended_ns": _INT,
    "stable": pl.Boolean(),
    "tolerance": pl.Float64(),
    "change": pl.Float64(),
    "groups": pl.List(
        pl.Struct({"requests": _INT, "answered": _INT, "ttft_ns": pl.Float64(), "tpot_ns": pl.Float64()})
    ),
    "end_lag_max_ns": _INT,
}


def save_records(path: Path, records: Sequence[RequestRecord]) -> None:
    """Write request records, one a row.

    Raises:
        StoreError: the file cannot be written.
    """
    parts = (records[at : at + _ROWS_AT_ONCE] for at in range(0, len(records), _ROWS_AT_ONCE))
    _write(path, [build_frame(part, RECORD_SCHEMA) for part in parts], RECORD_SCHEMA)


def save_blocks(path: Path, blocks: Sequence[BlockRecord]) -> None:
    """Write turns, one a row.

    Raises:
        StoreError: the file cannot be written.
    """
    rows = [
        msgspec.structs.asdict(one)
        | {
            "clocks": [msgspec.structs.asdict(clock) for clock in one.clocks],
            "host": msgspec.to_builtins(one.host),
        }
        for one in blocks
    ]
    _save(path, rows, BLOCK_SCHEMA)


def save_telemetry(path: Path, samples: Sequence[TelemetrySample]) -> None:
    """Write telemetry samples, one a row; the values of a sample are a list of (series, value).

    Raises:
        StoreError: the file cannot be written.
    """
    rows = [
        msgspec.structs.asdict(one)
        | {"values": [{"series": series, "value": value} for series, value in one.values.items()]}
        for one in samples
    ]
    _save(path, rows, TELEMETRY_SCHEMA)


def save_judgements(path: Path, judgements: Sequence[Judgement]) -> None:
    """Write judgements of answers, one a row.

    Raises:
        StoreError: the file cannot be written.
    """
    _save(path, [msgspec.structs.asdict(one) for one in judgements], JUDGEMENT_SCHEMA)


def save_behaviours(path: Path, probes: Sequence[BehaviourProbe]) -> None:
    """Write probes of behaviour, one a row.

    Raises:
        StoreError: the file cannot be written.
    """
    _save(path, [msgspec.structs.asdict(one) for one in probes], BEHAVIOUR_SCHEMA)


def save_warmups(path: Path, warmups: Sequence[Warmup]) -> None:
    """Write warm-ups, one a row.

    Raises:
        StoreError: the file cannot be written.
    """
    rows = [
        msgspec.structs.asdict(one) | {"groups": [msgspec.structs.asdict(group) for group in one.groups]}
        for one in warmups
    ]
    _save(path, rows, WARMUP_SCHEMA)


def save_notices(path: Path, notices: Sequence[Notice]) -> None:
    """Write what a run said of its own chances, one notice a row.

    Raises:
        StoreError: the file cannot be written.
    """
    _save(path, [msgspec.structs.asdict(one) for one in notices], NOTICE_SCHEMA)


def load_notices(path: Path) -> tuple[Notice, ...]:
    """Read notices back.

    Raises:
        StoreError: the file is not such a table.
    """
    return _convert(path, _load(path), dict, Notice)


def load_warmups(path: Path) -> tuple[Warmup, ...]:
    """Read warm-ups back.

    Raises:
        StoreError: the file is not such a table.
    """
    return _convert(path, _load(path), dict, Warmup)


def load_judgements(path: Path) -> tuple[Judgement, ...]:
    """Read judgements back.

    Raises:
        StoreError: the file is not such a table.
    """
    return _convert(path, _load(path), dict, Judgement)


def load_behaviours(path: Path) -> tuple[BehaviourProbe, ...]:
    """Read probes back.

    Raises:
        StoreError: the file is not such a table.
    """
    return _convert(path, _load(path), dict, BehaviourProbe)


def load_records(path: Path) -> tuple[RequestRecord, ...]:
    """Read request records back.

    Raises:
        StoreError: the file is not such a table.
    """
    return _convert(path, _load(path), _from_row, RequestRecord)


def load_blocks(path: Path) -> tuple[BlockRecord, ...]:
    """Read turns back.

    Raises:
        StoreError: the file is not such a table.
    """
    return _convert(path, _load(path), _from_block_row, BlockRecord)


def load_telemetry(path: Path) -> tuple[TelemetrySample, ...]:
    """Read telemetry samples back.

    Raises:
        StoreError: the file is not such a table.
    """
    return _convert(path, _load(path), _from_sample_row, TelemetrySample)


def _from_row(row: dict[str, Any]) -> dict[str, Any]:
    """Chunks and rounds are arrays on the wire: their structs become lists in field order."""
    row["chunks"] = [list(chunk.values()) for chunk in row["chunks"]]
    row["rounds"] = None if row["rounds"] is None else [list(part.values()) for part in row["rounds"]]
    if (withheld := row.get("withheld")) is not None:
        withheld["checks"] = [list(check.values()) for check in withheld["checks"]]
    return row


def _from_block_row(row: dict[str, Any]) -> dict[str, Any]:
    return row | {"clocks": [list(clock.values()) for clock in row.get("clocks") or ()]}


def _from_sample_row(row: dict[str, Any]) -> dict[str, Any]:
    return row | {"values": {one["series"]: one["value"] for one in row["values"]}}


def _convert(
    path: Path,
    rows: Iterable[dict[str, Any]],
    shape: Callable[[dict[str, Any]], dict[str, Any]],
    kind: type[T],
) -> tuple[T, ...]:
    try:
        return tuple(msgspec.convert(shape(row), kind) for row in rows)
    except (msgspec.ValidationError, KeyError, TypeError) as error:
        raise StoreError(
            f"this is not a table of records ({type(error).__name__}: {error}).", place=str(path)
        ) from error


def _save(path: Path, rows: Iterable[dict[str, Any]], schema: dict[str, pl.DataType]) -> None:
    rows, frames = iter(rows), []
    while part := list(islice(rows, _ROWS_AT_ONCE)):
        frames.append(pl.DataFrame(part, schema=schema))
    _write(path, frames, schema)


def _write(path: Path, frames: Sequence[pl.DataFrame], schema: dict[str, pl.DataType]) -> None:
    partial = path.with_name(f".{path.name}.partial")
    whole = pl.concat([pl.DataFrame(schema=schema), *frames], rechunk=False)
    try:
        whole.write_parquet(partial, compression="zstd", row_group_size=_ROW_GROUP)
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise write_error(path, error) from error


def _load(path: Path) -> Iterator[dict[str, Any]]:
    try:
        for part in pl.read_parquet(path).iter_slices(_ROWS_AT_ONCE):
            yield from part.to_dicts()
    except (OSError, pl.exceptions.PolarsError) as error:
        raise StoreError(f"this is not a table of records ({error}).", place=str(path)) from error
