"""A service that repeats its key in all it says: the key is in no file of the run and not on the terminal."""

import itertools
import json

import pytest
from attached import CHAT_NAME, HEADERS, KEY, Attached, served
from byte_server import DIALECTS, HTML, JSON, TEXT, ByteServer, chunk, events, final, models, respond

from draftproof.core.secrets import MASK

SAID = f"the key Bearer {KEY} is no good"
PAGE = f"<html><p>{SAID}</p></html>"
FRAMES = DIALECTS["generic"].frames
WHOLE = respond(events(FRAMES))
STRAY = respond(f"{SAID}\n\n".encode() + events(FRAMES))
ECHOES = {
    "refused": respond(json.dumps({"error": {"message": SAID}}), status=401, kind=JSON),
    "busy": respond(SAID, status=429, Retry_After=KEY),
    "moved": respond("", status=302, Location=f"https://h/login?key={KEY}"),
    "page": respond(PAGE, kind=HTML),
    "error": respond(events([{"error": {"message": SAID}}])),
    "malformed": respond(events([chunk("a"), f'{{"half": "{KEY}'.encode()])),
    "answer": respond(events([chunk(SAID), chunk(None, finish="stop"), final(9)])),
    "stray": STRAY,
    "typed": respond(SAID, kind=f"text/{KEY}"),
    "lines": respond(SAID),
}


@pytest.fixture
def attached(tmp_path, call, monkeypatch):
    monkeypatch.setenv("HARD_KEY", KEY)
    return Attached(tmp_path, call)


def list_files_with_the_key(folder):
    return [path.name for path in folder.rglob("*") if path.is_file() and KEY.encode() in path.read_bytes()]


def test_a_run_keeps_no_key_that_its_service_repeats(attached):
    """Refusals, redirects, pages, error events, broken frames, answers, metrics: masked in every file."""
    replies = itertools.chain([STRAY, STRAY, WHOLE], itertools.cycle(ECHOES.values()))
    metrics = respond(PAGE, kind=HTML)
    routes = served(stats=metrics, **{CHAT_NAME: lambda _request: next(replies)})
    attached.write_items(2 * len(ECHOES))
    with ByteServer(routes) as server:
        arm = f'{HEADERS}\nmetrics_urls = ["{server.url}/stats"]'
        code, out, err = attached.call("run", server.url, arm=arm)
        assert {one.headers["authorization"] for one in server.requests} == {f"Bearer {KEY}"}
    assert code in {10, 20, 30, 40}, err
    assert (KEY in out, KEY in err) == (False, False)
    assert list_files_with_the_key(attached.folder) == []
    journal = (attached.out / "journal" / "records.jsonl").read_text()
    assert journal.count(f"Bearer {MASK} is no good") > len(ECHOES)
    assert f"Bearer {MASK} is no good" in (attached.out / "manifest.json").read_text()


@pytest.mark.parametrize("echo", [name for name in ECHOES if name not in {"answer", "stray"}])
def test_a_refusal_before_the_run_shows_no_key(attached, echo):
    """The sentence is the same as without the echo, the key masked before it is cut short."""
    with ByteServer(served(**{CHAT_NAME: ECHOES[echo]})) as server:
        code, sentence = attached.refuse(server.url, arm=HEADERS)
    assert (code, KEY in sentence, KEY[:8] in sentence) == (1, False, False)
    assert MASK in sentence


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"v1__models": models(f"m-{KEY}")}, '\nserved_model = "other"'),
        ({"v1__models": respond("", status=302, Location=f"/?{KEY}")}, ""),
        ({"health": respond("", status=302, Location=f"/?{KEY}"), "v1__models": respond("", status=404)}, ""),
    ],
)
def test_what_a_service_says_of_itself_shows_no_key(attached, changes, named):
    """A list of models and a redirect may quote it as well."""
    with ByteServer(served(**changes)) as server:
        code, sentence = attached.refuse(server.url, arm=HEADERS + named)
    assert (code, KEY in sentence, MASK in sentence) == (1, False, True)


@pytest.mark.parametrize("as_json", [False, True])
def test_a_check_shows_no_key(attached, as_json):
    """What a stream says beside its events, and a page for metrics, are findings with the key masked."""
    metrics = respond(f"{KEY} {KEY}\n", kind=TEXT)
    with ByteServer(served(stats=metrics, **{CHAT_NAME: STRAY})) as server:
        arm = f'{HEADERS}\nmetrics_urls = ["{server.url}/stats"]'
        code, out, err = attached.call("check", server.url, *["--json"] * as_json, arm=arm)
    assert (code, err, KEY in out) == (0, "", False)
    assert f"line outside the event-stream format: the key Bearer {MASK} is no good" in out
