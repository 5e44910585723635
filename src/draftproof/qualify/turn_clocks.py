"""What the host's clocks did during a turn, noted in the turn's record. Pure."""

import msgspec

from draftproof.clock import ClockReading, compare_clocks
from draftproof.records import BlockRecord


def note_clocks(turn: BlockRecord, before: ClockReading, after: ClockReading) -> BlockRecord:
    """Return a turn's record with its wall-clock anchor and with what befell the clocks.

    Args:
        turn: the record.
        before: the clocks as the turn began.
        after: the clocks as it ended.
    """
    change = compare_clocks(before, after)
    return msgspec.structs.replace(
        turn,
        started_wall_ns=before.wall_ns + turn.started_ns - before.monotonic_ns,
        boot=before.boot,
        wall_step_ns=change.wall_step_ns,
        suspended_ns=change.slept_ns,
    )
