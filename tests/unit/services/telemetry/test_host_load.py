"""Work of our own is told from that of other programs, and what the system does not tell stays unknown."""

import os
import socket
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import msgspec
import psutil
import pytest

from draftproof.judge.metrics.host_use import CPU_SECONDS, RESIDENT_BYTES, foreign_cores
from draftproof.services.telemetry import sampler as service_processes
from draftproof.services.telemetry.devices import NvmlReader
from draftproof.services.telemetry.host import (
    HostCounters,
    HostLoadReader,
    find_allowed,
    find_family,
    read_family,
    subtract,
)
from draftproof.services.telemetry.sampler import find_listeners, find_processes, is_local_url, list_group

LISTEN = (
    "import socket; s=socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True); input()"
)


def counters(at_s=0.0, **fields):
    known: dict[str, Any] = {"busy_s": (0.0, 0.0), "own_s": 0.0, "steal_s": (0.0, 0.0), "pressure_s": 0.0}
    return HostCounters(at_ns=round(at_s * 1e9), **(known | fields))


class FakeNvml:
    """One GPU slowed down by heat, one that waits, one that is capped by its power limit."""

    NVMLError = ValueError
    NVML_CLOCK_SM, NVML_TEMPERATURE_GPU = 1, 0
    busy, reasons = (90, 0, 80), (0x40, 0x01, 0x04)

    def nvmlInit(self):  # noqa: N802
        pass

    def nvmlShutdown(self):  # noqa: N802
        pass

    def nvmlDeviceGetCount(self):  # noqa: N802
        return 3

    def nvmlDeviceGetHandleByIndex(self, index):  # noqa: N802
        return index

    def nvmlDeviceGetUtilizationRates(self, device):  # noqa: N802
        return SimpleNamespace(gpu=self.busy[device])

    def nvmlDeviceGetClockInfo(self, device, kind):  # noqa: N802
        assert kind == self.NVML_CLOCK_SM
        return 1980 - device

    def nvmlDeviceGetEnforcedPowerLimit(self, device):  # noqa: N802
        if device == 2:
            raise ValueError
        return 700_000

    def nvmlDeviceGetTemperature(self, device, kind):  # noqa: N802
        assert kind == self.NVML_TEMPERATURE_GPU
        return 80 + device

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, device):  # noqa: N802
        return self.reasons[device]


def test_use_is_the_difference_of_two_readings():
    """Ten seconds in which 12 of 18 busy seconds were our own: others used 0.6 cores."""
    before = counters(5, busy_s=(60.0, 40.0), own_s=40.0, steal_s=(1.0, 0.0), pressure_s=3.0)
    after = counters(15, busy_s=(70.0, 48.0), own_s=52.0, steal_s=(1.0, 0.5), pressure_s=7.0)
    use = subtract(before, after)
    assert (use.span_s, use.busy_s, use.own_s, use.steal_s, use.pressure_s) == (10, 18, 12, 0.5, 4)
    assert foreign_cores(use) == pytest.approx(0.6)


@pytest.mark.parametrize("after", [{"own_s": None}, {"own_s": 39.0}], ids=["unknown", "lost from sight"])
def test_own_work_that_cannot_be_told_is_unknown(after):
    """A process of ours that vanished takes its account along: nobody is accused then."""
    use = subtract(counters(own_s=40.0), counters(10, busy_s=(10.0, 10.0), **after))
    assert (use.own_s, foreign_cores(use)) == (None, None)


def test_what_a_child_used_is_ours_also_when_it_has_ended():
    """A process tree's account holds children that run and children that were waited for."""
    before = read_family(find_family(os.getpid()))[CPU_SECONDS]
    burn = "import time\nwhile time.process_time() < 0.3: pass"
    subprocess.run([sys.executable, "-S", "-c", burn], check=True)
    assert read_family(find_family(os.getpid()))[CPU_SECONDS] - before > 0.25


def test_a_process_in_two_trees_counts_once(monkeypatch):
    """A service that is ours and listens too is one process."""
    times = SimpleNamespace(user=2.0, system=1.0, children_user=0.5, children_system=0.0)
    one = SimpleNamespace(
        pid=7,
        cpu_times=lambda: times,
        children=lambda **_: [],
        memory_info=lambda: SimpleNamespace(rss=1),
    )
    monkeypatch.setattr(psutil, "Process", lambda _leader: one)
    assert read_family(find_family(1, 7)) == {RESIDENT_BYTES: 1.0, CPU_SECONDS: 3.5}


