"""Reading what was added to a journal: each record once, whole lines only, new files too."""

import pytest
from run_builders import period, request

from draftproof.core.errors import StoreError
from draftproof.core.records import RequestRecord
from draftproof.store.journal import Journal, JournalTail
from draftproof.store.lines import LineFile


@pytest.fixture
def journal(tmp_path):
    journal = Journal(LineFile(tmp_path / "records.jsonl"))
    yield journal
    journal.close()


def test_only_what_was_added_is_read_and_only_once(tmp_path, journal):
    """Records from before are left out, later ones come once, in the order in which they were written."""
    journal.append(request(1))
    tail = JournalTail(tmp_path)
    assert tail.read() == []
    journal.append(request(2))
    journal.append(period())
    assert tail.read() == [request(2), period()]
    assert tail.read() == []


def test_a_file_that_began_later_is_read_from_its_start(tmp_path, journal):
    """A load worker's own file is followed too."""
    tail = JournalTail(tmp_path)
    worker = Journal(LineFile(tmp_path / "records-w1.jsonl"))
    worker.append(request(3))
    worker.close()
    journal.append(request(4))
    found = {one.request_id for one in tail.read() if isinstance(one, RequestRecord)}
    assert found == {"r3", "r4"}


def test_an_unfinished_line_is_left_until_it_is_whole(tmp_path, journal):
    """Half a line is no record yet; with its rest it is one."""
    tail, path = JournalTail(tmp_path), tmp_path / "records.jsonl"
    journal.append(request(5))
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    assert tail.read() == []
    path.write_bytes(whole)
    assert tail.read() == [request(5)]


def test_a_damaged_line_is_an_error(tmp_path, journal):
    """What this run has just written must be readable."""
    tail, path = JournalTail(tmp_path), tmp_path / "records.jsonl"
    journal.append(request(6))
    path.write_bytes(path.read_bytes().replace(b'"r6"', b'"r7"'))
    with pytest.raises(StoreError, match="damaged"):
        tail.read()
