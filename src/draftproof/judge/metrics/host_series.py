"""Names of what is read of the machine a service runs on, and the units they are in. Pure data.

Our own names say what they measure; NVIDIA's DCGM exporter, scraped as one more metrics address of an arm,
has names of its own (dcgm-exporter, `etc/default-counters.csv`).
"""

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
