"""A control group's own waiting is read, and not that of its neighbours or of its own quota."""

import pytest

from draftproof.services.telemetry.host import CpuGroup, parse_pressure

HOST = "some avg10=0.00 avg60=0.10 avg300=0.00 total=9000000\nfull avg10=0.00 total=0\n"
OWN = "some avg10=1.00 avg60=0.10 avg300=0.00 total=2500000\n"


@pytest.fixture
def group(tmp_path):
    """Return a maker of groups: which the process is in, and what files say, by path below the mount."""

    def make(membership, files, *, host=HOST):
        for name, text in files.items():
            path = tmp_path / "cgroup" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        (tmp_path / "self").write_text(membership)
        (tmp_path / "host").write_text(host)
        return CpuGroup(tmp_path / "cgroup", tmp_path / "self", tmp_path / "host")

    return make


def test_the_groups_own_waiting_counts(group):
    """Version 2: the folder below the mount that the process is in."""
    own = group(
        "0::/user/session\n", {"user/session/cpu.pressure": OWN, "user/session/cpu.max": "max 100000\n"}
    )
    assert (own.read_pressure(), own.read_pressure(of_host=True), own.has_quota) == (2.5, 9.0, False)


def test_a_group_without_a_count_of_its_own_takes_that_above_it(group):
    """The nearest folder that counts, the mount itself at last."""
    assert group("0::/user/session\n", {"cpu.pressure": OWN}).read_pressure() == 2.5


@pytest.mark.parametrize(
    ("membership", "files"),
    [
        ("0::/pod/own\n", {"pod/own/cpu.pressure": OWN, "pod/cpu.max": "200000 100000\n"}),
        ("4:cpu,cpuacct:/own\n", {"cpu,cpuacct/own/cpu.cfs_quota_us": "200000\n"}),
    ],
    ids=["version 2, of the group above", "version 1"],
)
def test_a_group_with_a_quota_waits_for_itself(group, membership, files):
    """What it waits for may be its own quota, so that its waiting accuses nobody; the host's is another."""
    found = group(membership, files)
    assert (found.has_quota, found.read_pressure(), found.read_pressure(of_host=True)) == (True, None, 9.0)


def test_where_groups_do_not_count_the_host_does(group):
    """Version 1 has no pressure of a group, and an unlimited quota is none."""
    found = group("3:cpuset:/\n1:cpu:/\n0::/\n", {"cpu/cpu.cfs_quota_us": "-1\n"})
    assert (found.has_quota, found.read_pressure()) == (False, 9.0)


def test_nothing_told_is_unknown(tmp_path):
    """No files, or others: None, never 0."""
    nowhere = CpuGroup(tmp_path, tmp_path / "none", tmp_path / "neither")
    assert (nowhere.read_pressure(), nowhere.has_quota) == (None, False)
    assert parse_pressure("nothing of the kind\n") is None
    assert parse_pressure("some avg10=0.00 total=\n") is None
