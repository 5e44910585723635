"""Telemetry samples read back from the lines they were written as, in one fixed order."""

from collections.abc import Iterable
from pathlib import Path

import msgspec

from draftproof.records import TelemetrySample
from draftproof.store.framing import frame_record, line_error, read_sound_lines

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
