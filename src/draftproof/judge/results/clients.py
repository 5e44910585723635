"""The part of `results.json` on what the load client did: rates, lateness, connections. Pure data."""

import msgspec


class ClientUse(msgspec.Struct, frozen=True, kw_only=True):
    """What the client did in one arm's turns at one load, over counted requests; times in ns.

    `offered_rps` is the rate at which requests were due, `achieved_rps` that at which the client sent them; a
    closed loop has none. `goodput_rps`: requests in time with passing checks, per second of the time over
    which the counted ones came, failures included; in a closed loop of the time that they filled.
    `in_flight_mean` is by Little's law over the counted
    stretches, fill requests included. `send_lag_p99_ns`: from a request's due time to its sending,
    connecting left out. `connections` were opened in all turns; `connect_p50_ns` and `connect_max_ns` are
    what they took. `core_share`: the largest part of one core that a load process used. `unfit` turns had a
    client beyond its limits. None is not known.
    """

    arm: str
    load: str
    turns: int
    unfit: int
    offered_rps: float | None
    achieved_rps: float | None
    on_time_share: float | None
    goodput_rps: float | None
    in_flight_mean: float | None
    in_flight_max: int | None
    send_lag_p99_ns: float | None
    connections: int
    connect_p50_ns: float | None
    connect_max_ns: int | None
    lag_max_ns: int | None
    gc_pause_max_ns: int | None
    core_share: float | None
    workers: int | None
