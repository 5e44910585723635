"""The canonical archive: an uncompressed tar of plain files that has one byte form for one content.

Members are sorted by name and carry no time, owner or mode of the machine that wrote them. The reader accepts
that form alone: it builds the header it expects and compares. So a flipped bit in a header, in padding or
behind the end is found, and links, devices, repeated names and names that lead elsewhere cannot occur.
"""

import hashlib
import re
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

import msgspec

from draftproof.core.errors import NotVerifiedError, StoreError

BLOCK = 512
END = bytes(2 * BLOCK)
MAX_MEMBERS = 10_000
# Documents other than raw data are read into memory whole.
MAX_DOCUMENT_BYTES = 1 << 28
MAX_ARCHIVE_BYTES = 1 << 36
_RAW_SUFFIXES = (".jsonl", ".jsonl.torn")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]*(?:/[A-Za-z0-9_][A-Za-z0-9_.\-]*){0,3}")
_NAME_CHARS = 100
_READ_BYTES = 1 << 20
_LARGEST = 8**11 - 1


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One member of an archive that was read: name, bytes, SHA-256, and where its content begins."""

    name: str
    size: int
    sha256: str
    offset: int


def is_safe_name(name: str) -> bool:
    """Tell whether a member may have this name: relative, plain letters, no part that begins with a dot."""
    return len(name) <= _NAME_CHARS and _NAME.fullmatch(name) is not None


def write_archive(target: BinaryIO, members: Mapping[str, Path]) -> None:
    """Write files as the canonical archive, each under its name.

    Raises:
        StoreError: a name or a size that the form does not have, or a file that cannot be opened.
        OSError: the archive cannot be written.
    """
    check_sizes(members)
    for name in sorted(members):
        path = members[name]
        try:
            size, file = path.stat().st_size, path.open("rb")
        except OSError as error:
            raise StoreError(f"cannot be packed ({error.strerror}).", place=str(path)) from error
        with file:
            target.write(make_header(name, size))
            target.writelines(_pieces(file, size))
        target.write(bytes(-size % BLOCK))
    target.write(END)


def check_sizes(members: Mapping[str, Path]) -> None:
    """Do nothing if files are small enough for an archive that its reader accepts.

    Raises:
        StoreError: one of them, or all together, are larger; or one cannot be read.
    """
    total = 0
    for name, path in sorted(members.items()):
        try:
            size = path.stat().st_size
        except OSError as error:
            raise StoreError(f"cannot be packed ({error.strerror}).", place=str(path)) from error
        total += size
        if size > _find_limit(name):
            raise StoreError(
                f"{size:,} bytes cannot be packed, at most {_find_limit(name):,} can.",
                place=str(path),
                fix="measure fewer prompts or requests in one run.",
            )
    if total + (2 * len(members) + 2) * BLOCK > MAX_ARCHIVE_BYTES:
        raise StoreError(
            f"the run's {total:,} bytes cannot be packed, a package holds at most {MAX_ARCHIVE_BYTES:,}.",
            fix="measure fewer prompts or requests in one run.",
        )


def make_header(name: str, size: int) -> bytes:
    """Return the one header of a plain file of this name and size.

    Raises:
        StoreError: a name or a size that the form does not have.
    """
    if not is_safe_name(name) or not 0 <= size <= _LARGEST:
        raise StoreError(
            f"a member {name!r} of {size} bytes cannot be packed.",
            fix="use names of at most 100 plain letters, and files below 8 GiB.",
        )
    info = tarfile.TarInfo(name)
    info.size, info.mode = size, 0o644
    return info.tobuf(tarfile.USTAR_FORMAT, "ascii", "strict")


def read_archive(path: Path) -> tuple[Entry, ...]:
    """Return the members of an archive; see `scan_archive`."""
    return scan_archive(path)[0]


def scan_archive(path: Path) -> tuple[tuple[Entry, ...], str]:
    """Return the members of an archive and its SHA-256, every byte checked against the canonical form.

    Reads the file once and allocates no more than a fixed block, whatever sizes the headers claim. Sizes are
    checked before anything of that size is read.

    Raises:
        NotVerifiedError: a byte is not what the form says, or something is larger than a package can be;
            names the member or the offset.
        StoreError: the file cannot be read.
    """
    try:
        # A pipe or a device may never end.
        if path.exists() and not path.is_file():
            raise StoreError("this is not a file.", place=str(path), fix="check the path.")
        total = path.stat().st_size
        if total > MAX_ARCHIVE_BYTES:
            raise NotVerifiedError(
                f"{total:,} bytes are more than a package can have ({MAX_ARCHIVE_BYTES:,}).", place=str(path)
            )
        with path.open("rb") as file:
            reader = _HashingReader(file)
            return tuple(_iterate(reader, total, str(path))), reader.hexdigest()
    except OSError as error:
        raise StoreError(f"cannot be read ({error.strerror}).", place=str(path)) from error


def read_member(path: Path, entry: Entry) -> bytes:
    """Return the content of one member.

    Raises:
        NotVerifiedError: it is larger than a document may be.
        StoreError: the file cannot be read.
    """
    if entry.size > MAX_DOCUMENT_BYTES:
        raise NotVerifiedError(f"{entry.name} is larger than any document of a package.", place=str(path))
    try:
        with path.open("rb") as file:
            file.seek(entry.offset)
            return file.read(entry.size)
    except OSError as error:
        raise StoreError(f"cannot be read ({error.strerror}).", place=str(path)) from error


def extract(path: Path, entries: tuple[Entry, ...], folder: Path) -> None:
    """Write members into a folder; their names were checked when the archive was read.

    Raises:
        StoreError: something cannot be read or written.
    """
    try:
        with path.open("rb") as file:
            for entry in entries:
                out = folder / entry.name
                out.parent.mkdir(parents=True, exist_ok=True)
                file.seek(entry.offset)
                with out.open("xb") as copy:
                    for piece in _pieces(file, entry.size):
                        copy.write(piece)
    except OSError as error:
        raise StoreError(f"cannot be unpacked ({error.strerror}).", place=str(path)) from error


def hash_file(path: Path) -> str:
    """Return the SHA-256 of a file.

    Raises:
        StoreError: it is no plain file, or cannot be read.
    """
    try:
        # A pipe or a device may never end.
        if path.exists() and not path.is_file():
            raise StoreError("this is not a file.", place=str(path), fix="check the path.")
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise StoreError(f"cannot be read ({error.strerror}).", place=str(path)) from error


class _HashingReader:
    """Reads a file from its beginning and hashes what it reads."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._digest, self._at = file, hashlib.sha256(), 0

    def read(self, size: int) -> bytes:
        piece = self._file.read(size)
        self._digest.update(piece)
        self._at += len(piece)
        return piece

    def tell(self) -> int:
        return self._at

    def hexdigest(self) -> str:
        return self._digest.hexdigest()


