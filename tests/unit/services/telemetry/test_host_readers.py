"""The machine is read as far as it can be read, and what cannot be read is absent."""

import os
from types import SimpleNamespace

import psutil
import pytest

from draftproof.judge.metrics import host_use as host
from draftproof.services.telemetry.devices import NvmlReader, RaplCounter, find_zones, unwrap
from draftproof.services.telemetry.host import HostReader, describe_platform, find_family, read_family


class NotSupportedError(Exception):
    """Stands for NVMLError."""


class FakeNvml:
    """Two GPUs, the second of which tells its memory only."""

    NVMLError = NotSupportedError

    def __init__(self):
        self.open = 0

    def nvmlInit(self):  # noqa: N802
        self.open += 1

    def nvmlShutdown(self):  # noqa: N802
        self.open -= 1

    def nvmlDeviceGetCount(self):  # noqa: N802
        return 2

    def nvmlDeviceGetHandleByIndex(self, index):  # noqa: N802
        return index

    def nvmlDeviceGetMemoryInfo(self, device):  # noqa: N802
        return SimpleNamespace(used=(device + 1) * 2**30)

    def nvmlDeviceGetUtilizationRates(self, device):  # noqa: N802
        return SimpleNamespace(gpu=self._only_first(device, 75))

    def nvmlDeviceGetPowerUsage(self, device):  # noqa: N802
        return self._only_first(device, 350_500)

    def nvmlDeviceGetTotalEnergyConsumption(self, device):  # noqa: N802
        return self._only_first(device, 12_345_000)

    def nvmlDeviceGetName(self, device):  # noqa: N802
        return ("NVIDIA H100 80GB HBM3", b"NVIDIA L4")[device]

    def nvmlSystemGetDriverVersion(self):  # noqa: N802
        return "550.54.15"

    def nvmlSystemGetCudaDriverVersion_v2(self):  # noqa: N802
        return 12040

    def _only_first(self, device, value):
        if device:
            raise NotSupportedError
        return value


def zone(folder, name, title, energy, limit=1000):
    (folder / name).mkdir()
    for file, value in (("name", title), ("energy_uj", energy), ("max_energy_range_uj", limit)):
        (folder / name / file).write_text(f"{value}\n")
    return folder / name / "energy_uj"


def test_gpus_are_read_in_our_units_and_silence_is_absent():
    """Milliwatts become watts, per cent a share; a GPU that does not tell has no value, not 0."""
    assert NvmlReader(FakeNvml()).read() == {
        f'{host.GPU_MEMORY_BYTES}{{gpu="0"}}': 2.0**30,
        f'{host.GPU_BUSY_SHARE}{{gpu="0"}}': 0.75,
        f'{host.GPU_POWER_WATTS}{{gpu="0"}}': 350.5,
        f'{host.GPU_ENERGY_JOULES}{{gpu="0"}}': 12345.0,
        f'{host.GPU_MEMORY_BYTES}{{gpu="1"}}': 2.0**31,
    }


def test_the_library_is_let_go_of_once():
    """Closing twice shuts down what was opened once."""
    fake = FakeNvml()
    reader = NvmlReader(fake)
    reader.close()
    reader.close()
    assert (fake.open, reader.read()) == (0, {})


def test_a_machine_without_a_driver_has_no_gpus():
    """The library is there and finds no driver: nothing is read and nothing fails."""

    class WithoutDriver(FakeNvml):
        def nvmlInit(self):  # noqa: N802
            raise NotSupportedError

    reader = NvmlReader(WithoutDriver())
    assert reader.read() == {}
    reader.close()


def test_the_library_may_be_missing(monkeypatch):
    """Without the module there are no GPUs."""
    monkeypatch.setitem(__import__("sys").modules, "pynvml", None)
    assert NvmlReader().read() == {}


def test_a_wraparound_is_counted_over():
    """From 990 to 15 of a counter that ends at 1000 are 25 microjoules."""
    assert (unwrap(100, 130, 1000), unwrap(990, 15, 1000)) == (30, 25)


