"""Enough descriptors and ports for a load, found out before it starts."""

import pytest

from draftproof.core.errors import UsageError
from draftproof.measure.load.sockets import (
    Limits,
    count_descriptors,
    find_soft_limit,
    find_warmup_slots,
    read_limits,
)
from draftproof.plan.load import LoadLevel

SMALL = LoadLevel(name="small", concurrency=8)
LARGE = LoadLevel(name="large", concurrency=10_000)
OPEN = LoadLevel.model_validate({"name": "open", "arrivals": {"rps": 5}, "max_in_flight": 10_000})


def limits(soft=1024, hard=65_536, ports=28_232):
    return Limits(soft=soft, hard=hard, ports=ports)


def find(*levels, workers=1, **granted):
    return find_soft_limit(levels, workers=workers, limits=limits(**granted))


def test_a_small_load_changes_no_limit():
    """What the system grants already stays as it is."""
    assert find(SMALL) == 1024


def test_the_soft_limit_is_raised_as_far_as_the_largest_level_needs():
    """The largest level decides; a part of its connections may be closing while the next are open."""
    assert find(SMALL, LARGE) == count_descriptors(10_000) == 22_128


def test_workers_share_the_descriptors():
    """Either loop is dealt out; a stream takes two, its socket and the duplicate that is read."""
    assert find(OPEN, workers=4) == find(LARGE, workers=4) == count_descriptors(2_500) == 5_628


def test_too_few_descriptors_are_one_sentence_with_place_and_fix():
    """The level, what it needs, what there is, and both ways out."""
    with pytest.raises(UsageError) as caught:
        find(OPEN, hard=4096)
    assert str(caught.value) == (
        "load level open: 10000 streams in one process need 22128 open files, and the system allows 4096. "
        "Fix: raise the limit first (ulimit -n 22128, as root or in limits.conf), or set limits.workers = 6, "
        "or lower the level."
    )
    assert find(OPEN, hard=4096, workers=6) <= 4096


def test_too_few_workers_are_told_how_many_it_takes():
    """The place says over how many they are dealt now; without room for a single one workers are no fix."""
    with pytest.raises(UsageError) as caught:
        find(LARGE, hard=4096, workers=2)
    assert "limits.workers = 6" in str(caught.value.fix)
    assert caught.value.place == "load level large over 2 workers"
    with pytest.raises(UsageError) as caught:
        find(LARGE, soft=64, hard=64)
    assert "limits.workers" not in str(caught.value.fix)


def test_too_few_ports_are_refused_too():
    """Every stream to one service needs a port of this machine, however many workers there are."""
    with pytest.raises(UsageError, match="10000 streams to one service need as many ports") as caught:
        find(LARGE, workers=4, ports=5000)
    assert "ip_local_port_range" in str(caught.value.fix)
    assert find(LARGE, ports=None) == count_descriptors(10_000)


def test_ports_that_the_system_does_not_tell_are_not_known(tmp_path):
    """A missing or odd file gives None, and a range counts both ends."""
    (tmp_path / "range").write_text("32768\t60999\n")
    (tmp_path / "odd").write_text("many\n")
    assert read_limits(tmp_path / "range").ports == 28_232
    assert read_limits(tmp_path / "odd").ports is None
    assert read_limits(tmp_path / "none").ports is None
    assert 0 < read_limits().soft <= read_limits().hard


@pytest.mark.parametrize(("hard", "slots"), [(65_536, 256), (400, 123), (64, 1)])
def test_a_warm_up_fills_as_many_slots_as_one_process_may_have(hard, slots):
    """The whole level, whatever the number of workers, unless the system grants too few descriptors."""
    assert find_warmup_slots(256, limits(hard=hard)) == slots
    assert slots == 1 or count_descriptors(slots) <= hard
