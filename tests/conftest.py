"""What holds for every test: signals have their usual meaning, and what was not run is said in one line."""

import gc
import os
import signal
import sys
from collections import Counter
from functools import lru_cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from draftproof.judge.stats import resampling
from draftproof.workload import clusters

# No property here is about time, and whoever else uses the cores of a test machine must not fail one.
settings.register_profile("any host", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any host")

# What collecting imports and makes stays: to look through it for garbage again and again takes seconds.
gc.disable()

# Invented runs ask the same prompts and draw by the same seeds: what follows from these alone is kept.
resampling._draw_counts = lru_cache(maxsize=2048)(resampling._draw_counts.__wrapped__)
clusters._sketch = lru_cache(maxsize=4096)(clusters._sketch)

# Several test processes share the cores: neither they nor what they start take more than a thread unasked.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A tool of development brings this; users do not have it, and jsonschema compiles its grammars for seconds.
sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]

# Services of known timing are started as programs of tests/builders.
os.environ["PYTHONPATH"] = os.pathsep.join(
    part for part in (os.environ.get("PYTHONPATH"), str(Path(__file__).parents[1])) if part
)

# Mark of a test that a run leaves out by choice -> what runs it.
_RUN_BY = {"slow": "make test-all", "live": "make test-all"}
_LEFT_OUT = "left_out"


@pytest.fixture(autouse=True, scope="session")
def _hang_up_is_heeded():
    """Under nohup a test run ignores SIGHUP, and the programs that it starts would too."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def pytest_configure(config):
    config.stash[_KEY] = Counter()


def pytest_deselected(items):
    """Count what is left out by its mark; a worker of xdist collects everything and tells its controller."""
    for item in items:
        mark = next((name for name in _RUN_BY if item.get_closest_marker(name)), None)
        item.config.stash[_KEY][f"{mark} ({_RUN_BY[mark]})" if mark else "deselected"] += 1


def pytest_collection_finish():
    """Spare the garbage collector what imports brought: torch and its like are 250,000 objects that stay."""
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_sessionfinish(session):
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput[_LEFT_OUT] = dict(session.config.stash[_KEY])


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
    """Every worker collects the same tests, so the largest count is the count."""
    node.config.stash[_KEY] |= Counter(getattr(node, "workeroutput", {}).get(_LEFT_OUT, {}))


def pytest_terminal_summary(terminalreporter, config):
    """Say in one line what was not run, and how to run it."""
    left_out = config.stash[_KEY] + Counter(map(_read_reason, terminalreporter.stats.get("skipped", ())))
    if left_out:
        parts = "; ".join(f"{count} {what}" for what, count in sorted(left_out.items()))
        terminalreporter.write_line(f"Not run: {parts}.")


def _read_reason(report):
    """Return why a test was skipped, without the word that pytest puts first."""
    return str(report.longrepr[2]).removeprefix("Skipped: ").rstrip(".")


_KEY = pytest.StashKey[Counter[str]]()
