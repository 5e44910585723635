"""Tokens counted after the run: kept beside the requests, part of them in every form of a run."""

import pytest
from run_builders import create_run, period, request
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from draftproof.core.records import Chunk
from draftproof.measure.run.answer_judging import count_answers
from draftproof.store import RunDirectory, save_compacted
from draftproof.store.journal import load_journal
from draftproof.tell.handover.packing import stage_run, withhold_stage

CHUNKS = (Chunk(10, None), Chunk(20, None))
COUNTED = (Chunk(10, 1), Chunk(20, 3))
UNCOUNTED = {"chunks": CHUNKS, "text": "one two three", "piece_chars": (4, 9), "token_source": None}


@pytest.fixture
def model(tmp_path):
    """Return a tokenizer that knows three words, cut short for training."""
    file = tmp_path / "tokenizer.json"
    tokenizer = Tokenizer(WordLevel({"one": 0, "two": 1, "three": 2}, unk_token="one"))  # noqa: S106
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.enable_truncation(2)
    tokenizer.save(str(file))
    return file


@pytest.fixture
def run(tmp_path, model):
    with create_run(tmp_path / "run") as run:
        run.journal.append(request(**UNCOUNTED))
        run.journal.append(period())
        count_answers(run, run.load(), model)
    return RunDirectory.open(tmp_path / "run")


def counts(records):
    return [(one.chunks, one.token_source) for one in records]


def test_a_run_is_read_with_its_counts(run):
    """The journal's line stays as it was written; what is read has the counts, and no tokenizer is needed."""
    assert counts(run.load().records) == [(COUNTED, "tokenizer")]
    assert b'"tokenizer"' not in (run.path / "journal" / "records.jsonl").read_bytes()


def test_counting_again_finds_nothing_to_count(run, model):
    """A resumed run counts what it lacks and no more."""
    before = (run.path / "journal" / "tokens.jsonl").read_bytes()
    with run:
        count_answers(run, run.load(), model)
    assert (run.path / "journal" / "tokens.jsonl").read_bytes() == before


def test_without_a_tokenizer_nothing_is_counted(tmp_path):
    """The counts stay unknown."""
    with create_run(tmp_path / "run") as run:
        run.journal.append(request(**UNCOUNTED))
        assert counts(count_answers(run, run.load(), None).records) == [(CHUNKS, None)]


def test_a_compacted_run_keeps_the_counts(run, tmp_path):
    """They are columns of the table of requests."""
    folder = save_compacted(run.path, tmp_path / "small")
    assert counts(RunDirectory.open(folder).load().records) == [(COUNTED, "tokenizer")]


def test_a_handed_over_run_keeps_the_counts_and_not_the_lengths_of_pieces(run, tmp_path):
    """The lengths of single pieces would tell a withheld text."""
    stage_run(run.path, tmp_path / "stage")
    withhold_stage(tmp_path / "stage", run.load(), b"salt of sixteen bytes")
    (record,) = load_journal(tmp_path / "stage" / "journal").records
    assert (record.chunks, record.piece_chars) == (COUNTED, None)
