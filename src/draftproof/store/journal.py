"""The journal: one record a line, appended as it happens, read back in one fixed order.

    {"kind":KIND,"v":VERSION,"crc":"89abcdef","record":{...}}

`crc` is the CRC-32 of zlib and PNG over the bytes of `record` as they stand in the line; lines of older runs
have none. A line that is no JSON any more is damaged: at the end of a file it is what a power cut leaves and
counts as torn, with sound lines behind it an error. Whole JSON whose checksum differs was changed, and is an
error wherever it stands. Telemetry samples are lines of the same form in files of their own.
"""

import shlex
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from draftproof.core.errors import StoreError
from draftproof.core.records import (
    SCHEMA_VERSION,
    Analysis,
    BehaviourProbe,
    BlockRecord,
    Judgement,
    Notice,
    RequestRecord,
    TelemetrySample,
    TokenCounts,
    Warmup,
)
from draftproof.judge.metrics.request import apply_counts
from draftproof.store.lines import LineFile, count_torn_lines, read_whole_lines, write_error

Beside = Judgement | BehaviourProbe | Warmup | Notice | TokenCounts | Analysis
Record = RequestRecord | BlockRecord | Beside
_ENCODER = msgspec.json.Encoder()
_KINDS: dict[type[Record], str] = {
    RequestRecord: "request",
    BlockRecord: "block",
    Judgement: "judgement",
    BehaviourProbe: "behaviour",
    Warmup: "warmup",
    Notice: "notice",
    TokenCounts: "tokens",
    Analysis: "analysis",
}
_DECODERS = {word: msgspec.json.Decoder[Any](kind) for kind, word in _KINDS.items()}
_SAMPLE = "sample"
_NOT_DECODED = (msgspec.DecodeError, UnicodeDecodeError)


class Frame(msgspec.Struct, frozen=True, gc=False):
    """A line taken apart; the record is left as its bytes."""

    kind: str
    v: int
    record: msgspec.Raw
    crc: str | None = None


class DamagedLineError(ValueError):
    """The bytes of a line are not those that were written."""


class ChangedLineError(DamagedLineError):
    """A line is whole and its checksum differs."""


_FRAME_DECODER = msgspec.json.Decoder(Frame)


def open_frame(line: bytes) -> Frame:
    """Take a line apart.

    Raises ChangedLineError: its checksum differs; DamagedLineError: it is no JSON; msgspec.ValidationError:
    it is JSON, and no line of this form.
    """
    try:
        frame = _FRAME_DECODER.decode(line)
    except msgspec.ValidationError:
        if not _is_json(line):
            raise DamagedLineError("it is cut or overwritten") from None
        raise
    except _NOT_DECODED as error:
        raise DamagedLineError("it is cut or overwritten") from error
    if frame.crc is not None and frame.crc != f"{zlib.crc32(frame.record):08x}":
        raise ChangedLineError("its checksum differs")
    return frame


def is_sound(line: bytes) -> bool:
    """Tell whether a line is whole: False for what a power cut may leave, not for one that was changed."""
    try:
        open_frame(line)
    except (ChangedLineError, msgspec.ValidationError):
        return True
    except DamagedLineError:
        return False
    return True


def read_sound_lines(path: Path) -> Iterator[tuple[int, bytes, Frame | None]]:
    """Yield (line number from 1, line, its parts); damaged lines at the end are left out.

    The parts are None where the line is JSON of another form. Raises StoreError: a changed line, or a damaged
    one with a sound one behind it, named by file and line.
    """
    lines = read_whole_lines(path)
    for number, line in lines:
        try:
            frame = open_frame(line)
        except ChangedLineError as change:
            raise _damage_error(path, number, "changed", change) from change
        except DamagedLineError as damage:
            if any(is_sound(later) for _, later in lines):
                raise _damage_error(path, number, "damaged", damage) from damage
            return
        except msgspec.ValidationError:
            yield number, line, None
            continue
        yield number, line, frame


