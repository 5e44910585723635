"""Every bit of a line is guarded, what a power cut leaves is set aside, and older lines keep loading."""

import errno
import os
import re
import zlib
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from run_builders import create_run, period, request, requests

from draftproof.core.errors import StoreError
from draftproof.core.records import TelemetrySample
from draftproof.store import RunDirectory
from draftproof.store.journal import (
    DamagedLineError,
    Journal,
    encode_line,
    encode_sample,
    load_journal,
    load_samples,
    open_frame,
    open_sound_lines,
)
from draftproof.store.lines import LineFile, read_whole_lines, torn_path, write_atomically, write_error
from draftproof.store.tables import locate_requests

SAMPLE = TelemetrySample(arm="baseline", at_ns=5, values={"a": 1.5})
CRC = re.compile(rb'"crc":"[0-9a-f]{8}",')


def write(folder: Path, *records, tail: bytes = b"") -> Path:
    path = folder / "records.jsonl"
    path.write_bytes(b"".join(encode_line(record) + b"\n" for record in records) + tail)
    return path


def fail_sync(_fd: int) -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def flip(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


@given(requests)
@settings(max_examples=25, deadline=None)
def test_the_checksum_is_the_crc_32_of_the_record_as_it_stands_in_the_line(record):
    """Any other program can check a line: take the bytes of `record`, and zlib's CRC-32 of them."""
    line = encode_line(record)
    found = msgspec.json.decode(line)
    inside = line[line.index(b'"record":') + len(b'"record":') : -1]
    assert found["crc"] == f"{zlib.crc32(inside):08x}"
    assert bytes(open_frame(line).record) == inside


def test_every_flipped_bit_of_a_record_is_found():
    """No single bit of the record or of its checksum can change unseen."""
    line = encode_line(request(0, text="x"))
    start = 8 * line.index(b'"crc"')
    bits = range(start, 8 * len(line))
    missed = [bit for bit in bits if _means_other(line, bit)]
    assert missed == []


def _means_other(line: bytes, bit: int) -> bool:
    """Tell whether a flipped line would be read as another record; a key that is unknown is a refusal."""
    try:
        frame = open_frame(flip(line, bit))
    except (DamagedLineError, msgspec.ValidationError):
        return False
    return bytes(frame.record) != bytes(open_frame(line).record)


def test_lines_without_a_checksum_keep_loading(tmp_path):
    """Runs of before have none; a file may go on with lines that have one."""
    path = write(tmp_path, request(0), request(1))
    path.write_bytes(CRC.sub(b"", path.read_bytes()) + encode_line(request(2)) + b"\n")
    assert load_journal(tmp_path).records == (request(0), request(1), request(2))


@pytest.mark.parametrize(
    "tail",
    [
        b"\0" * 500,
        b"\0" * 500 + b"\n",
        b"\n\n",
        b"\xff\xfe\x80garbage\n\0\0\n" + b"\0" * 90,
        encode_line(request(7))[:-9] + b"\n",
        flip(encode_line(request(7)), 900)[:-1] + b"\n",
        b'17 "stale"}\n',
    ],
)
def test_damage_at_the_end_is_left_out_counted_and_set_aside(tmp_path, tail):
    """Whatever stands behind the last sound line, newline or not, costs itself alone."""
    path = write(tmp_path, request(0), request(1), tail=tail)
    before = load_journal(tmp_path)
    assert before.records == (request(0), request(1))
    assert before.torn_lines == tail.count(b"\n") + (not tail.endswith(b"\n"))
    journal = Journal(open_sound_lines(path))
    journal.append(request(2))
    journal.close()
    assert torn_path(path).read_bytes() == tail + b"\n" * (not tail.endswith(b"\n"))
    after = load_journal(tmp_path)
    assert after.records == (request(0), request(1), request(2))
    assert after.torn_lines == before.torn_lines


@given(st.binary(min_size=1, max_size=300))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes_at_the_end_leave_the_lines_before_them(tmp_path, tail):
    """Opening for writing after any garbage keeps every sound line and never joins one with the garbage."""
    path = write(tmp_path, request(0), period(), tail=tail)
    torn_path(path).unlink(missing_ok=True)
    journal = Journal(open_sound_lines(path))
    journal.append(request(1))
    journal.close()
    lines = [line for line in path.read_bytes().split(b"\n") if b'"crc"' in line]
    assert lines == [encode_line(request(0)), encode_line(period()), encode_line(request(1))]


@pytest.mark.parametrize("bit", [700, 3000])
def test_damage_in_the_middle_is_named_with_what_to_do(tmp_path, bit):
    """A line that was whole once and is not any more stops every reading, with file, line and a way on."""
    with create_run(tmp_path / "run") as run:
        for record in (request(0), request(1), request(2)):
            run.journal.append(record)
    path = tmp_path / "run" / "journal" / "records.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + flip(lines[1], bit) + lines[2])
    for read in (RunDirectory.open(tmp_path / "run").load, lambda: locate_requests(tmp_path / "run")):
        with pytest.raises(StoreError, match=r"records\.jsonl:2: this line was (damaged|changed)") as caught:
            read()
        assert f"sed -i.damaged 2d {path}" in str(caught.value.fix)
        assert f"draftproof run --resume {tmp_path / 'run'}" in str(caught.value.fix)
    path.write_bytes(lines[0] + lines[2])
    assert RunDirectory.open(tmp_path / "run").load().records == (request(0), request(2))


def test_a_whole_line_that_was_changed_is_an_error_even_at_the_end(tmp_path):
    """A power cut leaves no sound JSON with another content: an edit of the last records is told."""
    path = write(tmp_path, request(0), request(1))
    path.write_bytes(path.read_bytes().replace(b'"item_id":"a"', b'"item_id":"b"'))
    with pytest.raises(StoreError, match=r"records\.jsonl:1: this line was changed.*checksum"):
        load_journal(tmp_path)
    Journal(open_sound_lines(path)).close()
    assert not torn_path(path).exists()


def test_a_last_line_without_its_newline_is_no_line(tmp_path):
    """However whole it looks: the program that writes on sets it aside, so that no reader may count it."""
    path = tmp_path / "lines"
    path.write_bytes(b'{"a":1}\n{"b":2}')
    assert list(read_whole_lines(path)) == [(1, b'{"a":1}')]


def test_what_was_set_aside_twice_is_there_once(tmp_path):
    """A crash between setting aside and cutting leaves the bytes in both files; they count once."""
    path = write(tmp_path, request(0), tail=b"half")
    torn_path(path).write_bytes(b"half\n")
    LineFile(path).close()
    assert torn_path(path).read_bytes() == b"half\n"
    assert load_journal(tmp_path).torn_lines == 1


def test_samples_have_checksums_too_and_bare_ones_keep_loading(tmp_path):
    """A damaged sample at the end is left out, one in the middle or a changed one is an error."""
    bare, line = msgspec.json.encode(SAMPLE), encode_sample(SAMPLE)
    path = tmp_path / "baseline.jsonl"
    path.write_bytes(bare + b"\n" + line + b"\n" + line[:-1] + b"\n")
    assert load_samples(tmp_path) == (SAMPLE, SAMPLE)
    path.write_bytes(bare + b"\n" + flip(line, 500) + b"\n" + line + b"\n")
    with pytest.raises(StoreError, match=r"baseline\.jsonl:2: this line was changed"):
        load_samples(tmp_path)


def test_a_device_that_fails_is_one_sentence_and_the_rest_is_closed(tmp_path):
    """EIO at a sync names the file and says how to go on; closing twice is harmless."""
    journal = Journal(LineFile(tmp_path / "records.jsonl", fsync=fail_sync))
    journal.append(request(0))
    for act in (lambda: journal.append(period()), journal.close):
        with pytest.raises(StoreError, match=r"records\.jsonl: the device refused.*--resume"):
            act()
    journal.close()
    assert load_journal(tmp_path).records == (request(0),)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (errno.ENOSPC, "the disk is full.*free some space.*--resume"),
        (errno.EDQUOT, "the disk is full"),
        (errno.EIO, "the device refused.*sound disk.*--resume"),
        (errno.EROFS, r"cannot be written \(Read-only file system\).*make the folder writable"),
        (errno.EACCES, r"cannot be written \(Permission denied\).*make the folder writable"),
        (errno.ENAMETOOLONG, "cannot be written.*check the folder"),
    ],
)
def test_every_refusal_to_write_is_a_sentence_with_place_and_fix(tmp_path, code, words):
    """The file, what the system said of it, and what to do."""
    error = write_error(tmp_path / "journal.jsonl", OSError(code, os.strerror(code)))
    assert error.exit_code == 1
    assert error.place == str(tmp_path / "journal.jsonl")
    assert re.search(words, str(error))


