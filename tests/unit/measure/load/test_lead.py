"""How long an open loop leads up: numbers in, a length out, and the queue that a period then meets."""

import numpy as np
import pytest
from tests.builders.knee import Queue, Service
from tests.builders.records import MS_NS

from draftproof.measure.load.loops import RAMP_UP_TIMES, RampUp

S = 1000 * MS_NS


@pytest.mark.parametrize(
    ("ended", "in_flight", "is_standing"), [(0, 0, False), (3, 4, False), (4, 4, True), (1, 0, True)]
)
def test_requests_stand_once_as_many_have_ended_as_are_in_flight(ended, in_flight, is_standing):
    """And nothing stands before the first has ended."""
    ramp_up = RampUp(30 * S)
    ramp_up.see(S, ended=ended, in_flight=in_flight, ended_ns=ended * S)
    assert ramp_up.is_known is is_standing


def test_the_length_is_sixteen_mean_times_of_what_had_ended_when_it_stood():
    """Until then it is the limit; from then on no later look changes it, however long the queue is."""
    ramp_up = RampUp(30 * S)
    assert ramp_up.see(S, ended=1, in_flight=5, ended_ns=S) == 30 * S
    assert not ramp_up.is_known
    assert ramp_up.see(2 * S, ended=4, in_flight=4, ended_ns=4 * S) == RAMP_UP_TIMES * S
    assert (ramp_up.is_known, ramp_up.end) == (True, "whole")
    assert ramp_up.see(9 * S, ended=20, in_flight=60, ended_ns=90 * S) == RAMP_UP_TIMES * S
    assert ramp_up.see(15 * S, ended=80, in_flight=0, ended_ns=99 * S) == RAMP_UP_TIMES * S


def test_a_light_quick_service_is_led_up_to_for_a_moment():
    """Answers of 50 ms take 0.8 s; where requests come rarely it ends with the arrival that shows them."""
    ramp_up = RampUp(30 * S)
    assert ramp_up.see(200 * MS_NS, ended=2, in_flight=1, ended_ns=100 * MS_NS) == 800 * MS_NS
    rare = RampUp(30 * S)
    assert rare.see(20 * S, ended=1, in_flight=0, ended_ns=50 * MS_NS) == 20 * S


def test_a_lead_that_its_limit_ends_says_so():
    """Cut where requests stood and sixteen of their times are longer; else nothing ever stood."""
    cut = RampUp(10 * S)
    assert cut.see(4 * S, ended=3, in_flight=3, ended_ns=6 * S) == 10 * S
    assert cut.end == "cut"
    never = RampUp(10 * S)
    assert never.see(10 * S, ended=3, in_flight=9, ended_ns=6 * S) == 10 * S
    assert never.end == "not_standing"


@pytest.mark.parametrize(("load", "least"), [(0.7, 0.75), (0.85, 0.65)])
def test_the_counted_requests_meet_most_of_the_queue_of_endless_traffic(load, least):
    """At 85 % of capacity one that ends when requests stand leaves 59 % of the mean wait, this one 77 %."""
    rps, shares = 4 * load, []
    for seed in range(400):
        queue, rng = Queue(Service(slots=4), seed), np.random.default_rng((seed, 7))
        due_s = queue.lead_up(rps, 1000.0)
        before = len(queue.asked)
        for gap_s in rng.exponential(1 / rps, 64):
            due_s += float(gap_s)
            queue.ask(due_s)
        shares += [one.begins_s - one.due_s for one in queue.asked[before:]]
    endless = {0.7: 0.235, 0.85: 0.740}[load]
    assert least < float(np.mean(shares)) / endless < 1.1
