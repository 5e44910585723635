"""Writes the rows of a Parquet file to standard output, a line of JSON each; run as a process of its own.

A null of a table is a key that a line does not have, at any depth: the columns of a struct are those of all
its rows. Exits with 2 and a sentence in the last line where the table cannot be written so.
"""

import json
import os
import resource
import sys
from collections.abc import Iterator
from typing import Any

import polars as pl
from polars.exceptions import PolarsError

_MOST_MEMORY = 8 << 30
_SLICE = 256  # rows at once
_EXACT = 2**53  # below it a float holds every integer
_NOT_JSON = (pl.Binary, pl.Duration, pl.Time, pl.Object)


def main(path: str, most: int) -> int:
    """Write the rows of a file, at most so many, and return the exit code."""
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    memory = _MOST_MEMORY if hard == resource.RLIM_INFINITY else min(_MOST_MEMORY, hard)
    resource.setrlimit(resource.RLIMIT_AS, (memory, hard))
    try:
        table = pl.read_parquet(path, n_rows=most + 1, memory_map=False)
        if table.height > most:
            raise ValueError(f"it has more than {most:,} rows")  # noqa: TRY301 - reported as the others are
        for line in render_rows(table):
            sys.stdout.buffer.write(line)
    except (PolarsError, ValueError, OSError) as error:
        sys.stdout.buffer.write(b"\n" + " ".join(str(error).split())[:200].encode("utf-8", "replace"))
        return 2
    return 0


def render_rows(table: pl.DataFrame) -> Iterator[bytes]:
    """Yield the rows of a table as lines of JSON; a date and time keeps its nanoseconds and its zone.

    Raises ValueError: a column or a value that JSON cannot hold as it is.
    """
    for name, kind in table.schema.items():
        _check(name, kind)
    columns = [_as_text(pl.col(name), kind) for name, kind in table.schema.items()]
    for rows in _restore_integers(table.select(columns)).iter_slices(_SLICE):
        for row in rows.to_dicts():
            text = json.dumps(_without_nulls(row), ensure_ascii=False, allow_nan=False, default=str)
            yield text.encode() + b"\n"


def _restore_integers(table: pl.DataFrame) -> pl.DataFrame:
    """Return a table with its integers as such: pandas stores those of a column with gaps as floats."""
    gapped = [one for one in table.iter_columns() if one.dtype.is_float() and one.null_count()]
    whole = [one for one in gapped if one.is_finite().all() and (one == one.floor()).all()]
    return table.with_columns([one.cast(pl.Int64) for one in whole if (one.abs() < _EXACT).all()])


def _as_text(column: pl.Expr, kind: pl.DataType) -> pl.Expr:
    if not isinstance(kind, pl.Datetime):
        return column
    return column.dt.strftime(f"%Y-%m-%dT%H:%M:%S%.9f{'%:z' if kind.time_zone else ''}")


def _check(name: str, kind: Any) -> None:
    if isinstance(kind, pl.List | pl.Array):
        _check(name, kind.inner)
    elif isinstance(kind, pl.Struct):
        for field in kind.fields:
            _check(f"{name}.{field.name}", field.dtype)
    elif kind in _NOT_JSON:
        raise ValueError(f"the column {name} is of type {kind}, which no line of JSON holds")


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(part) for key, part in value.items() if part is not None}
    return [_without_nulls(part) for part in value] if isinstance(value, list) else value


if __name__ == "__main__":
    code = main(sys.argv[1], int(sys.argv[2]))
    sys.stdout.flush()
    os._exit(code)  # the library's threads have nothing left to do
