"""Device time by Little's law: simulated periods with known shares of counted requests."""

import itertools

import msgspec
import numpy as np
import pytest
from tests.builders.runs import Layout, Requests, build_run, order_periods

from draftproof.judge.decide.device_time import measure_device_time
from draftproof.judge.inform.economics import compute_economics
from draftproof.judge.inform.filling import warn_about_overload
from draftproof.judge.observe.run_data import prepare_run
from draftproof.judge.observe.windows import measure_windows

MS = 1_000_000
COUNTED = 12


def skeleton(load):
    """A run of one segment, one load and one block of `COUNTED` prompts, whose times a test sets itself."""
    layout = Layout(
        segments=("chat",), loads=(("load", 4 if load.get("think_s") else {"rps": 1.0}),), prompts=COUNTED,
        block_size=COUNTED, arms=("baseline", "candidate"),
    )  # fmt: skip
    rng = np.random.default_rng(1)
    drawn = {
        (arm, "chat", "load"): Requests(
            tpot_ms=np.full(COUNTED, 10.0),
            ttft_ms=np.full(COUNTED, 50.0),
            tokens=np.full(COUNTED, 20),
            is_ok=np.ones(COUNTED, dtype=bool),
        )
        for arm in layout.arms
    }
    run = build_run(layout, drawn, order_periods(layout, rng))
    level = run.plan.load[0].model_copy(update=load)
    return msgspec.structs.replace(run, plan=run.plan.model_copy(update={"load": (level,)}))


def place(run, spans, others):
    """Return the run with the counted requests of each arm at `spans` and fills at `others`, in ns."""
    records, blocks = [], []
    for arm, offset in (("baseline", 0), ("candidate", 10**12)):
        own = sorted((one for one in run.records if one.arm == arm), key=lambda one: one.item_id)
        for index, (start, end) in enumerate(spans):
            records.append(move(own[index], start + offset, end + offset))
        for index, (start, end) in enumerate(others):
            fill = move(own[0], start + offset, end + offset)
            records.append(msgspec.structs.replace(fill, phase="fill", request_id=f"{arm}#fill{index}"))
        last = max(end for _, end in (*spans, *others))
        block = next(one for one in run.blocks if one.arm == arm)
        blocks.append(
            msgspec.structs.replace(
                block, started_ns=offset, counted_from_ns=offset + spans[0][0], ended_ns=offset + last
            )
        )
    return msgspec.structs.replace(run, records=tuple(records), blocks=tuple(blocks))


def move(record, start, end):
    shift = start - record.scheduled_ns
    chunks = tuple(
        msgspec.structs.replace(one, arrival_ns=min(one.arrival_ns + shift, end)) for one in record.chunks
    )
    return msgspec.structs.replace(
        record, scheduled_ns=start, sent_ns=start + MS, headers_ns=start + 2 * MS, end_ns=end, chunks=chunks
    )


def evenly(first, count, gap, residence):
    return [(first + index * gap, first + index * gap + residence) for index in range(count)]


@pytest.mark.parametrize(("gap_ms", "residence_ms"), [(100, 250), (50, 1000), (100, 100), (200, 90)])
def test_counted_requests_of_an_open_loop_fill_one_gap_each(gap_ms, residence_ms):
    """At λ requests a second n counted ones take n / λ seconds, however long each stays."""
    gap, residence = gap_ms * MS, residence_ms * MS
    ramp_up = evenly(0, 30, gap, residence)
    counted = evenly(30 * gap, COUNTED, gap, residence)
    tail = evenly((30 + COUNTED) * gap, 30, gap, residence)
    run = place(skeleton({}), counted, (*ramp_up, *tail))
    found = measure_device_time(prepare_run(run))["baseline", "load"]
    assert found.window_s is not None
    if residence % gap == 0:
        assert found.window_s == pytest.approx(COUNTED * gap / 1e9)
    else:  # requests in flight come and go within a gap, so the edges of the window tell a little
        assert found.window_s == pytest.approx(COUNTED * gap / 1e9, rel=0.08)


def test_counted_requests_of_a_loop_with_thought_fill_their_part_of_the_cycles():
    """Four users who think as long as they wait: two in flight, and n requests fill n / 2 answers."""
    residence = 100 * MS
    users = [evenly(user * 50 * MS, 20, 2 * residence, residence) for user in range(4)]
    every = sorted(itertools.chain(*users))
    counted, others = every[20 : 20 + COUNTED], (*every[:20], *every[20 + COUNTED :])
    run = place(skeleton({"think_s": 0.1}), counted, others)
    prepared = prepare_run(run)
    found = measure_device_time(prepared)["candidate", "load"]
    assert found.window_s == pytest.approx(COUNTED * residence / 2 / 1e9, rel=0.05)
    window = next(one for one in measure_windows(prepared) if one.arm == "candidate")
    assert window.all_ns / window.length_ns == pytest.approx(2.0, rel=0.05)


