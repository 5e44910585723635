"""The canonical archive: an uncompressed tar of plain files that has one byte form for one content.

Members are sorted by name and carry no time, owner or mode of the machine that wrote them. The reader accepts
that form alone: it builds the header it expects and compares. So a flipped bit in a header, in padding or
behind the end is found, and links, devices, repeated names and names that lead elsewhere cannot occur.

MANIFEST.json lists every member with its size and SHA-256, and has one root hash over the list itself: it
names the content of a package in 64 digits, and equal content, and only that, has the same root.
"""

import hashlib
import re
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO

import msgspec

from draftproof.core.errors import NotVerifiedError, StoreError
from draftproof.store.run_directory import encode_document

LISTING_NAME, SUMS_NAME = "MANIFEST.json", "SHA256SUMS"
FORMAT = 1
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

    Raises StoreError for a name or size that the form does not have and for a file that cannot be opened,
    OSError where the archive cannot be written.
    """
    sizes = check_sizes(members)
    for name, size in sizes.items():
        try:
            file = members[name].open("rb")
        except OSError as error:
            raise StoreError(f"cannot be packed ({error.strerror}).", place=str(members[name])) from error
        with file:
            target.write(make_header(name, size))
            target.writelines(_pieces(file, size))
        target.write(bytes(-size % BLOCK))
    target.write(END)


def check_sizes(members: Mapping[str, Path]) -> dict[str, int]:
    """Return the sizes of files by name, in order, if an archive of them is one that its reader accepts.

    Raises StoreError where one of them, or all together, are larger, and where one cannot be read.
    """
    sizes, fix = dict[str, int](), "measure fewer prompts or requests in one run."
    for name, path in sorted(members.items()):
        try:
            size = sizes[name] = path.stat().st_size
        except OSError as error:
            raise StoreError(f"cannot be packed ({error.strerror}).", place=str(path)) from error
        if size > _find_limit(name):
            text = f"{size:,} bytes cannot be packed, at most {_find_limit(name):,} can."
            raise StoreError(text, place=str(path), fix=fix)
    total = sum(sizes.values())
    if total + (2 * len(members) + 2) * BLOCK > MAX_ARCHIVE_BYTES:
        raise StoreError(
            f"the run's {total:,} bytes cannot be packed, a package holds at most {MAX_ARCHIVE_BYTES:,}.",
            fix=fix,
        )
    return sizes


def make_header(name: str, size: int) -> bytes:
    """Return the header of a plain file. Raises StoreError for a name or size that the form does not have."""
    if not is_safe_name(name) or not 0 <= size <= _LARGEST:
        raise StoreError(
            f"a member {name!r} of {size} bytes cannot be packed.",
            fix="use names of at most 100 plain letters, and files below 8 GiB.",
        )
    info = tarfile.TarInfo(name)
    info.size, info.mode = size, 0o644
    return info.tobuf(tarfile.USTAR_FORMAT, "ascii", "strict")


def scan_archive(path: Path) -> tuple[tuple[Entry, ...], str]:
    """Return the members of an archive and its SHA-256, every byte checked against the canonical form.

    Reads the file once and allocates no more than a fixed block, whatever sizes the headers claim. Sizes are
    checked before anything of that size is read. Raises NotVerifiedError, which names the member or the
    offset, for a byte that is not what the form says and for what is larger than a package can be.
    """
    with _opened(path) as file:
        total = path.stat().st_size
        if total > MAX_ARCHIVE_BYTES:
            raise NotVerifiedError(
                f"{total:,} bytes are more than a package can have ({MAX_ARCHIVE_BYTES:,}).", place=str(path)
            )
        reader = _HashingReader(file)
        return tuple(_iterate(reader, total, str(path))), reader.hexdigest()


def read_member(path: Path, entry: Entry) -> bytes:
    """Return the content of one member. Raises NotVerifiedError if it is larger than a document may be."""
    if entry.size > MAX_DOCUMENT_BYTES:
        raise NotVerifiedError(f"{entry.name} is larger than any document of a package.", place=str(path))
    with _opened(path) as file:
        file.seek(entry.offset)
        return file.read(entry.size)


def extract(path: Path, entries: tuple[Entry, ...], folder: Path) -> None:
    """Write members into a folder; their names were checked when the archive was read."""
    with _opened(path, "unpacked") as file:
        for entry in entries:
            out = folder / entry.name
            out.parent.mkdir(parents=True, exist_ok=True)
            file.seek(entry.offset)
            with out.open("xb") as copy:
                copy.writelines(_pieces(file, entry.size))


def hash_file(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with _opened(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def _opened(path: Path, what: str = "read") -> Iterator[BufferedReader]:
    """Open a plain file for reading. Raises StoreError for what is none or cannot be read."""
    try:
        # A pipe or a device may never end.
        if path.exists() and not path.is_file():
            raise StoreError("this is not a file.", place=str(path), fix="check the path.")
        with path.open("rb") as file:
            yield file
    except OSError as error:
        raise StoreError(f"cannot be {what} ({error.strerror}).", place=str(path)) from error


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


class ListedFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One member of a package."""

    name: str
    size: int
    sha256: str


