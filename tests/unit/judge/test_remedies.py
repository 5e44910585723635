"""Remedies: each appears with its evidence and not without, in the order of what they could touch."""

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from draftproof.core.records import ServerTimings
from draftproof.judge.inform.diagnosis.drafting import (
    enough_drafts,
    list_tried_chunks,
    measure_prefill_tail,
)
from draftproof.judge.inform.diagnosis.remedies import common_prefix_share, measure_overlaps, order_remedies
from draftproof.judge.results.decide import Figure
from draftproof.judge.results.inform import Gauge, Remedy, ServiceStart, ServiceUse
from draftproof.workload.items import Item, Message

MS = 1_000_000


def with_server(run, server):
    records = (msgspec.structs.replace(one, server=server(one)) for one in run.records)
    return msgspec.structs.replace(run, records=tuple(records))


def with_prompts(run, text):
    items = tuple(
        msgspec.structs.replace(one, messages=(Message(role="user", content=text(one.id)),))
        for one in run.items
    )
    return msgspec.structs.replace(run, items=items)


def use(**changes):
    return ServiceUse(
        arm="baseline", load="low", periods=1, periods_used=1, samples=9, seconds=1.0, **changes
    )


@pytest.fixture
def remedies_of(diagnoses_of):
    """Return the remedies of a run by code."""

    def name(run, **changes):
        return {one.code: one for one in diagnoses_of(run, **changes).remedies}

    return name


@pytest.fixture
def small(world):
    """One segment, two loads, eight prompts."""

    def make(**changes):
        return world(**({"segments": ("chat",), "items_per_segment": 8} | changes)).run()

    return make


def test_a_healthy_service_gets_no_remedy_beside_drafting(small, remedies_of):
    """Decoding takes 88 %, nothing waits, prompts share nothing: there is nothing to look at first."""
    run = with_prompts(small(), lambda name: f"{sum(map(ord, name)) * 7919 % 9973:04d} " * 40)
    assert not {"more_capacity", "prefill_scheduling", "prefix_caching", "cold_start"} & set(remedies_of(run))


def test_a_queue_points_to_capacity_with_its_figure(small, remedies_of):
    """Half of the time is queueing: more capacity, with the share as evidence and as what is at stake."""
    run = with_server(
        small(),
        lambda one: ServerTimings(queue_ns=(one.end_ns - one.sent_ns) // 2, prefill_ns=MS, decode_ns=MS),
    )
    found = remedies_of(run)["more_capacity"]
    assert found.stake == pytest.approx(0.5, abs=0.01)
    assert "50 %" in found.evidence[0].text
    assert found.evidence[0].row == "diagnosis: baseline, all × low"


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"waiting": Gauge(mean=2.0, maximum=5.0, samples=9)}, "wait on average"),
        ({"preemptions": 4.0, "finished_requests": 40.0}, "preemptions"),
        ({"cache_usage": Gauge(mean=0.5, maximum=0.97, samples=9)}, "key-value cache"),
    ],
)
def test_each_sign_of_want_is_enough_by_itself(small, remedies_of, changes, word):
    """A gauge of waiting requests, preemptions and a full cache each speak for capacity."""
    found = remedies_of(small(), services=[use(**changes)])["more_capacity"]
    assert word in found.evidence[0].text


def test_quiet_gauges_are_no_evidence(small, remedies_of):
    """Nobody waits, nobody is put out, the cache is half empty: no remedy."""
    quiet = use(
        waiting=Gauge(mean=0.1, maximum=1.0, samples=9),
        preemptions=0.0,
        finished_requests=40.0,
        cache_usage=Gauge(mean=0.2, maximum=0.5, samples=9),
    )
    assert "more_capacity" not in remedies_of(small(), services=[quiet])


def test_a_long_prefill_points_to_its_scheduling_and_names_growth_with_load(small, remedies_of):
    """First tokens of 2 and 6 s: prefill takes most of the time and thrice as long at the higher load."""
    found = remedies_of(small(ttft_ms=lambda case: 2000.0 if case.load == "low" else 6000.0))
    signs = " ".join(one.text for one in found["prefill_scheduling"].evidence)
    assert "prefill takes" in signs
    assert "3.0 times as long" in signs


def test_with_one_request_in_flight_there_is_nothing_to_schedule(small, remedies_of):
    """A long prefill at one request in flight only asks for less of it, not for another order."""
    found = remedies_of(small(ttft_ms=lambda case: 2000.0 if case.load == "low" else 100.0))
    assert "prefill_scheduling" not in found
    assert found["less_prefill"].loads == ("low",)