def test_a_device_that_fails_does_not_keep_the_run_locked(tmp_path, monkeypatch):
    """Whatever a close meets, every other file is closed and the next process may write."""
    run = create_run(tmp_path / "run")
    run.journal.append(request(0))
    run.append_telemetry("baseline", SAMPLE)
    monkeypatch.setattr(run.journal._lines, "_fsync", fail_sync)
    with pytest.raises(StoreError):
        run.close()
    with RunDirectory.open(tmp_path / "run") as again:
        again.journal.append(request(1))
    assert len(again.load().records) == 2


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_at_any_byte_of_any_line_leaves_whole_lines(tmp_path, code):
    """However far a line got, the file ends with the last whole one, and the next has its place."""
    line = encode_line(request(1)) + b"\n"
    for room in (0, 1, 7, len(line) // 2, len(line) - 1):
        path = write(tmp_path, request(0))
        left = room

        def write_some(fd: int, data: bytes) -> int:
            nonlocal left
            if left == 0:
                raise OSError(code, os.strerror(code))
            taken = os.write(fd, data[:left])
            left -= taken
            return taken

        journal = Journal(LineFile(path, write=write_some))
        with pytest.raises(StoreError, match="the disk is full"):
            journal.append(request(1))
        left = 1 << 20
        journal.append(request(2))
        journal.close()
        assert load_journal(tmp_path).records == (request(0), request(2))


def test_a_full_disk_never_spoils_a_file_that_is_replaced(tmp_path, monkeypatch):
    """Results and manifest are the old ones or the new ones, and no part of one stays behind."""
    path = tmp_path / "results.json"
    write_atomically(path, b"old")

    def refuse(_fd: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(StoreError, match=r"results\.json: the disk is full"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert [one.name for one in tmp_path.iterdir()] == ["results.json"]


def test_a_run_that_was_ended_while_it_was_made_can_be_made_again(tmp_path):
    """Without a manifest nothing was measured: the same folder is free, unless it holds something else."""
    create_run(tmp_path / "run").close()
    (tmp_path / "run" / "manifest.json").rename(tmp_path / "run" / ".manifest.json.partial")
    create_run(tmp_path / "run").close()
    (tmp_path / "run" / "manifest.json").unlink()
    (tmp_path / "run" / "notes.txt").write_text("mine")
    with pytest.raises(StoreError, match="not empty"):
        create_run(tmp_path / "run")


def test_a_journal_with_a_line_is_never_taken_for_an_unmade_run(tmp_path):
    """A lost manifest does not make measured records free to be overwritten."""
    with create_run(tmp_path / "run") as run:
        run.journal.append(request(0))
    (tmp_path / "run" / "manifest.json").unlink()
    with pytest.raises(StoreError, match="not empty"):
        create_run(tmp_path / "run")
