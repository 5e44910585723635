"""What is known of a worker's host: its facts, whether a worker there can do its part, and its clock.

How far its monotonic clock is from ours: a ping is read here, there, and here again. Wherever in between the
other clock was read, the middle of the round trip is wrong by at most half of it, so the shortest ping bounds
the error best; nothing is assumed of how long either way took.
"""

import os
import platform
import socket
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import psutil

from draftproof import __version__
from draftproof.core.clock import read_clocks
from draftproof.core.errors import UsageError
from draftproof.core.records import BlockRecord, Chunk, RequestRecord
from draftproof.measure.load.sockets import Limits, count_streams, find_soft_limit, read_limits
from draftproof.measure.load.workers.messages import Count, Start, Word
from draftproof.plan.load import LoadLevel

_NETWORK = Path("/proc/self/ns/net")


class HostFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Of one process: what it runs, and where.

    `network` is the same for two processes that reach the same loopback addresses. `node` is the cluster's
    name of the host.
    """

    version: str
    python: str
    host: str
    network: str
    pid: int
    system: str
    cores: int | None
    memory_bytes: int
    limits: Limits
    node: str = ""

    @property
    def machine(self) -> str:
        """The host in half a sentence."""
        return (
            f"{self.host} ({self.cores or 'an unknown number of'} cores, "
            f"{self.memory_bytes / 2**30:.0f} GiB, {self.system})"
        )


def read_facts(node: str = "") -> HostFacts:
    """Return the facts of this process."""
    return HostFacts(
        version=__version__,
        python=".".join(platform.python_version_tuple()[:2]),
        host=socket.gethostname(),
        network=_name_network(),
        pid=os.getpid(),
        system=f"{platform.system()} {platform.release()}",
        cores=psutil.cpu_count(logical=True),
        memory_bytes=psutil.virtual_memory().total,
        limits=read_limits(),
        node=node,
    )


def check_same_program(own: HostFacts, workers: Sequence[HostFacts]) -> None:
    """Do nothing if every worker runs what we run.

    Raises UsageError: names the first host that runs something else.
    """
    for one in workers:
        for name, theirs, ours in (
            ("draftproof", one.version, own.version),
            ("Python", one.python, own.python),
        ):
            if theirs != ours:
                raise UsageError(
                    f"it runs {name} {theirs}, and this program {name} {ours}; all must deal a period alike",
                    place=f"load worker host {one.host}",
                    fix=f"install {name} {ours} on every node of the cluster.",
                )


def check_sockets(levels: Sequence[LoadLevel], workers: Sequence[HostFacts]) -> tuple[int, ...]:
    """Return the limit of descriptors that each worker has to have.

    Raises UsageError: a host grants fewer descriptors, or fewer ports than its workers use together.
    """
    on_network = Counter(one.network for one in workers)
    for one in workers:
        for level in levels:
            streams = round(count_streams(level) * on_network[one.network] / len(workers))
            if one.limits.ports is not None and streams > one.limits.ports:
                raise UsageError(
                    f"{streams} streams from one host need as many ports, and it has {one.limits.ports}",
                    place=f"load level {level.name} on {one.host}",
                    fix="add nodes to the cluster, widen net.ipv4.ip_local_port_range, or lower the level.",
                )
    return tuple(_find_descriptors(levels, one, len(workers)) for one in workers)


def check_reachable(urls: Mapping[str, str], own: HostFacts, workers: Sequence[HostFacts]) -> None:
    """Do nothing unless a worker is elsewhere and a service answers on a loopback address only.

    `urls`: an arm's name -> the address by which it is asked. Raises UsageError: names the arm and the host.
    """
    strangers = [one for one in workers if one.network != own.network]
    for arm, url in urls.items():
        name = urlsplit(url).hostname or ""
        if strangers and (name in {"localhost", "::1"} or name.startswith("127.")):
            raise UsageError(
                f"it answers at {url}, which a load worker on {strangers[0].host} cannot reach",
                place=f"arm {arm}",
                fix="start the service yourself where every node reaches it, and give its address as url.",
            )


def describe_workers(workers: Sequence[HostFacts]) -> tuple[str, ...]:
    """Return one line a host."""
    counts = Counter((one.node, one.machine) for one in workers)
    return tuple(
        f"{count} load worker{'s' if count > 1 else ''} on {machine}"
        + (f", Ray node {node[:8]}" if node else "")
        for (node, machine), count in sorted(counts.items())
    )


def _find_descriptors(levels: Sequence[LoadLevel], one: HostFacts, workers: int) -> int:
    limits = msgspec.structs.replace(one.limits, ports=None)  # ports are those of a host, not of a process
    try:
        return find_soft_limit(levels, workers=workers, limits=limits)
    except UsageError as error:
        raise UsageError(error.message, place=f"{error.place} on {one.host}", fix=error.fix) from error


def _name_network() -> str:
    """Two processes of one boot and one network namespace have one loopback device."""
    try:
        namespace = str(_NETWORK.readlink())
    except OSError:
        namespace = ""
    return f"{read_clocks().boot or socket.gethostname()} {namespace}"


class Ping(msgspec.Struct, frozen=True):
    """One exchange in nanoseconds: sent and received by our clock, answered by the other one."""

    sent_ns: int
    answered_ns: int
    received_ns: int


class Offset(msgspec.Struct, frozen=True):
    """The other clock less ours, in nanoseconds, and how wrong that may be either way."""

    offset_ns: int
    error_ns: int


def estimate_offset(pings: Sequence[Ping]) -> Offset:
    """Return the offset that the ping with the shortest round trip shows, of at least one."""
    best = min(pings, key=lambda ping: ping.received_ns - ping.sent_ns)
    trip_ns = best.received_ns - best.sent_ns
    middle_ns = best.sent_ns + trip_ns // 2
    return Offset(best.answered_ns - middle_ns, -(-trip_ns // 2))


def widen_error(before: Offset, after: Offset) -> Offset:
    """Return the offset that a period was run with, its error wide enough for what the clocks did meanwhile.

    `before`: estimated before the period; times are converted by it. `after`: estimated after the period.
    """
    moved_ns = abs(after.offset_ns - before.offset_ns) + after.error_ns
    return Offset(before.offset_ns, max(before.error_ns, moved_ns))


def to_worker_time(word: Word, offset_ns: int) -> Word:
    """Return a word with its time by the clock of the worker."""
    match word:
        case Start():
            return Start(word.start_ns + offset_ns)
        case Count():
            return Count(word.base_ns + offset_ns)
    return word


def record_to_our_time(record: RequestRecord, offset_ns: int) -> RequestRecord:
    """Return a request's record by our clock; every duration in it stays what it was."""
    return msgspec.structs.replace(
        record,
        scheduled_ns=record.scheduled_ns - offset_ns,
        sent_ns=_shift(record.sent_ns, offset_ns),
        headers_ns=_shift(record.headers_ns, offset_ns),
        end_ns=record.end_ns - offset_ns,
        finish_ns=_shift(record.finish_ns, offset_ns),
        chunks=tuple(Chunk(one.arrival_ns - offset_ns, one.cumulative_tokens) for one in record.chunks),
    )


def block_to_our_time(block: BlockRecord, offset_ns: int) -> BlockRecord:
    """Return the record of a part by our clock."""
    return msgspec.structs.replace(
        block,
        started_ns=block.started_ns - offset_ns,
        ended_ns=block.ended_ns - offset_ns,
        counted_from_ns=_shift(block.counted_from_ns, offset_ns),
    )


def _shift(at_ns: int | None, offset_ns: int) -> int | None:
    return None if at_ns is None else at_ns - offset_ns
