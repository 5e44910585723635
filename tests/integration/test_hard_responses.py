"""Responses that are no stream, or none that ends well, over real sockets: outcome and reason of each."""

import asyncio
import gzip
import ssl
import zlib
from pathlib import Path

import pytest
from byte_server import (
    CHAT,
    DIALECTS,
    DONE,
    HTML,
    JSON,
    STREAM,
    ByteServer,
    Reply,
    ask,
    ask_one,
    counts,
    events,
    respond,
)

from draftproof.measure.client.exchange import ExchangeFold, WireRequest
from draftproof.measure.client.transport import HttpTransport
from draftproof.services.engines import GENERIC

PAGE = "<!DOCTYPE html>\n<html>\n<title>Sign in</title>\n</html>\n"
BODY = events(DIALECTS["vllm"].frames)
ASKED = "although it was asked not to be, as a proxy does: when a token arrived cannot be told"
NO_STREAM = "the response is not an event stream but "
TO_V1 = "HTTP 301: the service redirects to https://h/v1, which is not followed"
TO_SLASH = "HTTP 307: the service redirects to /v1/chat/completions/, which is not followed"
OOM = '{"error":{"message":"oom"}}'
UPGRADE = b"HTTP/1.1 101 Other\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\nxyz"
BAD_CHUNK = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"
ZSTD = b"\x28\xb5\x2f\xfd" + b"\x00" * 40


def said(reply, **options):
    record = ask_one(reply, **options)
    return record.outcome, record.http_status, record.error


@pytest.mark.parametrize(
    ("coding", "body"),
    [
        ("gzip", gzip.compress(BODY)),
        ("deflate", zlib.compress(BODY)),
        ("br", bytes(range(128, 256))),
        ("zstd", ZSTD),
        ("GZIP, identity", gzip.compress(BODY)),
    ],
)
@pytest.mark.parametrize("size", [None, 1])
def test_a_compressed_stream_is_malformed_by_name(coding, body, size):
    """What is compressed is not read, none of it is kept, and the connection is let go at once."""
    reply = respond(body, framing="chunked", size=size, then="hang", Content_Encoding=coding)
    record = ask_one(reply, engine="vllm")
    name = coding.lower().removesuffix(", identity")
    assert (record.outcome, record.http_status) == ("malformed", 200)
    assert record.error == f"the response is compressed ({name}) {ASKED}"
    assert (record.chunks, record.text, record.malformed_raw, record.warnings) == ((), "", None, ())


@pytest.mark.parametrize(("name", "body"), [("gzip", gzip.compress(BODY)), ("zstd", ZSTD)])
@pytest.mark.parametrize("size", [None, 1])
def test_a_stream_that_is_compressed_in_silence_is_found_by_its_first_bytes(name, body, size):
    """A proxy that forgets the header is found as well, however few bytes come at a time."""
    record = ask_one(respond(body, framing="chunked", size=size))
    assert record.outcome == "malformed"
    assert record.error == f"the response is compressed ({name}, which its headers do not say) {ASKED}"


def test_identity_is_no_compression():
    """A service may state that it did not compress."""
    assert said(respond(BODY, Content_Encoding="identity")) == ("ok", 200, None)


def test_a_compressed_refusal_is_no_garbage():
    """The reason of a refusal that is compressed is said to be unread."""
    reply = respond(gzip.compress(b"no such key"), status=401, kind=JSON, Content_Encoding="gzip")
    assert said(reply) == ("http_error", 401, "HTTP 401: a body compressed (gzip), which is not read")


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (respond(PAGE, kind="text/html; charset=utf-8"), ("malformed", 200, NO_STREAM + "text/html")),
        (respond('{"choices":[]}', kind=JSON), ("malformed", 200, NO_STREAM + "application/json")),
        (respond("", kind=""), ("malformed", 200, NO_STREAM + "of no stated type")),
        (Reply((b"HTTP/1.1 204 None\r\n\r\n",)), ("malformed", 204, NO_STREAM + "of no stated type")),
        (respond("", kind=STREAM), ("cut", 200, "the stream ended without its end marker [DONE]")),
        (respond(DONE), ("malformed", 200, "the stream carries neither a token nor a finish reason")),
    ],
)
def test_a_response_that_is_no_stream_says_what_it_is(reply, expected):
    """A page, a whole answer, nothing at all: malformed or cut, by name."""
    assert said(reply) == expected


