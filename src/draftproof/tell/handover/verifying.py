"""Is a package what it claims to be? Nothing in it is trusted: bytes are checked before any is computed.

Says for each check whether it passed, failed or could not be made. Without a key known before, hashes show
damage and not authorship, and the report says so.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import msgspec

import draftproof
from draftproof.core.build import is_other_build, name_build, source_sha256
from draftproof.core.errors import DraftproofError, NotVerifiedError, UsageError
from draftproof.judge.observe.observed import RunData
from draftproof.judge.results.run import Results
from draftproof.store import RunDirectory
from draftproof.store.run_directory import RESULTS_NAME
from draftproof.tell.handover.archive import (
    LISTING_NAME,
    SUMS_NAME,
    Entry,
    Listing,
    extract,
    find_file_faults,
    find_listing_faults,
    read_member,
    render_sums,
    scan_archive,
)
from draftproof.tell.handover.contents import (
    BOM_NAME,
    can_render_bom,
    compute,
    count_periods,
    list_raw,
    render_documents,
)
from draftproof.tell.handover.journal_order import check_order
from draftproof.tell.handover.signing import (
    load_public_key,
    parse_signature,
    signature_path,
    verify_signature,
)
from draftproof.workload.faults import find_faults

Status = Literal["passed", "failed", "not_checked"]
_SHOWN = 3
DOCUMENTS_CHECK = "documents"
IN_TURN = ("hashes", "journal order", "thresholds", "recomputed")


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was looked at, and what was found."""

    name: str
    status: Status
    detail: str