def test_rapl_counts_from_its_start_over_a_wraparound(tmp_path):
    """A package that goes from 990 over its end to 15 and on to 40 has used 50 microjoules."""
    energy = zone(tmp_path, "intel-rapl:0", "package-0", 990)
    counter = RaplCounter(tmp_path)
    assert counter.read() == {"intel-rapl:0": 0.0}
    energy.write_text("15\n")
    assert counter.read() == {"intel-rapl:0": pytest.approx(25e-6)}
    energy.write_text("40\n")
    assert counter.read() == {"intel-rapl:0": pytest.approx(50e-6)}


def test_no_part_is_counted_twice(tmp_path):
    """Packages and memory are taken; cores are in the package, psys holds it, mmio repeats it."""
    for name, title in (
        ("intel-rapl:0", "package-0"),
        ("intel-rapl:0:0", "core"),
        ("intel-rapl:0:1", "dram"),
        ("intel-rapl:1", "psys"),
        ("intel-rapl-mmio:0", "package-0"),
    ):
        zone(tmp_path, name, title, 5)
    assert [one.path.name for one in find_zones(tmp_path)] == ["intel-rapl:0", "intel-rapl:0:1"]


def test_counters_that_cannot_be_read_are_absent(tmp_path):
    """No folder, a file that is not ours to read, one that vanishes: no energy, and never 0."""
    assert RaplCounter(tmp_path / "absent").read() == {}
    energy = zone(tmp_path, "intel-rapl:0", "package-0", 5)
    counter = RaplCounter(tmp_path)
    energy.unlink()
    assert counter.read() == {}
    energy.write_text("9\n")
    assert counter.read() == {}
    assert find_zones(tmp_path / "absent") == ()


def test_a_family_is_read_as_one():
    """This process has memory and processor time, in bytes and seconds."""
    found = read_family(find_family(os.getpid()))
    assert found[host.RESIDENT_BYTES] > 2**20
    assert found[host.CPU_SECONDS] > 0


def test_a_family_that_is_gone_has_no_memory():
    """A process that ended between the listing and the reading leaves no 0 behind."""

    class Gone:
        def cpu_times(self):
            raise psutil.NoSuchProcess(1)

    assert read_family([Gone()]) == {}
    assert find_family(None) == ()
    assert find_family(2**22 + 1) == ()


def test_the_time_of_ended_children_is_kept():
    """What a child had used before it ended is in its parent's account: 1 + 2 + 3 + 4 seconds."""
    times = SimpleNamespace(user=1.0, system=2.0, children_user=3.0, children_system=4.0)
    process = SimpleNamespace(cpu_times=lambda: times, memory_info=lambda: SimpleNamespace(rss=7))
    assert read_family([process, process]) == {host.RESIDENT_BYTES: 14.0, host.CPU_SECONDS: 20.0}


def test_the_machine_is_read_together(tmp_path):
    """Processes, GPUs and processors' energy come in one reading."""
    zone(tmp_path, "intel-rapl:0", "package-0", 5)
    reader = HostReader(NvmlReader(FakeNvml()), RaplCounter(tmp_path))
    found = reader.read(find_family(os.getpid()))
    names = {series.partition("{")[0] for series in found}
    assert names == {
        host.RESIDENT_BYTES,
        host.CPU_SECONDS,
        host.GPU_MEMORY_BYTES,
        host.GPU_BUSY_SHARE,
        host.GPU_POWER_WATTS,
        host.GPU_ENERGY_JOULES,
        host.CPU_ENERGY_JOULES,
    }
    reader.close()


def test_the_platform_is_kinds_of_gpu_and_their_driver():
    """Names as text or bytes, each kind once; the driver's CUDA version is read from its number."""
    assert describe_platform(FakeNvml()) == {
        "accelerator": "NVIDIA H100 80GB HBM3, NVIDIA L4",
        "driver": "550.54.15",
        "cuda_driver": "12.4",
    }

    class Silent(FakeNvml):
        def nvmlSystemGetDriverVersion(self):  # noqa: N802
            raise NotSupportedError

    assert "driver" not in describe_platform(Silent())


def test_without_a_gpu_the_processor_computes():
    """A machine whose driver is not there names its processor and no accelerator."""

    class WithoutDriver(FakeNvml):
        def nvmlInit(self):  # noqa: N802
            raise NotSupportedError

    assert set(describe_platform(WithoutDriver())) == {"cpu"}