def test_a_page_that_claims_to_be_a_stream_is_shown():
    """Lines that are none of the format's are quoted in warnings."""
    record = ask_one(respond(PAGE))
    assert record.outcome == "cut"
    assert record.warnings[0] == "line outside the event-stream format: <!DOCTYPE html>"


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (
            respond("busy", status=429, Retry_After="30"),
            ("rejected", 429, "HTTP 429: busy (Retry-After: 30)"),
        ),
        (respond("busy", status=429), ("rejected", 429, "HTTP 429: busy")),
        (respond("", status=503, kind=HTML), ("rejected", 503, "HTTP 503: no reason given")),
        (respond(OOM, status=500, kind=JSON), ("http_error", 500, f"HTTP 500: {OOM}")),
        (respond(PAGE, status=502, kind=HTML), ("http_error", 502, f"HTTP 502: {PAGE}")),
        (respond("no", status=401), ("http_error", 401, "HTTP 401: no")),
        (respond("x", status=301, Location="https://h/v1"), ("http_error", 301, TO_V1)),
        (respond("", status=307, Location="/v1/chat/completions/"), ("http_error", 307, TO_SLASH)),
        (respond("moved", status=302), ("http_error", 302, "HTTP 302: moved")),
    ],
)
def test_a_refusal_has_its_status_and_its_reason(reply, expected):
    """Too busy is a rejection, all else an error; a redirect names where to."""
    assert said(reply) == expected


def test_the_head_of_an_endless_error_page_is_kept():
    """Of a body without measure 2048 bytes are kept."""
    record = ask_one(respond("e" * 100_000, status=500, framing="chunked"))
    assert record.error == "HTTP 500: " + "e" * 2048


FINISHED = events([*DIALECTS["vllm"].frames[:-1]], done=False)
HALF = FINISHED[: FINISHED.index(b"fox") + 1]


@pytest.mark.parametrize(
    ("body", "found", "raw"),
    [(b"", [], None), (HALF, [1, 3], "fox"), (FINISHED, [1, 3, 4], None)],
)
@pytest.mark.parametrize("framing", ["length", "chunked", "close"])
def test_a_stream_that_ends_early_is_cut(body, found, raw, framing):
    """After the headers, inside an event, after the finish reason: what had come is kept, the rest raw."""
    whole = respond(body + b" " * 500, framing=framing)
    cut = Reply((b"".join(whole.packets)[: b"".join(whole.packets).index(b" " * 500)],), "close")
    record = ask_one(cut, engine="vllm")
    assert (record.outcome, record.http_status, counts(record)) == ("cut", 200, found)
    assert (record.output_tokens, record.token_ids) == (
        found[-1] if found else None,
        (0, 1, 2, 3)[: found[-1]] if found else None,
    )
    assert (record.malformed_raw is None) == (raw is None)
    wanted = (
        "without its end marker [DONE]" if framing == "close" else "the server closed the connection after"
    )
    assert wanted in record.error


def test_a_connection_that_ends_before_the_response_is_an_error():
    """Nothing, and half of a head."""
    assert said(Reply((), "close")) == (
        "http_error",
        None,
        "the server closed the connection after 0 bytes",
    )
    assert said(Reply((b"HTTP/1.1 200 OK\r\nContent-",), "close"))[:2] == ("http_error", None)


@pytest.mark.parametrize("part", [b"", BODY[:200]])
def test_a_service_that_falls_silent_times_out(part):
    """Silence before and inside the body ends at the limit."""
    head = b"".join(respond(part, framing="chunked").packets)[:-7] if part else b""
    assert said(Reply((head,), "hang"), timeout_s=0.3)[::2] == ("timeout", "no end within 0.3 s")


def test_a_server_that_closes_without_a_word_spoils_one_request_at_most():
    """It is not trusted with a second request on one connection again, and nothing is sent twice."""
    with ByteServer({CHAT: respond(BODY, then="close")}) as server:
        outcomes = [one.outcome for one in ask(server.url, requests=20)]
        assert outcomes.count("ok") >= 19
        assert len(server.requests) == outcomes.count("ok")


