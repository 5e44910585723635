"""What one turn of a knee search showed: requests in flight, conversations, a service that fell behind."""

import msgspec
import pytest
from tests.builders.knee import Service, make_plan, search_to_end, start_run
from tests.builders.records import build_record

from draftproof.judge.knee.trials import count_in_flight, read_periods
from draftproof.workload.items import FollowUp

# Four slots of a second each fall behind at 8 requests/s.
SERVICES = {name: Service(slots=4, service_s=1.0) for name in ("baseline", "candidate")}


@pytest.fixture(scope="module")
def run():
    plan = make_plan(requests=100, trials=1, points_per_doubling=1, time_budget_s=80_000, window_s=20)
    return search_to_end(start_run(plan), SERVICES)


def pick(run, *, is_saturated):
    """Return the key of a period that the service kept up with, or of one that it did not."""
    periods = read_periods(run)
    return next(
        key for key, one in sorted(periods.items()) if one.completed and bool(one.saturated) is is_saturated
    )


def key_of(one):
    return one.load, one.block, one.arm


def test_what_keeps_the_load_up_is_in_flight_too():
    """A service has to serve it like the counted ones; a warm-up is over before and does not count."""
    records = [
        build_record(phase=phase, scheduled_ns=0, end_ns=10) for phase in ("measure", "fill", "warmup")
    ]
    assert count_in_flight(records, 5) == 2
    assert (count_in_flight(records, 0), count_in_flight(records, 10)) == (0, 0)


def test_a_period_that_was_broken_off_has_no_one_window_to_fall_behind_in(run):
    """The queue of its second part is not that of its first: it is judged by its requests alone."""
    key = pick(run, is_saturated=True)
    assert "requests in flight grew" in str(read_periods(run)[key].saturated)
    (whole,) = [one for one in run.blocks if key_of(one) == key]
    first = msgspec.structs.replace(whole, completed=False)
    resumed = msgspec.structs.replace(run, blocks=(*run.blocks, first))
    period = read_periods(resumed)[key]
    assert (period.saturated, period.is_complete) == (None, True)


def test_a_conversation_is_good_if_all_its_periods_are(run):
    """A first period that failed spoils it, however well it went on."""
    more = (FollowUp(content="more"),)
    run = msgspec.structs.replace(
        run, items=tuple(msgspec.structs.replace(item, follow_ups=more) for item in run.items)
    )
    key = pick(run, is_saturated=False)
    before = read_periods(run)[key]
    opening = next(
        one for one in run.records if key_of(one) == key and one.phase == "measure" and one.outcome == "ok"
    )
    failed = msgspec.structs.replace(opening, outcome="http_error")
    later = msgspec.structs.replace(opening, request_id=f"{opening.request_id}+1", conversation_turn=1)
    records = tuple(failed if one is opening else one for one in run.records)
    after = read_periods(msgspec.structs.replace(run, records=(*records, later)))[key]
    assert (len(after.on_time), after.good) == (len(before.on_time) + 1, before.good)
    assert after.conversations == before.conversations - 1
