"""Hard streams over real sockets, as a measured request reads them: each is right or a clear error."""

import pytest
from byte_server import DIALECTS, DONE, ask_one, chunk, counts, events, final, respond, usage

from draftproof.core.records import ToolCall
from draftproof.judge.metrics.delivery import find_hint, summarise_delivery
from draftproof.judge.metrics.request import compute_request_metrics, tokens_per_chunk
from draftproof.measure.client.exchange import RAW_LIMIT_BYTES, show_bytes
from draftproof.measure.client.sse import MAX_EVENT_BYTES

TEXT = "The quick brown fox"


def carry_over(engine):
    return events(DIALECTS[engine].frames)


def assert_whole(record, engine):
    """The answer is that of the dialect, to the token."""
    dialect = DIALECTS[engine]
    assert (record.outcome, record.error, record.http_status) == ("ok", None, 200)
    assert (record.text, record.finish_reason) == (TEXT, "stop")
    assert (record.output_tokens, record.prompt_tokens) == (4, 5)
    assert (counts(record), record.token_source) == (dialect.counts, dialect.source)
    assert record.warnings == ()


SHAPES = {
    "plain": lambda body: body,
    "crlf": lambda body: body.replace(b"\n", b"\r\n"),
    "cr": lambda body: body.replace(b"\n", b"\r"),
    "comments": lambda body: b": ping\n\n" + body.replace(b"data:", b": keep-alive\n\ndata:"),
    "byte_order_mark": lambda body: b"\xef\xbb\xbf" + body,
    "event_names": lambda body: body.replace(b"data:", b"event: message\nid: 7\nretry: 3\ndata:"),
    "no_space": lambda body: body.replace(b"data: ", b"data:"),
    "many_lines": lambda body: body.replace(b', "choices"', b',\ndata: "choices"'),
    "empty_events": lambda body: body.replace(b"data: {", b"data:\n\ndata: {"),
    "no_last_blank_line": lambda body: body[:-1],
    "no_last_line_end": lambda body: body[:-2],
    "after_the_end": lambda body: body + events([chunk(" and more", usage=usage(9))]),
}


@pytest.mark.parametrize("engine", DIALECTS)
@pytest.mark.parametrize("shape", SHAPES)
def test_what_the_format_allows_changes_no_figure(engine, shape):
    """Line ends, comments, names, empty events and what follows the end marker are no part of an answer."""
    reply = respond(SHAPES[shape](carry_over(engine)), framing="chunked")
    assert_whole(ask_one(reply, engine=engine), engine)


@pytest.mark.parametrize("engine", DIALECTS)
@pytest.mark.parametrize("framing", ["length", "chunked", "trailers", "close", "http10"])
def test_how_a_response_is_framed_changes_no_figure(engine, framing):
    """A stated length, chunks with trailers and the end of the connection end an answer alike."""
    assert_whole(ask_one(respond(carry_over(engine), framing=framing), engine=engine), engine)


@pytest.mark.parametrize("engine", DIALECTS)
@pytest.mark.parametrize("size", [1, 13])
def test_packets_of_a_byte_change_no_figure(engine, size):
    """An answer of which each packet brings a byte has the same figures, its times in order."""
    record = ask_one(respond(carry_over(engine), framing="chunked", size=size), engine=engine)
    assert_whole(record, engine)
    times = [record.sent_ns, record.headers_ns, *(one.arrival_ns for one in record.chunks), record.end_ns]
    assert times == sorted(times)


def ask_frames(*frames, engine="generic", done=True, **options):
    return ask_one(respond(events(frames, done=done), framing="chunked", **options), engine=engine)