def open_sound_lines(path: Path) -> LineFile:
    """Open a file of such lines for appending; torn and damaged lines at its end are moved aside."""
    return LineFile(path, is_sound=is_sound)


def line_error(
    path: Path, number: int, frame: Frame | None, why: object, what: str = "a record"
) -> StoreError:
    """Return the error for a sound line that cannot be understood: too new, or of another kind."""
    place = f"{path}:{number}"
    if frame is not None and frame.v > SCHEMA_VERSION:
        return StoreError(
            f"this line has schema version {frame.v}, this program reads up to {SCHEMA_VERSION}.",
            place=place,
            fix="use a newer draftproof.",
        )
    return StoreError(
        f"this line is not {what} ({why}).",
        place=place,
        fix="restore the file from a copy; lines before this one are whole.",
    )


def _damage_error(path: Path, number: int, what: str, damage: DamagedLineError) -> StoreError:
    folder = path.parent.parent
    return StoreError(
        f"this line was {what} after it had been written ({damage}).",
        place=f"{path}:{number}",
        fix=f"restore the file from a copy, or take the line out with `sed -i.damaged {number}d "
        f"{shlex.quote(str(path))}` and continue with `draftproof run --resume {shlex.quote(str(folder))}`, "
        "which asks again what is missing.",
    )


def _is_json(line: bytes) -> bool:
    try:
        msgspec.json.decode(line)
    except _NOT_DECODED:
        return False
    return True


class JournalContents(msgspec.Struct, frozen=True, kw_only=True):
    """All records of a run in their fixed order, and how many torn lines were left out.

    Requests are ordered by block, arm, place in the block and request id; two attempts at the same place
    keep the order in which they were written. Periods are ordered by block, order and arm, judgements by
    request, check and attempt, probes by arm and time, warm-ups by block, arm and start; notices and analyses
    stand as they were written.
    """

    records: tuple[RequestRecord, ...]
    blocks: tuple[BlockRecord, ...]
    torn_lines: int
    judgements: tuple[Judgement, ...] = ()
    behaviours: tuple[BehaviourProbe, ...] = ()
    warmups: tuple[Warmup, ...] = ()
    notices: tuple[Notice, ...] = ()
    analyses: tuple[Analysis, ...] = ()


class Journal:
    """Appends records to one journal file.

    Every record is with the kernel when `append` returns; at the end of each period (BlockRecord) and on
    `close` it is on the device. A power cut loses at most the period in progress.
    """

    def __init__(self, lines: LineFile) -> None:
        self._lines = lines

    def append(self, record: Record) -> None:
        """Add one record. Raises StoreError: it cannot be written; the journal stays whole."""
        self._lines.append(encode_line(record))
        if isinstance(record, BlockRecord):
            self._lines.sync()

    def close(self) -> None:
        """Put everything on the device and close the file."""
        self._lines.close()


def encode_line(record: Record) -> bytes:
    """Return the line of a record, without its newline."""
    return _frame(_KINDS[type(record)], _ENCODER.encode(record))


def encode_sample(sample: TelemetrySample) -> bytes:
    """Return the line of a telemetry sample, without its newline."""
    return _frame(_SAMPLE, _ENCODER.encode(sample))


def _frame(kind: str, record: bytes) -> bytes:
    parts = (kind.encode("ascii"), SCHEMA_VERSION, zlib.crc32(record), record)
    return b'{"kind":"%b","v":%d,"crc":"%08x","record":%b}' % parts


def load_journal(folder: Path) -> JournalContents:
    """Read every `*.jsonl` of a folder, in the order of their names.

    A file of an older schema version keeps loading: fields that came later have defaults. Raises StoreError:
    a line that is not a record or was damaged with sound ones behind it, named by file and line; or a newer
    schema version.
    """
    paths = sorted(folder.glob("*.jsonl"))
    records = [record for path in paths for record in iterate_records(path)]
    return order_records(records, torn_lines=sum(count_torn_lines(path, is_sound) for path in paths))


