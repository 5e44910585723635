"""What befell client host and services from outside while a run was measured, a sentence each. Pure.

Durations are differences of one monotonic clock. These events are told since a reader would otherwise look
for their cause in the arms.
"""

from collections.abc import Iterable, Iterator, Sequence

from draftproof.records import BlockRecord

NS_PER_S = 1e9
_LISTED = 3
_CHANGED = "service changed: "


def list_disturbances(turns: Sequence[BlockRecord]) -> Iterator[str]:
    """Yield a warning for a wall clock set, a host asleep or started anew, and a service that was gone."""
    stepped = [turn for turn in turns if turn.wall_step_ns]
    if stepped:
        told = _list(f"by {(turn.wall_step_ns or 0) / NS_PER_S:+,.3f} s in {_name(turn)}" for turn in stepped)
        yield (
            f"The client host's wall clock was set while turns ran: {told}. Durations are of another clock; "
            "the arrival of bytes that lay unread at that moment may be off by what the client was late."
        )
    slept = [turn for turn in turns if turn.suspended_ns]
    if slept:
        told = _list(f"{(turn.suspended_ns or 0) / NS_PER_S:,.1f} s in {_name(turn)}" for turn in slept)
        yield f"The client's host slept while turns ran: {told}. Times of these turns are left out."
    boots = {turn.boot for turn in turns if turn.boot is not None}
    if len(boots) > 1:
        yield (
            f"The run was measured in {len(boots)} starts of the client's host, or on as many; turns of "
            "different starts are put in order by the wall clock."
        )
    unreached = [turn for turn in turns if turn.unreached]
    if unreached:
        told = _list(f"{turn.unreached} in {_name(turn)}" for turn in unreached)
        yield (
            f"Requests found no service to connect to: {told}. It was down or refused connections; counted "
            "ones are failures of the arm."
        )
    yield from _list_changes(turns)


def note_change(what: str) -> str:
    """Return the note of a turn after which its service said that it is another one."""
    return f"{_CHANGED}{what}"


def _list_changes(turns: Sequence[BlockRecord]) -> Iterator[str]:
    for turn in turns:
        _, mark, what = (turn.note or "").partition(_CHANGED)
        if mark:
            yield (
                f"After {_name(turn)} its service said that {what} What was measured since its turn before "
                "may be of either."
            )


def _name(turn: BlockRecord) -> str:
    return f"turn {turn.load}/{turn.block} of {turn.arm}"


def _list(told: Iterable[str]) -> str:
    every = list(told)
    more = f" and {len(every) - _LISTED} more" if len(every) > _LISTED else ""
    return ", ".join(every[:_LISTED]) + more
