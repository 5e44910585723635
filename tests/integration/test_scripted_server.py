"""The scripted server leaves nothing behind: what it forgot would fail whichever test runs next."""

import gc
import socket
import warnings
from contextlib import ExitStack

import pytest
from tests.builders.scripted_server import ScriptedServer
from tests.builders.scripts import Script

REQUEST = b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}"


@pytest.mark.parametrize("sent", [b"", REQUEST], ids=["silent", "asking"])
@pytest.mark.parametrize(
    "script",
    [Script(endless=True, gaps_s=(0.0,)), Script(raw_response=b"x" * 3_000_000), Script(keep_alive=False)],
    ids=["never done", "more than the socket takes", "closing"],
)
def test_a_stop_in_the_middle_of_everything_releases_every_socket(script, sent):
    """Connections being accepted, answered, stuck on a client that does not read, and closed by itself."""
    with warnings.catch_warnings(record=True) as caught, ExitStack() as clients:
        warnings.simplefilter("always")
        with ScriptedServer(script) as server:
            address = ("127.0.0.1", int(server.url.rpartition(":")[2]))
            for _ in range(12):
                clients.enter_context(socket.create_connection(address)).sendall(sent)
        gc.collect()
    assert [str(warning.message) for warning in caught] == []
