"""Which request a free slot takes next."""

from tests.builders.records import build_item

from draftproof.measure.load.period import Endpoint, Period, periods_of
from draftproof.measure.load.schedule import Schedule, warmup_period
from draftproof.workload.blocks import Block

ITEMS = {name: build_item(name) for name in ("a", "b")}


def schedule(concurrency=2, done=(), phase="measure"):
    period = Period(
        block=3, load="peak", concurrency=concurrency, repeat=1, arm="candidate", order=0, item_ids=("a", "b")
    )
    plan = Schedule(period, ITEMS, done=done, seed_of=lambda item, repeat: ord(item.id) + repeat, phase=phase)
    plan.open_counting()
    return plan


def test_counted_items_come_first_and_in_order():
    """Ids name load, block, repeat, arm and item; the seed is that of item and repeat."""
    plan = schedule()
    jobs = [plan.next_job(), plan.next_job()]
    assert [job.request_id for job in jobs] == ["peak/3/1/candidate/a", "peak/3/1/candidate/b"]
    assert [(job.phase, job.order_in_block, job.seed) for job in jobs] == [
        ("measure", 0, 98),
        ("measure", 1, 99),
    ]


def test_fill_requests_follow_until_the_last_counted_one_ends():
    """Fills cycle over the items under ids of their own and stop with the last counted request."""
    plan = schedule()
    counted = [plan.next_job(), plan.next_job()]
    fills = [plan.next_job() for _ in range(3)]
    assert [job.request_id for job in fills] == [
        "peak/3/1/candidate/a#fill2", "peak/3/1/candidate/b#fill3", "peak/3/1/candidate/a#fill4",
    ]  # fmt: skip
    plan.finish(fills[0])
    plan.finish(counted[0])
    assert not plan.is_over
    plan.finish(counted[1])
    assert plan.is_over
    assert plan.next_job() is None


def test_nothing_is_counted_before_counting_is_opened():
    """Until then fills are handed out, of items that the period does not count where there are any."""
    period = Period(block=3, load="peak", concurrency=2, repeat=1, arm="candidate", order=0, item_ids=("a",))
    plan = Schedule(period, ITEMS, done=(), seed_of=lambda _item, _repeat: 1)
    ramp_ups = [plan.ramp_up_job(share) for share in (0.25, 0.5)]
    assert [(job.request_id, job.phase, job.token_share) for job in ramp_ups] == [
        ("peak/3/1/candidate/b#lead1", "fill", 0.25), ("peak/3/1/candidate/b#lead2", "fill", 0.5),
    ]  # fmt: skip
    further = [job for _ in range(2) if (job := plan.next_job()) is not None]
    assert [(job.request_id, job.phase, job.token_share) for job in further] == [
        ("peak/3/1/candidate/b#ramp3", "fill", 1.0), ("peak/3/1/candidate/b#ramp4", "fill", 1.0),
    ]  # fmt: skip
    plan.open_counting()
    job = plan.next_job()
    assert job is not None
    assert job.request_id == "peak/3/1/candidate/a"


def test_a_single_slot_counts_from_the_start():
    """There is no ramp of one request."""
    period = Period(block=3, load="low", concurrency=1, repeat=1, arm="candidate", order=0, item_ids=("a",))
    assert Schedule(period, ITEMS, done=(), seed_of=lambda _item, _repeat: 1).is_counting


def test_a_single_slot_needs_no_fill():
    """With one request in flight nothing runs beside the last counted one."""
    plan = schedule(concurrency=1)
    plan.next_job()
    plan.next_job()
    assert plan.next_job() is None


def test_what_is_done_is_not_asked_again():
    """A resumed period asks only what is missing, and its fills reuse no recorded id."""
    plan = schedule(done={"peak/3/1/candidate/a", "peak/3/1/candidate/a#fill2"})
    assert plan.next_job().request_id == "peak/3/1/candidate/b"
    assert plan.next_job().request_id == "peak/3/1/candidate/a#fill2.1"


def test_a_period_that_is_all_done_is_over():
    """Nothing is left to ask."""
    plan = schedule(done={"peak/3/1/candidate/a", "peak/3/1/candidate/b"})
    assert plan.is_over
    assert plan.next_job() is None


def test_an_interrupted_counted_request_does_not_claim_its_id():
    """Its record has another phase and id, so that it is neither averaged in nor taken for done."""
    plan = schedule()
    job = plan.interrupt(plan.next_job())
    assert (job.phase, job.request_id) == ("interrupted", "peak/3/1/candidate/a#interrupted0")
    plan.next_job()
    fill = plan.next_job()
    assert plan.interrupt(fill) is fill


def test_warm_up_cycles_over_the_items_and_is_never_filled():
    """The asked number of requests, all of phase warmup, at no more slots than requests."""
    period = Period(block=0, load="l", concurrency=4, repeat=0, arm="baseline", order=1, item_ids=("a", "b"))
    warmup = warmup_period(period, 3)
    plan = Schedule(warmup, ITEMS, done=(), seed_of=lambda _item, _repeat: 1, phase="warmup")
    jobs = [job for _ in range(3) if (job := plan.next_job()) is not None]
    assert warmup.concurrency == 3
    assert [job.request_id for job in jobs] == [
        "l/0/0/baseline/a#warmup0", "l/0/0/baseline/b#warmup1", "l/0/0/baseline/a#warmup2",
    ]  # fmt: skip
    assert plan.next_job() is None
    for job in jobs:
        plan.finish(job)
    assert plan.is_over


def test_a_block_gives_one_period_an_arm_in_its_order():
    """Periods carry the block's facts and the arm's place."""
    block = Block(
        index=5, load="l", concurrency=2, repeat=1, item_ids=("a",), arm_order=("candidate", "baseline")
    )
    periods = periods_of(block)
    assert [(period.arm, period.order, period.block) for period in periods] == [
        ("candidate", 0, 5),
        ("baseline", 1, 5),
    ]


def test_the_chat_address_is_the_same_with_and_without_version():
    """Users write the base address in both ways, with and without a closing slash."""
    urls = ("http://h:1", "http://h:1/", "http://h:1/v1", "http://h:1/v1/")
    endpoints = [Endpoint(url=url, served_model="m", engine="generic") for url in urls]
    assert {endpoint.chat_url for endpoint in endpoints} == {"http://h:1/v1/chat/completions"}


def test_a_period_knows_whether_it_led_up_with_counted_prompts():
    """None before anything led up; where the workload holds no other item it did."""
    period = Period(block=3, load="peak", concurrency=2, repeat=1, arm="candidate", order=0, item_ids=("a",))
    for items, asked in ((ITEMS, False), ({"a": ITEMS["a"]}, True)):
        plan = Schedule(period, items, done=(), seed_of=lambda _item, _repeat: 1)
        assert plan.ramp_up_asks_counted is None
        plan.ramp_up_job(0.5)
        assert plan.ramp_up_asks_counted is asked