class Listing(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What MANIFEST.json holds. `root_sha256` is taken over the rest of the document.

    `clock_restarts` are places where the journal's times begin anew, as after a restart of the client's
    machine; `withheld` tells that texts are replaced by salted digests. `source_sha256` tells the build that
    packed it from others of its version; packages from before it was noted have none.
    """

    format: int
    draftproof_version: str
    run_name: str
    decision: str
    withheld: bool
    clock_restarts: tuple[str, ...]
    files: tuple[ListedFile, ...]
    root_sha256: str = ""
    source_sha256: str | msgspec.UnsetType = msgspec.UNSET

    @property
    def source(self) -> str | None:
        """The digest of the sources that packed it, None where it is not known."""
        return None if self.source_sha256 is msgspec.UNSET else self.source_sha256


def make_listing(
    members: Mapping[str, Path],
    *,
    draftproof_version: str,
    run_name: str,
    decision: str,
    withheld: bool,
    clock_restarts: tuple[str, ...],
    source_sha256: str | None = None,
) -> Listing:
    """Return the listing of some members, its root filled in. Raises StoreError: a file cannot be read."""
    files = tuple(
        ListedFile(name=name, size=path.stat().st_size, sha256=hash_file(path))
        for name, path in sorted(members.items())
    )
    listing = Listing(
        format=FORMAT,
        draftproof_version=draftproof_version,
        run_name=run_name,
        decision=decision,
        withheld=withheld,
        clock_restarts=clock_restarts,
        files=files,
        source_sha256=source_sha256 or msgspec.UNSET,
    )
    return msgspec.structs.replace(listing, root_sha256=compute_root(listing))


def compute_root(listing: Listing) -> str:
    """Return the SHA-256 over the canonical JSON of a listing without its root."""
    return hashlib.sha256(encode_document(msgspec.structs.replace(listing, root_sha256=""))).hexdigest()


def combine(members: Mapping[str, Path]) -> str:
    """Return one SHA-256 over names and contents of some members."""
    return hashlib.sha256(render_sums(members)).hexdigest()


def render_sums(members: Mapping[str, Path]) -> bytes:
    """Return the file that `sha256sum -c` reads."""
    return "".join(f"{hash_file(path)}  {name}\n" for name, path in sorted(members.items())).encode()


def find_listing_faults(raw: bytes, listing: Listing) -> Iterator[str]:
    """Yield what is wrong with a listing in itself."""
    if raw != encode_document(listing):
        yield f"{LISTING_NAME} is not written as draftproof writes it"
    if listing.root_sha256 != compute_root(listing):
        yield f"the root hash of {LISTING_NAME} is not that of its content"


def find_file_faults(entries: Iterable[Entry], listing: Listing) -> Iterator[str]:
    """Yield which members are missing, unlisted or not what the listing says."""
    listed = {one.name: one for one in listing.files}
    found = {one.name: one for one in entries if one.name != LISTING_NAME}
    yield from (f"{name} is missing" for name in sorted(listed.keys() - found.keys()))
    yield from (f"{name} is not listed" for name in sorted(found.keys() - listed.keys()))
    for name in sorted(listed.keys() & found.keys()):
        if (found[name].size, found[name].sha256) != (listed[name].size, listed[name].sha256):
            yield f"{name} was changed: its hash is not the listed one"
