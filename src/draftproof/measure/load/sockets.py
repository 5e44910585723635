"""Are there enough descriptors and ports for a plan's load? Found out before anything is started.

A client that runs out of either in mid-run fails requests by itself, and they would look like the service's.
"""

import math
import resource
from collections.abc import Sequence
from pathlib import Path

import msgspec

from draftproof.core.errors import UsageError
from draftproof.plan.load import LoadLevel
from draftproof.plan.schema import Plan

PORT_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
# Files, pipes, metrics and logs of a process beside its streams.
_OTHERS = 128
# A stream's socket, and the duplicate by which its arrivals are read.
_PER_STREAM = 2
# A connection that is being closed is still held while the next one is open.
_CLOSING_SHARE = 0.1


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What the system grants: open descriptors of a process now and at most, ports of one destination."""

    soft: int
    hard: int
    ports: int | None = None


def count_streams(level: LoadLevel) -> int:
    """Return how many requests a level holds open at most."""
    return level.max_in_flight if level.concurrency is None else level.concurrency


def count_descriptors(streams: int) -> int:
    """Return how many descriptors a process needs for so many streams."""
    return math.ceil(_PER_STREAM * streams * (1 + _CLOSING_SHARE)) + _OTHERS


def read_limits(port_range: Path = PORT_RANGE) -> Limits:
    """Return what the system grants this process; ports are None where it does not say."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = 1 << 30
    soft, hard = (unlimited if one == resource.RLIM_INFINITY else one for one in (soft, hard))
    try:
        low, high = map(int, port_range.read_text(encoding="ascii").split())
    except (OSError, ValueError):
        return Limits(soft=soft, hard=hard)
    return Limits(soft=soft, hard=hard, ports=high - low + 1)


def find_soft_limit(levels: Sequence[LoadLevel], *, workers: int, limits: Limits) -> int:
    """Return the limit of descriptors that every load process has to have, this one included. Pure.

    Raises UsageError: the system grants fewer descriptors or ports; names the level and what to do.
    """
    needed = limits.soft
    for level in levels:
        streams = count_streams(level)
        own = math.ceil(streams / workers)
        wanted = count_descriptors(own)
        if wanted > limits.hard:
            _refuse_descriptors(level, wanted, own, workers, limits)
        if limits.ports is not None and streams > limits.ports:
            raise UsageError(
                f"{streams} streams to one service need as many ports, and this machine has {limits.ports}",
                place=f"load level {level.name}",
                fix="widen net.ipv4.ip_local_port_range with sysctl, or lower the level.",
            )
        needed = max(needed, wanted)
    return needed


def _refuse_descriptors(level: LoadLevel, wanted: int, own: int, workers: int, limits: Limits) -> None:
    fixes = [f"raise the limit first (ulimit -n {wanted}, as root or in limits.conf)"]
    if (per_process := _count_granted(limits)) > 0:
        fixes.append(f"set limits.workers = {math.ceil(count_streams(level) / per_process)}")
    fixes.append("lower the level")
    raise UsageError(
        f"{own} streams in one process need {wanted} open files, and the system allows {limits.hard}",
        place=f"load level {level.name}" + (f" over {workers} workers" if workers > 1 else ""),
        fix=f"{', or '.join(fixes)}.",
    )


def find_warmup_slots(concurrency: int, limits: Limits) -> int:
    """Return how many slots of a closed loop this process can fill alone, as in a warm-up. Pure."""
    return max(1, min(concurrency, _count_granted(limits)))


def _count_granted(limits: Limits) -> int:
    return math.floor((limits.hard - _OTHERS) / _PER_STREAM / (1 + _CLOSING_SHARE))


def prepare_descriptors(plan: Plan) -> None:
    """Raise this process's limit of descriptors as far as a plan needs; load workers inherit it.

    It warms arms up by itself, at the whole level, so that it needs more than a worker where it may have it.
    Raises UsageError: as `find_soft_limit`.
    """
    limits = read_limits()
    if plan.limits.ray is not None:  # the ports are those of the cluster's nodes
        limits = msgspec.structs.replace(limits, ports=None)
    highest = () if plan.knee is None else (plan.knee.level(plan.knee.grid[-1]),)
    needed = find_soft_limit((*plan.load, *highest), workers=plan.limits.workers, limits=limits)
    slots = max((one.concurrency for one in (*plan.load, *highest) if one.concurrency is not None), default=1)
    needed = max(needed, count_descriptors(find_warmup_slots(slots, limits)))
    if needed > limits.soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
