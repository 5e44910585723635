"""The journal: one request or turn a line, appended as it happens, read back in one fixed order.

Each line is `{"kind": KIND, "v": <schema version>, "crc": <checksum>, "record": {...}}` (store/framing.py),
KIND being request, block, judgement, behaviour, warmup, notice or tokens; all but requests and blocks lie in
files of their own beside them. A file of an older schema version keeps loading: fields that came later have
defaults.

What was added to a journal since it was last read, for a run that decides by what it has measured.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from draftproof.core.errors import StoreError
from draftproof.core.records import (
    SCHEMA_VERSION,
    BehaviourProbe,
    BlockRecord,
    Judgement,
    Notice,
    RequestRecord,
    TokenCounts,
    Warmup,
)
from draftproof.judge.metrics.request import apply_counts
from draftproof.store.framing import (
    DamagedLineError,
    frame_record,
    is_sound,
    line_error,
    open_frame,
    read_sound_lines,
)
from draftproof.store.lines import LineFile, count_torn_lines, write_error

Record = RequestRecord | BlockRecord | Judgement | BehaviourProbe | Warmup | Notice | TokenCounts
_ENCODER = msgspec.json.Encoder()
_KINDS: dict[type[Record], str] = {
    RequestRecord: "request",
    BlockRecord: "block",
    Judgement: "judgement",
    BehaviourProbe: "behaviour",
    Warmup: "warmup",
    Notice: "notice",
    TokenCounts: "tokens",
}


class JournalContents(msgspec.Struct, frozen=True, kw_only=True):
    """All records of a run in their fixed order, and how many torn lines were left out.

    Requests are ordered by block, arm, place in the block and request id; two attempts at the same place
    keep the order in which they were written. Turns are ordered by block, order and arm, judgements by
    request, check and attempt, probes by arm and time, warm-ups by block, arm and start; notices stand as
    they were written.
    """

    records: tuple[RequestRecord, ...]
    blocks: tuple[BlockRecord, ...]
    torn_lines: int
    judgements: tuple[Judgement, ...] = ()
    behaviours: tuple[BehaviourProbe, ...] = ()
    warmups: tuple[Warmup, ...] = ()
    notices: tuple[Notice, ...] = ()


class Journal:
    """Appends records to one journal file.

    Every record is with the kernel when `append` returns; at the end of each turn (BlockRecord) and on
    `close` it is on the device. A power cut loses at most the turn in progress.
    """

    def __init__(self, lines: LineFile) -> None:
        self._lines = lines

    def append(self, record: Record) -> None:
        """Add one record.

        Raises:
            StoreError: the disk is full or the file cannot be written; the journal stays whole.
        """
        self._lines.append(encode_line(record))
        if isinstance(record, BlockRecord):
            self._lines.sync()

    def close(self) -> None:
        """Put everything on the device and close the file."""
        self._lines.close()


def encode_line(record: Record) -> bytes:
    """Return the line of a record, without its newline."""
    return frame_record(_KINDS[type(record)], _ENCODER.encode(record))


def load_journal(folder: Path) -> JournalContents:
    """Read every `*.jsonl` of a folder, in the order of their names.

    Raises:
        StoreError: a line that is not a record or was damaged with sound ones behind it, named by file and
            line; or a newer schema version.
    """
    paths = sorted(folder.glob("*.jsonl"))
    records = [record for path in paths for record in iterate_records(path)]
    return order_records(records, torn_lines=sum(count_torn_lines(path, is_sound) for path in paths))


def iterate_records(path: Path) -> Iterator[Record]:
    """Yield the records of one file as written; torn and damaged lines at its end are left out.

    Raises:
        StoreError: as `load_journal`.
    """
    decoders: dict[str, msgspec.json.Decoder[Any]] = {
        kind: msgspec.json.Decoder(record) for record, kind in _KINDS.items()
    }
    for number, _, frame in read_sound_lines(path):
        decoder = decoders.get(frame.kind) if frame is not None else None
        if frame is None or decoder is None or frame.v > SCHEMA_VERSION:
            raise line_error(path, number, frame, "its kind is not known" if frame else "it has another form")
        try:
            yield decoder.decode(frame.record)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise line_error(path, number, frame, error) from error


def order_records(records: list[Record], torn_lines: int) -> JournalContents:
    """Sort records into their fixed order; tokens counted after the run become part of their requests."""
    counts = [record for record in records if isinstance(record, TokenCounts)]
    requests = apply_counts((record for record in records if isinstance(record, RequestRecord)), counts)
    turns = [record for record in records if isinstance(record, BlockRecord)]
    judgements = [record for record in records if isinstance(record, Judgement)]
    probes = [record for record in records if isinstance(record, BehaviourProbe)]
    warmups = [record for record in records if isinstance(record, Warmup)]
    notices = [record for record in records if isinstance(record, Notice)]
    return JournalContents(
        records=tuple(sorted(requests, key=lambda r: (r.block, r.arm, r.order_in_block, r.request_id))),
        blocks=tuple(sorted(turns, key=lambda turn: (turn.block, turn.order, turn.arm))),
        torn_lines=torn_lines,
        judgements=tuple(sorted(judgements, key=lambda one: (one.request_id, one.check, one.attempt))),
        behaviours=tuple(sorted(probes, key=lambda one: (one.arm, one.at_ns, one.probe))),
        warmups=tuple(sorted(warmups, key=lambda one: (one.block, one.arm, one.start, one.started_ns))),
        notices=tuple(notices),
    )


_DECODERS: dict[str, msgspec.json.Decoder[RequestRecord] | msgspec.json.Decoder[BlockRecord]] = {
    "request": msgspec.json.Decoder(RequestRecord),
    "block": msgspec.json.Decoder(BlockRecord),
}


class JournalTail:
    """Reads requests and turns as they come, from the end that the journal has when this is made.

    Every file of the folder is followed, those of load workers that begin later too. A line without its end
    is left for the next time.

    Args:
        folder: the journal's folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read = {path: path.stat().st_size for path in folder.glob("*.jsonl")}

    def read(self) -> list[RequestRecord | BlockRecord]:
        """Return what was added since the last call, file by file.

        Raises:
            StoreError: a file cannot be read, or a line of it was damaged.
        """
        return [record for path in sorted(self._folder.glob("*.jsonl")) for record in self._read_file(path)]

    def _read_file(self, path: Path) -> list[RequestRecord | BlockRecord]:
        start = self._read.get(path, 0)
        try:
            with path.open("rb") as file:
                file.seek(start)
                added = file.read()
        except OSError as error:
            raise write_error(path, error) from error
        whole, end, _ = added.rpartition(b"\n")
        self._read[path] = start + len(whole) + len(end)
        found = (_decode(path, line) for line in whole.splitlines())
        return [record for record in found if record is not None]


def _decode(path: Path, line: bytes) -> RequestRecord | BlockRecord | None:
    """Return the record of a line, None where it is of another kind."""
    try:
        frame = open_frame(line)
        decoder = _DECODERS.get(frame.kind)
        return None if decoder is None else decoder.decode(frame.record)
    except (DamagedLineError, msgspec.DecodeError) as error:
        raise StoreError(
            f"a line that this run has just written is damaged ({error}).", place=str(path)
        ) from error
