"""One request over real sockets against the scripted server: outcomes, counts and order of times."""

import asyncio
import itertools
import socket
import threading

import pytest
from tests.builders.load import run_period
from tests.builders.records import build_item
from tests.builders.scripted_server import ScriptedServer
from tests.builders.scripts import Script

from draftproof.core.errors import UsageError
from draftproof.core.records import RequestRecord, SpecCounts
from draftproof.measure.client.transport import HttpTransport
from draftproof.measure.load.period import Endpoint, Period
from draftproof.measure.load.request_runner import LoadSettings

ROUNDS = {
    "proposed": [4, 4],
    "accepted": [2, 1],
    "committed": [3, 2],
    "draft_ns": [1, 1],
    "verify_ns": [20, 20],
    "sample_ns": [1, 1],
    "schedule_ns": [2, 2],
    "batch_size": [1, 1],
    "prefill_tokens": [0, 0],
}
METRICS = {
    "queue_time_ms": 0.5,
    "speculative_decoding": {
        "num_spec_steps": 2,
        "num_draft_tokens": 8,
        "num_accepted_draft_tokens": 3,
        "acceptance_histogram": [0, 1, 1],
    },
    "rounds": ROUNDS,
    "fallbacks": 0,
}


def ask(url, *, timeout_s=20.0, engine="reference", headers=(), requests=1, max_idle_s=2.0):
    """Return the records of one slot asking so many requests in a row."""
    items = {f"i{index}": build_item(f"i{index}") for index in range(requests)}
    period = Period(
        block=0, load="low", concurrency=1, repeat=0, arm="baseline", order=0, item_ids=tuple(items)
    )
    endpoint = Endpoint(url=url, served_model="scripted", engine=engine, headers=headers)
    records: list[RequestRecord] = []

    async def run():
        transport = HttpTransport(max_idle_s=max_idle_s)
        settings = LoadSettings(request_timeout_s=timeout_s, failure_pause_s=0.0)
        try:
            await run_period(
                period, endpoint, items, transport=transport, sink=_Sink(records), settings=settings
            )
        finally:
            await transport.close()

    asyncio.run(run())
    return records


class _Sink:
    def __init__(self, records):
        self._records = records

    def append(self, record):
        self._records.append(record)


def ask_one(script, **options):
    with ScriptedServer(script) as server:
        (record,) = ask(server.url, **options)
        return record, server.served[0]


def answer_in_plain_text(listener):
    connection, _ = listener.accept()
    with connection:
        connection.recv(4096)
        connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")


def chunk_counts(record):
    return [chunk.cumulative_tokens for chunk in record.chunks]


def test_a_whole_answer_has_exact_counts_and_ordered_times():
    """Tokens, usage, text, ids and metrics are those of the script; every time follows the one before it."""
    record, served = ask_one(
        Script(tokens_per_chunk=(1, 3, 2), gaps_s=(0.002,), ttft_s=0.002, metrics=METRICS)
    )
    assert (record.outcome, record.http_status, record.error, record.warnings) == ("ok", 200, None, ())
    assert chunk_counts(record) == [1, 4, 6]
    assert (record.token_source, record.output_tokens, record.prompt_tokens) == ("token_ids", 6, 5)
    assert record.token_ids == (0, 1, 2, 3, 4, 5)
    assert record.text == "w0.0 w1.0 w1.1 w1.2 w2.0 w2.1 "
    assert record.finish_reason == "stop"
    assert record.speculation == SpecCounts(2, 8, 3, (0, 1, 1))
    assert [one.committed for one in record.rounds] == [3, 2]
    assert (record.server.queue_ns, record.fallbacks) == (500_000, 0)
    times = [record.scheduled_ns, record.sent_ns, record.headers_ns]
    times += [chunk.arrival_ns for chunk in record.chunks] + [record.end_ns]
    assert times == sorted(times)
    assert served.payload["return_round_metrics"] is True


@pytest.mark.parametrize("packets", [{}, {"split_bytes": 100}])
def test_no_chunk_arrives_before_the_server_wrote_it(packets):
    """Arrival times never precede the server's own write times, and carry the same token counts."""
    record, served = ask_one(Script(tokens_per_chunk=(2,) * 10, gaps_s=(0.002,), ttft_s=0.005, **packets))
    assert [write.cumulative_tokens for write in served.writes] == chunk_counts(record)
    for write, chunk in zip(served.writes, record.chunks, strict=True):
        assert write.at_ns <= chunk.arrival_ns
    for (write, chunk), (later, _) in itertools.pairwise(zip(served.writes, record.chunks, strict=True)):
        assert chunk.arrival_ns <= record.end_ns
        assert write.at_ns < later.at_ns
    assert served.finished


