"""How long an open loop leads up to its counted requests. Pure: counts in, a length out.

A lead first goes on until as many requests have ended as are in flight: those that met an empty service are
then gone. How long they took on average sets its length once and for all, `LEAD_TIMES` of it. The length does
not look at the queue again: a lead that goes on while a queue is long ends when it happens to be short, and
the waits that are then counted come out too small. How near they come by this rule: bench/queues.py.
"""

from draftproof.records import LeadEnd

LEAD_TIMES = 16


def stands(ended: int, in_flight: int) -> bool:
    """Tell whether requests have come to stand in a service: as many have ended as are in flight."""
    return ended > 0 and ended >= in_flight


def choose_length_ns(at_ns: int, ended: int, ended_ns: int) -> int:
    """Return how long a lead is to last that stands since `at_ns`, in ns from its start.

    Args:
        at_ns: when it came to stand, from its start.
        ended: requests that have ended, at least one.
        ended_ns: what they took together, from when they were due.
    """
    return max(at_ns, round(LEAD_TIMES * ended_ns / ended))


class Lead:
    """One lead and its length as far as it is known.

    Args:
        limit_ns: its longest length.
    """

    def __init__(self, limit_ns: int) -> None:
        self._limit_ns = limit_ns
        self._wanted_ns: int | None = None

    @property
    def is_known(self) -> bool:
        """Whether the length will not change any more."""
        return self._wanted_ns is not None

    @property
    def length_ns(self) -> int:
        """Its length: the limit as long as nothing stands."""
        return self._limit_ns if self._wanted_ns is None else min(self._wanted_ns, self._limit_ns)

    @property
    def end(self) -> LeadEnd:
        """What it ends with."""
        if self._wanted_ns is None:
            return "not_standing"
        return "whole" if self._wanted_ns <= self._limit_ns else "cut"

    def see(self, at_ns: int, *, ended: int, in_flight: int, ended_ns: int) -> int:
        """Look at the requests at a time from the start of the lead; return the length as known then."""
        if self._wanted_ns is None and stands(ended, in_flight):
            self._wanted_ns = choose_length_ns(at_ns, ended, ended_ns)
        return self.length_ns