@pytest.mark.parametrize(
    "stated", [{}, {"usage": None}, {"usage": {}}, {"usage": {"completion_tokens": None}}]
)
def test_usage_that_is_never_stated_leaves_tokens_unknown(stated):
    """Absent, null and empty usage are all no usage: neither 0 nor the number of chunks."""
    record = ask_frames(chunk("The", **stated), chunk(" fox", finish="stop", **stated))
    assert (record.outcome, record.text, counts(record)) == ("ok", "The fox", [None, None])
    assert (record.output_tokens, record.prompt_tokens, record.token_source) == (None, None, None)
    metrics = compute_request_metrics(record, 10**9)
    assert (metrics.output_tokens, metrics.tpot_ns, len(metrics.icl_ns)) == (None, None, 1)


def test_usage_at_the_end_only_counts_the_answer_and_no_chunk():
    """The total is known, chunks are not, and the time per token says on what it rests."""
    record = ask_frames(chunk("The", usage=None), chunk(" fox", finish="stop", usage=None), final(7))
    assert (record.output_tokens, counts(record), record.token_source) == (7, [None, None], None)
    assert compute_request_metrics(record, 10**9).tpot_basis == "single_first_token_assumed"


def test_usage_on_the_closing_chunk_is_no_chunk_of_its_own():
    """A first count beside the finish reason is the total and no growth."""
    record = ask_frames(chunk("The"), chunk(" fox"), chunk(None, finish="stop", usage=usage(7)))
    assert (record.output_tokens, counts(record)) == (7, [None, None])


@pytest.mark.parametrize(
    ("stated", "total", "warning"),
    [
        (5, 5, "chunks carry 4 tokens by token_ids, usage says 5"),
        (3, 4, "usage says 3 tokens, fewer than 4 streamed, and is not used"),
    ],
)
def test_usage_that_contradicts_the_ids_is_named(stated, total, warning):
    """The answer's total is the usage unless more was streamed, and the record names both."""
    frames = (chunk("The", choice_token_ids=[1]), chunk(" fox", choice_token_ids=[2, 3, 4], finish="stop"))
    record = ask_frames(*frames, final(stated), engine="vllm")
    assert (record.outcome, counts(record), record.output_tokens) == ("ok", [1, 4], total)
    assert record.warnings == (warning,)


@pytest.mark.parametrize("engine", ["sglang", "tensorrt-llm"])
def test_usage_that_falls_counts_no_chunk(engine):
    """A cumulative count that falls is none; the last one stated is still the total."""
    frames = (chunk("The", usage=usage(1)), chunk(" quick", usage=usage(4)), chunk(" fox", usage=usage(3)))
    record = ask_frames(*frames, chunk(None, finish="stop"), final(3), engine=engine)
    assert (record.outcome, counts(record), record.output_tokens) == ("ok", [None] * 3, 3)
    assert "the token count by continuous_usage falls in mid-stream and is not used" in record.warnings


def test_usage_that_stays_at_zero_until_the_end_counts_no_chunk():
    """A placeholder beside every chunk is no count; the total at the end is."""
    frames = (chunk("The", usage=usage(0)), chunk(" fox", usage=usage(0)), chunk(None, finish="stop"))
    record = ask_frames(*frames, final(4), engine="vllm")
    assert (counts(record), record.token_source, record.output_tokens) == ([None, None], None, 4)
    assert record.warnings == ("the token count by continuous_usage stays at 0 and is not used",)


@pytest.mark.parametrize(("second", "missing"), [({}, 1), ({"choice_token_ids": None}, 1)])
def test_ids_of_some_chunks_only_are_no_ids(second, missing):
    """A part of the ids is neither the answer's ids nor a count; the usage counts, and the record says so."""
    frames = (
        chunk("The", choice_token_ids=[1], usage=usage(1)),
        chunk(" quick", usage=usage(2), **second),
        chunk(" fox", choice_token_ids=[3], usage=usage(3), finish="stop"),
    )
    record = ask_frames(*frames, final(3), engine="vllm")
    assert (record.token_ids, counts(record), record.token_source) == (None, [1, 2, 3], "continuous_usage")
    assert record.warnings == (f"token ids are missing from {missing} of 3 chunks and are not used",)