@pytest.mark.parametrize("line_end", ["\n", "\r", "\r\n"])
@pytest.mark.parametrize("packets", [{}, {"split_bytes": 7}, {"coalesce": 4}, {"coalesce": 99}])
def test_packets_and_line_ends_change_no_count(line_end, packets):
    """Events split over segments or several in one give the same chunks, with comments in between."""
    record, _ = ask_one(Script(line_end=line_end, comments=True, **packets))
    assert (record.outcome, chunk_counts(record), record.output_tokens) == ("ok", [1, 4, 6], 6)


def test_events_of_one_packet_share_its_arrival():
    """Chunks that came in one write have one time: nothing is spread out that arrived together."""
    record, _ = ask_one(Script(tokens_per_chunk=(1, 1, 1, 1), coalesce=99))
    assert len({chunk.arrival_ns for chunk in record.chunks}) == 1
    assert chunk_counts(record) == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("script", "source", "counts", "output_tokens"),
    [
        (Script(usage="continuous", token_ids=False), "continuous_usage", [1, 4, 6], 6),
        (Script(usage="final", token_ids=False), None, [None, None, None], 6),
        (Script(usage="none", token_ids=True), "token_ids", [1, 4, 6], 6),
        (Script(usage="none", token_ids=False), None, [None, None, None], None),
        (Script(usage="continuous", token_ids=False, silent_chunks=(0, 2)), "continuous_usage", [1, 4, 6], 6),
        (Script(role_chunk=False), "token_ids", [1, 4, 6], 6),
    ],
)
def test_the_source_of_counts_is_the_best_there_is(script, source, counts, output_tokens):
    """Without counts the tokens are unknown, never the number of chunks."""
    record, _ = ask_one(script)
    assert (record.outcome, record.token_source) == ("ok", source)
    assert (chunk_counts(record), record.output_tokens) == (counts, output_tokens)


@pytest.mark.parametrize(
    ("script", "outcome", "status", "chunks", "error"),
    [
        (Script(status=429), "rejected", 429, 0, "refused by the script"),
        (Script(status=503), "rejected", 503, 0, "refused by the script"),
        (Script(status=500), "http_error", 500, 0, "refused by the script"),
        (Script(cut_before=2), "cut", 200, 2, "closed the connection"),
        (Script(cut_before=0), "cut", 200, 0, "closed the connection"),
        (Script(end_marker=False), "cut", 200, 3, "without its end marker"),
        (Script(malformed_before=1), "malformed", 200, 3, "not JSON"),
        (Script(error_before=1), "http_error", 200, 3, "the engine gave up"),
        (Script(error_before=1, cut_before=2), "http_error", 200, 2, "the engine gave up"),
        (Script(content_type="text/plain"), "malformed", 200, 0, "not an event stream"),
        (Script(raw_response=b"SMTP ready\r\n"), "malformed", None, 0, "not an HTTP response"),
        (Script(raw_response=b""), "http_error", None, 0, "closed the connection"),
    ],
)
def test_every_fault_of_a_server_has_its_outcome(script, outcome, status, chunks, error):
    """What had arrived before or around the fault is kept with it."""
    record, _ = ask_one(script)
    assert (record.outcome, record.http_status, len(record.chunks)) == (outcome, status, chunks)
    assert error in record.error


def test_a_malformed_frame_is_kept_raw():
    """The bytes of the bad frame are in the record."""
    record, _ = ask_one(Script(malformed_before=0, malformed_frame=b'{"half": '))
    assert record.malformed_raw == '{"half": '


@pytest.mark.parametrize(
    ("script", "at_least"),
    [
        (Script(never_answer=True), 0),
        (Script(headers_delay_s=30), 0),
        (Script(stall_before=1, stall_s=30), 1),
        (Script(endless=True, gaps_s=(0.01,)), 2),
    ],
)
def test_patience_ends_at_the_limit(script, at_least):
    """A silent, stalled or endless service times out, what had arrived is kept, and it sees the client go."""
    record, served = ask_one(script, timeout_s=0.5)
    assert record.outcome == "timeout"
    assert record.error == "no end within 0.5 s"
    assert len(record.chunks) >= at_least
    assert not served.finished


