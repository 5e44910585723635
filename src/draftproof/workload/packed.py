"""The bytes of a workload file: as they are, unpacked from gzip, or a Parquet table as lines of JSON.

Owns the reading of the file. What a file is says its beginning, never its name. A Parquet table is read by a
process of its own (`parquet_rows.py`): a damaged one can end the library that reads it, and a small one can
hold more than memory does.
"""

import gzip
import subprocess
import sys
import zlib
from pathlib import Path

from draftproof.errors import WorkloadError

# Of what is unpacked: a small file may hold more than a machine does.
MOST_BYTES, MOST_LINES = 1 << 30, 10_000_000
_PIECE = 1 << 20
_GZIP, _PARQUET = b"\x1f\x8b", b"PAR1"
_OTHERS = {
    b"\x28\xb5\x2f\xfd": "zstd",
    b"PK\x03\x04": "zip",
    b"BZh": "bzip2",
    b"\xfd7zXZ": "xz",
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
}


def read_unpacked(path: Path) -> bytes:
    """Return what a file holds, unpacked.

    Raises:
        WorkloadError: it cannot be read, is damaged, is too large, or is packed in another way.
    """
    try:
        with path.open("rb") as file:
            head = file.read(6)
    except OSError as error:
        raise WorkloadError(
            f"the file cannot be read ({error.strerror})", place=str(path), fix="check the path."
        ) from error
    if head.startswith(_PARQUET):
        return _read_parquet(path)
    raw = _read_gzip(path) if head.startswith(_GZIP) else path.read_bytes()
    _refuse_others(raw, path)
    return raw


def bare_path(path: Path) -> Path:
    """Return a path without the ending of a packed file: `w.jsonl` for `w.jsonl.gz`."""
    return path.with_suffix("") if path.suffix == ".gz" else path


def _read_gzip(path: Path) -> bytes:
    pieces, size, lines = [], 0, 0
    try:
        with gzip.open(path) as file:
            while piece := file.read(_PIECE):
                pieces.append(piece)
                size, lines = size + len(piece), lines + piece.count(b"\n")
                if size > MOST_BYTES or lines > MOST_LINES:
                    raise _too_large(path)
    except (OSError, EOFError, zlib.error) as error:
        raise WorkloadError(
            f"the file is no whole gzip file ({error})", place=str(path), fix="pack it again."
        ) from error
    return b"".join(pieces)


def _read_parquet(path: Path) -> bytes:
    command = [sys.executable, "-m", "draftproof.workload.parquet_rows", str(path), str(MOST_LINES)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as reader:  # noqa: S603 - our own module
        assert reader.stdout is not None  # noqa: S101 - asked for above
        rows = reader.stdout.read(MOST_BYTES + 1)
        if len(rows) > MOST_BYTES:
            reader.kill()
            raise _too_large(path)
    if reader.returncode == 0:
        return rows
    said = rows.rpartition(b"\n")[2].decode("utf-8", "replace") if reader.returncode == 2 else ""
    raise WorkloadError(
        f"the Parquet file cannot be read ({said or 'it is damaged, or larger than memory'})",
        place=str(path),
        fix="write it again, or as lines of JSON.",
    )


def _refuse_others(raw: bytes, path: Path) -> None:
    for head, kind in ({_GZIP: "gzip, twice", _PARQUET: "Parquet within gzip"} | _OTHERS).items():
        if raw.startswith(head):
            raise WorkloadError(
                f"the file is {kind}", place=str(path), fix="make it UTF-8 lines of JSON, gzip or Parquet."
            )


def _too_large(path: Path) -> WorkloadError:
    return WorkloadError(
        f"the file holds more than {MOST_BYTES:,} bytes or {MOST_LINES:,} lines once it is unpacked",
        place=str(path),
        fix="cut it into parts.",
    )
