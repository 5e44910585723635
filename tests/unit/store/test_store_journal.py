"""The journal survives what happens to files, and reads back the same."""

import errno
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from run_builders import period, request, requests

from draftproof.core.errors import StoreError
from draftproof.store.journal import Journal, encode_line, load_journal
from draftproof.store.lines import LineFile, RunLock, torn_path

GOLDEN = Path(__file__).parent / "journal_v1.jsonl"


def journal_of(folder: Path, **options) -> Journal:
    return Journal(LineFile(folder / "records.jsonl", **options))


def write(folder: Path, *records) -> None:
    journal = journal_of(folder)
    for record in records:
        journal.append(record)
    journal.close()


def test_records_read_back_equal(tmp_path):
    """What is appended is what is loaded, requests and turns apart."""
    write(tmp_path, request(0), request(1), period())
    contents = load_journal(tmp_path)
    assert contents.records == (request(0), request(1))
    assert contents.blocks == (period(),)
    assert contents.torn_lines == 0


@given(st.lists(requests, max_size=6))
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_records_survive_the_journal(tmp_path, records):
    """Any record, with any text and any missing value, is one line and reads back equal."""
    path = tmp_path / "records.jsonl"
    path.unlink(missing_ok=True)
    write(tmp_path, *records)
    assert path.read_bytes().count(b"\n") == len(records)
    assert sorted(map(repr, load_journal(tmp_path).records)) == sorted(map(repr, records))


def test_order_does_not_depend_on_the_order_of_writing(tmp_path):
    """Requests come ordered by block, arm, place and id however they were written."""
    records = [request(n, block=b, arm=a) for b in (0, 1) for a in ("baseline", "candidate") for n in (0, 1)]
    write(tmp_path / "forward", *records)
    write(tmp_path / "back", *reversed(records))
    assert load_journal(tmp_path / "forward").records == tuple(records)
    assert load_journal(tmp_path / "back").records == tuple(records)


def test_two_attempts_at_one_place_keep_their_order(tmp_path):
    """Records that agree in every ordering key stay in the order of writing."""
    first, second = request(0, outcome="cut"), request(0, outcome="ok")
    write(tmp_path, first, second)
    assert load_journal(tmp_path).records == (first, second)


def test_record_is_on_disk_before_append_returns(tmp_path):
    """A reader sees a record at once: nothing waits in a buffer of the writer."""
    journal = journal_of(tmp_path)
    journal.append(request())
    assert load_journal(tmp_path).records == (request(),)
    journal.close()


def test_torn_last_line_is_left_out_and_counted(tmp_path):
    """Half a line at the end costs that record only, and is counted."""
    write(tmp_path, request(0), request(1))
    path = tmp_path / "records.jsonl"
    path.write_bytes(path.read_bytes()[:-7])
    contents = load_journal(tmp_path)
    assert contents.records == (request(0),)
    assert contents.torn_lines == 1


@pytest.mark.parametrize("keep", [1, 20, -1])
def test_reopening_moves_a_torn_line_aside_and_appends_after_the_last_whole_one(tmp_path, keep):
    """After a torn line the journal goes on; the torn bytes are kept beside it and stay counted."""
    write(tmp_path, request(0))
    path = tmp_path / "records.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:keep])
    write(tmp_path, request(1))
    contents = load_journal(tmp_path)
    assert contents.records == (request(0), request(1))
    assert contents.torn_lines == 1
    assert torn_path(path).read_bytes() == whole[:keep] + b"\n"


def test_journal_of_one_torn_line_is_empty(tmp_path):
    """A file without a single whole line holds no record."""
    (tmp_path / "records.jsonl").write_bytes(b'{"kind"')
    assert load_journal(tmp_path).records == ()
    write(tmp_path, request())
    assert load_journal(tmp_path).records == (request(),)


def test_very_long_torn_line_is_found_from_the_end(tmp_path):
    """A torn line longer than one read is still cut at the last newline."""
    write(tmp_path, request(0))
    path = tmp_path / "records.jsonl"
    path.write_bytes(path.read_bytes() + b"x" * 3_000_000)
    write(tmp_path, request(1))
    assert load_journal(tmp_path).records == (request(0), request(1))


