"""A client that is unfit to judge: each limit it may break, on both sides, and the sentence that says so."""

import msgspec
import numpy as np
import pytest
from tests.builders.records import build_record
from tests.builders.runs import Layout, Requests, build_run, order_periods

from draftproof.core.records import BlockRecord
from draftproof.judge.compute import compute_results
from draftproof.judge.decide.decision import decide_run
from draftproof.judge.decide.faults import describe_client_faults
from draftproof.judge.observe.client_limits import ClientFault, LagBound, find_client_faults, measure_pace
from draftproof.plan.limits import LoadSize
from draftproof.plan.load import LoadLevel

S, MS = 1_000_000_000, 1_000_000
LIMIT_MS = 50.0


def make_block(**changes):
    block = BlockRecord(
        block=0,
        load="peak",
        arm="baseline",
        order=0,
        started_ns=0,
        ended_ns=10 * S,
        completed=True,
        event_loop_lag_max_ns=MS,
        client_cpu_s=1.0,
        gc_pause_max_ns=MS,
        send_lag_p99_ns=MS,
        held_back=0,
    )
    return msgspec.structs.replace(block, **changes)


def make_openings(count=1000, *, gap_ns=10 * MS, stretch=1.0, late_ns=0, connect_ns=None):
    """Requests due every `gap_ns`, sent `stretch` times as far apart and `late_ns` late."""
    return [
        build_record(
            scheduled_ns=index * gap_ns,
            sent_ns=round(index * gap_ns * stretch) + late_ns + (connect_ns or 0),
            connect_ns=connect_ns,
        )
        for index in range(count)
    ]


def kinds(parts, openings=(), *, is_open=True):
    return [one.kind for one in find_client_faults(parts, openings, LIMIT_MS, is_open=is_open)]


@pytest.mark.parametrize(
    ("kind", "inside", "beyond"),
    [
        ("lag", {"event_loop_lag_max_ns": 50 * MS}, {"event_loop_lag_max_ns": 50 * MS + 1}),
        ("gc_pause", {"gc_pause_max_ns": 50 * MS}, {"gc_pause_max_ns": 51 * MS}),
        ("send_lag", {"send_lag_p99_ns": 50 * MS}, {"send_lag_p99_ns": 51 * MS}),
        ("held_back", {"held_back": 0}, {"held_back": 1}),
        ("slept", {"suspended_ns": 0}, {"suspended_ns": 10 * MS}),
        ("core", {"client_cpu_s": 9.0}, {"client_cpu_s": 9.1}),
        ("core", {"client_cpu_s": 18.0, "workers": 2}, {"client_cpu_s": 18.1, "workers": 2}),
        (
            "core",
            {"client_cpu_s": 10.0, "client_cpu_max_s": 9.0, "workers": 2},
            {"client_cpu_s": 10.0, "client_cpu_max_s": 9.1, "workers": 2},
        ),
    ],
)
def test_each_limit_holds_up_to_its_value_and_breaks_beyond_it(kind, inside, beyond):
    """At the limit a client is fit; a little beyond it that limit alone is broken."""
    assert kinds([make_block(**inside)]) == []
    assert kinds([make_block(**beyond)]) == [kind]


BOUND = LagBound(span_ns=300 * MS, share=0.01, reads=True, sends=False)


@pytest.mark.parametrize(
    ("changes", "lag_ms", "found"),
    [
        ({}, 3, []),
        ({}, 4, ["lag_share"]),
        ({"span_ns": 4000 * MS}, 40, []),
        ({"reads": False}, 40, []),
        ({"reads": False, "sends": True}, 2, ["lag_share"]),
    ],
)
def test_a_lag_is_held_against_what_is_measured(changes, lag_ms, found):
    """40 ms in 300 ms are 13 %, far beyond a fifth of a gain of 5 %; in 4 s they are that fifth."""
    late = make_block(lag_p99_ns=lag_ms * MS, send_lag_p99_ns=2 * lag_ms * MS)
    bound = msgspec.structs.replace(BOUND, **changes)
    faults = find_client_faults([late], (), 100.0, is_open=False, bound=bound)
    assert [one.kind for one in faults] == found


