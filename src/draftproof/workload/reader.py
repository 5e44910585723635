"""Loading a workload from disk: lines of JSON, or a trace, beside an optional `<stem>.meta.toml`.

Owns the reading, the hash and every error a workload file can cause; each names file and line. What a file is
(plain, gzip, Parquet) says its beginning, never its name. A Parquet table is read by a process of its own
(`parquet_rows.py`): a damaged one can end the library that reads it, and a small one can hold more than
memory.
"""

import gzip
import hashlib
import json
import math
import os
import re
import subprocess
import sys
import tempfile
import tomllib
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from importlib import resources
from pathlib import Path
from typing import NoReturn

import msgspec

from draftproof.core.errors import WorkloadError
from draftproof.core.manifests import EvidenceLevel
from draftproof.workload.calls import explain_text_line
from draftproof.workload.faults import find_faults
from draftproof.workload.items import Item, Workload, check_ids
from draftproof.workload.logs import Log, Unreadable, survey_log
from draftproof.workload.moments import Unit, Units, check_unit_is_used
from draftproof.workload.recordings import TimedItem, Window, cut, make_items, parse_timed_item, set_due
from draftproof.workload.traces import is_trace, read_trace, refuse_twins

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

    Raises WorkloadError: it cannot be read, is damaged, is too large, or is packed in another way.
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


BUILTIN_PREFIX = "builtin:"
_NOT_PLAIN = re.compile(r"[^\w.-]")
_SHOWN = 40  # characters of a value that a sentence quotes
_ENCODER = msgspec.json.Encoder(order="sorted")