def test_a_chunk_with_text_and_no_ids_of_its_own_carries_no_token():
    """Text that was held back may come with an empty list: its chunk counts 0 tokens, not 1."""
    ids: tuple[list[int], ...] = ([7], [], [8, 9])
    frames = [chunk(text, choice_token_ids=one) for text, one in zip(("a", "b", "c"), ids, strict=True)]
    record = ask_frames(*frames, chunk(None, finish="stop"), final(3), engine="vllm")
    assert (counts(record), record.token_ids, record.warnings) == ([1, 1, 3], (7, 8, 9), ())
    assert tokens_per_chunk(record) == (1, 0, 2)


@pytest.mark.parametrize("engine", DIALECTS)
def test_a_second_choice_is_not_mixed_in(engine):
    """Another choice's text and tokens are no part of the answer; what counts both counts neither."""
    other = [
        frame
        | {"choices": [choice | {"index": 1, "delta": {"content": "no"}} for choice in frame["choices"]]}
        for frame in DIALECTS[engine].frames[:-1]
    ]
    both = [frame for pair in zip(DIALECTS[engine].frames[:-1], other, strict=True) for frame in pair]
    record = ask_frames(*both, final(8), engine=engine)
    assert (record.outcome, record.text, record.finish_reason) == ("ok", TEXT, "stop")
    own = engine == "vllm"
    assert (record.output_tokens, record.token_source) == ((4, "token_ids") if own else (None, None))
    assert counts(record) == (DIALECTS[engine].counts if own else [None] * len(record.chunks))
    assert f"{len(other)} chunks of further choices are not part of the answer" in record.warnings


@pytest.mark.parametrize(
    "names", [("reasoning",), ("reasoning_content",), ("reasoning", "reasoning_content")]
)
@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm"])
def test_reasoning_is_generated_text_under_either_name(names, engine):
    """It counts as content chunks and stays apart from the answer; stated under both names it is one text."""
    thought = [
        {"choices": [{"index": 0, "delta": dict.fromkeys(names, text)}], "usage": usage(count)}
        for text, count in (("Hm", 2), (" so", 3))
    ]
    record = ask_frames(
        *thought, chunk("42", usage=usage(5)), chunk(None, finish="stop"), final(5), engine=engine
    )
    assert (record.reasoning_text, record.text, counts(record)) == ("Hm so", "42", [2, 3, 5])
    assert (record.output_tokens, record.warnings) == (5, ())


def call_piece(index, name=None, arguments=None, **fields):
    function = {"name": name, "arguments": arguments}
    delta = {"content": None, "tool_calls": [{"index": index, "type": "function", "function": function}]}
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": None}], **fields}


def test_tool_calls_of_a_character_each_are_whole():
    """Two calls whose arguments come in periods, a character at a time, are told apart by their index."""
    texts = ('{"q": "día"}', '{"n": [1, 2]}')
    pieces = [call_piece(0, name="find"), call_piece(1, name="count", arguments="")]
    pieces += [
        call_piece(index, arguments=text[place])
        for place in range(len(texts[1]))
        for index, text in enumerate(texts)
        if place < len(text)
    ]
    pieces = [piece | {"usage": usage(number + 1)} for number, piece in enumerate(pieces)]
    record = ask_frames(*pieces, chunk(None, finish="tool_calls"), final(len(pieces)), engine="vllm")
    assert record.tool_calls == (ToolCall("find", texts[0]), ToolCall("count", texts[1]))
    assert (record.outcome, record.finish_reason, record.text) == ("ok", "tool_calls", "")
    assert (counts(record)[-1], record.output_tokens) == (len(pieces), len(pieces))


@pytest.mark.parametrize("delta", [None, {}, {"content": ""}, {"content": None, "tool_calls": None}])
def test_a_chunk_without_text_counts_when_the_usage_grows(delta):
    """Half a character is a token without text: its chunk has a time and a count. The role is none."""
    silent = {"choices": [{"index": 0, "delta": delta}], "usage": usage(2)}
    role = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}], "usage": usage(0)}
    frames = (role, chunk("a", usage=usage(1)), silent, chunk("é", usage=usage(3), finish="stop"), final(3))
    record = ask_frames(*frames, engine="sglang")
    assert (counts(record), record.text, record.output_tokens) == ([1, 2, 3], "aé", 3)


