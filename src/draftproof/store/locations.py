"""Where every request of a run stands on disk: file and line of the journal, or row of the table."""

from collections import defaultdict
from pathlib import Path
from typing import Any

import msgspec
import polars as pl

from draftproof.errors import StoreError
from draftproof.store.compaction import JOURNAL_FOLDER, RECORDS_NAME, is_compacted
from draftproof.store.framing import line_error, read_sound_lines


class _Named(msgspec.Struct, frozen=True):
    request_id: str


def locate_requests(path: Path) -> dict[str, tuple[str, ...]]:
    """Return request id -> its places below the run directory, in the order in which they were written.

    A place is "journal/records.jsonl:12" (line) or "records.parquet:12" (row); both count from 1. A request
    that was asked again has several.

    Raises:
        StoreError: a file cannot be read or a line is not a record.
    """
    found: defaultdict[str, list[str]] = defaultdict(list)
    places = _read_table(path) if is_compacted(path) else _read_journal(path)
    for request_id, place in places:
        found[request_id].append(place)
    return {request_id: tuple(known) for request_id, known in found.items()}


def _read_journal(path: Path) -> list[tuple[str, str]]:
    decoder, places = msgspec.json.Decoder(_Named), list[tuple[str, str]]()
    for file in sorted((path / JOURNAL_FOLDER).glob("*.jsonl")):
        for number, _, frame in read_sound_lines(file):
            if frame is None:
                raise line_error(file, number, frame, "it has another form")
            try:
                if frame.kind == "request":
                    name = f"{JOURNAL_FOLDER}/{file.name}:{number}"
                    places.append((decoder.decode(frame.record).request_id, name))
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise line_error(file, number, frame, error) from error
    return places


def _read_table(path: Path) -> list[tuple[str, str]]:
    try:
        ids: list[Any] = pl.read_parquet(path / RECORDS_NAME, columns=["request_id"])["request_id"].to_list()
    except (OSError, pl.exceptions.PolarsError) as error:
        raise StoreError(
            f"this is not a table of records ({error}).", place=str(path / RECORDS_NAME)
        ) from error
    return [(request_id, f"{RECORDS_NAME}:{number}") for number, request_id in enumerate(ids, start=1)]
