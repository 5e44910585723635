"""What this machine computes with: kinds of GPU and their driver, or the processor."""

import platform
from pathlib import Path
from typing import Any

from draftproof.telemetry.nvml import NvmlReader


def describe_platform(module: Any = None) -> dict[str, str]:
    """Return what this machine computes with: its GPUs and their driver, without any its processor.

    Args:
        module: as of `NvmlReader`.
    """
    reader = NvmlReader(module)
    try:
        return reader.describe() or {"cpu": name_cpu() or platform.machine()}
    finally:
        reader.close()


def name_cpu() -> str | None:
    """Return the processor's name, None where the system does not tell it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor() or None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), None)
