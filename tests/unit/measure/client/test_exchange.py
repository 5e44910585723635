"""Outcomes of an exchange, decided from bytes and an ending without a network."""

import json

import pytest

from draftproof.measure.client.exchange import RAW_LIMIT_BYTES, Ending, ExchangeFold
from draftproof.services.engines.chat.fold import ChatFold

TOKEN = b'data: {"choices":[{"index":0,"delta":{"content":"a"},"token_ids":[4]}]}\n\n'
FINISH = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
DONE = b"data: [DONE]\n\n"


def close(*parts, status=200, kind="complete", content_type="text/event-stream", detail=None):
    fold = ExchangeFold(ChatFold())
    fold.on_sent(10)
    if status is not None:
        fold.on_headers(status, content_type, 20)
    for index, part in enumerate(parts):
        fold.on_body(part, 30 + index)
    return fold.close(Ending(kind=kind, at_ns=99, detail=detail))


def test_a_whole_stream_is_ok_and_ends_with_its_marker():
    """All times are kept; the end is the arrival of the end marker, not the close of the connection."""
    exchange = close(TOKEN, TOKEN, FINISH, DONE)
    assert (exchange.outcome, exchange.error) == ("ok", None)
    assert (exchange.sent_ns, exchange.headers_ns, exchange.end_ns) == (10, 20, 33)
    assert [(c.arrival_ns, c.cumulative_tokens) for c in exchange.answer.chunks] == [(30, 1), (31, 2)]


def test_an_event_is_dated_by_the_bytes_that_complete_it():
    """A frame in two reads has the time of the second."""
    exchange = close(TOKEN[:9], TOKEN[9:-1], TOKEN[-1:] + FINISH + DONE)
    assert exchange.answer.chunks[0].arrival_ns == 32


@pytest.mark.parametrize(
    ("parts", "outcome", "error"),
    [
        ((TOKEN, FINISH), "cut", "without its end marker"),
        ((TOKEN, b"data: {nonsense}\n\n", FINISH, DONE), "malformed", "not JSON"),
        ((TOKEN, b"data: [1]\n\n", DONE), "malformed", "unexpected form"),
        ((TOKEN, b'data: {"choices": 3}\n\n', DONE), "malformed", "unexpected form"),
        ((TOKEN, b'data: {"error": {"message": "oom"}}\n\n', DONE), "http_error", "oom"),
        ((TOKEN, b'data: {"error": "oom"}\n\n', DONE), "http_error", "oom"),
        ((TOKEN, b'data: {"object": "error", "message": "oom"}\n\n', DONE), "http_error", "oom"),
        ((TOKEN, b"event: error\ndata: oom at step 3\n\n", DONE), "http_error", "oom at step 3"),
        ((DONE,), "malformed", "neither a token nor a finish reason"),
    ],
)
def test_a_stream_that_is_not_whole_is_never_ok(parts, outcome, error):
    """Every fault inside a stream has its outcome, also when an end marker follows."""
    exchange = close(*parts)
    assert exchange.outcome == outcome
    assert error in str(exchange.error)


@pytest.mark.parametrize(
    ("status", "outcome"),
    [(429, "rejected"), (503, "rejected"), (500, "http_error"), (404, "http_error"), (302, "http_error")],
)
def test_a_refusal_keeps_its_status_and_its_reason(status, outcome):
    """Only 429 and 503 are rejections; the body's text is the error."""
    exchange = close(b'{"error":"full"}', status=status, content_type="application/json")
    assert (exchange.outcome, exchange.http_status) == (outcome, status)
    assert exchange.error == f'HTTP {status}: {{"error":"full"}}'


@pytest.mark.parametrize(
    ("kind", "status", "outcome"),
    [
        ("timeout", None, "timeout"),
        ("timeout", 200, "timeout"),
        ("cancelled", 200, "cancelled"),
        ("unreachable", None, "http_error"),
        ("broken", None, "http_error"),
        ("broken", 200, "cut"),
        ("not_http", None, "malformed"),
    ],
)
def test_an_ending_without_end_marker_decides_the_outcome(kind, status, outcome):
    """How the connection ended is the outcome when the stream is not whole, and its reason is kept."""
    exchange = close(*([TOKEN] if status else []), status=status, kind=kind, detail="because")
    assert (exchange.outcome, exchange.error) == (outcome, "because")
    assert exchange.end_ns == 99