def test_an_open_loop_beyond_capacity_fills_what_the_service_needs():
    """One request a 100 ms is served and two come: twelve counted ones take 1.2 s, whatever waits behind."""
    service, gap, residence_of = 100 * MS, 50 * MS, lambda place: (place + 1) * 50 * MS + 50 * MS
    every = [(place * gap, place * gap + residence_of(place)) for place in range(60)]
    assert {end for _, end in every} == {(place + 1) * service for place in range(60)}
    run = place(skeleton({}), every[12 : 12 + COUNTED], (*every[:12], *every[12 + COUNTED :]))
    found = measure_device_time(prepare_run(run))["baseline", "load"]
    assert found.window_s == pytest.approx(COUNTED * 0.1)


def test_an_arm_that_fell_behind_before_anything_counted_is_named():
    """A long lead leaves a queue that no longer doubles: it grows steadily, and waits grow with it."""
    spans = [(place * 50 * MS, (place + 1) * 400 * MS) for place in range(80)]
    run = place(skeleton({}), spans[40 : 40 + COUNTED], (*spans[:40], *spans[40 + COUNTED :]))
    told = list(warn_about_overload(prepare_run(run)))
    assert [line[: line.index(" in 1 of")] for line in told] == [
        "At load load the arm baseline fell behind",
        "At load load the arm candidate fell behind",
    ]


@pytest.mark.parametrize(("service_ms", "said"), [(200, True), (40, False)])
def test_an_arm_that_falls_behind_a_steady_rate_is_named(service_ms, said):
    """A queue that grows from request to request is told with its ends, one that does not is not."""
    gap = 50 * MS
    spans = [
        (place * gap, (place + 1) * service_ms * MS + (0 if said else place * (50 - service_ms) * MS))
        for place in range(60)
    ]
    run = place(skeleton({}), spans[:COUNTED], spans[COUNTED:])
    told = list(warn_about_overload(prepare_run(run)))
    assert [line[: line.index(" in 1 of")] for line in told] == (
        ["At load load the arm baseline fell behind", "At load load the arm candidate fell behind"]
        if said
        else []
    )


def test_a_full_closed_loop_counts_from_where_counting_began():
    """Without thought a loop is full from then on: the ramp is in no window."""
    run = skeleton({"think_s": 0.1})
    level = run.plan.load[0].model_copy(update={"think_s": 0.0})
    run = msgspec.structs.replace(run, plan=run.plan.model_copy(update={"load": (level,)}))
    lane = 300 * MS
    counted = [
        (1000 * MS + index // 4 * lane, 1000 * MS + index // 4 * lane + lane) for index in range(COUNTED)
    ]
    run = place(run, counted, [(0, 1000 * MS)] * 4)
    prepared = prepare_run(run)
    window = next(one for one in measure_windows(prepared) if one.arm == "baseline")
    assert (window.start_ns, window.length_ns) == (1000 * MS, 900 * MS)
    found = measure_device_time(prepared)["baseline", "load"]
    assert (found.measured_share, found.window_s) == (1.0, 0.9)


def test_a_resumed_period_counts_each_part_by_itself():
    """The time between two parts of a period, in which nothing ran, is in no window."""
    gap = 100 * MS
    first, second = evenly(0, 6, gap, gap), evenly(3_600_000 * MS, 6, gap, gap)
    run = place(skeleton({}), [*first, *second], [])
    parts = []
    for block in run.blocks:
        start = block.started_ns
        parts += [
            msgspec.structs.replace(block, ended_ns=start + 700 * MS, completed=False),
            msgspec.structs.replace(block, started_ns=start + 3_600_000 * MS),
        ]
    found = measure_device_time(prepare_run(msgspec.structs.replace(run, blocks=tuple(parts))))
    assert found["baseline", "load"].window_s == pytest.approx(2 * 0.6)


def test_conversations_per_device_need_every_period_to_be_good():
    """A single failed request takes its conversation away; without follow-ups each request is one."""
    gap = 100 * MS
    run = place(skeleton({}), evenly(0, COUNTED, gap, gap), [])
    failed = tuple(
        msgspec.structs.replace(one, outcome="timeout", chunks=()) if one.item_id == "chat-0" else one
        for one in run.records
    )
    economics = compute_economics(prepare_run(msgspec.structs.replace(run, records=failed)), (), ())
    use = next(one for one in economics.uses if one.arm == "baseline")
    assert (use.completed_conversations, use.good) == (COUNTED - 1, COUNTED - 1)
    figure = use.completed_conversations_per_device
    assert figure is not None
    assert figure.value == pytest.approx((COUNTED - 1) * 3600 / (COUNTED * 0.1))
    assert figure.value == use.good_per_device_hour.value
    assert figure.low is not None
