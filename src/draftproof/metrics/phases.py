"""The parts of one arm's turn: ramp, steady window, drain. Pure; times in ns of the client's clock."""

from collections.abc import Iterable

import msgspec

from draftproof.records import BlockRecord, RequestRecord


class TurnPhases(msgspec.Struct, frozen=True, kw_only=True):
    """How long a turn brought its load up, kept it, and waited for its last answers.

    The three add up to the turn.
    """

    ramp_ns: int
    steady_ns: int
    drain_ns: int


def split_turn(block: BlockRecord, counted: Iterable[RequestRecord]) -> TurnPhases | None:
    """Split a turn at the time from which requests counted and at that when the last of them was due.

    Args:
        block: the turn; None is returned of one that was not completed or does not say when counting began.
        counted: its requests of phase "measure"; None is returned without any.
    """
    last_ns = max((one.scheduled_ns for one in counted), default=None)
    if last_ns is None or block.counted_from_ns is None or not block.completed:
        return None
    # A request that was due while the ramp ended counts from there on.
    last_ns = min(max(last_ns, block.counted_from_ns), block.ended_ns)
    return TurnPhases(
        ramp_ns=block.counted_from_ns - block.started_ns,
        steady_ns=last_ns - block.counted_from_ns,
        drain_ns=block.ended_ns - last_ns,
    )
