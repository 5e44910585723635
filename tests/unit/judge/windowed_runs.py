"""Invented runs whose periods have times: requests one after the other, which fill their period."""

import msgspec


def with_windows(run, rest_ns=0):
    """Let the requests of every period come one after the other, each followed by a rest, and fill it.

    The periods follow each other without a pause, in the order of their blocks.
    """
    spent: dict[tuple[str, int, str], int] = {}
    for one in run.records:
        key = (one.load, one.block, one.arm)
        spent[key] = spent.get(key, 0) + one.end_ns - one.scheduled_ns + rest_ns
    starts, at_ns, blocks = {}, 0, []
    for block in sorted(run.blocks, key=lambda one: (one.block, one.order)):
        key = (block.load, block.block, block.arm)
        starts[key] = at_ns
        blocks.append(msgspec.structs.replace(block, started_ns=at_ns, ended_ns=at_ns + spent[key]))
        at_ns += spent[key]
    records = []
    for one in run.records:
        key = (one.load, one.block, one.arm)
        records.append(move(one, starts[key]))
        starts[key] = records[-1].end_ns + rest_ns
    return msgspec.structs.replace(run, blocks=tuple(blocks), records=tuple(records))


def move(record, start_ns):
    """Return a record whose every time is later by the same, so that it is scheduled at `start_ns`."""
    shift = start_ns - record.scheduled_ns
    chunks = tuple(msgspec.structs.replace(one, arrival_ns=one.arrival_ns + shift) for one in record.chunks)
    times = {name: getattr(record, name) for name in ("scheduled_ns", "sent_ns", "headers_ns", "end_ns")}
    moved = {name: None if at_ns is None else at_ns + shift for name, at_ns in times.items()}
    return msgspec.structs.replace(record, chunks=chunks, **moved)
