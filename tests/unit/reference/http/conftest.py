"""Servers of the scripted engine: one for each test, and one shared by tests that leave no trace."""

from collections.abc import Iterator

import pytest
from scripted_server import Client, ScriptedBackend, running_server, scripted_service, wait_ready


@pytest.fixture
def backend() -> ScriptedBackend:
    return ScriptedBackend()


@pytest.fixture
def client(backend: ScriptedBackend) -> Iterator[Client]:
    with running_server(scripted_service(backend)) as client:
        wait_ready(client)
        yield client


@pytest.fixture(scope="session")
def shared_client() -> Iterator[tuple[Client, ScriptedBackend]]:
    """One server for tests that leave no trace in it."""
    backend = ScriptedBackend()
    with running_server(scripted_service(backend)) as client:
        wait_ready(client)
        yield client, backend
