"""MANIFEST.json: every member with its size and SHA-256, and one root hash over the list itself.

The root names the content of a package in 64 digits: equal content, and only that, has the same root.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import msgspec

from draftproof.store.run_directory import encode_document
from draftproof.tell.handover.archive import Entry, hash_file

LISTING_NAME, SUMS_NAME = "MANIFEST.json", "SHA256SUMS"
FORMAT = 1


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
    """Return the listing of some members, its root filled in.

    Raises:
        StoreError: a file cannot be read.
    """
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
    lines = "".join(f"{hash_file(path)}  {name}\n" for name, path in sorted(members.items()))
    return hashlib.sha256(lines.encode()).hexdigest()


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