def test_another_chunk_that_the_alternative_tried_stands_beside_its_remedy():
    """Only where the chunk alone differs, and more than equal arms do, is its time said to be its doing."""
    ratio = Figure(value=1.09, low=1.04, high=1.14)
    effects: Any = {
        ("e2e_from_schedule_ns", "alternative", "baseline", "all", "busy"): SimpleNamespace(ratio=ratio),
    }

    def tried(*, invalid=(), null=None, **settings):
        arms = [
            SimpleNamespace(arm="baseline", settings={"max_num_batched_tokens": 256, "device": "cpu"}),
            SimpleNamespace(arm="alternative", settings={"device": "cpu"} | settings),
        ]
        manifest = SimpleNamespace(arms=arms)
        equal = SimpleNamespace(ratio=Figure(value=null), standard_error=0.0)
        beside = {("e2e_from_schedule_ns", "baseline_null", "baseline", "all", "busy"): equal} if null else {}
        known: Any = SimpleNamespace(
            prepared=SimpleNamespace(run=SimpleNamespace(manifest=manifest)),
            invalid=frozenset(invalid),
            effects=effects | beside,
        )
        return list_tried_chunks(known, ["single", "busy"])

    (found,) = tried(max_num_batched_tokens=64)
    assert "64 instead of 256, takes 1.09 (1.04 to 1.14) times as long" in found.text
    assert found.row == "effects e2e: alternative / baseline, all × busy"
    assert tried(max_num_batched_tokens=64, null=1.05) == []
    assert tried(max_num_batched_tokens=64, invalid=["busy"]) == []
    (beside,) = tried(max_num_batched_tokens=64, null=1 / 1.03)
    assert "(equal services differ by 3.0 %)" in beside.text
    assert tried(max_num_batched_tokens=64, device="cuda") == []
    assert tried(max_num_batched_tokens=256, max_num_seqs=4) == []


def test_a_shared_beginning_points_to_prefix_caching(small, remedies_of):
    """Prompts that begin alike and a prefill worth sparing; prompts that share nothing do not."""
    slow = small(ttft_ms=lambda _: 1000.0)
    alike = with_prompts(slow, lambda name: "You are a careful assistant. " * 20 + name)
    apart = with_prompts(slow, lambda name: f"{sum(map(ord, name)) * 7919 % 9973:04d} " * 40)
    assert "prefix_caching" in remedies_of(alike)
    assert "prefix_caching" not in remedies_of(apart)


def test_a_cache_that_is_on_is_no_remedy(small, remedies_of):
    """The service says that it caches prefixes: nothing to switch on."""
    run = with_prompts(small(ttft_ms=lambda _: 1000.0), lambda name: "You are careful. " * 30 + name)
    arms = tuple(
        msgspec.structs.replace(one, settings={"enable_prefix_caching": True}) for one in run.manifest.arms
    )
    on = msgspec.structs.replace(run, manifest=msgspec.structs.replace(run.manifest, arms=arms))
    assert "prefix_caching" not in remedies_of(on)


def test_cold_starts_need_a_long_load_or_a_slow_first_request(small, remedies_of):
    """75 s of loading or a first token three times as late; a quick start is no evidence. It comes last."""
    quick = ServiceStart(arm="baseline", load_time_s=2.0, cold_outcome="ok", cold_ttft_ns=MS, cold_e2e_ns=MS)
    long = msgspec.structs.replace(quick, load_time_s=75.0)
    late = msgspec.structs.replace(quick, cold_ttft_ns=900 * MS)
    run = small()
    assert "cold_start" not in remedies_of(run, starts=[quick])
    assert "75 s" in remedies_of(run, starts=[long])["cold_start"].evidence[0].text
    assert "900 ms" in remedies_of(run, starts=[late])["cold_start"].evidence[0].text


def test_steps_that_pay_only_at_the_lower_load_point_to_a_switch_by_batch(small, remedies_of):
    """30 ms steps of 3 tokens pay, 90 ms ones do not: off from the higher load on, with both figures."""
    dear = lambda case: (90.0 if case.load == "high" else 30.0) if case.arm == "candidate" else 20.0  # noqa: E731
    found = remedies_of(small(round_ms=dear))["off_at_high_batch"]
    assert found.loads == ("high",)
    assert len(found.evidence) == 2
    same = remedies_of(small(round_ms=lambda case: 90.0 if case.arm == "candidate" else 20.0))
    assert "off_at_high_batch" not in same


