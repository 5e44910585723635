"""Telemetry samples read back from the lines they were written as, in one fixed order."""

from collections.abc import Iterable
from pathlib import Path

import msgspec

from draftproof.errors import StoreError
from draftproof.records import TelemetrySample
from draftproof.store.lines import read_whole_lines


def load_samples(folder: Path) -> tuple[TelemetrySample, ...]:
    """Read every `*.jsonl` of a folder; a torn last line is left out, a folder that is not there is empty.

    Raises:
        StoreError: a line that is not a sample, named by file and line.
    """
    decoder = msgspec.json.Decoder(TelemetrySample)
    found = []
    for path in sorted(folder.glob("*.jsonl")):
        for number, line in read_whole_lines(path):
            try:
                found.append(decoder.decode(line))
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise StoreError(
                    f"this line is not a telemetry sample ({error}).",
                    place=f"{path}:{number}",
                    fix="restore the file from a copy; lines before this one are whole.",
                ) from error
    return order_samples(found)


def order_samples(samples: Iterable[TelemetrySample]) -> tuple[TelemetrySample, ...]:
    """Sort samples by arm, time, source and replica; equal ones keep their order."""
    return tuple(sorted(samples, key=lambda one: (one.arm, one.at_ns, one.source, one.replica)))
