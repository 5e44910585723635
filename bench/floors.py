"""How fast this machine reads memory: the floor under every decode step, which reads the weights once."""

import statistics
from collections.abc import Callable
from typing import Any

import torch

from draftproof.core.clock import monotonic_ns


def measure_bandwidth(megabytes: int, repeats: int) -> dict[str, float]:
    """Return bytes per second of torch's bf16 matrix-vector product and of a plain read, best kind of read.

    Args:
        megabytes: size of what is read; well above the last cache.
        repeats: of each measurement; the median counts.
    """
    rows = megabytes * 2**20 // 2 // 8192
    matrix = torch.ones(rows, 8192, dtype=torch.bfloat16)
    vector = torch.ones(1, 8192, dtype=torch.bfloat16)
    plain, whole = matrix.view(torch.float32), matrix.view(torch.int64)
    reads = [_median_s(plain.sum, repeats), _median_s(whole.amax, repeats)]
    product = _median_s(lambda: torch.nn.functional.linear(vector, matrix), repeats)
    return {"matvec_bytes_per_s": matrix.nbytes / product, "read_bytes_per_s": matrix.nbytes / min(reads)}


@torch.inference_mode()
def _median_s(run: Callable[[], Any], repeats: int) -> float:
    run()
    costs = []
    for _ in range(repeats):
        start_ns = monotonic_ns()
        run()
        costs.append(monotonic_ns() - start_ns)
    return statistics.median(costs) / 1e9


def describe_floors(weight_bytes: int, step_s: float, bandwidth: dict[str, float]) -> dict[str, Any]:
    """Return the time to read the weights once at each bandwidth, and the ordinary step as its multiple.

    Args:
        weight_bytes: of the weights as shipped, bf16.
        step_s: seconds per token of ordinary decoding at batch 1.
        bandwidth: as measured.
    """
    floors: dict[str, Any] = {"weight_bytes": weight_bytes, "ordinary_step_ms": round(1e3 * step_s, 3)}
    for name in ("matvec", "read"):
        speed = bandwidth[f"{name}_bytes_per_s"]
        floor_s = weight_bytes / speed
        floors[name] = {
            "gb_per_s": round(speed / 1e9, 2),
            "floor_ms": round(1e3 * floor_s, 3),
            "ordinary_step_over_floor": round(step_s / floor_s, 3),
        }
    return floors
