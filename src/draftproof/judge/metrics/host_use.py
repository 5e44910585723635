"""Whether the client's host was quiet over a span of time: a pure function of what it counted.

Nothing here knows how fast an arm answered. Own processes (this program, what it started, attached services
found on this host) are never counted against the host, whatever they use.

Names of what is read of the machine a service runs on, and the units they are in. Pure data.

Our own names say what they measure; NVIDIA's DCGM exporter, scraped as one more metrics address of an arm,
has names of its own (dcgm-exporter, `etc/default-counters.csv`).
"""

from collections.abc import Iterable, Sequence

from draftproof.core.records import AcceleratorUse, HostUse

# Below a second the kernel's ticks (10 ms, counted for each core) tell of rounding.
LEAST_SPAN_S = 1.0
# What others may take without a word: a tenth of the cores, and never more than one.
BUSY_SHARE, MOST_BUSY_CORES = 0.1, 1.0
# What others take when a run cannot end well: a quarter of the cores, with no quarter to spare.
CROWDED_SHARE, SPARE_SHARE = 0.25, 0.25
# Threads wait for a core where some did in a tenth of the time, or hardly any core was idle.
PRESSURE_SHARE, IDLE_SHARE = 0.1, 0.1
# Own processes that fill so much of the host explain by themselves why the client was late.
OWN_SHARE = 0.75
THROTTLED_SHARE = 0.2


def foreign_cores(use: HostUse) -> float | None:
    """Return how many cores other programs used on average, None where it is not known."""
    if use.own_s is None or use.span_s < LEAST_SPAN_S:
        return None
    return max(use.busy_s - use.own_s, 0.0) / use.span_s


def stolen_cores(use: HostUse) -> float:
    """Return how many cores the hypervisor gave to others on average; 0 where there is none."""
    return (use.steal_s or 0.0) / use.span_s if use.span_s >= LEAST_SPAN_S else 0.0


def taken_cores(use: HostUse) -> float:
    """Return how many cores others took that were wanted here: foreign ones, and stolen ones.

    Foreign programs on cores that nobody else wants take nothing.
    """
    foreign = foreign_cores(use) or 0.0
    return (foreign if _has_waiting(use) else 0.0) + stolen_cores(use)


def is_disturbed(use: HostUse) -> bool:
    """Tell whether others took so much that times of the span are not the arm's own."""
    return taken_cores(use) >= min(BUSY_SHARE * use.cores, MOST_BUSY_CORES)


def is_crowded(use: HostUse) -> bool:
    """Tell whether others took so much that a run under it cannot end well.

    Threads may have waited for a moment or for each other on a host that had cores to spare.
    """
    taken = stolen_cores(use) if _idle_share(use) > SPARE_SHARE else taken_cores(use)
    return taken >= CROWDED_SHARE * use.cores


def is_idle(use: HostUse) -> bool:
    """Tell whether others leave the cores free, of a span in which nothing is asked of any arm."""
    taken = (foreign_cores(use) or 0.0) + stolen_cores(use)
    return taken < min(BUSY_SHARE * use.cores, MOST_BUSY_CORES)


def is_filled_by_own(use: HostUse) -> bool | None:
    """Tell whether own processes filled the host by themselves, None where it is not known."""
    if use.own_s is None or use.span_s < LEAST_SPAN_S:
        return None
    return use.own_s >= OWN_SHARE * use.cores * use.span_s


def find_throttled(use: HostUse) -> tuple[AcceleratorUse, ...]:
    """Return the accelerators that heat or their supply slowed down in a fifth of the samples or more."""
    return tuple(
        one
        for one in use.accelerators
        if one.throttled is not None and one.throttled >= max(2, THROTTLED_SHARE * one.samples)
    )


def join_uses(uses: Iterable[HostUse]) -> HostUse | None:
    """Return spans of one host as one, None of none. What one of them lacks the whole lacks."""
    found = list(uses)
    if not found:
        return None
    return HostUse(
        span_s=sum(one.span_s for one in found),
        cores=found[-1].cores,
        busy_s=sum(one.busy_s for one in found),
        own_s=_sum_known([one.own_s for one in found]),
        steal_s=_sum_known([one.steal_s for one in found]),
        pressure_s=_sum_known([one.pressure_s for one in found]),
        accelerators=_join_accelerators([part for one in found for part in one.accelerators]),
    )


def _has_waiting(use: HostUse) -> bool:
    """Tell whether threads had to wait for a core."""
    waits = use.pressure_s is not None and use.pressure_s >= PRESSURE_SHARE * use.span_s
    return waits or _idle_share(use) <= IDLE_SHARE


def _idle_share(use: HostUse) -> float:
    whole_s = use.cores * use.span_s
    return 1 - (use.busy_s + (use.steal_s or 0.0)) / whole_s if whole_s else 0.0


def _join_accelerators(parts: Sequence[AcceleratorUse]) -> tuple[AcceleratorUse, ...]:
    own = {index: [one for one in parts if one.index == index] for index in sorted({p.index for p in parts})}
    return tuple(_join_one(index, found) for index, found in own.items())


def _join_one(index: int, parts: Sequence[AcceleratorUse]) -> AcceleratorUse:
    clocks = [(one.clock_mhz, one.samples) for one in parts if one.clock_mhz is not None]
    throttled = _sum_known([one.throttled for one in parts])
    return AcceleratorUse(
        index=index,
        samples=sum(one.samples for one in parts),
        throttled=None if throttled is None else round(throttled),
        clock_mhz=sum(mhz * n for mhz, n in clocks) / sum(n for _, n in clocks) if clocks else None,
        power_limit_w=min((w for one in parts if (w := one.power_limit_w) is not None), default=None),
        temperature_c=max((c for one in parts if (c := one.temperature_c) is not None), default=None),
    )


def _sum_known(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


RESIDENT_BYTES = "host_resident_bytes"
CPU_SECONDS = "host_cpu_seconds_total"
GPU_MEMORY_BYTES = "host_gpu_memory_used_bytes"
GPU_BUSY_SHARE = "host_gpu_busy_share"
GPU_POWER_WATTS = "host_gpu_power_watts"
GPU_ENERGY_JOULES = "host_gpu_energy_joules_total"
CPU_ENERGY_JOULES = "host_cpu_energy_joules_total"

DCGM_PREFIX = "DCGM_FI_DEV_"
DCGM_POWER_WATTS = f"{DCGM_PREFIX}POWER_USAGE"
DCGM_ENERGY_MILLIJOULES = f"{DCGM_PREFIX}TOTAL_ENERGY_CONSUMPTION"
DCGM_MEMORY_MIB = f"{DCGM_PREFIX}FB_USED"
DCGM_BUSY_PERCENT = f"{DCGM_PREFIX}GPU_UTIL"
DCGM_SERIES = (DCGM_POWER_WATTS, DCGM_ENERGY_MILLIJOULES, DCGM_MEMORY_MIB, DCGM_BUSY_PERCENT)

# From a series' own unit to the unit of the quantity: bytes, joules, watts, a share of 1.
SCALES: dict[str, float] = {
    DCGM_ENERGY_MILLIJOULES: 1e-3,
    DCGM_MEMORY_MIB: 2.0**20,
    DCGM_BUSY_PERCENT: 1e-2,
}