@pytest.mark.parametrize(
    "bad", [b"not json", b"{}", b'{"kind":"request","v":1,"record":{}}', b"\xff\xfe", b""]
)
def test_any_other_bad_line_is_an_error_with_file_and_line(tmp_path, bad):
    """A bad line inside the journal is never skipped: it is named by file and line."""
    write(tmp_path, request(0), request(1))
    path = tmp_path / "records.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + bad + b"\n" + lines[1])
    with pytest.raises(StoreError) as caught:
        load_journal(tmp_path)
    assert caught.value.place == f"{path}:2"


def test_newer_schema_version_is_told_apart_from_a_bad_line(tmp_path):
    """A line of a later version asks for a newer program."""
    known = encode_line(request()).replace(b'"v":1', b'"v":99')
    for line in (b'{"kind":"request","v":99,"record":{"new":1}}', known):
        (tmp_path / "records.jsonl").write_bytes(line + b"\n")
        with pytest.raises(StoreError, match="use a newer draftproof"):
            load_journal(tmp_path)


def test_file_of_schema_version_1_keeps_loading(tmp_path):
    """A journal as version 1 wrote it loads; fields that came later take their defaults."""
    (tmp_path / "records.jsonl").write_bytes(GOLDEN.read_bytes())
    contents = load_journal(tmp_path)
    assert [record.request_id for record in contents.records] == ["old-1", "old-2"]
    assert contents.records[0].chunks[1].cumulative_tokens == 4
    assert contents.records[1].rounds is None
    assert contents.blocks[0].completed


def test_disk_full_keeps_every_whole_line_and_says_what_to_do(tmp_path):
    """A write cut in the middle by a full disk leaves no torn line and raises one clear error."""
    room = 40

    def write_until_full(fd: int, data: bytes) -> int:
        nonlocal room
        if room == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        taken = os.write(fd, data[:room])
        room -= taken
        return taken

    write(tmp_path, request(0))
    before = (tmp_path / "records.jsonl").read_bytes()
    journal = journal_of(tmp_path, write=write_until_full)
    with pytest.raises(StoreError, match=r"the disk is full.*Fix: free some space.*--resume"):
        journal.append(request(1))
    assert (tmp_path / "records.jsonl").read_bytes() == before
    room = 1 << 20
    journal.append(request(2))
    journal.close()
    assert load_journal(tmp_path).records == (request(0), request(2))


def test_limit_of_the_kernel_on_file_size_is_met_like_a_full_disk(tmp_path):
    """With a real limit the kernel writes a part and refuses the rest; the journal stays whole."""
    journal = journal_of(tmp_path)
    journal.append(request(0))
    size = (tmp_path / "records.jsonl").stat().st_size
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 30, hard))
    try:
        with pytest.raises(StoreError, match="the disk is full"):
            journal.append(request(1))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, ignored)
    journal.close()
    assert (tmp_path / "records.jsonl").stat().st_size == size


def test_killed_writer_loses_no_appended_record(tmp_path):
    """A process killed without warning leaves every record whose append returned."""
    program = (
        "import os, signal, sys; sys.path[:0] = sys.argv[2:];"
        "from pathlib import Path; from run_builders import request;"
        "from test_store_journal import journal_of;"
        "journal = journal_of(Path(sys.argv[1])); journal.append(request(0)); journal.append(request(1));"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path), str(Path(__file__).parent), *sys.path], check=False
    )
    assert ended.returncode == -signal.SIGKILL
    assert load_journal(tmp_path).records == (request(0), request(1))


def test_second_writer_is_refused_and_the_first_is_named(tmp_path):
    """While one writer holds the lock, another is told its process id."""
    lock = RunLock(tmp_path / "run.lock")
    with pytest.raises(StoreError, match=rf"another process \(id {os.getpid()}\)"):
        RunLock(tmp_path / "run.lock")
    lock.release()
    lock.release()
    RunLock(tmp_path / "run.lock").release()


def test_lock_of_a_dead_process_holds_nobody_up(tmp_path):
    """A lock file left by a process that is gone can be taken."""
    program = (
        "import sys; from pathlib import Path; from draftproof.store.lines import RunLock;"
        "RunLock(Path(sys.argv[1])); print('locked')"
    )
    path = tmp_path / "run.lock"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", program, str(path)], check=True, capture_output=True, env=environment
    )
    assert done.stdout == b"locked\n"
    RunLock(path).release()


def test_unwritable_place_is_a_clear_error(tmp_path):
    """A journal below a file instead of a folder is refused in one sentence."""
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreError, match="cannot be written"):
        journal_of(tmp_path / "file")