def test_without_rounds_the_time_per_token_tells_where_drafting_pays(small, remedies_of):
    """Half the time per token at the low load, twice at the high one, and nothing else disclosed."""
    tpot = lambda case: {"low": 10.0, "high": 40.0}[case.load] if case.arm == "candidate" else 20.0  # noqa: E731
    found = remedies_of(small(tpot_ms=tpot, accepted=lambda _: None))["off_at_high_batch"]
    assert "time per token" in found.evidence[0].text


def test_slow_drafting_points_to_a_cheaper_drafter(small, remedies_of):
    """30 ms drafting and 50 verifying for 3 tokens of 20: below 10 ms of drafting it would pay."""
    run = small(accepted=lambda case: 2 if case.arm == "candidate" else 0)

    def split(one):
        took = (
            {"draft_ns": 30 * MS, "verify_ns": 50 * MS} if one.arm == "candidate" else {"verify_ns": 20 * MS}
        )
        rounds = tuple(msgspec.structs.replace(period, **took) for period in one.rounds)
        return msgspec.structs.replace(one, rounds=rounds)

    slow = msgspec.structs.replace(run, records=tuple(map(split, run.records)))
    text = remedies_of(slow)["cheaper_drafter"].evidence[0].text
    assert "30.00 ms" in text
    assert "10.00 ms" in text


@pytest.mark.parametrize(
    ("kept", "length"), [([0.5, 0.8, 0.97, 1.0], 3), ([1.0, 1.0, 1.0], 1), ([0.3, 0.6, 0.9], 3), ([0.95], 1)]
)
def test_the_shortest_draft_that_keeps_nearly_all(kept, length):
    """The first length that keeps 95 % of the accepted drafts; without one, all of them."""
    assert enough_drafts(kept) == length


def test_drafts_that_are_never_accepted_late_point_to_shorter_ones(small, remedies_of):
    """Two of four are accepted every time: drafts of two would commit the same."""
    found = remedies_of(small())["fewer_drafted_tokens"]
    assert "2 instead of 4" in found.title


def test_prefill_explains_a_tail_only_where_it_coincides_with_it():
    """Slow rounds that carry prefill are its tail; slow rounds without, or too few, are not."""
    usual = [(10 * MS, False)] * 200
    tail = measure_prefill_tail([*usual, *[(50 * MS, True)] * 30])
    assert tail is not None
    assert tail[0] == 1.0
    assert tail[1] == pytest.approx(5.0)
    assert tail[2] == pytest.approx(30 * 40 / (200 * 10 + 30 * 50))
    assert measure_prefill_tail([*usual, *[(50 * MS, False)] * 30, *[(10 * MS, True)] * 30]) is None
    assert measure_prefill_tail([*usual, *[(50 * MS, True)] * 5]) is None
    assert measure_prefill_tail([*usual, *[(15 * MS, True)] * 30]) is None
    assert measure_prefill_tail([*usual, *[(60 * MS, False)] * 30, *[(50 * MS, True)] * 30]) is None


def test_remedies_come_by_what_they_could_touch_and_cold_starts_last():
    """The larger share first, those without one after, a cold start at the end."""

    def remedy(code, stake):
        return Remedy(code=code, title=code, text="", loads=(), stake=stake, evidence=())

    found = order_remedies(
        [remedy("cold_start", None), remedy("a", 0.1), None, remedy("b", None), remedy("c", 0.4)]
    )
    assert [one.code for one in found] == ["c", "a", "b", "cold_start"]


def item(name, text, **changes):
    return Item(id=name, messages=(Message(role="user", content=text),), segments={}, **changes)


def test_the_longest_shared_beginning_counts_for_each_prompt():
    """Against brute force over all pairs."""
    texts = ["abcde", "abcxx", "abc", "zz", "zzz", "abcdf", ""]
    items = [item(str(index), text) for index, text in enumerate(texts)]
    found = measure_overlaps(items)

    def shared(one, other):
        size = 0
        while size < min(len(one), len(other)) and one[size] == other[size]:
            size += 1
        return size

    rendered = [f"u{text}\x1e" for text in texts]
    for index, text in enumerate(rendered):
        longest = max(shared(text, other) for place, other in enumerate(rendered) if place != index)
        assert found[str(index)] == (len(text), longest)


def test_withheld_prompts_keep_their_counts():
    """A package without texts gives the same share as the run."""
    items = [item("a", "shared beginning, one"), item("b", "shared beginning, two")]
    overlaps = measure_overlaps(items)
    blank = [item(one.id, f"withheld:{one.id}", withheld_prompt=overlaps[one.id]) for one in items]
    assert common_prefix_share(blank) == common_prefix_share(items)
    assert common_prefix_share(items[:1]) is None