class WorkloadHeader(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What `<stem>.meta.toml` states of a workload. Without the file, only a smoke test is claimed."""

    name: str
    version: str
    licence: str
    evidence: EvidenceLevel = "smoke"


def load_workload(source: str | Path, window: Window | None = None, units: Units | None = None) -> Workload:
    """Load a workload from a file, or a shipped one by name, e.g. "builtin:starter".

    Lines of a JSONL file hold items, ShareGPT conversations, chat requests or OpenAI batch lines, with the
    time at which each came where they are recorded; a file that is one JSON array of these is read as well.
    Blank lines are skipped. A trace without prompts, known by its first line, becomes items with invented
    ones. `window`: the part of a recording that is used; the hash is that of this part. None: all of it.
    `units`: what the plan says of a recording because its file does not; None: nothing. Raises WorkloadError:
    anything that makes the file unusable, with file, line and fix.
    """
    path = _find_builtin(str(source)) if str(source).startswith(BUILTIN_PREFIX) else Path(source)
    items, notes = _load_items(path, window, units or Units())
    header = _load_header(path)
    return Workload(
        name=header.name,
        version=header.version,
        licence=header.licence,
        evidence=header.evidence,
        sha256=compute_sha256(items),
        items=items,
        notes=notes,
    )


def read_log(path: Path, units: Units | None = None) -> Log:
    """Read a log of requests, in any form that docs/workloads.md lists, as a workload with proposed labels.

    What cannot be sent is counted by reason. `units`: of times that are bare numbers. Raises WorkloadError:
    the file cannot be read, or no line of it can be sent.
    """
    raw = read_unpacked(path).removeprefix(b"\xef\xbb\xbf")
    head = raw.lstrip().partition(b"\n")[0].strip().decode("utf-8", "replace")
    if is_trace(head):
        raise WorkloadError(
            "the file is a trace without prompts",
            place=str(path),
            fix="give it as --trace, not as --from-log.",
        )
    return survey_log(_read_entries(raw), units or Units(), str(path))


def write_workload(log: Log, path: Path) -> None:
    """Write the items of a log as a workload file with its header, each whole or not at all.

    Raises WorkloadError: a file exists, or cannot be written.
    """
    header = (
        f'name = "{_NOT_PLAIN.sub("-", path.stem)}"\nversion = "{compute_sha256(log.items)[:8]}"\n'
        'licence = "unstated"\nevidence = "representative"  # recorded requests; a plan may claim less\n'
    )
    about = path.with_suffix(".meta.toml")
    if about.exists():
        raise WorkloadError("the file exists", place=str(about), fix="remove it, or choose another name.")
    _write_new(path, (msgspec.json.encode(item) + b"\n" for item in log.items))
    _write_new(about, [header.encode()])


def _write_new(path: Path, lines: Iterable[bytes]) -> None:
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.writelines(lines)
            os.link(name, path)  # unlike a rename, it fails where the file exists
        finally:
            Path(name).unlink()
    except FileExistsError as error:
        raise WorkloadError("the file exists", place=str(path), fix="choose another name.") from error
    except OSError as error:
        raise WorkloadError(
            f"the file cannot be written ({error.strerror})", place=str(path), fix="choose another folder."
        ) from error


def _read_entries(raw: bytes) -> Iterator[tuple[int, object]]:
    """Yield number and value of each line that is not blank, or of each element of an array."""
    try:
        # A log may be one document over many lines: an array, or a tree of spans.
        whole = _decode_line(raw, "") if raw.lstrip()[:1] in {b"[", b"{"} else None
    except WorkloadError:
        whole = None
    if whole is not None:
        yield from enumerate(whole if isinstance(whole, list) else [whole], start=1)
        return
    for number, line in enumerate(raw.split(b"\n"), start=1):
        if line.strip():
            yield number, _read_entry(line)


def _read_entry(line: bytes) -> object:
    try:
        return _decode_line(line, "")
    except WorkloadError:
        return Unreadable(explain_text_line(line.decode("utf-8", "replace")))


def _load_items(path: Path, window: Window | None, units: Units) -> tuple[tuple[Item, ...], tuple[str, ...]]:
    raw = read_unpacked(path).removeprefix(b"\xef\xbb\xbf")
    head = raw.lstrip().partition(b"\n")[0].strip()
    is_table = bare_path(path).suffix == ".csv" and not head.startswith((b"{", b"["))
    if is_table or is_trace(head.decode("utf-8", "replace")):
        return _load_trace(raw, path, window, units)
    lines = list(_read_lines(raw, path))
    if not lines:
        raise WorkloadError("the file holds no item", place=str(path), fix="write one item a line.")
    items, notes = _read_items(lines, units, str(path))
    return items if window is None else _cut_items(items, window, path), notes


def _load_trace(
    raw: bytes, path: Path, window: Window | None, units: Units
) -> tuple[tuple[Item, ...], tuple[str, ...]]:
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        number = raw.count(b"\n", 0, error.start) + 1
        raise WorkloadError(
            f"byte {error.start + 1} is not valid UTF-8",
            place=f"{path}:{number}",
            fix="save the file as UTF-8.",
        ) from error
    arrivals, unused = read_trace(text, str(path), units)
    if window is not None:
        arrivals = arrivals[cut([one.due_ns for one in arrivals], window, str(path))]
    notes = (f"the trace has further keys, which are not used: {', '.join(unused)}.",) if unused else ()
    return make_items(arrivals, str(path)), notes


def _cut_items(items: Sequence[Item], window: Window, path: Path) -> tuple[Item, ...]:
    if any(item.due_ns is None for item in items):
        raise WorkloadError(
            "a window is a part of a recording, and these items have no times",
            place=f"{path}, workload.window",
            fix="leave workload.window out, or state at_s in every line.",
        )
    ordered = sorted(items, key=lambda item: item.due_ns or 0)
    return tuple(ordered[cut([item.due_ns or 0 for item in ordered], window, str(path))])


def compute_sha256(items: tuple[Item, ...]) -> str:
    """Return the hash of what the items say, in their order; white space and order of keys do not count."""
    digest = hashlib.sha256()
    for item in items:
        digest.update(_ENCODER.encode(item) + b"\n")
    return digest.hexdigest()


def _find_builtin(source: str) -> Path:
    folder = Path(str(resources.files("draftproof").joinpath("data", "workloads")))
    path = folder / f"{source.removeprefix(BUILTIN_PREFIX)}.jsonl"
    names = sorted(f"{BUILTIN_PREFIX}{known.stem}" for known in folder.glob("*.jsonl"))
    if f"{BUILTIN_PREFIX}{path.stem}" not in names:
        raise WorkloadError("no workload of this name ships", place=source, fix=f"use {' or '.join(names)}.")
    return path


def _read_lines(raw: bytes, path: Path) -> Iterator[tuple[str, int, object]]:
    """Yield (place, number, decoded value) of each line that is not blank, or element of an array."""
    if raw.lstrip().startswith(b"["):
        values = _decode_line(raw, str(path))
        for number, value in enumerate(values if isinstance(values, list) else [values], start=1):
            yield f"{path}: element {number}", number, value
        return
    for number, line in enumerate(raw.split(b"\n"), start=1):
        if line.strip():
            place = f"{path}:{number}"
            yield place, number, _decode_line(line, place)


def _decode_line(raw: bytes, place: str) -> object:
    try:
        value = _DECODER.decode(raw.decode("utf-8"))
        # An escaped half of a surrogate pair parses, but no text holds it: it fails here, not in the request.
        msgspec.json.encode(value)
    except UnicodeDecodeError as error:
        raise WorkloadError(
            f"byte {error.start + 1} is not valid UTF-8", place=place, fix="save the file as UTF-8."
        ) from error
    except json.JSONDecodeError as error:
        raise WorkloadError(
            f"the line is not JSON ({error.msg} at column {error.colno})",
            place=place if error.lineno == 1 else f"{place}:{error.lineno}",
            fix="write one JSON object a line.",
        ) from error
    except ValueError as error:
        raise WorkloadError(
            f"the line holds a value that cannot be sent ({error})", place=place, fix="correct this value."
        ) from error
    except RecursionError as error:
        raise WorkloadError("the JSON is nested too deeply", place=place, fix="flatten it.") from error
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _parse_integer(text: str) -> int:
    """A longer number would be another one once it was stored and read again."""
    number = int(text)
    if not -(1 << 63) <= number < 1 << 64:
        raise ValueError(f"{text[:_SHOWN]} has more than 64 bits")
    return number


def _parse_float(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text[:_SHOWN]} is too large")
    return number


_DECODER = json.JSONDecoder(
    object_pairs_hook=refuse_twins,
    parse_constant=_refuse_constant,
    parse_int=_parse_integer,
    parse_float=_parse_float,
)


def _read_items(
    lines: list[tuple[str, int, object]], units: Units, name: str
) -> tuple[tuple[Item, ...], tuple[str, ...]]:
    """Return the items, and what of their lines is not sent as it stands, the lines counted."""
    places: dict[str, str] = {}
    items = []
    remarks: Counter[str] = Counter()
    for position, (place, number, value) in enumerate(lines, start=1):
        timed = _read_item(value, number, position, place, units.timestamp)
        item = timed.item
        remarks.update(timed.remarks)
        if item.id in places:
            raise WorkloadError(
                f"the id {item.id!r} is already used at {places[item.id]}",
                place=place,
                fix="give each item its own id.",
            )
        places[item.id] = place
        items.append((place, timed))
    check_ids(places, name)
    check_unit_is_used(units.timestamp, [one.moment.form for _, one in items if one.moment], name)
    notes = tuple(f"in {count} of {len(lines)} lines {text}." for text, count in remarks.items())
    return set_due(items), notes


def _read_item(value: object, number: int, position: int, place: str, unit: Unit | None) -> TimedItem:
    try:
        timed = parse_timed_item(value, number, position, unit)
    except WorkloadError as error:
        error.place = place
        raise
    except msgspec.ValidationError as error:
        raise WorkloadError(_sentence(str(error)), place=place, fix=_suggest_fix(str(error))) from error
    for fault in find_faults(timed.item):
        raise WorkloadError(f"item {timed.item.id!r}: {fault}", place=place, fix="correct this value.")
    return timed


def _sentence(message: str) -> str:
    """Names of keys that a message quotes may have lines of their own."""
    return " ".join((message[:1].lower() + message[1:]).split())


def _suggest_fix(message: str) -> str:
    if "unknown field" not in message:
        return "correct the value at that path."
    if " - at " in message:
        return "remove or rename the field at that path."
    return f"use only these: {', '.join(Item.__struct_fields__)}, or a chat request's fields."


def _load_header(path: Path) -> WorkloadHeader:
    header_path = bare_path(path).with_suffix(".meta.toml")
    if not header_path.is_file():
        return WorkloadHeader(name=bare_path(path).stem, version="unversioned", licence="unstated")
    try:
        return msgspec.convert(tomllib.loads(header_path.read_text("utf-8")), WorkloadHeader)
    except (OSError, ValueError, msgspec.ValidationError) as error:
        raise WorkloadError(
            f"the header is not valid ({_sentence(str(error))})",
            place=str(header_path),
            fix="state name, version, licence and evidence.",
        ) from error