def test_this_host_is_read():
    """Counters never fall; with services of unknown processes own work is unknown."""
    reader = HostLoadReader()
    one, two = reader.read(), reader.read(None)
    assert two.at_ns >= one.at_ns
    assert sum(two.busy_s) >= sum(one.busy_s) > 0
    assert one.own_s is not None
    assert two.own_s is None
    assert len(one.busy_s) == psutil.cpu_count()
    reader.close()


def test_a_system_without_stolen_time_tells_none(monkeypatch):
    """Elsewhere than on Linux there are fewer fields: unknown, not 0."""
    times = SimpleNamespace(user=1.0, system=2.0)
    monkeypatch.setattr(psutil, "cpu_times", lambda percpu: [times, times] if percpu else times)
    reader = HostLoadReader(nvml=NvmlReader(FakeNvml()))
    assert (reader.read().busy_s, reader.read().steal_s) == ((3.0, 3.0), None)
    assert subtract(reader.read(), reader.read()).steal_s is None


def test_processors_that_own_processes_may_not_use_do_not_count():
    """What another container does on its own processors takes nothing of ours, at either reading.

    All count where nobody tells, and where a container's list has other numbers than the system's.
    """
    before = counters(busy_s=(0.0,) * 4, steal_s=(0.0,) * 4, allowed=frozenset({1}))
    after = counters(
        10, busy_s=(10.0, 2.0, 9.0, 3.0), steal_s=(5.0, 0.0, 0.0, 1.0), allowed=frozenset({1, 3})
    )
    use = subtract(before, after)
    assert (use.cores, use.busy_s, use.steal_s) == (2, 5.0, 1.0)
    for allowed in (None, frozenset({1, 12})):
        unknown = subtract(before, msgspec.structs.replace(after, allowed=allowed))
        assert (unknown.cores, unknown.busy_s) == (4, 24.0)


def test_where_own_processes_may_run_is_asked_of_all_of_them():
    """One that has ended says nothing, and a system that does not tell leaves it unknown."""

    def gone():
        raise psutil.NoSuchProcess(1)

    told = [SimpleNamespace(cpu_affinity=lambda own=own: own) for own in ([0], [2, 3])]
    assert find_allowed([*told, SimpleNamespace(cpu_affinity=gone)]) == frozenset({0, 2, 3})
    assert find_allowed([SimpleNamespace()]) is None


def test_gpus_that_work_are_sampled():
    """Heat slows one down, a power cap is no event; one that waits has another clock and is left out."""
    slowed, capped = HostLoadReader(nvml=NvmlReader(FakeNvml())).read_accelerators()
    assert (slowed.index, slowed.throttled, slowed.clock_mhz, slowed.power_limit_w) == (0, 1, 1980, 700)
    assert (capped.index, capped.throttled, capped.power_limit_w, capped.temperature_c) == (2, 0, None, 82)


@pytest.fixture
def listener():
    """Return the address and the process of something that listens, of a group of its own."""
    process = subprocess.Popen(
        [sys.executable, "-S", "-c", LISTEN],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdout is not None
    port = int(process.stdout.readline())
    yield f"http://localhost:{port}/v1", port, process
    process.communicate(b"\n")


def test_a_service_of_our_own_tree_needs_no_search(listener):
    """It is counted with this program, so nothing is added for it."""
    url, port, process = listener
    assert find_listeners(port) == (process.pid,)
    assert find_processes(url) == ()


def test_a_service_that_somebody_else_runs_is_found_by_its_port(listener, monkeypatch):
    """Whoever listens at the port leads to its group."""
    url, _, process = listener
    monkeypatch.setattr(service_processes, "find_family", lambda _pid: ())
    assert find_processes(url) == (process.pid,)


def test_a_service_elsewhere_has_no_process_here():
    """An address of another machine takes nothing of this one."""
    assert find_processes("http://203.0.113.7:8000") == ()
    assert is_local_url("http://127.0.0.1:8000")
    assert not is_local_url("http://203.0.113.7")


def test_a_service_behind_a_forwarder_cannot_be_told(listener, monkeypatch):
    """Whoever listens for a container is not the service, and nobody at the port is hidden from us."""
    url, _, _ = listener
    monkeypatch.setattr(service_processes, "_is_forwarder", lambda _pid: True)
    assert find_processes(url) is None
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    assert find_processes(f"http://127.0.0.1:{port}") is None


def test_a_group_that_this_program_shares_leads_to_nobody_else():
    """A script without job control has one group for all that it starts."""
    assert list_group(os.getpid()) == (os.getpid(),)
