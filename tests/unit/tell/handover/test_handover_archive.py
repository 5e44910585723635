"""The archive has one form: same content, same bytes, and any other byte is refused by name."""

import hashlib
import io
import os
import subprocess
import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftproof.core.errors import NotVerifiedError, StoreError
from draftproof.store.run_directory import encode_document
from draftproof.tell.handover import archive
from draftproof.tell.handover.archive import (
    END,
    LISTING_NAME,
    check_sizes,
    extract,
    is_safe_name,
    make_header,
    make_listing,
    read_member,
    scan_archive,
    write_archive,
)
from draftproof.tell.handover.verifying import check_bytes


def write(folder, members, name="a.tar"):
    paths = {member: folder / f"m-{number}" for number, member in enumerate(members)}
    for member, data in members.items():
        paths[member].write_bytes(data)
    with (folder / name).open("wb") as file:
        write_archive(file, paths)
    return folder / name


def tar_of(folder, *infos):
    """Write an archive with Python's own library: (TarInfo, data) pairs as they are."""
    with tarfile.open(folder / "foreign.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
        for info, data in infos:
            tar.addfile(info, io.BytesIO(data))
    return folder / "foreign.tar"


def plain(name, data=b"x", **fields):
    info = tarfile.TarInfo(name)
    info.size = len(data)
    for field, value in fields.items():
        setattr(info, field, value)
    return info, data


def test_other_tools_read_it(tmp_path):
    """tar(1) and tarfile list and unpack it; the order of writing does not matter."""
    path = write(tmp_path, {"b/two.txt": b"2" * 600, "a.txt": b"", "c": b"3"})
    with tarfile.open(path) as tar:
        assert [member.name for member in tar] == ["a.txt", "b/two.txt", "c"]
        assert {(member.mtime, member.uid, member.uname, member.mode) for member in tar} == {
            (0, 0, "", 0o644)
        }
    listed = subprocess.run(["tar", "-tf", path], capture_output=True, text=True, check=True)
    assert listed.stdout.split() == ["a.txt", "b/two.txt", "c"]
    again = write(tmp_path, {"c": b"3", "a.txt": b"", "b/two.txt": b"2" * 600}, "again.tar")
    assert again.read_bytes() == path.read_bytes()


def test_what_was_written_is_read(tmp_path):
    """Names, contents and folders come back."""
    members = {"a.txt": b"", "b/two.txt": b"2" * 600}
    path = write(tmp_path, members)
    entries, _ = scan_archive(path)
    assert {entry.name: read_member(path, entry) for entry in entries} == members
    extract(path, entries, tmp_path / "out")
    assert (tmp_path / "out/b/two.txt").read_bytes() == members["b/two.txt"]


@pytest.mark.parametrize(
    "name",
    [
        "../up",
        "/root",
        "a/../b",
        "a//b",
        "./a",
        ".hidden",
        "a/.b",
        "",
        "a\\b",
        "a b",
        "é",
        "a/b/c/d/e",
        "x" * 101,
    ],
)
def test_a_name_that_leads_elsewhere_is_refused(tmp_path, name):
    """Neither written nor read: no path leaves the folder it is unpacked into."""
    assert not is_safe_name(name)
    with pytest.raises(StoreError, match="cannot be packed"):
        make_header(name, 1)
    if name and len(name) <= 100:
        with pytest.raises(NotVerifiedError, match="is not one that draftproof writes"):
            scan_archive(tar_of(tmp_path, plain(name)))


@pytest.mark.parametrize(
    "kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE, b"g", b"x"]
)
def test_a_member_that_is_no_plain_file_is_refused(tmp_path, kind):
    """Links, folders, devices, pipes and extended headers."""
    with pytest.raises(NotVerifiedError, match="is a link or no plain file"):
        scan_archive(tar_of(tmp_path, plain("a", b"", type=kind, linkname="/etc/passwd")))


def test_a_name_that_comes_twice_is_refused(tmp_path):
    """The second would replace the first that was checked."""
    data = make_header("a", 0) + make_header("a", 0) + END
    (tmp_path / "twice.tar").write_bytes(data)
    with pytest.raises(NotVerifiedError, match="comes twice or out of order"):
        scan_archive(tmp_path / "twice.tar")


def test_a_size_that_the_file_does_not_have_is_refused_at_once(tmp_path):
    """A header may claim gigabytes; nothing of that size is allocated or written."""
    (tmp_path / "bomb.tar").write_bytes(make_header("a", 8**11 - 1) + b"x" * 512 + END)
    with pytest.raises(NotVerifiedError, match="claims more than it holds"):
        scan_archive(tmp_path / "bomb.tar")


def test_sizes_are_checked_before_anything_is_hashed(tmp_path, monkeypatch):
    """A document of gigabytes, or an archive larger than any package: refused by its size alone."""
    path, size = tmp_path / "big.tar", archive.MAX_DOCUMENT_BYTES + 1
    path.write_bytes(make_header("a.json", size))
    os.truncate(path, 512 + size)
    monkeypatch.setattr(archive, "_read_entry", lambda *_: pytest.fail("it was read"))
    with pytest.raises(NotVerifiedError, match=r"a\.json is larger than any document"):
        scan_archive(path)
    os.truncate(path, archive.MAX_ARCHIVE_BYTES + 1)
    with pytest.raises(NotVerifiedError, match="more than a package can have"):
        scan_archive(path)


def test_what_could_not_be_read_again_is_not_packed(tmp_path):
    """The same limits hold for whoever packs; raw data, read line by line, may be larger."""
    for name in ("a.json", "a.jsonl"):
        (tmp_path / name).touch()
        os.truncate(tmp_path / name, archive.MAX_DOCUMENT_BYTES + 1)
    check_sizes({"a.jsonl": tmp_path / "a.jsonl"})
    with pytest.raises(StoreError, match="at most 268,435,456 can"):
        write_archive(io.BytesIO(), {"a.json": tmp_path / "a.json"})
    os.truncate(tmp_path / "a.jsonl", 8**11 - 1)
    with pytest.raises(StoreError, match="a package holds at most"):
        check_sizes({f"{n}.jsonl": tmp_path / "a.jsonl" for n in range(9)})


def test_what_lies_behind_the_end_is_not_read_whole(tmp_path):
    """Nothing is allocated that an archive's maker chose the size of."""
    path = write(tmp_path, {"a": b"1"})
    os.truncate(path, 1 << 33)
    with pytest.raises(NotVerifiedError, match="does not end"):
        scan_archive(path)


def test_the_archive_is_hashed_while_it_is_read(tmp_path):
    """One pass gives the members and the hash of the whole file."""
    path = write(tmp_path, {"a": b"1" * 3000, "b": b""})
    assert archive.scan_archive(path)[1] == hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("field", ["mode", "uid", "mtime"])
def test_a_header_with_foreign_facts_is_refused(tmp_path, field):
    """Owner, mode and time are no place to hide a byte."""
    with pytest.raises(NotVerifiedError, match="the header of a is not the one"):
        scan_archive(tar_of(tmp_path, plain("a", **{field: 7})))


def test_a_compressed_file_is_no_package(tmp_path):
    """Nothing is unpacked that could grow."""
    with tarfile.open(tmp_path / "a.tar", "w:gz") as tar:
        tar.addfile(*[plain("a")[0], io.BytesIO(b"x")])
    with pytest.raises(NotVerifiedError):
        scan_archive(tmp_path / "a.tar")


def test_every_cut_is_found(tmp_path):
    """An archive that ends anywhere before its end is refused."""
    whole = write(tmp_path, {"a": b"1" * 10, "b": b"2"}).read_bytes()
    cut = tmp_path / "cut.tar"
    cut.write_bytes(whole)
    for length in reversed(range(len(whole))):
        os.truncate(cut, length)
        with pytest.raises(NotVerifiedError):
            scan_archive(cut)
    cut.write_bytes(whole + b"\0")
    with pytest.raises(NotVerifiedError, match="does not end"):
        scan_archive(cut)


def test_every_flipped_byte_of_a_tiny_package_is_found(tmp_path):
    """Each byte of archive, headers, padding, contents and listing, one bit each: nothing passes."""
    data = tmp_path / "data"
    data.write_bytes(b"raw data")
    listing = make_listing(
        {"data": data},
        draftproof_version="0",
        run_name="r",
        decision="defer",
        withheld=False,
        clock_restarts=(),
    )
    whole = write(tmp_path, {"data": b"raw data", LISTING_NAME: encode_document(listing)}).read_bytes()
    path = tmp_path / "flipped.tar"
    path.write_bytes(whole)
    check_bytes(path)
    missed = []
    descriptor = os.open(path, os.O_RDWR)
    for at, byte in enumerate(whole):
        os.pwrite(descriptor, bytes([byte ^ (1 << at % 8)]), at)
        try:
            check_bytes(path)
            missed.append(at)
        except NotVerifiedError:
            pass
        os.pwrite(descriptor, bytes([byte]), at)
    os.close(descriptor)
    assert missed == []


def test_a_listing_that_is_spelt_otherwise_is_refused(tmp_path):
    """White space or a key that comes twice is a byte that no hash of a file covers."""
    listing = make_listing(
        {}, draftproof_version="0", run_name="r", decision="defer", withheld=False, clock_restarts=()
    )
    raw = encode_document(listing)
    for number, spelt in enumerate((raw + b"\n", raw.replace(b"{", b'{"decision": "adopt",', 1))):
        with pytest.raises(NotVerifiedError, match="is not written as draftproof writes it"):
            check_bytes(write(tmp_path, {LISTING_NAME: spelt}, f"{number}.tar"))


@given(name=st.text(max_size=12))
def test_a_safe_name_stays_in_its_folder(name):
    """Whatever is called safe is relative, has no parent step and no hidden part."""
    if is_safe_name(name):
        parts = name.split("/")
        assert all(part and not part.startswith(".") for part in parts)
        assert name.isascii()
        assert "\\" not in name