def test_the_connection_lost_after_the_end_marker_is_ok():
    """Nothing is missing once the marker is there."""
    assert close(TOKEN, FINISH, DONE, kind="broken").outcome == "ok"


def test_an_end_marker_without_blank_line_counts():
    """A server that closes right after the marker's line has sent it."""
    assert close(TOKEN, FINISH, DONE[:-2]).outcome == "ok"


def test_raw_bytes_of_the_first_bad_frame_are_kept_up_to_the_limit():
    """The raw text is there to look at, cut at the stated size, and the frames around it are still read."""
    bad = b"data: " + b"\xff" + b"x" * (RAW_LIMIT_BYTES * 2) + b"\n\n"
    exchange = close(TOKEN, bad, b"data: {second}\n\n", TOKEN, DONE)
    assert exchange.malformed_raw is not None
    assert exchange.malformed_raw.startswith("\\xffxxx")
    assert exchange.malformed_raw.count("x") == RAW_LIMIT_BYTES  # one of them is that of the escape
    assert exchange.answer.output_tokens == 2


def test_a_stream_cut_inside_an_event_keeps_the_piece():
    """What was there of the last event is not thrown away."""
    exchange = close(TOKEN, TOKEN[:20], kind="broken")
    assert exchange.outcome == "cut"
    assert exchange.malformed_raw == TOKEN[6:20].decode()


def test_a_json_answer_where_a_stream_was_asked_for_is_malformed():
    """A service that ignores `stream` gives no chunk times, so it is no pass."""
    exchange = close(json.dumps({"choices": []}).encode(), content_type="application/json")
    assert (exchange.outcome, exchange.malformed_raw) == ("malformed", '{"choices": []}')


def test_lines_outside_the_format_are_named_in_a_warning():
    """A traceback printed into the stream is seen in the record."""
    exchange = close(TOKEN, b"Traceback: boom\n", FINISH, DONE)
    assert exchange.outcome == "ok"
    assert exchange.warnings == ("line outside the event-stream format: Traceback: boom",)


def test_an_event_beyond_the_limit_ends_the_reading():
    """An endless event is malformed and the listener wants no more."""
    fold = ExchangeFold(ChatFold())
    fold.on_headers(200, "text/event-stream", 1)
    for _ in range(9):
        fold.on_body(b"x" * 1024 * 1024, 2)
    assert fold.finished
    exchange = fold.close(Ending(kind="complete", at_ns=3))
    assert exchange.outcome == "malformed"
    assert "longer than" in str(exchange.error)


def test_keep_alive_events_without_data_change_nothing():
    """Comments and empty data are no frames."""
    assert close(b": ping\n\n", b"data:\n\n", TOKEN, FINISH, DONE).outcome == "ok"


def test_what_was_sent_on_a_closed_connection_was_not_sent():
    """A first try that nobody took and a second that cannot connect: there is no time of sending."""
    fold = ExchangeFold(ChatFold())
    fold.on_sent(10)
    fold.on_connecting(20)
    exchange = fold.close(Ending(kind="unreachable", at_ns=40, detail="refused", connect_ns=20))
    assert (exchange.outcome, exchange.sent_ns, exchange.connect_ns) == ("http_error", None, 20)


def test_the_time_of_sending_is_that_of_the_try_that_was_taken():
    """The second one's, on the connection that was made for it."""
    fold = ExchangeFold(ChatFold())
    fold.on_sent(10)
    fold.on_connecting(20)
    fold.on_connected(25)
    fold.on_sent(30)
    exchange = fold.close(Ending(kind="timeout", at_ns=40))
    assert (exchange.sent_ns, exchange.connect_ns) == (30, 5)


def test_no_answer_comes_before_its_request_was_sent():
    """The kernel dates an answer that comes while we still note the sending: that had then been done."""
    fold = ExchangeFold(ChatFold())
    fold.on_sent(30)
    fold.on_headers(200, "text/event-stream", 20)
    fold.on_body(TOKEN + FINISH + DONE, 25)
    exchange = fold.close(Ending(kind="complete", at_ns=25))
    assert (exchange.sent_ns, exchange.headers_ns) == (20, 20)
    assert exchange.answer.chunks[0].arrival_ns == 25
