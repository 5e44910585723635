"""Attaching to a service: its address, its key, its metrics, its certificate, and the wait for it."""

import asyncio
import gzip
import os
import ssl
import subprocess
import sys
from pathlib import Path

import pytest
from attached import CHAT_NAME, FORBIDDEN, GIVE, HEADERS, KEY, METRICS, REFUSED, ROUTES, WEB, Attached, served
from byte_server import TEXT, ByteServer, Reply, chunk, events, final, respond, usage

from draftproof.core.errors import EngineError
from draftproof.services.arms import process
from draftproof.services.arms import service as readiness

CERTIFICATE = Path(__file__).with_name("self_signed.pem")
UNREAD, NAME_IT = "no metrics could be read", " Fix: name the address with the arm's metrics_urls."
PACKED = f"{UNREAD} (it is compressed in a way that cannot be unpacked)."
GIVE_THERE = " Fix: the arm's headers are sent here as well: give the key there."
NO_METRICS = (
    "these are no Prometheus metrics: '<!DOCTYPE html> <html><title>Sign in</title></html>' (invalid metric "
    "name:<!DOCTYPE html>)."
)
MAY_NOT = (
    "an address may hold no {}, because it is stored with the run. Fix: end it before that part, and give a "
    "key with the arm's headers."
)


@pytest.fixture
def attached(tmp_path, call):
    return Attached(tmp_path, call)


def test_a_key_that_is_refused_is_not_asked_for_again(attached, monkeypatch):
    """With a key in the plan the message says that the service refuses it, and does not show it."""
    monkeypatch.setenv("HARD_KEY", KEY)
    with ByteServer(served(health=REFUSED, v1__models=REFUSED)) as server:
        code, sentence = attached.refuse(server.url, arm=HEADERS)
        assert {request.headers["authorization"] for request in server.requests} == {f"Bearer {KEY}"}
    assert (code, sentence) == (1, f"{server.url}/health: arm baseline refuses the key (status 401). {GIVE}")


def test_a_path_that_only_a_key_opens_is_passed_over(attached):
    """A gateway may refuse /health and the list of models: a model that the plan names is enough."""
    routes = served(health=FORBIDDEN) | {"/v1/models": respond("", status=404)}
    with ByteServer(routes) as server:
        code, out, _ = attached.call("check", server.url, arm='served_model = "m"')
        assert (code, "It will take" in out) == (1, False)
    with ByteServer(served(health=FORBIDDEN)) as server:
        code, out, err = attached.call("check", server.url)
        assert (code, err, "It will take" in out) == (0, "", True)
    with ByteServer(served(v1__models=FORBIDDEN)) as server:
        code, out, err = attached.call("check", server.url, arm='served_model = "m"')
        assert (code, err, "It will take" in out) == (0, "", True)


@pytest.mark.parametrize("path", ["", "/", "/v1", "/v1/", "/openai", "/openai/", "/openai/v1", "/openai/v1/"])
def test_an_address_may_end_in_v1_or_not(attached, path):
    """With or without /v1, a slash or a prefix, the same addresses are asked."""
    prefix = "/openai" if "openai" in path else ""
    with ByteServer({prefix + route: reply for route, reply in ROUTES.items()}) as server:
        code, out, err = attached.call("check", server.url + path)
        assert (code, err, "It will take" in out) == (0, "", True)
        assert {one.path for one in server.requests} >= {prefix + route for route in ROUTES}


@pytest.mark.parametrize(
    ("metrics", "warning"),
    [
        (REFUSED, UNREAD + " (status 401)." + GIVE_THERE),
        (respond("", status=404), UNREAD + " (status 404)." + NAME_IT),
        (WEB, NO_METRICS + NAME_IT),
        (
            respond("", status=301, Location="http://h/"),
            UNREAD + " (status 301, a redirect to http://h/, which is not followed)." + NAME_IT,
        ),
        (respond(b"\x8b\x02\x80", kind=TEXT, Content_Encoding="br"), PACKED),
        (respond(b"junk", kind=TEXT, Content_Encoding="gzip"), PACKED),
        (Reply((), "close"), UNREAD + " (the connection was closed without an answer)."),
    ],
)
def test_metrics_that_cannot_be_read_are_a_warning(attached, metrics, warning):
    """The address, what it said and what to do; the check passes, for delivery can be measured without."""
    with ByteServer(served(stats=metrics)) as server:
        address = f"{server.url}/stats"
        code, out, err = attached.call("check", server.url, arm=f'metrics_urls = ["{address}"]')
    assert (code, err) == (0, "")
    assert f"baseline: {address}: {warning}" in " ".join(out.split())


