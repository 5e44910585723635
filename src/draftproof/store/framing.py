"""One record as a line with a checksum over its bytes, and such a line taken apart again.

    {"kind":KIND,"v":VERSION,"crc":"89abcdef","record":{...}}

`crc` is the CRC-32 of zlib and PNG over the bytes of `record` as they stand in the line. Lines of older
runs have none. A line is damaged if it is no JSON any more. Damaged lines at the end of a file are what a
power cut leaves and count as torn; one with sound lines behind it is an error, since nobody can tell what
it was. Whole JSON whose checksum differs is what no power cut leaves: such a line was changed, and is an
error wherever it stands. Knows nothing of what records mean.

Telemetry samples read back from the lines they were written as, in one fixed order.
"""

import shlex
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from draftproof.core.errors import StoreError
from draftproof.core.records import SCHEMA_VERSION, TelemetrySample
from draftproof.store.lines import LineFile, read_whole_lines


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


_DECODER = msgspec.json.Decoder(Frame)


def frame_record(kind: str, record: bytes) -> bytes:
    """Return the line of an encoded record, without its newline."""
    return b'{"kind":"%b","v":%d,"crc":"%08x","record":%b}' % (
        kind.encode("ascii"),
        SCHEMA_VERSION,
        zlib.crc32(record),
        record,
    )


def open_frame(line: bytes) -> Frame:
    """Take a line apart.

    Raises:
        ChangedLineError: its checksum differs.
        DamagedLineError: it is no JSON.
        msgspec.ValidationError: it is JSON, and no line of this form.
    """
    try:
        frame = _DECODER.decode(line)
    except msgspec.ValidationError:
        if not _is_json(line):
            raise DamagedLineError("it is cut or overwritten") from None
        raise
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
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

    The parts are None where the line is JSON of another form.

    Raises:
        StoreError: a changed line, or a damaged one with a sound one behind it, named by file and line.
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
    """Open a file of such lines for appending; torn and damaged lines at its end are moved aside.

    Raises:
        StoreError: the file cannot be opened.
    """
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
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
    return True


_KIND = "sample"


def encode_sample(sample: TelemetrySample) -> bytes:
    """Return the line of a sample, without its newline."""
    return frame_record(_KIND, msgspec.json.encode(sample))


def load_samples(folder: Path) -> tuple[TelemetrySample, ...]:
    """Read every `*.jsonl` of a folder; torn and damaged lines at an end are left out.

    A folder that is not there is empty. Lines of older runs are bare samples.

    Raises:
        StoreError: a line that is not a sample or was damaged with sound ones behind it, named by file and
            line.
    """
    decoder = msgspec.json.Decoder(TelemetrySample)
    found = []
    for path in sorted(folder.glob("*.jsonl")):
        for number, line, frame in read_sound_lines(path):
            try:
                found.append(decoder.decode(line if frame is None else frame.record))
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise line_error(path, number, frame, error, "a telemetry sample") from error
    return order_samples(found)


def order_samples(samples: Iterable[TelemetrySample]) -> tuple[TelemetrySample, ...]:
    """Sort samples by arm, time, source and replica; equal ones keep their order."""
    return tuple(sorted(samples, key=lambda one: (one.arm, one.at_ns, one.source, one.replica)))