def _find_limit(name: str) -> int:
    """Return how large a member may be, bytes: raw data are read line by line, documents whole."""
    return _LARGEST if name.endswith(_RAW_SUFFIXES) else MAX_DOCUMENT_BYTES


def _iterate(file: _HashingReader, total: int, place: str) -> Iterator[Entry]:
    previous, count = "", 0
    while True:
        offset = file.tell()
        header = file.read(BLOCK)
        if header == END[:BLOCK]:
            if file.read(BLOCK + 1) != END[BLOCK:]:
                raise _broken("the archive does not end as one that draftproof wrote", offset, place)
            return
        name, size = _parse_header(header, offset, place)
        if name <= previous:
            raise _broken(f"the member {name} comes twice or out of order", offset, place)
        count += 1
        if size > total - file.tell() or count > MAX_MEMBERS:
            raise _broken(
                f"the archive is cut off inside {name}, or claims more than it holds", offset, place
            )
        if size > _find_limit(name):
            raise _broken(f"{name} is larger than any document of a package", offset, place)
        yield _read_entry(file, name, size, place)
        previous = name


def _parse_header(header: bytes, offset: int, place: str) -> tuple[str, int]:
    """Return name and size of a header that is byte for byte the one of a plain file."""
    if len(header) < BLOCK:
        raise _broken("the archive is cut off", offset, place)
    name = header[:_NAME_CHARS].split(b"\0", 1)[0].decode("latin-1")
    if header[156:157] not in {b"0", b"\0"}:
        raise _broken(f"the member {name!r} is a link or no plain file", offset, place)
    if not is_safe_name(name):
        raise _broken(f"the member name {name!r} is not one that draftproof writes", offset, place)
    digits = header[124:135]
    size = int(digits, 8) if re.fullmatch(rb"[0-7]{11}", digits) else -1
    if size < 0 or header != make_header(name, size):
        raise _broken(f"the header of {name} is not the one that draftproof writes", offset, place)
    return name, size


def _read_entry(file: _HashingReader, name: str, size: int, place: str) -> Entry:
    offset, digest = file.tell(), hashlib.sha256()
    for piece in _pieces(file, size):
        digest.update(piece)
    padding = -size % BLOCK
    if file.read(padding) != bytes(padding):
        raise _broken(f"the padding behind {name} is not empty", offset + size, place)
    return Entry(name=name, size=size, sha256=digest.hexdigest(), offset=offset)


def _pieces(file: BinaryIO | _HashingReader, size: int) -> Iterator[bytes]:
    while size > 0:
        piece = file.read(min(size, _READ_BYTES))
        if not piece:
            return
        size -= len(piece)
        yield piece


def _broken(what: str, offset: int, place: str) -> NotVerifiedError:
    return NotVerifiedError(
        f"{what} (byte {offset}).", place=place, fix="ask for the package again; do not use this one."
    )