def test_nobody_listening_is_an_http_error():
    """A refused connection is a failed request with its reason and was never sent."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    (record,) = ask(f"http://127.0.0.1:{port}")
    assert (record.outcome, record.sent_ns, record.headers_ns) == ("http_error", None, None)
    assert f"cannot connect to 127.0.0.1:{port}" in record.error


def test_a_connection_carries_one_request_after_the_other():
    """Requests in a row share a connection; one that the server closes is replaced."""
    with ScriptedServer([Script(), Script(), Script(keep_alive=False), Script()]) as server:
        records = ask(server.url, requests=4)
        assert [record.outcome for record in records] == ["ok"] * 4
        assert server.connections == 2


def test_the_end_marker_ends_a_request_before_the_response_does():
    """A service that lingers after its last event delays no record; its connection is not used meanwhile."""
    with ScriptedServer(Script(linger_s=30)) as server:
        records = ask(server.url, requests=2)
        assert [record.outcome for record in records] == ["ok", "ok"]
        assert server.connections == 2


def test_a_connection_idle_for_too_long_is_not_used_again():
    """With no patience for idle connections every request has its own."""
    with ScriptedServer(Script()) as server:
        records = ask(server.url, requests=3, max_idle_s=0.0)
        assert [record.outcome for record in records] == ["ok"] * 3
        assert server.connections == 3


def test_a_plain_service_behind_an_https_address_is_an_http_error():
    """A failed handshake is a failed request with its reason."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=answer_in_plain_text, args=(listener,))
        thread.start()
        (record,) = ask(f"https://127.0.0.1:{listener.getsockname()[1]}")
        thread.join()
    assert (record.outcome, record.sent_ns) == ("http_error", None)
    assert "cannot connect" in str(record.error)


def test_a_response_without_length_ends_with_the_connection():
    """HTTP/1.0 style streams are read to their end."""
    choice = b'{"delta":{"content":"a"},"token_ids":[1],"finish_reason":"stop"}'
    body = b'data: {"choices":[' + choice + b"]}\n\ndata: [DONE]\n\n"
    head = b"HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
    interim = b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"
    record, _ = ask_one(Script(raw_response=head + body))
    assert (record.outcome, chunk_counts(record)) == ("ok", [1])
    record, _ = ask_one(Script(raw_response=interim + head.replace(b"1.0", b"1.1") + body[:-14]))
    assert (record.outcome, chunk_counts(record)) == ("cut", [1])


def test_headers_of_the_endpoint_are_sent():
    """An access token reaches the service; a header with a line break is refused before anything is sent."""
    record, served = ask_one(Script(), headers=(("Authorization", "Bearer x"),), engine="generic")
    assert record.outcome == "ok"
    assert served.headers["authorization"] == "Bearer x"
    assert served.headers["accept-encoding"] == "identity"
    with pytest.raises(UsageError, match="line break"):
        ask_one(Script(), headers=(("X", "a\r\nb: c"),))


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://h/", "http://", "http://h:port"])
def test_an_address_that_is_none_is_refused(url):
    """A wrong address is the user's error with its fix, and no failed request of the arm."""
    with pytest.raises(UsageError, match="not an"):
        ask(url)


def test_a_large_request_is_sent_whole():
    """A body beyond the socket's buffers arrives whole and has a time of sending."""
    with ScriptedServer(Script()) as server:
        item = build_item("big", stop=tuple("x" * 1000 for _ in range(6000)))
        records: list[RequestRecord] = []
        period = Period(block=0, load="l", concurrency=1, repeat=0, arm="a", order=0, item_ids=("big",))
        endpoint = Endpoint(url=server.url, served_model="m", engine="generic")

        async def run():
            transport = HttpTransport()
            await run_period(period, endpoint, {"big": item}, transport=transport, sink=_Sink(records))
            await transport.close()

        asyncio.run(run())
        assert records[0].outcome == "ok"
        assert (records[0].sent_ns or 0) <= (records[0].headers_ns or 0)
        payload = server.served[0].payload or {}
        assert len(payload["stop"]) == 6000