def test_events_of_one_packet_have_one_time_and_the_delivery_says_so():
    """200 events at once: nothing is spread out, the gaps are 0, and the delivery is a single arrival."""
    frames = [chunk(f"w{number} ", usage=usage(number + 1)) for number in range(200)]
    record = ask_frames(*frames, chunk(None, finish="stop"), final(200), engine="sglang")
    assert (len(record.chunks), len({one.arrival_ns for one in record.chunks})) == (200, 1)
    metrics = compute_request_metrics(record, 10**9)
    assert (set(metrics.icl_ns), metrics.tpot_ns) == ({0}, 0.0)
    summary = summarise_delivery([record])
    assert (summary.burst_gap_share, summary.chunks_per_arrival, find_hint(summary)) == (1.0, 200.0, "bursts")


DEEP = b'{"choices":[],"x":' + b"[" * 10_000 + b"]" * 10_000 + b"}"
FAULTS = {
    "not_json": (b"hello", "a frame is not JSON: "),
    "half": (b'{"choices":[', "a frame is not JSON: "),
    "nan": (b'{"choices":[],"x":NaN}', "a frame is not JSON: "),
    "not_utf8": (b'{"choices":[{"delta":{"content":"\xff\xfe"}}]}', "a frame is not JSON: "),
    "deep": (DEEP, "a frame is nested too deeply"),
    "list": (b"[1]", "a frame has an unexpected form: "),
    "parts": (b'{"choices":[{"delta":{"content":[{"text":"a"}]}}]}', "a frame has an unexpected form: "),
    "fraction": (b'{"choices":[],"usage":{"completion_tokens":1.5}}', "a frame has an unexpected form: "),
}


@pytest.mark.parametrize("engine", DIALECTS)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_frame_that_cannot_be_read_fails_the_request_and_nothing_else(engine, fault):
    """The reason is said, the frame is kept raw, and what came before and after is kept as well."""
    frame, reason = FAULTS[fault]
    first, *rest = DIALECTS[engine].frames
    record = ask_frames(first, frame, *rest, engine=engine)
    assert (record.outcome, record.http_status, record.text) == ("malformed", 200, TEXT)
    assert record.error.startswith(reason)
    assert record.malformed_raw == show_bytes(frame)
    assert len(record.chunks) == len(DIALECTS[engine].counts)


@pytest.mark.parametrize("ended", [True, False])
def test_an_event_without_measure_ends_the_request(ended):
    """Beyond 8 MiB nothing more is read, whether or not the line ever ends."""
    line = b"data: " + b"x" * (MAX_EVENT_BYTES + 1) + (b"\n" if ended else b"")
    record = ask_one(respond(events([chunk("The")], done=False) + line, then="hang"))
    assert (record.outcome, record.error) == (
        "malformed",
        f"one stream event is longer than {MAX_EVENT_BYTES} bytes",
    )
    assert record.text == "The"
    assert 0 < len(record.malformed_raw) <= RAW_LIMIT_BYTES  # of the read with which it became too long


@pytest.mark.parametrize(
    ("event", "outcome", "error"),
    [
        (b'data: {"error":{"message":"oom","code":500}}\n\n', "http_error", "error event in the stream: oom"),
        (b"event: error\ndata: oom\n\n", "http_error", "error event in the stream: oom"),
        (b'data: {"error":{"message":"busy","code":429}}\n\n', "rejected", "error event in the stream: busy"),
        (b'data: {"object":"error","message":"bad"}\n\n', "http_error", "error event in the stream: bad"),
    ],
)
def test_an_error_inside_the_stream_fails_the_request(event, outcome, error):
    """Whatever form the engine gives it, and though an end marker follows."""
    record = ask_one(respond(event + DONE))
    assert (record.outcome, record.error, record.http_status) == (outcome, error, 200)