def iterate_records(path: Path) -> Iterator[Record]:
    """Yield the records of one file as written; raises as `load_journal`."""
    for number, _, frame in read_sound_lines(path):
        decoder = _DECODERS.get(frame.kind) if frame is not None else None
        if frame is None or decoder is None or frame.v > SCHEMA_VERSION:
            raise line_error(path, number, frame, "its kind is not known" if frame else "it has another form")
        try:
            yield decoder.decode(frame.record)
        except _NOT_DECODED as error:
            raise line_error(path, number, frame, error) from error


def order_records(records: Iterable[Record], torn_lines: int) -> JournalContents:
    """Sort records into their fixed order; tokens counted after the run become part of their requests."""
    found: dict[type[Record], list[Any]] = {kind: [] for kind in _KINDS}
    for record in records:
        found[type(record)].append(record)
    requests = apply_counts(found[RequestRecord], found[TokenCounts])
    periods, judgements, probes = found[BlockRecord], found[Judgement], found[BehaviourProbe]
    return JournalContents(
        records=tuple(sorted(requests, key=lambda r: (r.block, r.arm, r.order_in_block, r.request_id))),
        blocks=tuple(sorted(periods, key=lambda period: (period.block, period.order, period.arm))),
        torn_lines=torn_lines,
        judgements=tuple(sorted(judgements, key=lambda one: (one.request_id, one.check, one.attempt))),
        behaviours=tuple(sorted(probes, key=lambda one: (one.arm, one.at_ns, one.probe))),
        warmups=tuple(sorted(found[Warmup], key=lambda one: (one.block, one.arm, one.start, one.started_ns))),
        notices=tuple(found[Notice]),
        analyses=tuple(found[Analysis]),
    )


def load_samples(folder: Path) -> tuple[TelemetrySample, ...]:
    """Read every `*.jsonl` of a folder of telemetry; one that is not there is empty.

    Lines of older runs are bare samples. Raises StoreError: a line that is not a sample or was damaged with
    sound ones behind it, named by file and line.
    """
    decoder = msgspec.json.Decoder(TelemetrySample)
    found = []
    for path in sorted(folder.glob("*.jsonl")):
        for number, line, frame in read_sound_lines(path):
            try:
                found.append(decoder.decode(line if frame is None else frame.record))
            except _NOT_DECODED as error:
                raise line_error(path, number, frame, error, "a telemetry sample") from error
    return order_samples(found)


def order_samples(samples: Iterable[TelemetrySample]) -> tuple[TelemetrySample, ...]:
    """Sort samples by arm, time, source and replica; equal ones keep their order."""
    return tuple(sorted(samples, key=lambda one: (one.arm, one.at_ns, one.source, one.replica)))


class JournalTail:
    """Reads requests and periods as they come, from the end that the journal has when this is made.

    Every file of the folder is followed, those of load workers that begin later too. A line without its end
    is left for the next time.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read = {path: path.stat().st_size for path in folder.glob("*.jsonl")}

    def read(self) -> list[RequestRecord | BlockRecord]:
        """Return what was added since the last call, file by file.

        Raises StoreError: a file cannot be read, or a line of it was damaged.
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
        return [record for record in found if isinstance(record, RequestRecord | BlockRecord)]


def _decode(path: Path, line: bytes) -> Record | None:
    """Return the record of a line that this run has just written, None where its kind is not known."""
    try:
        frame = open_frame(line)
        decoder = _DECODERS.get(frame.kind)
        return None if decoder is None else decoder.decode(frame.record)
    except (DamagedLineError, msgspec.DecodeError) as error:
        raise StoreError(
            f"a line that this run has just written is damaged ({error}).", place=str(path)
        ) from error