class VerifyReport(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a package. `authentic` is None where no key was given to check a signature with.

    `archive_sha256` is None where the archive is not whole: it was not read to its end.
    """

    package: str
    verified: bool
    authentic: bool | None
    run_name: str | None
    decision: str | None
    sentence: str | None
    root_sha256: str | None
    archive_sha256: str | None
    withheld: bool | None
    checks: tuple[Check, ...]


class Opened(msgspec.Struct, frozen=True, kw_only=True):
    """A package whose bytes are whole: its listing, its members, and what its raw data hold."""

    listing: Listing
    entries: tuple[Entry, ...]
    contents: RunData
    results: Results


class _FailedCheck(Exception):  # noqa: N818 - the outcome of a check, turned into one at the end
    """A check that keeps later ones from being made."""

    def __init__(self, name: str, detail: str) -> None:
        super().__init__(detail)
        self.check = Check(name=name, status="failed", detail=detail.rstrip("."))


def verify_package(
    path: Path, *, public_key: Path | None = None, signature: Path | None = None
) -> tuple[VerifyReport, Opened | None]:
    """Return what is known of a package and, where everything that was checked passed, what it holds.

    Without the signer's `public_key`, known before, authorship is not checked; the signature file is
    `<archive>.sig` unless another is named. Raises UsageError for a key that cannot be used and StoreError
    for an archive that cannot be read.
    """
    key = load_public_key(public_key) if public_key else None
    checks, opened, digest = list[Check](), None, None
    try:
        entries, digest = scan_archive(path)
        checks.append(
            _passed("archive", f"{len(entries)} members; headers, padding and end are as they must be")
        )
        opened = _open(path, entries, checks)
    except NotVerifiedError as error:
        checks.append(_FailedCheck("archive", error.message).check)
    except _FailedCheck as failed:
        checks.append(failed.check)
    checks += _name_unchecked(checks)
    checks.append(_check_signature(path, digest, key, signature))
    verified = opened is not None and all(one.status != "failed" for one in checks)
    verdict, listing = (opened.results.verdict, opened.listing) if opened else (None, None)
    report = VerifyReport(
        package=path.name,
        verified=verified,
        authentic=None if key is None else checks[-1].status == "passed",
        run_name=listing.run_name if listing else None,
        decision=verdict.decision if verdict else None,
        sentence=verdict.sentence if verdict else None,
        root_sha256=listing.root_sha256 if listing else None,
        archive_sha256=digest,
        withheld=listing.withheld if listing else None,
        checks=tuple(checks),
    )
    return report, opened if verified else None


def _name_unchecked(checks: list[Check]) -> list[Check]:
    """Return a line for each check that a failed one before it kept from being made."""
    failed = next((one.name for one in checks if one.status == "failed"), None)
    made = {one.name for one in checks}
    return [
        _unchecked(name, f"not checked, because the check of {failed} failed")
        for name in IN_TURN
        if failed is not None and name not in made
    ]


def load_package(path: Path) -> RunData:
    """Return the raw data of a package whose bytes, hashes and journal order are in order.

    Its documents are not computed again: whoever loads it computes his own. Raises NotVerifiedError, which
    names what was changed, and StoreError where the archive cannot be read.
    """
    entries, listing = check_bytes(path)
    with TemporaryDirectory(prefix="draftproof-package-") as temporary, _refusing(path):
        extract(path, entries, Path(temporary))
        _check_journal(Path(temporary), listing)
        return _load_checked(Path(temporary), listing)


def check_bytes(path: Path) -> tuple[tuple[Entry, ...], Listing]:
    """Return the members and the listing of a package in which no byte was changed by accident.

    Raises NotVerifiedError, which names the member or the byte, and StoreError where it cannot be read.
    """
    with _refusing(path):
        entries, _ = scan_archive(path)
        return entries, _read_listing(path, entries)


@contextmanager
def _refusing(path: Path) -> Iterator[None]:
    try:
        yield
    except _FailedCheck as failed:
        fix = "ask for the package again; do not use this one."
        raise NotVerifiedError(str(failed), place=str(path), fix=fix) from failed


def _open(path: Path, entries: tuple[Entry, ...], checks: list[Check]) -> Opened:
    """Check listing, journal, thresholds and documents in turn; stop where going on would trust too much."""
    listing = _read_listing(path, entries)
    checks.append(_passed("hashes", f"{len(listing.files)} files are those that {LISTING_NAME} lists"))
    with TemporaryDirectory(prefix="draftproof-verify-") as temporary:
        folder = Path(temporary)
        extract(path, entries, folder)
        try:
            checks.append(_check_journal(folder, listing))
            contents = _load_checked(folder, listing)
            stated = "plan and thresholds are those hashed before the first request"
            checks.append(_passed("thresholds", stated))
            results = compute(folder)[1]
            checks += [*_check_periods(contents), *_check_build(contents)]
            checks += _check_documents(folder, entries, listing, contents, results)
        except _FailedCheck:
            raise
        except Exception as error:
            # Whatever foreign data bring about is a failed check.
            text = error.message if isinstance(error, DraftproofError) else type(error).__name__
            raise _FailedCheck("records", f"the raw data cannot be judged: {text}") from error
    return Opened(listing=listing, entries=entries, contents=contents, results=results)


def _read_listing(path: Path, entries: tuple[Entry, ...]) -> Listing:
    entry = next((one for one in entries if one.name == LISTING_NAME), None)
    if entry is None:
        raise _FailedCheck("hashes", f"{LISTING_NAME} is missing")
    raw = read_member(path, entry)
    try:
        listing = msgspec.json.decode(raw, type=Listing)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _FailedCheck("hashes", f"{LISTING_NAME} cannot be read ({error})") from error
    if faults := [*find_listing_faults(raw, listing), *find_file_faults(entries, listing)]:
        raise _FailedCheck("hashes", _join(faults))
    return listing


def _check_journal(folder: Path, listing: Listing) -> Check:
    order = check_order(folder / "journal")
    if order.faults:
        raise _FailedCheck("journal order", _join(list(order.faults)))
    if order.restarts != listing.clock_restarts:
        raise _FailedCheck("journal order", "the clock begins anew at other places than the package states")
    said = "every line is there once and ended after the one above it, period after period"
    if order.restarts:
        places = ", ".join(order.restarts)
        said = f"as written; the clock began anew at {places}, as the package states"
    return _passed("journal order", said)


def _load_checked(folder: Path, listing: Listing) -> RunData:
    """Return the raw data; a pattern that could run without end is refused, as in any workload."""
    contents = RunDirectory.open(folder).load()
    withheld = {record.withheld is not None for record in contents.records}
    if withheld - {listing.withheld}:
        raise NotVerifiedError("the package does not state truly whether texts are withheld.")
    if not listing.withheld:
        for item in contents.items:
            for fault in find_faults(item):
                raise NotVerifiedError(f"item {item.id!r}: {fault}.")
    return contents


def _check_periods(contents: RunData) -> Iterator[Check]:
    """Say how much of what the plan asks for is not there; a run that is not whole may be packed."""
    count = count_periods(contents)
    if count.ended < count.planned:
        yield _unchecked(
            "periods",
            f"only {count} have a record that they ended: the run is incomplete, or lines were taken out of "
            "its journal",
        )


def _check_build(contents: RunData) -> Iterator[Check]:
    """Say where the run was measured by another build: no document tells what that one did otherwise."""
    version, source = contents.manifest.draftproof_version, contents.manifest.source_sha256
    if is_other_build(version, source):
        own = name_build(draftproof.__version__, source_sha256())
        text = f"the run was measured by draftproof {name_build(version, source)}, this is {own}"
        yield _unchecked("build", text)


def _check_documents(
    folder: Path, entries: tuple[Entry, ...], listing: Listing, contents: RunData, results: Results
) -> Iterator[Check]:
    if listing.draftproof_version != draftproof.__version__:
        yield _compare_decisions(folder, listing, results)
        yield _name_unread(folder, entries)
        return
    bom = folder / BOM_NAME
    with_bom = bom.is_file() and can_render_bom(bom.read_bytes())
    documents = render_documents(folder, contents, results, withheld=listing.withheld, with_bom=with_bom)
    sums = {e.name: folder / e.name for e in entries if e.name not in {SUMS_NAME, LISTING_NAME}}
    documents[SUMS_NAME] = render_sums(sums)
    expected = {*documents, *list_raw(folder), LISTING_NAME, BOM_NAME}
    faults = [f"{e.name} is no member of a package" for e in entries if e.name not in expected]
    faults += [] if bom.is_file() else [f"{BOM_NAME} is missing"]
    faults += [
        f"{name} is not what the raw data give"
        for name in sorted(documents, key=lambda name: (name != RESULTS_NAME, name))
        if not (folder / name).is_file() or (folder / name).read_bytes() != documents[name]
    ]
    if (listing.run_name, listing.decision) != (results.run_name, results.verdict.decision):
        faults.append(f"{LISTING_NAME} names another run or decision")
    if faults and is_other_build(listing.draftproof_version, listing.source):
        # Another checkout may say the same in other words, as another version may.
        yield _compare_decisions(folder, listing, results)
        yield _name_unread(folder, entries)
        return
    if faults:
        yield _failed("recomputed", _join(faults))
        return
    yield _passed(
        "recomputed", f"{len(documents)} documents, {RESULTS_NAME} among them, are the same byte for byte"
    )
    if not with_bom:
        text = f"{BOM_NAME} is not written again: its library is missing here or another version"
        yield _unchecked("bill of materials", text)


def _compare_decisions(folder: Path, listing: Listing, results: Results) -> Check:
    """Another version may compute more or word it otherwise; what must stand is decision and envelope."""
    try:
        stated = msgspec.json.decode((folder / RESULTS_NAME).read_bytes(), type=_Stated)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        return _failed("recomputed", f"{RESULTS_NAME} cannot be read ({error})")
    own = msgspec.convert({"verdict": msgspec.to_builtins(results.verdict, enc_hook=str)}, _Stated)
    packer = name_build(listing.draftproof_version, listing.source)
    which = (
        f"packed by draftproof {packer}, computed by {name_build(draftproof.__version__, source_sha256())}"
    )
    if listing.draftproof_version == draftproof.__version__:
        which = f"made by another build of {draftproof.__version__}: {which}"
    if listing.run_name != results.run_name:
        return _failed("recomputed", f"{LISTING_NAME} names another run")
    if stated != own or listing.decision != own.verdict.decision:
        return _failed("recomputed", f"decision or envelope come out otherwise ({which})")
    return _passed("recomputed", f"same decision and envelope; bytes are not compared ({which})")


def _name_unread(folder: Path, entries: tuple[Entry, ...]) -> Check:
    """Say which members nothing vouches for but whoever made the package."""
    vouched = {*list_raw(folder), SUMS_NAME, LISTING_NAME}
    unread = [entry.name for entry in entries if entry.name not in vouched]
    return _unchecked(
        DOCUMENTS_CHECK,
        f"nothing in {', '.join(unread)} was compared with the raw data but decision and envelope of "
        f"{RESULTS_NAME}; unpack the package and write them again: draftproof report FOLDER",
    )


class _StatedEntry(msgspec.Struct, frozen=True, kw_only=True):
    segment: str
    max_concurrency: int | None
    max_rps: float | None = None


class _StatedVerdict(msgspec.Struct, frozen=True, kw_only=True):
    decision: str
    envelope: tuple[_StatedEntry, ...]


class _Stated(msgspec.Struct, frozen=True, kw_only=True):
    verdict: _StatedVerdict


def _check_signature(path: Path, digest: str | None, key: object, signature: Path | None) -> Check:
    found = signature or signature_path(path)
    if key is None:
        there = "a signature lies beside it; " if found.is_file() else ""
        return _unchecked(
            "signature",
            f"not authenticated: {there}anyone could have made this package. Give the signer's key with "
            "--public-key",
        )
    if not found.is_file():
        return _failed("signature", f"there is no signature {found.name}")
    if digest is None:
        return _failed("signature", "the archive is not whole, so that no signature can be its own")
    try:
        verify_signature(digest, parse_signature(found.read_bytes(), str(found)), key, str(found))
    except NotVerifiedError as error:
        return _failed("signature", error.message)
    except OSError as error:
        raise UsageError(f"cannot be read ({error.strerror}).", place=str(found)) from error
    return _passed("signature", "made with the given key, for exactly this archive")


def _join(faults: list[str]) -> str:
    more = f"; and {len(faults) - _SHOWN} more" if len(faults) > _SHOWN else ""
    return "; ".join(faults[:_SHOWN]) + more


def _passed(name: str, detail: str) -> Check:
    return Check(name=name, status="passed", detail=detail.rstrip("."))


def _failed(name: str, detail: str) -> Check:
    return _FailedCheck(name, detail).check


def _unchecked(name: str, detail: str) -> Check:
    return Check(name=name, status="not_checked", detail=detail)
