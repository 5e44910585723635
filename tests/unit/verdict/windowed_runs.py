"""Invented runs whose turns have times: requests one after the other, which fill their turn."""

import msgspec


def with_windows(run, rest_ns=0):
    """Let the requests of every turn come one after the other, each followed by a rest, and fill it."""
    spent: dict[tuple[str, int, str], int] = {}
    records = []
    for one in run.records:
        key = (one.load, one.block, one.arm)
        records.append(move(one, spent.get(key, 0)))
        spent[key] = records[-1].end_ns + rest_ns
    blocks = tuple(
        msgspec.structs.replace(block, started_ns=0, ended_ns=spent[block.load, block.block, block.arm])
        for block in run.blocks
    )
    return msgspec.structs.replace(run, blocks=blocks, records=tuple(records))


def move(record, start_ns):
    """Return a record whose every time is later by the same, so that it is scheduled at `start_ns`."""
    shift = start_ns - record.scheduled_ns
    chunks = tuple(msgspec.structs.replace(one, arrival_ns=one.arrival_ns + shift) for one in record.chunks)
    times = {name: getattr(record, name) for name in ("scheduled_ns", "sent_ns", "headers_ns", "end_ns")}
    moved = {name: None if at_ns is None else at_ns + shift for name, at_ns in times.items()}
    return msgspec.structs.replace(record, chunks=chunks, **moved)
