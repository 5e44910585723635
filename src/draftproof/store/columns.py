"""Records as columns of a table: nested structs and lists are taken apart field by field, not row by row.

A row as a dict takes several times the memory of its record and most of the time of writing a table.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl


def build_frame(records: Sequence[Any], schema: dict[str, pl.DataType]) -> pl.DataFrame:
    """Return one row for each record; a column is the attribute of its name.

    Args:
        records: structs with every name of the schema.
        schema: name -> type; a struct's fields are attributes too, a list is any sequence.
    """
    return pl.DataFrame(
        [
            build_column([getattr(one, name) for one in records], kind).alias(name)
            for name, kind in schema.items()
        ]
    )


def build_column(values: list[Any], kind: pl.DataType) -> pl.Series:
    """Return values as a column of a type, None staying None at every depth."""
    if values.count(None) == len(values):  # what an engine does not disclose is missing in every record
        return pl.Series([None] * len(values), dtype=kind)
    if isinstance(kind, pl.List):
        return _build_lists(values, kind)
    if isinstance(kind, pl.Struct):
        return _build_structs(values, kind)
    return pl.Series(values, dtype=kind)


def _build_structs(values: list[Any], kind: pl.Struct) -> pl.Series:
    present = np.fromiter((value is not None for value in values), np.bool_, len(values))
    fields = [
        build_column(
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
    inner = build_column([one for value in values if value for one in value], _type_of(kind.inner))
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
