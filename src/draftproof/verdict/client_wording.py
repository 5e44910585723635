"""What a load client did beyond its limits at a load, a sentence for each: what, how far, the limit, the fix.

Pure.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence

from draftproof.plan.load import LoadLevel
from draftproof.verdict.client_limits import CORE_SHARE, RATE_SHORTFALL, ClientFault, FaultKind
from draftproof.verdict.load_size import LoadSize, write_rate

_QUIET = "Stop other work on this machine and run again."
_SHARED = "Raise limits.workers, or lower the load, and run again."
_AWAKE = "Keep this machine from sleeping and run again."
_ROOM = "Raise max_in_flight of this level, or lower its rate where the service cannot keep up with it."
# The same in a few words, for turns that are left out of a load that is judged.
FAULT_WORDS: dict[FaultKind, str] = {
    "lag": "the client itself was late",
    "lag_share": "the client was late for times so short",
    "gc_pause": "collecting garbage stopped the client",
    "send_lag": "the client sent requests late",
    "held_back": "the client held requests back",
    "rate": "the client sent fewer requests than were due",
    "core": "a load process filled its core",
}
# What happened, in how many turns comes after it, and what to do about it.
_SENTENCES: dict[FaultKind, tuple[str, str]] = {
    "lag": ("the load client itself was late by more than {limit:g} ms", _QUIET),
    "lag_share": (
        (
            "the load client was late by up to {most_share:.1f} % of the measured time (p99; limit "
            "{share_limit:.2g} %, a fifth of the smallest gain that is credited)"
        ),
        "Stop other work on this machine, ask for longer answers, or reach the service without TLS.",
    ),
    "gc_pause": (
        "collecting garbage stopped the load client for up to {most:,.0f} ms (limit {limit:g} ms)",
        _SHARED,
    ),
    "send_lag": (
        "1 % of the requests were sent {most:,.0f} ms or more after they were due (limit {limit:g} ms)",
        _SHARED,
    ),
    "held_back": (
        (
            "the load client held back up to {most:,.0f} requests that were due (none may wait), because "
            "max_in_flight = {room:,} were open,"
        ),
        _ROOM,
    ),
    "rate": (
        (
            "the load client sent as little as {share:.1f} % of the {offered} that were due (limit: "
            "{missing:g} % and one request may be missing)"
        ),
        _SHARED,
    ),
    "core": ("a load process used up to {core:.0f} % of a core (limit {most_core:.0f} %)", _SHARED),
    "slept": ("the load client's machine slept for up to {most:,.1f} s", _AWAKE),
}


def describe_client_faults(
    level: LoadLevel,
    size: LoadSize,
    turns: Sequence[Sequence[ClientFault]],
    *,
    lag_limit_ms: float,
    lag_share: float,
    unknown: int,
) -> Iterator[str]:
    """Yield a sentence for each limit that the client broke; where it broke none, one on what is not known.

    Args:
        level: the load level of the plan.
        size: how large it is.
        turns: what the client did beyond its limits in each turn of baseline and candidate.
        lag_limit_ms: the plan's limit.
        lag_share: the limit as a share of what is measured.
        unknown: turns in which the lateness of the client is not known.
    """
    amounts: defaultdict[FaultKind, list[float]] = defaultdict(list)
    for fault in (fault for faults in turns for fault in faults):
        amounts[fault.kind].append(fault.amount)
    if not amounts:
        what = f"the load client itself is not known to have kept within {lag_limit_ms:g} ms"
        yield _render(level.name, what, unknown, len(turns), _QUIET)
    for kind, found in amounts.items():
        words, fix = _SENTENCES[kind]
        what = words.format(
            limit=lag_limit_ms,
            most=max(found),
            most_share=100 * max(found),
            share_limit=100 * lag_share,
            room=level.max_in_flight,
            share=100 * min(found),
            offered="requests" if size.offered_rps is None else write_rate(size.offered_rps),
            missing=100 * RATE_SHORTFALL,
            core=100 * max(found),
            most_core=100 * CORE_SHARE,
        )
        yield _render(level.name, what, len(found), len(turns), fix)


def _render(load: str, what: str, count: int, turns: int, fix: str) -> str:
    return (
        f"At load {load} {what} in {count} of {turns} turns of baseline and candidate; times measured there "
        f"say nothing about the service. {fix}"
    )
