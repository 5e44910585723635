"""Features of an answer as a sequence: by hand, in any script, and of withheld answers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.builders.records import build_record

from draftproof.core.records import ToolCall, Withheld, WithheldSequence
from draftproof.judge.metrics.sequence import (
    describe_sequence,
    join_generated,
    share_distinct,
    share_repeated,
    split_words,
)


def test_shares_by_hand():
    """Of 1 2 3 1 2 3 half the tokens are distinct, and of four runs of three one repeats."""
    parts = (1, 2, 3, 1, 2, 3)
    assert share_distinct(parts) == 0.5
    assert share_repeated(parts) == 0.25


def test_what_is_too_short_is_not_known():
    """No share of nothing, no run of three in two tokens."""
    assert share_distinct(()) is None
    assert share_repeated((1, 2)) is None


@given(st.lists(st.integers(0, 5), min_size=3))
def test_shares_lie_between_0_and_1(parts):
    """Whatever was generated."""
    assert 0 < (share_distinct(parts) or 0) <= 1
    assert 0 <= (share_repeated(parts) or 0) < 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Paris, of course.", ("Paris", ",", "of", "course", ".")),
        ("我喜欢 tea", ("我", "喜", "欢", "tea")),
        ("مرحبا بالعالم", ("مرحبا", "بالعالم")),
        ("", ()),
    ],
)
def test_words_of_any_script(text, words):
    """Letters form words; Chinese characters stand alone, since no space parts them."""
    assert split_words(text) == words


def test_token_ids_and_words_are_two_readings():
    """By ids where they are disclosed, by words of all that was generated else."""
    record = build_record(
        text="b",
        reasoning_text="a",
        tool_calls=(ToolCall("f", "{}"),),
        token_ids=(3, 3, 4),
        finish_reason="length",
    )
    by_ids, by_words = describe_sequence(record, by_ids=True), describe_sequence(record, by_ids=False)
    assert (by_ids.first, by_ids.bigrams, by_ids.is_cut) == (3, frozenset({(3, 3), (3, 4)}), True)
    assert by_words.first == "a"
    assert join_generated(record) == "a\nb\nf\n{}"


def test_a_withheld_answer_is_not_decoded():
    """Its digests look like tokens and words, and are not counted as such."""
    record = build_record(token_ids=(1, 2, 3), text="hmac", withheld=Withheld())
    features = describe_sequence(record, by_ids=True)
    assert (features.first, features.distinct_share, features.bigrams) == (None, None, None)
    kept = WithheldSequence(first=9, distinct_share=0.5, repeated_share=0.0, bigrams=(4, 5))
    told = describe_sequence(build_record(withheld=Withheld(sequence=kept)), by_ids=True)
    assert (told.first, told.distinct_share, told.bigrams) == (9, 0.5, frozenset({4, 5}))
