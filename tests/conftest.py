"""What holds for every test: the signals that a test sends have their usual meaning."""

import signal

import pytest


@pytest.fixture(autouse=True, scope="session")
def _hang_up_is_heeded():
    """Under nohup a test run ignores SIGHUP, and the programs that it starts would too."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)
