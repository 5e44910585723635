"""Counting by a tokenizer after the run: once over the text, by where tokens begin, never over a count."""

import msgspec
import pytest

from draftproof.core.records import TokenCounts, ToolCall
from draftproof.judge.metrics.request import (
    apply_counts,
    compute_request_metrics,
    count_output_tokens,
    count_tokens,
    list_uncounted,
)

MS = 1_000_000


class Words:
    """A tokenizer whose tokens are words; it notes what it is asked."""

    def __init__(self):
        self.texts = []

    def __call__(self, text):
        self.texts.append(text)
        return [at for at, sign in enumerate(text) if sign != " " and (at == 0 or text[at - 1] == " ")]


@pytest.fixture
def build_uncounted(build_record):
    def build(pieces, **fields):
        chunks = [(10 * at, None) for at in range(len(pieces))]
        texts = {"text": "".join(pieces), "piece_chars": tuple(map(len, pieces))}
        return build_record(chunks, **(texts | fields))

    return build


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        (["one ", "two ", "three"], (1, 2, 3)),
        (["one", " two", " three"], (1, 2, 3)),
        (["o", "ne tw", "o three"], (1, 2, 3)),  # a token belongs to the chunk that it begins in
        (["one two", " ", "three"], (2, 2, 3)),
    ],
)
def test_a_chunk_has_the_tokens_that_begin_in_it(build_uncounted, pieces, expected):
    """Wherever the text is cut, each token is counted once, and the first chunk of a text has one."""
    assert count_tokens(build_uncounted(pieces), Words()) == expected


@pytest.mark.parametrize("chunks", [128, 1024])
def test_the_work_grows_with_the_text_alone(build_uncounted, chunks):
    """The tokenizer sees every character once, however many chunks brought them."""
    words, record = Words(), build_uncounted(["word "] * chunks)
    assert count_tokens(record, words) == tuple(range(1, chunks + 1))
    assert words.texts == [record.text]


def test_parts_of_an_answer_are_counted_one_after_the_other(build_uncounted):
    """Reasoning, text and tool calls are tokenised each by itself, in the order of the record."""
    calls = (ToolCall("find", "a b"), ToolCall("open", ""))
    record = build_uncounted(
        ["let us", "see", "finda b", "open"], text="see", reasoning_text="let us", tool_calls=calls
    )
    words = Words()
    assert count_tokens(record, words) == (2, 3, 5, 6)
    assert words.texts == ["let us", "see", "finda b", "open"]


def test_texts_that_are_not_those_that_arrived_are_not_counted(build_uncounted):
    """A masked or withheld text has other characters, and chunks that say nothing have none."""
    record = build_uncounted(["one ", "two"])
    assert count_tokens(msgspec.structs.replace(record, text="one ***"), Words()) == (1, 2)
    assert count_tokens(msgspec.structs.replace(record, text="***"), Words()) is None
    assert count_tokens(msgspec.structs.replace(record, piece_chars=None), Words()) is None
    assert count_tokens(msgspec.structs.replace(record, piece_chars=(7,)), Words()) is None


def test_counts_make_a_rate_and_a_total(build_uncounted):
    """Counted after the run, an answer has its time per token, and its length if nobody said it."""
    record = build_uncounted(["one two ", "three ", "four"])
    counts = TokenCounts(request_id=record.request_id, end_ns=record.end_ns, cumulative_tokens=(2, 3, 4))
    (counted,) = apply_counts([record], [counts])
    metrics = compute_request_metrics(counted, 200 * MS)
    assert (metrics.tpot_ns, metrics.tpot_basis) == (10 * MS, "counted")
    assert (counted.token_source, count_output_tokens(counted)) == ("tokenizer", 4)


def test_another_attempt_at_the_request_keeps_its_own_chunks(build_uncounted):
    """Counts belong to one attempt; a stated count is never replaced."""
    record = build_uncounted(["one ", "two"])
    counts = TokenCounts(request_id=record.request_id, end_ns=record.end_ns + 1, cumulative_tokens=(1, 2))
    assert apply_counts([record], [counts]) == (record,)
    stated = msgspec.structs.replace(record, token_source="engine")  # noqa: S106
    own = msgspec.structs.replace(counts, end_ns=record.end_ns)
    assert apply_counts([stated], [own]) == (stated,)
    assert list_uncounted([record, stated]) == (record,)