@pytest.mark.parametrize(
    "metrics",
    [METRICS, respond(gzip.compress(b"up 1\n"), kind=TEXT, Content_Encoding="gzip"), respond("", kind=TEXT)],
)
def test_metrics_may_be_compressed_or_empty(attached, metrics):
    """Metrics have no arrival times to lose; before the first request there may be none."""
    with ByteServer(served(stats=metrics)) as server:
        code, out, _ = attached.call("check", server.url, arm=f'metrics_urls = ["{server.url}/stats"]')
    assert (code, "metrics could" in out, "Prometheus" in out) == (0, False, False)


def test_a_key_is_never_carried_to_where_a_redirect_leads(attached, monkeypatch):
    """The headers are for the plan's own address: the other one is never asked."""
    monkeypatch.setenv("HARD_KEY", KEY)
    with ByteServer({}) as other:
        away = respond("", status=302, Location=other.url + "/v1")
        for changes in ({"v1__models": away}, {CHAT_NAME: away}, {"health": away, "v1__models": away}):
            with ByteServer(served(**changes)) as server:
                code, sentence = attached.refuse(server.url, arm=HEADERS)
                assert (code, "which is not followed" in sentence) == (1, True)
        assert other.requests == []


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("127.0.0.1:8000", "'127.0.0.1:8000' is no address. Fix: write it as http://127.0.0.1:8000."),
        ("ftp://h", "'ftp://h' is no address. Fix: write it as http://127.0.0.1:8000."),
        ("http://h:port", "'http://h:port' is no address. Fix: write it as http://127.0.0.1:8000."),
        ("http://${H}:1", "'http://${H}:1' is no address. Fix: write it as http://127.0.0.1:8000."),
        (f"http://u:{KEY}@h", MAY_NOT.format("username")),
        (f"http://h/v1?key={KEY}", MAY_NOT.format("query")),
    ],
)
def test_an_address_that_cannot_be_one_is_the_plan_s_fault(attached, url, sentence):
    """It is not waited for; what may be a key is not shown."""
    assert attached.refuse(url) == (2, f"arms.baseline.url: {sentence}")


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        (f"http://u:{KEY}@h/metrics", "an address may hold no username"),
        (f"http://h/metrics?token={KEY}", "an address may hold no token in its query"),
        ("/metrics", "'/metrics' is no address"),
    ],
)
def test_an_address_of_metrics_holds_no_key_either(attached, address, reason):
    """It is stored with the run as well."""
    with ByteServer(ROUTES) as server:
        code, sentence = attached.refuse(server.url, arm=f'metrics_urls = ["{address}"]')
    assert (code, sentence.startswith(f"arms.baseline.metrics_urls: {reason}")) == (2, True)
    assert KEY not in sentence


@pytest.fixture
def self_signed():
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE)
    return context


def test_a_certificate_that_is_not_trusted_is_said_so(attached, self_signed):
    """One sentence at once, with the way to trust it."""
    with ByteServer(ROUTES, tls=self_signed) as server:
        code, sentence = attached.refuse(server.url)
    assert (code, sentence) == (
        1,
        (
            f"{server.url}: the certificate of arm baseline is not trusted (self-signed certificate). Fix: "
            "export SSL_CERT_FILE=... with the certificate of who signed it."
        ),
    )


