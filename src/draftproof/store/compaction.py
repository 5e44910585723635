"""The compact form of a run: Parquet tables that hold what the journal and the telemetry lines hold.

A folder with the tables and without a journal is a whole run that can be read and judged, not continued.
Here, too: where every request of a run stands on disk, as file and line of the journal or row of the table.
"""

import gc
import shutil
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import polars as pl

from draftproof.core.errors import StoreError
from draftproof.core.records import (
    BehaviourProbe,
    BlockRecord,
    Judgement,
    Notice,
    RequestRecord,
    TelemetrySample,
    Warmup,
)
from draftproof.store.journal import (
    JournalContents,
    line_error,
    load_journal,
    load_samples,
    order_records,
    order_samples,
    read_sound_lines,
)
from draftproof.store.lines import write_error
from draftproof.store.tables import load_table, save_table


@contextmanager
def no_collection() -> Iterator[None]:
    """Keep the collector of cycles still: the records of a long run have none, and it walks them for nothing.

    What nothing refers to any more is freed as ever. Nested stretches end with the outermost.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


JOURNAL_FOLDER, TELEMETRY_FOLDER = "journal", "telemetry"
RECORDS_NAME, BLOCKS_NAME, TELEMETRY_NAME = "records.parquet", "blocks.parquet", "telemetry.parquet"
# Field of the journal's contents -> the kind of its records and their table; the first two are always there.
_TABLES: dict[str, tuple[type[Any], str]] = {
    "records": (RequestRecord, RECORDS_NAME),
    "blocks": (BlockRecord, BLOCKS_NAME),
    "judgements": (Judgement, "judgements.parquet"),
    "behaviours": (BehaviourProbe, "behaviour.parquet"),
    "warmups": (Warmup, "warmups.parquet"),
    "notices": (Notice, "notices.parquet"),
}
_KEPT_NAMES = ("plan.toml", "workload.jsonl", "results.json", "manifest.json")


def is_compacted(path: Path) -> bool:
    """Tell whether a run has its tables and no journal any more."""
    return not (path / JOURNAL_FOLDER).is_dir() and (path / RECORDS_NAME).is_file()


def load_requests(path: Path) -> JournalContents:
    """Read the records and periods of a run: from its journal, or from its tables where it has none.

    Raises StoreError: a line or table that is not what it must be, or neither journal nor tables.
    """
    if (path / JOURNAL_FOLDER).is_dir():
        return load_journal(path / JOURNAL_FOLDER)
    if not (path / RECORDS_NAME).is_file() or not (path / BLOCKS_NAME).is_file():
        raise StoreError(
            f"this run has neither a {JOURNAL_FOLDER} folder nor {RECORDS_NAME} and {BLOCKS_NAME}.",
            place=str(path),
            fix="restore them from a copy.",
        )
    there = [(path / name, kind) for kind, name in _TABLES.values() if (path / name).is_file()]
    return order_records(
        (record for table, kind in there for record in load_table(table, kind)), torn_lines=0
    )


def load_readings(path: Path) -> tuple[TelemetrySample, ...]:
    """Read the telemetry of a run: from its lines, or from its table where the run is compacted.

    Raises StoreError: a line or table that is not what it must be.
    """
    if is_compacted(path) and (path / TELEMETRY_NAME).is_file():
        return order_samples(load_table(path / TELEMETRY_NAME, TelemetrySample))
    return load_samples(path / TELEMETRY_FOLDER)


def write_tables(path: Path, out: Path) -> tuple[Path, Path, Path]:
    """Write the tables of the run at `path` into `out`; return where records, periods and samples lie.

    Raises StoreError: something cannot be read or written.
    """
    with no_collection():
        journal, samples = load_requests(path), load_readings(path)
    for field, (kind, name) in _TABLES.items():
        own = getattr(journal, field)
        if own or name in {RECORDS_NAME, BLOCKS_NAME}:
            save_table(out / name, own, kind)
    save_table(out / TELEMETRY_NAME, samples, TelemetrySample)
    return out / RECORDS_NAME, out / BLOCKS_NAME, out / TELEMETRY_NAME


def save_compacted(path: Path, out: Path) -> Path:
    """Write the compact form of the run at `path` into the new folder `out` and return that.

    Plan, manifest, workload and, where they were computed, results are copied as they are; the manifest comes
    last, so a folder with one is complete. Logs and the report are left behind. Raises StoreError: `out` is
    not empty, or something cannot be read or written.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise StoreError("this folder is not empty.", place=str(out), fix="choose another folder.")
    try:
        out.mkdir(parents=True, exist_ok=True)
        write_tables(path, out)
        for name in _KEPT_NAMES:
            if (path / name).is_file():
                shutil.copyfile(path / name, out / name)
    except OSError as error:
        raise write_error(out, error) from error
    return out


class _Named(msgspec.Struct, frozen=True):
    request_id: str


def locate_requests(path: Path) -> dict[str, tuple[str, ...]]:
    """Return request id -> its places below the run directory, in the order in which they were written.

    A place is "journal/records.jsonl:12" (line) or "records.parquet:12" (row); both count from 1. A request
    that was asked again has several. Raises StoreError: a file cannot be read or a line is not a record.
    """
    found: defaultdict[str, list[str]] = defaultdict(list)
    for request_id, place in _read_table(path) if is_compacted(path) else _read_journal(path):
        found[request_id].append(place)
    return {request_id: tuple(known) for request_id, known in found.items()}


def _read_journal(path: Path) -> Iterator[tuple[str, str]]:
    decoder = msgspec.json.Decoder(_Named)
    for file in sorted((path / JOURNAL_FOLDER).glob("*.jsonl")):
        for number, _, frame in read_sound_lines(file):
            if frame is None:
                raise line_error(file, number, frame, "it has another form")
            try:
                if frame.kind == "request":
                    yield decoder.decode(frame.record).request_id, f"{JOURNAL_FOLDER}/{file.name}:{number}"
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise line_error(file, number, frame, error) from error


def _read_table(path: Path) -> Iterator[tuple[str, str]]:
    try:
        ids: list[Any] = pl.read_parquet(path / RECORDS_NAME, columns=["request_id"])["request_id"].to_list()
    except (OSError, pl.exceptions.PolarsError) as error:
        raise StoreError(
            f"this is not a table of records ({error}).", place=str(path / RECORDS_NAME)
        ) from error
    yield from ((request_id, f"{RECORDS_NAME}:{number}") for number, request_id in enumerate(ids, start=1))