def test_an_end_of_the_body_that_comes_late_delays_nothing():
    """After the end marker the next request goes out, over this connection or another one."""
    whole = b"".join(respond(BODY, framing="chunked").packets)
    with ByteServer({CHAT: Reply((whole[:-5], whole[-5:]))}) as server:
        assert [one.outcome for one in ask(server.url, requests=5)] == ["ok"] * 5
        assert len(server.requests) == 5


JUNK = {
    "text": b"junk",
    "lines": b"\r\n\r\njunk",
    "response": b"".join(respond("late", status=500).packets),
    "zeros": b"\x00" * 50,
}


@pytest.mark.parametrize("junk", JUNK)
@pytest.mark.parametrize("framing", ["length", "chunked", "trailers"])
def test_what_follows_a_response_in_its_packet_is_no_part_of_it(junk, framing):
    """Bytes after the end spoil the connection and no answer."""
    whole = b"".join(respond(BODY, framing=framing).packets)
    with ByteServer({CHAT: Reply((whole + JUNK[junk],))}) as server:
        records = ask(server.url, engine="vllm", requests=3)
        assert [(one.outcome, one.http_status, counts(one)) for one in records] == [
            ("ok", 200, [1, 3, 4])
        ] * 3
        assert server.connections == 3


@pytest.mark.parametrize("junk", JUNK)
def test_what_comes_to_a_connection_at_rest_ends_it(junk):
    """Bytes that nobody asked for are never read as the next answer."""
    whole = b"".join(respond(BODY).packets)

    async def ask_twice(url):
        transport, request = HttpTransport(), WireRequest(url=url + CHAT, body=b"{}")
        folds = [ExchangeFold(GENERIC.start_fold()) for _ in range(2)]
        endings = [await transport.send(request, folds[0])]
        (connection,) = transport._open
        await asyncio.wait_for(connection.wait_closed(), 10)
        endings.append(await transport.send(request, folds[1]))
        await transport.close()
        return [fold.close(ending).outcome for fold, ending in zip(folds, endings, strict=True)]

    with ByteServer({CHAT: Reply((whole, JUNK[junk]))}) as server:
        assert asyncio.run(ask_twice(server.url)) == ["ok", "ok"]
        assert server.connections == 2


@pytest.mark.parametrize("framing", ["length", "chunked", "trailers"])
def test_a_connection_is_used_again(framing):
    """Whole responses in a row come over one connection."""
    with ByteServer({CHAT: respond(BODY, framing=framing)}) as server:
        assert [one.outcome for one in ask(server.url, requests=5)] == ["ok"] * 5
        assert server.connections == 1


def test_a_framing_that_breaks_after_the_end_marker_breaks_no_answer():
    """The answer is whole; the connection is not used again."""
    broken = b"".join(respond(BODY, framing="chunked").packets)[:-7] + b"\r\nzz\r\n"
    with ByteServer({CHAT: Reply((broken,))}) as server:
        assert [one.outcome for one in ask(server.url, requests=2)] == ["ok"] * 2
        assert server.connections == 2


@pytest.mark.parametrize(
    ("raw", "status", "error"),
    [
        (b"220 mail ready\r\n", None, "not an HTTP response"),
        (UPGRADE, None, "changes to another protocol"),
        (BAD_CHUNK, 200, "breaks HTTP's framing"),
    ],
)
def test_what_is_not_http_is_malformed(raw, status, error):
    """Another protocol, a change of protocol and a broken framing are named."""
    outcome, heard, reason = said(Reply((raw,), "close"))
    assert (outcome, heard) == ("malformed", status)
    assert error in reason


@pytest.fixture
def self_signed():
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(Path(__file__).with_name("self_signed.pem"))
    return context


def test_a_certificate_that_is_not_trusted_is_an_error_in_words(self_signed):
    """The reason names the certificate."""
    with ByteServer({}, tls=self_signed) as server:
        (record,) = ask(server.url)
    assert record.outcome == "http_error"
    assert "its certificate is not trusted (self" in record.error