def test_metrics_behind_a_certificate_that_is_not_trusted_are_a_warning(attached, self_signed):
    """The reason names the certificate here as well."""
    with ByteServer(ROUTES) as server, ByteServer(served(stats=METRICS), tls=self_signed) as other:
        code, out, _ = attached.call("check", server.url, arm=f'metrics_urls = ["{other.url}/stats"]')
    assert (
        code,
        f"{UNREAD} (its certificate is not trusted (self-signed certificate))." in " ".join(out.split()),
    ) == (0, True)


def test_a_certificate_that_is_exported_is_trusted(attached, self_signed):
    """What the message says works: questions, metrics and answers all come over the secure connection."""
    with ByteServer(served(stats=METRICS), tls=self_signed) as server:
        plan = attached.write_plan(server.url, arm=f'metrics_urls = ["{server.url}/stats"]')
        call = subprocess.run(
            [sys.executable, "-m", "draftproof", "check", "--quiet", plan],
            env=os.environ | {"SSL_CERT_FILE": str(CERTIFICATE)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert {one.path for one in server.requests} >= {*ROUTES, "/stats"}
    assert (call.returncode, call.stderr) == (0, "")
    assert "It will take" in call.stdout
    assert "metrics could" not in call.stdout


def test_a_plain_service_behind_an_https_address_is_said_so(attached):
    """The scheme is what to correct."""
    with ByteServer(ROUTES) as server:
        code, sentence = attached.refuse(server.url.replace("http:", "https:"))
    assert code == 1
    assert "arm baseline does not speak TLS as it must (" in sentence
    assert sentence.endswith("Fix: if it is a plain service, write arms.baseline.url with http://.")


@pytest.mark.parametrize(
    ("reply", "why", "fix"),
    [
        (Reply((), "hang"), "no answer within 0.2 s", "start the service first"),
        (Reply((), "close"), "the connection was closed without an answer", "start the service first"),
        (Reply((b"220 mail ready\r\n",), "close"), "no HTTP answer: ", "start the service first"),
        (respond("loading", status=503), "/health has status 503", "see what the service itself says"),
    ],
)
def test_a_service_that_is_never_ready_says_what_it_said(attached, monkeypatch, reply, why, fix):
    """Silence, a closed connection, another protocol, a status: the last thing heard is in the message."""
    monkeypatch.setattr(readiness, "_PROBE_TIMEOUT_S", 0.2)
    monkeypatch.setattr(process, "_ATTACH_S", 0.1)
    with ByteServer(served(health=reply)) as server:
        # One that says that it is not ready is given the whole of `ready_s`, one that says nothing is not.
        code, sentence = attached.refuse(server.url, ready_s=0.3)
    assert (code, f"arm baseline did not answer at {server.url} within 0 s ({why}" in sentence) == (1, True)
    assert sentence.endswith(f"Fix: {fix}.")


REFUSING = """
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(401); self.end_headers()
    def log_message(self, *args): pass
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def test_a_launched_service_that_asks_for_a_key_is_not_waited_for(tmp_path):
    """A service started with a key of which the plan knows nothing never gets ready: it is named at once."""

    async def start():
        command = (sys.executable, "-c", REFUSING, "{port}")
        async with process.ArmProcess(
            "candidate", command=command, log_path=tmp_path / "x.log", ready_s=3600
        ) as arm:
            await asyncio.wait_for(arm.wait_ready(), 60)

    with pytest.raises(EngineError, match=r"arm candidate asks for a key .*\[arms\.candidate\.headers\]"):
        asyncio.run(start())


@pytest.mark.parametrize(("chunks", "warned"), [(8, True), (7, False)])
def test_an_answer_that_arrives_in_one_piece_is_a_warning(attached, chunks, warned):
    """Behind a proxy that collects the stream every chunk has one time, and the check says so."""
    frames = [chunk(f"w{number} ", usage=usage(number + 1)) for number in range(chunks)]
    whole = respond(events([*frames, chunk(None, finish="stop"), final(chunks)]), framing="chunked")
    with ByteServer(served(**{CHAT_NAME: whole})) as server:
        code, out, _ = attached.call("check", server.url)
    text = f"all {chunks} chunks of the test answer arrived at the same moment: something on the way collects"
    assert (code, f"baseline: {text}" in " ".join(out.split())) == (0, warned)