def make_late(*, unstamped, tpot_ms=7.7, host=None):
    """A run whose client is 40 ms late in every baseline period and adds that to the baseline's times."""
    layout = Layout(segments=("chat",), loads=(("low", 1),), prompts=48, evidence="synthetic")
    rng = np.random.default_rng(2)
    orders = order_periods(layout, rng)
    late = {"baseline": 40.0 / 39, "baseline_null": 40.0 / 39}
    drawn = {
        (arm, "chat", "low"): Requests(
            tpot_ms=tpot_ms * np.exp(rng.normal(0, 0.01, 48)) + late.get(arm, 0.0),
            ttft_ms=np.full(48, 100.0),
            tokens=np.full(48, 40),
            is_ok=np.ones(48, dtype=bool),
        )
        for arm in layout.arms
    }
    run = build_run(layout, drawn, orders)
    blocks = tuple(
        msgspec.structs.replace(one, lag_p99_ns=40 * MS * (one.arm in late), unstamped=unstamped)
        for one in run.blocks
    )
    manifest = msgspec.structs.replace(run.manifest, host=host or {})
    return msgspec.structs.replace(run, blocks=blocks, manifest=manifest)


@pytest.mark.parametrize(
    ("changes", "is_invalid"),
    [
        ({"unstamped": 8}, True),
        ({"unstamped": 0}, False),
        ({"unstamped": None}, True),
        ({"unstamped": None, "host": {"system": "Linux"}}, False),
    ],
)
def test_a_late_client_adopts_nothing_where_its_lateness_is_in_the_times(changes, is_invalid):
    """A gain of 12 % that is the client's own lag: invalid, unless the kernel stamped the arrivals."""
    results = decide_run(make_late(**changes))
    reasons = [one for one in results.cells[0].reasons if one.code == "invalid_client"]
    assert (results.decision == "invalid") is is_invalid
    assert bool(reasons) is is_invalid
    if reasons:
        assert "delay (p99) was up to 11" in reasons[0].text
        assert "limit 1 %" in reasons[0].text


def test_a_closed_loop_has_no_rate_to_miss():
    """Its next request is due when the last answer ended: what the client takes from then on is its own."""
    late = make_block(send_lag_p99_ns=900 * MS)
    assert kinds([late], make_openings(stretch=2.0), is_open=False) == ["send_lag"]
    assert kinds([make_block(send_lag_p99_ns=1)], make_openings(stretch=2.0), is_open=False) == []


@pytest.mark.parametrize(
    ("stretch", "missed"), [(1.0, False), (0.99, False), (1.005, False), (1.0075, True), (1.05, True)]
)
def test_a_rate_is_missed_beyond_half_a_per_cent_and_one_request(stretch, missed):
    """A thousand requests may come as 994; a lag that all of them share misses nothing."""
    assert (kinds([make_block()], make_openings(stretch=stretch, late_ns=40 * MS)) == ["rate"]) == missed


def test_a_short_period_may_miss_one_request():
    """Of ten requests one late at the end is a tenth of the rate and says nothing about the client."""
    openings = make_openings(10)
    late = msgspec.structs.replace(openings[-1], sent_ns=openings[-1].sent_ns + 9 * MS)
    assert kinds([make_block()], [*openings[:-1], late]) == []


def test_connecting_and_refused_requests_are_no_fault_of_the_client():
    """A request counts as sent when the client began it; one that the service never took is in no rate."""
    slow = [*make_openings()[:900], *make_openings(connect_ns=2 * S)[900:]]
    refused = [msgspec.structs.replace(one, sent_ns=None) for one in make_openings()[500:]]
    assert kinds([make_block()], slow) == []
    assert kinds([make_block()], [*make_openings()[:500], *refused]) == []
    assert measure_pace(refused) is None


@pytest.mark.parametrize("field", ["event_loop_lag_max_ns", "gc_pause_max_ns", "send_lag_p99_ns"])
def test_a_resumed_period_is_as_late_as_its_worst_part(field):
    """Whichever part that is."""
    late = make_block(**{field: 51 * MS})
    assert kinds([make_block(), late]) == kinds([late, make_block()]) == kinds([late])
    assert len(kinds([late])) == 1


def test_a_resumed_period_is_not_judged_by_its_rate():
    """Between the parts of a period nothing was due, so its rate says nothing about the client."""
    assert kinds([make_block(), make_block()], make_openings(stretch=2.0)) == []


def test_records_without_the_new_facts_are_judged_by_lag_alone():
    """What an earlier version did not write down is no fault: neither its CPU time nor its pauses."""
    old = make_block(client_cpu_s=10.0, gc_pause_max_ns=None, send_lag_p99_ns=None, held_back=None)
    assert kinds([old]) == []
    assert kinds([msgspec.structs.replace(old, event_loop_lag_max_ns=51 * MS)]) == ["lag"]


