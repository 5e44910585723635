"""A service that cannot be used is refused before the run: one sentence, the place, the fix, an exit code."""

import gzip

import pytest
from attached import CHAT_NAME, FORBIDDEN, GIVE, PAGE, REFUSED, WEB, Attached, served
from byte_server import DIALECTS, HTML, JSON, ByteServer, Reply, events, models, respond

NAME_MODEL = " Fix: correct arms.baseline.url, or name the model with arms.baseline.served_model."
ADDRESS = " Fix: write the address that answers itself as arms.baseline.url."
NO_STREAM = "malformed: the response is not an event stream but"
STREAMS = " Fix: correct arms.baseline.url: what answers there does not stream chat completions."
NO_ANSWER = "URL/v1/chat/completions: arm baseline does not answer a test request"
REFUSALS = {
    "key_asked_everywhere": (
        {"health": REFUSED, "v1__models": REFUSED, CHAT_NAME: REFUSED},
        f"URL/health: arm baseline asks for a key (status 401). {GIVE}",
    ),
    "key_asked_for_models": (
        {"v1__models": FORBIDDEN},
        f"URL/v1/models: arm baseline asks for a key (status 403). {GIVE}",
    ),
    "key_asked_for_answers": (
        {CHAT_NAME: REFUSED},
        f'{NO_ANSWER} (http_error: HTTP 401: {{"error":{{"message":"no such key"}}}}). {GIVE}',
    ),
    "page_for_models": (
        {"v1__models": WEB},
        f"URL/v1/models: arm baseline lists no model (no list of models but text/html).{NAME_MODEL}",
    ),
    "no_models": (
        {"v1__models": models()},
        f"URL/v1/models: arm baseline lists no model (its list is empty).{NAME_MODEL}",
    ),
    "nothing_there": (
        {"health": respond("", status=404), "v1__models": respond("", status=404)},
        f"URL/v1/models: arm baseline lists no model (status 404).{NAME_MODEL}",
    ),
    "page_for_answers": (
        {CHAT_NAME: WEB},
        f"{NO_ANSWER} ({NO_STREAM} text/html: <!DOCTYPE html> <html><title>Sign in</title></html>).{STREAMS}",
    ),
    "answer_in_one_piece": (
        {CHAT_NAME: respond('{"choices":[]}', kind=JSON)},
        f'{NO_ANSWER} ({NO_STREAM} application/json: {{"choices":[]}}).{STREAMS}',
    ),
    "redirected_everywhere": (
        dict.fromkeys(("health", "v1__models"), respond("", status=301, Location="https://h/x")),
        f"URL/health: arm baseline redirects (status 301) to https://h/x, which is not followed.{ADDRESS}",
    ),
    "redirected_models": (
        {"v1__models": respond("", status=307, Location="/models/")},
        f"URL/v1/models: arm baseline redirects (status 307) to /models/, which is not followed.{ADDRESS}",
    ),
    "redirected_answers": (
        {CHAT_NAME: respond("", status=302, Location="https://h/v1")},
        f"{NO_ANSWER} (http_error: HTTP 302: the service redirects to https://h/v1, which is not followed)."
        + ADDRESS,
    ),
    "no_such_path": (
        {CHAT_NAME: respond("Not Found", status=404)},
        (
            f"{NO_ANSWER} (http_error: HTTP 404: Not Found). Fix: correct arms.baseline.url, below which "
            "/v1/chat/completions must lie, or arms.baseline.served_model."
        ),
    ),
    "unknown_field": (
        {CHAT_NAME: respond("extra fields\nnot permitted", status=400)},
        (
            f"{NO_ANSWER} (http_error: HTTP 400: extra fields not permitted). Fix: if it refuses a field, "
            "set arms.baseline.engine to what runs there (generic asks for nothing beyond the protocol), or "
            "correct arms.baseline.request."
        ),
    ),
    "too_busy": (
        {CHAT_NAME: respond("busy", status=429, Retry_After="9")},
        (
            f"{NO_ANSWER} (rejected: HTTP 429: busy (Retry-After: 9)). Fix: wait until the service takes "
            "requests, then start again."
        ),
    ),
    "failing": (
        {CHAT_NAME: respond(PAGE, status=500, kind=HTML)},
        f"{NO_ANSWER} (http_error: HTTP 500: <!DOCTYPE html> <html><title>Sign in</title></html>).",
    ),
    "compressed": (
        {CHAT_NAME: respond(gzip.compress(b"data: [DONE]\n\n"), Content_Encoding="gzip")},
        (
            f"{NO_ANSWER} (malformed: the response is compressed (gzip) although it was asked not to be, as "
            "a proxy does: when a token arrived cannot be told). Fix: write the address behind the proxy as "
            "arms.baseline.url, or switch its compression off."
        ),
    ),
    "no_end_marker": (
        {CHAT_NAME: respond(events(DIALECTS["generic"].frames, done=False))},
        f"{NO_ANSWER} (cut: the stream ended without its end marker [DONE]).",
    ),
    "lines_without_a_field": (
        {CHAT_NAME: respond('{"text": "\x1b[31mThe"}\n')},
        (
            f"{NO_ANSWER} (cut: the stream ended without its end marker [DONE]: line outside the "
            'event-stream format: {"text": " [31mThe"}).'
        ),
    ),
    "silent": (
        {CHAT_NAME: Reply((), "hang")},
        (
            f"{NO_ANSWER} (timeout: no end within 1 s). Fix: raise limits.request_s, or see what keeps the "
            "service."
        ),
    ),
}


@pytest.fixture
def attached(tmp_path, call):
    return Attached(tmp_path, call)


@pytest.mark.parametrize("case", REFUSALS)
def test_a_service_that_cannot_be_used_is_refused_in_one_sentence(attached, case):
    """What it said, where, and the key of the plan that mends it; nothing is asked over and over."""
    changes, sentence = REFUSALS[case]
    with ByteServer(served(**changes)) as server:
        assert attached.refuse(server.url, request_s=1.0) == (1, sentence.replace("URL", server.url))
        assert len(server.requests) <= 5
