"""Offsets of clocks from pings, times carried over, lines on their way, and what hosts must agree in."""

from typing import NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.builders.records import build_block_record, build_record

from draftproof.core.errors import UsageError
from draftproof.judge.metrics.request import compute_request_metrics
from draftproof.measure.load.ray.actor import Spool
from draftproof.measure.load.ray.hosts import (
    Offset,
    Ping,
    block_to_our_time,
    check_reachable,
    check_same_program,
    check_sockets,
    describe_workers,
    estimate_offset,
    read_facts,
    record_to_our_time,
    to_worker_time,
    widen_error,
)
from draftproof.measure.load.sockets import Limits, count_descriptors
from draftproof.measure.load.workers.messages import Count, Finish, Start

MS = 1_000_000
OFFSETS = st.integers(-(10**15), 10**15)
WAYS = st.tuples(st.integers(0, 50 * MS), st.integers(0, 50 * MS))


def ping(sent_ns, there_ns, back_ns, offset_ns):
    """Return a ping whose ways take so long, against a clock that is ahead by `offset_ns`."""
    return Ping(sent_ns, sent_ns + there_ns + offset_ns, sent_ns + there_ns + back_ns)


@given(offset_ns=OFFSETS, ways=st.lists(WAYS, min_size=1, max_size=20))
def test_the_true_offset_is_within_the_error_however_uneven_the_ways(offset_ns, ways):
    """Half of the shortest round trip bounds the error, with all of the delay on either way."""
    pings = [ping(number * 10**9, there, back, offset_ns) for number, (there, back) in enumerate(ways)]
    found = estimate_offset(pings)
    assert abs(found.offset_ns - offset_ns) <= found.error_ns
    assert found.error_ns == -(-min(there + back for there, back in ways) // 2)


def test_even_ways_show_the_offset_itself():
    """The middle of the round trip is when the other clock was read."""
    found = estimate_offset([ping(0, 9 * MS, MS, 700), ping(50 * MS, 2 * MS, 2 * MS, 700)])
    assert found == Offset(700, 2 * MS)


@given(
    offset_ns=OFFSETS, drift_ns=st.integers(-(10**8), 10**8), before=WAYS, after=WAYS,
    share=st.floats(0.0, 1.0),
)  # fmt: skip
def test_drift_during_a_period_is_within_the_error_at_every_moment(offset_ns, drift_ns, before, after, share):
    """A clock that runs faster or slower by a steady rate is never further off than the error says."""
    (there_ns, back_ns), (later_there_ns, later_back_ns) = before, after
    first = estimate_offset([ping(0, there_ns, back_ns, offset_ns)])
    last = estimate_offset([ping(60 * 10**9, later_there_ns, later_back_ns, offset_ns + drift_ns)])
    noted = widen_error(first, last)
    assert noted.offset_ns == first.offset_ns
    assert abs(offset_ns + round(share * drift_ns) - noted.offset_ns) <= noted.error_ns


@given(offset_ns=OFFSETS)
def test_no_duration_of_a_request_changes(offset_ns):
    """Times of one clock differ as they did, whatever is taken off them, and words arrive at their time."""
    record = build_record()
    ours = record_to_our_time(record, offset_ns)
    assert compute_request_metrics(ours, 0) == compute_request_metrics(record, 0)
    assert record.end_ns - ours.end_ns == offset_ns
    assert record_to_our_time(ours, -offset_ns) == record
    unsent = msgspec.structs.replace(record, sent_ns=None, headers_ns=None, chunks=())
    assert record_to_our_time(unsent, offset_ns).sent_ns is None
    assert to_worker_time(Start(5), offset_ns) == Start(5 + offset_ns)
    assert to_worker_time(Count(5), offset_ns) == Count(5 + offset_ns)
    assert to_worker_time(Finish(), offset_ns) == Finish()


def test_a_part_is_told_by_our_clock():
    """Start, end and begin of counting move together; lags are durations and stay."""
    block = build_block_record(started_ns=100, ended_ns=900, counted_from_ns=None, lag_p99_ns=7)
    moved = block_to_our_time(block, 60)
    assert (moved.started_ns, moved.ended_ns, moved.counted_from_ns, moved.lag_p99_ns) == (40, 840, None, 7)


@given(
    lines=st.lists(st.binary(max_size=80).map(lambda one: one.replace(b"\n", b"")), max_size=30),
    batch=st.integers(1, 100),
    every=st.integers(1, 5),
)
def test_a_spool_hands_over_each_line_once_and_whole(lines, batch, every):
    """Whatever the size of a batch, and whenever it is taken, also where lines wait in a file."""
    spool, taken = Spool(in_memory_bytes=50), []
    for number, line in enumerate(lines):
        spool.append(line)
        if number % every == 0:
            taken.append(spool.take(batch))
    while not spool.is_empty:
        taken.append(spool.take(batch))
    spool.close()
    assert all(one.endswith(b"\n") for one in taken)
    assert b"".join(taken) == b"".join(line + b"\n" for line in lines)


def facts(**fields):
    return msgspec.structs.replace(
        read_facts(), limits=Limits(soft=1024, hard=4096, ports=28_000), cores=8, **fields
    )


@pytest.mark.parametrize(
    ("field", "value", "said"), [("version", "0.0.9", "draftproof 0.0.9"), ("python", "3.9", "Python 3.9")]
)
def test_another_program_on_a_node_is_refused(field, value, said):
    """A node that runs something else is named, with what to install."""
    own, other = facts(), facts(host="b", **{field: value})
    check_same_program(own, [own])
    with pytest.raises(UsageError, match=f"load worker host b: it runs {said}") as refused:
        check_same_program(own, [own, other])
    assert refused.value.fix
    assert getattr(own, field) in refused.value.fix


def test_a_service_of_this_host_alone_is_refused_to_workers_elsewhere():
    """Loopback leads every host to itself; an address that others reach is fine, and so are workers here."""
    own, other = facts(), facts(host="b", network="another")
    for url in ("http://127.0.0.1:8000", "http://localhost:8000/v1", "http://[::1]:8000"):
        check_reachable({"baseline": url}, own, [own])
        with pytest.raises(UsageError, match=r"arm baseline: it answers at .* a load worker on b cannot"):
            check_reachable({"baseline": url}, own, [own, other])
    check_reachable({"baseline": "http://gpu-1:8000"}, own, [own, other])


class Level(NamedTuple):
    """As much of a load level as is looked at."""

    name: str
    concurrency: int | None
    max_in_flight: int = 1


def level(streams):
    return [Level("peak", streams)]


def test_ports_are_those_of_a_host_and_descriptors_those_of_a_process():
    """Two hosts carry what one cannot; a process that may not open enough files is named."""
    one, other = facts(host="a"), facts(host="b", network="another")
    roomy = [
        msgspec.structs.replace(host, limits=Limits(soft=1024, hard=10**6, ports=28_000))
        for host in (one, other)
    ]
    assert check_sockets(level(1000), [one] * 4) == (1024,) * 4
    assert check_sockets(level(1600), [one, other]) == (count_descriptors(800),) * 2
    assert min(check_sockets(level(40_000), roomy)) > 40_000
    with pytest.raises(UsageError, match="level peak on a: 40000 streams from one host"):
        check_sockets(level(40_000), [roomy[0]] * 2)
    with pytest.raises(UsageError, match=r"on a: .* the system allows 4096"):
        check_sockets(level(10_000), [one, other])


def test_workers_are_told_by_host():
    """One line a node, with what it is made of."""
    lines = describe_workers([facts(host="a", node="abcdef0123"), facts(host="a", node="abcdef0123"),
                              facts(host="b")])  # fmt: skip
    assert lines[0].startswith("1 load worker on b (8 cores")
    assert lines[1].startswith("2 load workers on a (8 cores")
    assert lines[1].endswith("Ray node abcdef01")