def test_cpu_time_of_a_very_short_period_tells_nothing():
    """In less than a second starting and ending a period takes what there is of a core."""
    assert kinds([make_block(ended_ns=S // 2, client_cpu_s=0.5)]) == []


@pytest.mark.parametrize(
    ("kind", "amount", "words"),
    [
        ("lag", 80.0, ["late by more than 50 ms", "Stop other work"]),
        ("gc_pause", 80.0, ["garbage", "up to 80 ms (limit 50 ms)", "limits.workers"]),
        ("send_lag", 80.0, ["80 ms or more after they were due (limit 50 ms)", "limits.workers"]),
        (
            "held_back",
            7,
            ["up to 7 requests waited in the load client", "max_in_flight = 64", "Raise max_in_flight"],
        ),
        ("rate", 0.9, ["90.0 % of the 12 requests/s", "at most 0.5 % and one request", "lower the load"]),
        ("lag_share", 0.133, ["13.3 % of the measured time", "limit 1 %", "without TLS"]),
        ("core", 0.97, ["97 % of a core (limit 90 %)", "limits.workers"]),
    ],
)
def test_each_fault_has_a_sentence_with_amount_limit_and_fix(kind, amount, words):
    """What happened, how much, what is allowed, in how many periods, and what to do."""
    level = LoadLevel.model_validate({"name": "peak", "arrivals": {"rps": 12}, "max_in_flight": 64})
    periods = [(ClientFault(kind=kind, amount=amount),), ()]
    (text,) = describe_client_faults(
        level, LoadSize(offered_rps=12.0), periods, lag_limit_ms=LIMIT_MS, lag_share=0.01, unknown=0
    )
    assert text.startswith("At load peak ")
    assert "in 1 of 2 periods of baseline and candidate" in text
    assert [word for word in words if word not in text] == []


def build(**changes):
    layout = Layout(segments=("chat",), loads=(("peak", {"rps": 6.0}),), prompts=24)
    rng = np.random.default_rng(5)
    drawn = {
        (arm, "chat", "peak"): Requests(
            tpot_ms=np.full(24, 12.0 if arm == "candidate" else 20.0) + rng.normal(0, 0.1, 24),
            ttft_ms=np.full(24, 100.0),
            tokens=np.full(24, 40),
            is_ok=np.ones(24, dtype=bool),
        )
        for arm in layout.arms
    }
    run = build_run(layout, drawn, order_periods(layout, rng))
    blocks = tuple(msgspec.structs.replace(one, **changes) for one in run.blocks)
    return msgspec.structs.replace(run, blocks=blocks)


def test_a_load_with_an_unfit_client_is_invalid_and_says_every_limit_it_broke():
    """No cell of such a load is judged; each broken limit is a reason of its own."""
    results = decide_run(build(held_back=3, gc_pause_max_ns=90 * MS))
    assert {cell.status for cell in results.cells} == {"invalid"}
    texts = [one.text for one in results.cells[0].reasons]
    assert len(texts) == 2
    assert {one.code for one in results.cells[0].reasons} == {"invalid_client"}
    assert any("up to 3 requests waited" in text for text in texts)
    assert any("garbage collection" in text for text in texts)


def test_the_clients_rows_say_what_it_offered_and_sent():
    """One row an arm and load: rates, lateness and connections, none of them guessed."""
    results = compute_results(build())
    assert [(one.arm, one.load) for one in results.clients] == [(arm, "peak") for arm in results.arms]
    row = results.clients[0]
    assert (row.periods, row.unfit, row.workers) == (3, 0, 1)
    assert row.offered_rps == pytest.approx(6.0, rel=0.5)
    assert row.achieved_rps == row.offered_rps
    assert row.send_lag_p99_ns == MS
    assert (row.connections, row.connect_p50_ns, row.connect_max_ns) == (0, None, None)
    assert row.on_time_share == 1.0
    assert row.in_flight_mean is not None
    assert row.goodput_rps is not None


def test_good_requests_count_over_the_time_of_the_offered_ones():
    """Where all are good, as many are good a second as come; where a third fails, two thirds of them."""
    for row in compute_results(build()).clients:
        assert row.on_time_share == 1.0
        assert row.goodput_rps == pytest.approx(row.offered_rps)
    run = build()
    third = [
        msgspec.structs.replace(one, outcome="timeout", chunks=()) if at % 3 == 0 else one
        for at, one in enumerate(run.records)
    ]
    for row in compute_results(msgspec.structs.replace(run, records=tuple(third))).clients:
        assert row.on_time_share is not None
        assert row.offered_rps is not None
        assert row.goodput_rps == pytest.approx(row.on_time_share * row.offered_rps)
        assert row.on_time_share < 0.8
