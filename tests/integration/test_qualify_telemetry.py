"""A whole run leaves samples of its services' machine, and its compact copy is judged the same."""

import pytest

from draftproof.core.records import TelemetrySample
from draftproof.measure.run.reporting import recompute
from draftproof.store import RunDirectory, save_compacted


@pytest.fixture
def finished(stage):
    """Return a stage with a finished run of scripted services, which have no metrics of their own."""
    stage.run()
    return stage


def marks(samples: tuple[TelemetrySample, ...], arm: str) -> list[tuple[str | None, str | None]]:
    return [(one.period, one.mark) for one in samples if one.arm == arm and one.mark != "during"]


def test_every_period_is_sampled_and_a_compact_copy_gives_the_same_bytes(finished, tmp_path):
    """Two periods of each arm are read at both ends; results and report of the copy are the run's own."""
    contents = RunDirectory.open(finished.out).load()
    periods = {(one.arm, f"{one.load}/{one.block}") for one in contents.blocks}
    for arm in ("baseline", "candidate"):
        mine = [period for name, period in sorted(periods) if name == arm]
        assert marks(contents.telemetry, arm) == [
            (period, mark) for period in mine for mark in ("start", "end")
        ]
    results = recompute(finished.out, write=False)
    assert all(use.resident_max_bytes and use.resident_max_bytes > 2**20 for use in results.services)
    assert {use.finished_requests for use in results.services} == {None}

    copy = save_compacted(finished.out, tmp_path / "copy")
    recompute(copy, write=True)
    for name in ("results.json", "report.html"):
        assert (copy / name).read_bytes() == (finished.out / name).read_bytes()
    assert not (copy / "journal").exists()
