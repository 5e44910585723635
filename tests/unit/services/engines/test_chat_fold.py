"""The fold over a chat stream: what is a content chunk, and which count its chunks get."""

import json

import pytest

from draftproof.core.records import ToolCall
from draftproof.services.engines.chat.fold import ChatFold
from draftproof.services.engines.protocol import FrameError


def frame(delta=None, *, ids=None, usage=None, finish=None, **extra):
    choice = {"index": 0, "delta": delta or {}, "finish_reason": finish}
    if ids is not None:
        choice["token_ids"] = ids
    body = {"choices": [choice], **extra}
    if usage is not None:
        body["usage"] = {"prompt_tokens": 5, "completion_tokens": usage}
    return body


def closing(usage, **extra):
    return {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": usage}, **extra}


def fold(*frames):
    answer = ChatFold()
    for index, body in enumerate(frames):
        answer.add(json.dumps(body).encode(), index)
    return answer.finish()


def counts(answer):
    return [(chunk.arrival_ns, chunk.cumulative_tokens) for chunk in answer.chunks]


def test_role_finish_and_usage_chunks_are_no_content():
    """Only chunks that carry a token are content, so the role chunk is not the first token."""
    answer = fold(
        frame({"role": "assistant", "content": ""}, usage=0),
        frame({"content": "a b"}, ids=[1, 2], usage=2),
        frame(usage=2, finish="stop"),
        closing(2),
    )
    assert counts(answer) == [(1, 2)]
    assert (answer.token_source, answer.output_tokens, answer.finish_reason) == ("token_ids", 2, "stop")
    assert (answer.prompt_tokens, answer.text, answer.token_ids) == (5, "a b", (1, 2))
    assert answer.warnings == ()


def test_an_empty_delta_whose_count_grew_is_content():
    """Tokens held back from the text still count at their time, by ids or by usage."""
    by_ids = fold(frame({"content": ""}, ids=[1]), frame({"content": "ab"}, ids=[2]), closing(2))
    by_usage = fold(frame({"content": ""}, usage=1), frame({"content": "ab"}, usage=2), closing(2))
    assert counts(by_ids) == counts(by_usage) == [(0, 1), (1, 2)]


def test_usage_on_the_closing_chunk_alone_is_no_growth():
    """A server that states the usage once, on its last chunk, has not produced a token there."""
    answer = fold(frame({"content": "a"}), frame({"content": "b"}), frame(usage=7, finish="stop"))
    assert counts(answer) == [(0, None), (1, None)]
    assert (answer.token_source, answer.output_tokens) == (None, 7)


@pytest.mark.parametrize(
    ("frames", "source", "expected"),
    [
        ([frame({"content": "a"}, ids=[1, 2], usage=3)], "token_ids", [2]),
        ([frame({"content": "a"}, usage=3, timings={"predicted_n": 4})], "continuous_usage", [3]),
        ([frame({"content": "a"}, timings={"predicted_n": 4})], "engine", [4]),
        ([frame({"content": "a b"}), frame({"content": " c"})], None, [None, None]),
        (
            [frame({"content": "a"}, ids=[1], usage=1), frame({"content": "b"}, usage=2)],
            "continuous_usage",
            [1, 2],
        ),
    ],
)
def test_one_source_counts_the_whole_answer(frames, source, expected):
    """Token ids come before usage, then the engine's counter; never two in one."""
    answer = fold(*frames)
    assert answer.token_source == source
    assert [chunk.cumulative_tokens for chunk in answer.chunks] == expected


def test_without_any_count_tokens_are_unknown():
    """Chunks are never counted as tokens."""
    answer = fold(frame({"content": "a"}), frame({"content": "b"}, finish="stop"))
    assert counts(answer) == [(0, None), (1, None)]
    assert (answer.token_source, answer.output_tokens, answer.token_ids) == (None, None, None)


def test_what_nobody_counts_keeps_the_lengths_of_its_pieces():
    """A tokenizer counts them after the run; no tokenizer is asked while the answer arrives."""
    answer = fold(frame({"reasoning": "hm"}), frame({"content": "a b"}), frame({"content": " c"}), closing(5))
    assert (answer.piece_chars, answer.token_source) == ((2, 3, 2), None)
    assert fold(frame({"content": "a"}, ids=[1])).piece_chars is None


def test_parts_that_alternate_keep_no_lengths():
    """A record holds reasoning and text apart, so pieces of one behind the other would be cut elsewhere."""
    answer = fold(frame({"content": "a"}), frame({"reasoning": "hm"}), frame({"content": "b"}))
    assert answer.piece_chars is None


def test_a_count_that_falls_is_not_used_and_named():
    """A cumulative count that goes back cannot date tokens."""
    answer = fold(frame({"content": "a"}, usage=3), frame({"content": "b"}, usage=2), closing(4))
    assert answer.token_source is None
    assert answer.warnings == ("the token count by continuous_usage falls in mid-stream and is not used",)


def test_chunks_that_disagree_with_the_usage_are_named():
    """The server's usage stands as the output's length, and the disagreement is visible."""
    answer = fold(frame({"content": "a"}, ids=[1, 2]), closing(3))
    assert answer.output_tokens == 3
    assert answer.warnings == ("chunks carry 2 tokens by token_ids, usage says 3",)


def test_reasoning_and_tool_calls_are_content_and_kept_apart_from_the_text():
    """All generated text dates tokens; only the content is the answer's text."""
    call = {"index": 0, "id": "c", "function": {"name": "find", "arguments": ""}}
    rest = {"index": 0, "function": {"arguments": '{"q":1}'}}
    answer = fold(
        frame({"reasoning_content": "hm"}, ids=[1]),
        frame({"reasoning": "m"}, ids=[2]),
        frame({"content": "ok"}, ids=[3]),
        frame({"tool_calls": [call]}, ids=[4]),
        frame({"tool_calls": [rest]}, ids=[5]),
    )
    assert [count for _, count in counts(answer)] == [1, 2, 3, 4, 5]
    assert (answer.text, answer.reasoning_text) == ("ok", "hmm")
    assert answer.tool_calls == (ToolCall("find", '{"q":1}'),)


def test_further_choices_are_named_and_not_mixed_in():
    """A second choice would interleave another answer's tokens."""
    second = {"choices": [{"index": 1, "delta": {"content": "other"}}]}
    answer = fold(frame({"content": "a"}, ids=[1]), second)
    assert (answer.text, len(answer.chunks)) == ("a", 1)
    assert answer.warnings == ("1 chunks of further choices are not part of the answer",)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"null",
        b'"x"',
        b'{"choices":{}}',
        b"\xff",
        b'{"usage":{"completion_tokens":"3"}}',
        b'{"unknown":' + b"[" * 50_000,
    ],
    ids=["empty", "open", "null", "text", "choices", "bytes", "usage", "deep"],
)
def test_a_frame_of_another_form_is_an_error_and_the_fold_goes_on(raw):
    """Types are checked, a wrong one is never read as zero, and later frames still count."""
    answer = ChatFold()
    with pytest.raises(FrameError):
        answer.add(raw, 0)
    answer.add(json.dumps(frame({"content": "a"}, ids=[1])).encode(), 1)
    assert counts(answer.finish()) == [(1, 1)]


def test_nulls_where_engines_send_them_are_accepted():
    """`usage`, `delta` fields, `token_ids`, `choices` and `metrics` may be null."""
    body = {"choices": [{"index": 0, "delta": {"content": None, "tool_calls": None}, "token_ids": None}]}
    answer = fold(body | {"usage": None, "metrics": None, "error": None}, {"choices": None})
    assert answer.chunks == ()
    assert answer.stream_error is None
