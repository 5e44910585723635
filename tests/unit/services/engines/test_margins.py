"""Margins of the two likeliest tokens, from the log-probabilities of a chat stream."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.builders.records import build_record

from draftproof.core.records import RequestRecord
from draftproof.services.engines.chat.fold import ChatFold
from draftproof.store.journal import encode_line
from draftproof.store.tables import load_table, save_table


def entry(*values):
    top = [{"token": f"t{index}", "logprob": value, "bytes": None} for index, value in enumerate(values)]
    return {"token": "a", "logprob": values[0] if values else None, "bytes": None, "top_logprobs": top}


def frame(ids, logprobs, text="x"):
    choice = {
        "index": 0,
        "delta": {"content": text},
        "token_ids": ids,
        "logprobs": logprobs,
        "finish_reason": None,
    }
    return {"choices": [choice]}


def fold(*frames):
    answer = ChatFold()
    for index, body in enumerate(frames):
        answer.add(json.dumps(body).encode(), index)
    return answer.finish()


def test_one_margin_a_token_whatever_the_chunks_hold():
    """A chunk of three tokens and one of one: four margins, natural logarithm, the best two of the list."""
    answer = fold(
        frame([1, 2, 3], {"content": [entry(-0.1, -2.6), entry(-0.7, -0.7), entry(-3.0, -0.2, -1.7)]}),
        frame([4], {"content": [entry(-0.5, -1.0)]}),
    )
    assert answer.top_two_margins == (2.5, 0.0, 1.5, 0.5)
    assert answer.token_ids == (1, 2, 3, 4)


def test_without_log_probabilities_there_is_nothing():
    """The field is absent or null, as in every run that does not ask for it."""
    assert fold(frame([1], None)).top_two_margins is None
    assert (
        fold({"choices": [{"index": 0, "delta": {"content": "x"}, "token_ids": [1]}]}).top_two_margins is None
    )


@pytest.mark.parametrize(
    "bad",
    [
        "text",
        7,
        [],
        {"content": None},
        {"content": [1]},
        {"content": [{"top_logprobs": None}]},
        {"content": [{"top_logprobs": [{"logprob": None}, {"logprob": True}]}]},
        {"content": [{"top_logprobs": [{"logprob": -1.0}]}]},
        {"content": [entry(-1.0, -2.0), entry(-1.0, -2.0)]},
    ],
)
def test_what_cannot_be_read_is_none_and_fails_no_answer(bad):
    """Another shape, one alternative only, or more entries than tokens: the rest of the answer stands."""
    answer = fold(frame([1], bad), frame([2], {"content": [entry(-0.5, -1.5)]}))
    assert answer.text == "xx"
    assert answer.top_two_margins == (None, 1.0)


def test_a_chunk_without_margins_keeps_the_others_in_place():
    """A missing part is None at its tokens, before, between and after."""
    known = {"content": [entry(-0.5, -1.5)]}
    answer = fold(
        frame([1, 2], None), frame([3], known), frame([4], None), frame([5], known), frame([6], None)
    )
    assert answer.top_two_margins == (None, None, 1.0, None, 1.0, None)


def test_margins_without_token_ids_belong_to_no_token():
    """Positions are compared by token id, so a margin without one says nothing."""
    body = frame(None, {"content": [entry(-0.5, -1.5)]})
    assert fold(body).top_two_margins is None
    mixed = fold(frame([1], {"content": [entry(-0.5, -1.5)]}), body)
    assert (mixed.token_ids, mixed.top_two_margins) == (None, None)


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=8))
def test_margins_are_as_long_as_the_token_ids(chunks):
    """However chunks come, with log-probabilities or without: one entry for each token id, or None."""
    bodies = [
        frame(list(range(size)), {"content": [entry(-0.7, -0.9)] * size} if told else None)
        for size, told in chunks
    ]
    answer = fold(*bodies)
    told_tokens = sum(size for size, told in chunks if told)
    if answer.top_two_margins is None:
        assert told_tokens == 0
    else:
        assert len(answer.top_two_margins) == len(answer.token_ids or ())
        assert sum(one is not None for one in answer.top_two_margins) == told_tokens


def test_the_stores_keep_margins_and_old_records_load(tmp_path):
    """Both stores give back what was put in; a record of before the field has None."""
    with_it, without = build_record(top_two_margins=(0.25, None)), build_record(item_id="other")
    save_table(tmp_path / "records.parquet", [with_it, without], RequestRecord)
    assert load_table(tmp_path / "records.parquet", RequestRecord) == (with_it, without)
    old = {key: value for key, value in msgspec.to_builtins(with_it).items() if key != "top_two_margins"}
    assert msgspec.convert(old, RequestRecord).top_two_margins is None
    assert b"0.25,null" in encode_line(with_it)


@pytest.mark.parametrize(
    "values",
    [
        (0.0, -9999.0),
        (0.0, -3.4028234663852886e38),
        (0.0, -65504.0),
        (-0.1, -1e9),
        (0.0, 0.0),
        (-0.1, -0.1),
        (0.3, -1.0),
        (1.0, 0.5),
        (-9999.0, -9999.0),
    ],
)
def test_a_stand_in_is_no_measurement(values):
    """Minus infinity in disguise, two sure tokens at once and a positive value tell no margin."""
    answer = fold(frame([1, 2], {"content": [entry(*values), entry(-0.2, -1.9)]}))
    assert answer.top_two_margins == (None, 1.7)


@pytest.mark.parametrize(
    ("values", "margin"),
    [((0.0, -30.0), 30.0), ((-0.6931, -0.6931), 0.0), ((0.0, -400.0), 400.0), ((-5.0, -9.0), 4.0)],
)
def test_what_two_tokens_can_have_is_kept(values, margin):
    """A sure token, an even race and an unlikely pair of a broad distribution are measurements."""
    assert fold(frame([1], {"content": [entry(*values)]})).top_two_margins == (margin,)


def test_a_stand_in_behind_the_two_likeliest_takes_nothing_away():
    """Only the two that make the margin have to be measured."""
    assert fold(frame([1], {"content": [entry(-0.2, -1.9, -9999.0)]})).top_two_margins == (1.7,)
