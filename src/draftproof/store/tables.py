"""Records as Parquet tables for other tools, and back: the same content as the journal, in the same order.

A column's type follows from the record's own annotation: a struct stays a struct, a sequence is a list, a
mapping a list of (series, value). None is null, an empty list an empty list. Records are taken apart field by
field, for a row as a dict takes several times the memory of its record. A table written before a column was
added loads with that field's default.

The compact form of a run: Parquet tables that hold what the journal and the telemetry lines hold.

A folder with the tables and without a journal is a whole run that can be read and judged, not continued.
Here, too: where every request of a run stands on disk, as file and line of the journal or row of the table.
"""

import gc
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl
from msgspec import inspect
from msgspec.structs import fields

from draftproof.core.errors import StoreError
from draftproof.core.records import (
    Analysis,
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

T = TypeVar("T", bound=msgspec.Struct)

_ROWS_AT_ONCE = 8_192
_ROW_GROUP = 131_072
_SCALARS: dict[type, pl.DataType] = {
    inspect.IntType: pl.Int64(),
    inspect.FloatType: pl.Float64(),
    inspect.BoolType: pl.Boolean(),
    inspect.StrType: pl.String(),
    inspect.LiteralType: pl.String(),
}


class _Entry(msgspec.Struct, frozen=True):
    """One entry of a mapping."""

    series: str
    value: float


def save_table(path: Path, records: Sequence[T], kind: type[T]) -> None:
    """Write records, one a row. Raises StoreError: the file cannot be written."""
    schema = table_schema(kind)
    parts = (records[at : at + _ROWS_AT_ONCE] for at in range(0, len(records), _ROWS_AT_ONCE))
    whole = pl.concat([pl.DataFrame(schema=schema), *(_build_frame(part, schema) for part in parts)])
    partial = path.with_name(f".{path.name}.partial")
    try:
        whole.write_parquet(partial, compression="zstd", row_group_size=_ROW_GROUP)
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise write_error(path, error) from error


def load_table(path: Path, kind: type[T]) -> tuple[T, ...]:
    """Read records back. Raises StoreError: the file is not such a table."""
    read = _reader_of(inspect.type_info(kind)) or (lambda row: row)
    try:
        return tuple(msgspec.convert(read(row), kind) for row in _read_rows(path))
    except (msgspec.ValidationError, TypeError) as error:
        raise StoreError(
            f"this is not a table of records ({type(error).__name__}: {error}).", place=str(path)
        ) from error


@cache
def table_schema(kind: type[msgspec.Struct]) -> dict[str, pl.DataType]:
    """Return the columns of a kind of record: name -> type."""
    found = inspect.type_info(kind)
    assert isinstance(found, inspect.StructType)  # noqa: S101 - of a struct it is one
    return {field.encode_name: _column_type(field.type) for field in found.fields}


def _column_type(annotated: inspect.Type) -> pl.DataType:
    kind = _without_none(annotated)
    if isinstance(kind, inspect.StructType):
        return pl.Struct({field.name: _column_type(field.type) for field in kind.fields})
    if isinstance(kind, inspect.VarTupleType):
        return pl.List(_column_type(kind.item_type))
    if isinstance(kind, inspect.DictType):
        return pl.List(_column_type(inspect.type_info(_Entry)))
    return _SCALARS[type(kind)]


def _without_none(kind: inspect.Type) -> inspect.Type:
    if not isinstance(kind, inspect.UnionType):
        return kind
    return next(one for one in kind.types if not isinstance(one, inspect.NoneType))


def _build_frame(records: Sequence[Any], schema: dict[str, pl.DataType]) -> pl.DataFrame:
    """Return one row for each record; a column is the attribute that has its name on disk."""
    attributes = {one.encode_name: one.name for kind in {*map(type, records)} for one in fields(kind)}
    columns = ((name, [getattr(one, attributes[name]) for one in records]) for name in schema)
    return pl.DataFrame([_build_column(values, schema[name]).alias(name) for name, values in columns])


def _build_column(values: list[Any], kind: pl.DataType) -> pl.Series:
    """Return values as a column of a type, None staying None at every depth."""
    if values.count(None) == len(values):  # what an engine does not disclose is missing in every record
        return pl.Series([None] * len(values), dtype=kind)
    if isinstance(kind, pl.List):
        if any(isinstance(value, dict) for value in values):
            values = [[_Entry(*entry) for entry in value.items()] for value in values]
        return _build_lists(values, kind)
    return _build_structs(values, kind) if isinstance(kind, pl.Struct) else pl.Series(values, dtype=kind)


def _build_structs(values: list[Any], kind: pl.Struct) -> pl.Series:
    present = np.fromiter((value is not None for value in values), np.bool_, len(values))
    fields = [
        _build_column(
            [None if value is None else getattr(value, field.name) for value in values], _type_of(field.dtype)
        ).alias(field.name)
        for field in kind.fields
    ]
    return _gather(pl.DataFrame(fields).to_struct(), np.arange(len(values)), present)


def _build_lists(values: list[Any], kind: pl.List) -> pl.Series:
    sizes = np.fromiter((len(value) if value else 0 for value in values), np.int64, len(values))
    filled = np.flatnonzero(sizes)
    # One empty list behind the filled ones stands for every empty one.
    lists = pl.concat([_join_lists(values, sizes[filled], kind), pl.Series([[]], dtype=kind)])
    places = np.full(len(values), len(filled))
    places[filled] = np.arange(len(filled))
    present = np.fromiter((value is not None for value in values), np.bool_, len(values))
    return _gather(lists, places, present)


def _join_lists(values: list[Any], sizes: npt.NDArray[np.int64], kind: pl.List) -> pl.Series:
    """Return the lists that have elements, `sizes` being theirs."""
    if not len(sizes):
        return pl.Series([], dtype=kind)
    inner = _build_column([one for value in values if value for one in value], _type_of(kind.inner))
    owners = pl.Series(np.repeat(np.arange(len(sizes)), sizes))
    flat = pl.DataFrame({"owner": owners, "inner": inner})
    return flat.group_by("owner", maintain_order=True).agg("inner")["inner"]


def _gather(column: pl.Series, places: npt.NDArray[np.int64], present: npt.NDArray[np.bool_]) -> pl.Series:
    """Return the rows at these places, null where nothing is present."""
    rows = pl.Series(places, dtype=pl.UInt32())
    return column.gather(
        rows if present.all() else pl.select(pl.when(pl.Series(present)).then(rows)).to_series()
    )


def _type_of(kind: Any) -> pl.DataType:
    """Return a type that stands inside another, which may be the class itself, as an instance."""
    found: pl.DataType = kind() if isinstance(kind, type) else kind
    return found


def _read_rows(path: Path) -> Iterator[dict[str, Any]]:
    try:
        for part in pl.read_parquet(path).iter_slices(_ROWS_AT_ONCE):
            yield from part.to_dicts()
    except (OSError, pl.exceptions.PolarsError) as error:
        raise StoreError(f"this is not a table of records ({error}).", place=str(path)) from error


def _reader_of(annotated: inspect.Type) -> Callable[[Any], Any] | None:
    """Return what turns a table's value into the form that msgspec converts; None: it is that already."""
    kind = _without_none(annotated)
    if isinstance(kind, inspect.DictType):
        return lambda entries: {one["series"]: one["value"] for one in entries}
    if isinstance(kind, inspect.VarTupleType):
        inner = _reader_of(kind.item_type)
        return inner and (lambda values: [inner(one) for one in values])
    if not isinstance(kind, inspect.StructType):
        return None
    readers = [(one.name, read) for one in kind.fields if (read := _reader_of(one.type)) is not None]
    if kind.array_like:
        return lambda value: list(value.values())
    return _struct_reader(readers) if readers else None


def _struct_reader(readers: list[tuple[str, Callable[[Any], Any]]]) -> Callable[[dict[str, Any]], Any]:
    def read(row: dict[str, Any]) -> dict[str, Any]:
        for name, read_field in readers:
            if row.get(name) is not None:
                row[name] = read_field(row[name])
        return row

    return read


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
    "analyses": (Analysis, "analyses.parquet"),
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
