"""Diagnosis by cell and arm, the drafter's cost and break-even: known worlds in, known figures out."""

import msgspec
import pytest

from draftproof.core.records import ServerTimings
from draftproof.judge.compute import compute_results
from draftproof.judge.inform.diagnosis.drafting import compute_drafter_costs
from draftproof.judge.inform.diagnosis.steps import collect_rounds, compute_break_evens
from draftproof.judge.inform.diagnosis.time_parts import ceiling_of, predict_gain
from draftproof.judge.observe.run_data import prepare_run
from draftproof.judge.results.decide import Figure
from draftproof.judge.results.inform import Gauge, ServiceUse

MS = 1_000_000


def parts_of(found, arm="baseline", segment="all", load="low"):
    wanted = (arm, segment if segment == "all" else f"task={segment}", load)
    return next(one for one in found.parts if (one.arm, one.segment, one.load) == wanted)


def with_server(run, server):
    """Let a function of the record give what the server says of its time."""
    records = (msgspec.structs.replace(one, server=server(one)) for one in run.records)
    return msgspec.structs.replace(run, records=tuple(records))


def test_every_cell_has_its_own_bound(world, diagnoses_of):
    """Prefill takes 5 s in chat and 0.1 s in rewriting: one cell is prefill-bound, the other decode-bound."""
    ttft = lambda case: 5000.0 if case.segment == "chat" else 100.0  # noqa: E731
    found = diagnoses_of(world(ttft_ms=ttft, items_per_segment=8).run())
    assert parts_of(found, segment="chat").bound == "prefill-bound"
    assert parts_of(found, segment="rewriting").bound == "decode-bound"
    assert parts_of(found, segment="rewriting").is_shown


def test_shares_add_up_to_the_whole_and_carry_intervals(world, diagnoses_of):
    """Queue, prefill, decoding and the rest are 1, whatever the prompts; each with an interval around it."""
    parts = parts_of(diagnoses_of(world(noise=0.3, items_per_segment=8).run()))
    shares = (parts.queue, parts.prefill, parts.decode, parts.other)
    assert sum(one.value for one in shares) == pytest.approx(1.0)
    assert parts.decode.low < parts.decode.value < parts.decode.high
    assert parts.source == "server"


def test_ceiling_before_and_after_and_what_was_predicted(world, diagnoses_of):
    """880 ms, 780 of them decoding at half the time: 1.80 predicted and measured; the rest limits next."""
    run = world(
        noise=0.0, items_per_segment=8, tpot_ms=lambda case: 10.0 if case.arm == "candidate" else 20.0
    )
    found = diagnoses_of(run.run())
    before, after = parts_of(found), parts_of(found, "candidate")
    assert before.ceiling.value == pytest.approx(879 / 99, rel=1e-3)
    assert after.ceiling.value == pytest.approx(489 / 99, rel=1e-3)
    assert after.predicted.value == pytest.approx(880 / 490, rel=5e-3)
    assert after.measured.value == pytest.approx(880 / 490, rel=1e-3)
    assert before.predicted is None


def test_a_first_token_that_got_slower_shows_as_less_than_predicted(world, diagnoses_of):
    """Faster decoding and a longer prefill: the sentence says that another part got slower."""
    run = world(
        items_per_segment=8,
        tpot_ms=lambda case: 10.0 if case.arm == "candidate" else 20.0,
        ttft_ms=lambda case: 400.0 if case.arm == "candidate" else 100.0,
    ).run()
    assert "another part got slower" in parts_of(diagnoses_of(run), "candidate").text


def test_without_the_servers_timings_the_client_says_what_it_can(world, diagnoses_of):
    """Decoding by first to last chunk, everything before as one; queue and prefill are not known, not 0."""
    run = with_server(world(noise=0.0, items_per_segment=8).run(), lambda _: ServerTimings())
    parts = parts_of(diagnoses_of(run))
    assert parts.source == "client"
    assert parts.decode.value == pytest.approx(780 / 880)
    assert parts.before_first.value == pytest.approx(100 / 880)
    assert parts.queue.value is None
    assert "client's clock" in parts.queue.reason


def test_a_long_wait_by_the_clients_clock_is_first_token_bound(world):
    """The client cannot tell queueing from prefill and says so instead of guessing one."""
    run = world(items_per_segment=8, ttft_ms=lambda _: 5000.0).run()
    results = compute_results(with_server(run, lambda _: ServerTimings()))
    assert parts_of(results.diagnoses).bound == "first-token-bound"
    assert results.diagnosis[0].bound == "first-token-bound"


def test_what_no_trace_carries_is_named_as_not_measured(world, diagnoses_of):
    """Media, retrieval and tools: never a share of 0."""
    found = dict(diagnoses_of(world(items_per_segment=6).run()).not_measured)
    assert set(found) == {"media-bound", "retrieval-bound", "tool-bound"}
    assert all("not measured" in why for why in found.values())


def test_a_run_in_which_every_request_failed_has_no_shares(world, diagnoses_of):
    """Nothing answered, nothing known, and the text says it."""
    found = diagnoses_of(world(items_per_segment=6, outcome=lambda _: "timeout").run())
    parts = parts_of(found)
    assert (parts.source, parts.bound, parts.decode.value) == ("none", "unknown", None)
    assert "no request was answered" in parts.text
    assert found.remedies == ()


def test_the_golden_bound_carries_its_limits():
    """Share 0.3: ceiling 1.43; at a speed-up of 2 a gain of 1.176; the box has its corners."""
    share = Figure(value=0.3, low=0.2, high=0.4, level=0.95)
    speedup = Figure(value=2.0, low=1.5, high=3.0, level=0.95)
    assert ceiling_of(share).low == pytest.approx(1.25)
    assert ceiling_of(share).high == pytest.approx(1 / 0.6)
    found = predict_gain(share, speedup)
    assert found.value == pytest.approx(1.1765, abs=1e-4)
    assert (found.low, found.high) == pytest.approx((1 / (0.8 + 0.2 / 1.5), 1 / (0.6 + 0.4 / 3)))
    assert found.level == pytest.approx(0.90)


def test_a_slower_decode_periods_the_box_around():
    """Below 1 more decoding means more loss: the lowest corner is that of the largest share."""
    share = Figure(value=0.5, low=0.4, high=0.6, level=0.95)
    found = predict_gain(share, Figure(value=0.5, low=0.4, high=0.6, level=0.95))
    assert found.low == pytest.approx(1 / (0.4 + 0.6 / 0.4))
    assert found.high == pytest.approx(1 / (0.6 + 0.4 / 0.6))


def test_all_decoding_has_no_ceiling():
    """1 / (1 − 1) is no number: None with the reason."""
    found = ceiling_of(Figure(value=1.0, low=1.0, high=1.0, level=0.95))
    assert found.value is None
    assert "no ceiling" in str(found.reason)


def prepared_with_rounds(world, **parts):
    """Rounds of 20 ms in the baseline; the candidate drafts 4, accepts 2, and takes `parts` (ms) a round."""
    run = world(segments=("chat",), loads=(("low", 1),), items_per_segment=8, noise=0.0).run()

    def split(one):
        took = parts if one.arm == "candidate" else {"verify_ns": 20}
        zero = dict.fromkeys(("draft_ns", "verify_ns", "sample_ns", "schedule_ns"), 0)
        changed = zero | {name: value * MS for name, value in took.items()}
        rounds = tuple(msgspec.structs.replace(period, **changed) for period in one.rounds)
        return msgspec.structs.replace(one, rounds=rounds)

    return prepare_run(msgspec.structs.replace(run, records=tuple(map(split, run.records))))


def break_even(prepared):
    return compute_break_evens(prepared, collect_rounds(prepared))[0]


def test_break_even_by_hand(world):
    """3 tokens a step of 30 + 10 ms against ordinary steps of 20: needs 2, has 3, may draft for 30 ms."""
    found = break_even(prepared_with_rounds(world, verify_ns=30, draft_ns=10))
    assert found.tokens_per_step == pytest.approx(3.0)
    assert found.needed_tokens == pytest.approx(2.0)
    assert found.margin.value == pytest.approx(1.5)
    assert found.draft_ns == pytest.approx(10 * MS)
    assert found.draft_limit_ns == pytest.approx((3 * 20 - 30) * MS)
    assert found.acceptance == pytest.approx(0.5)
    assert sum(found.needed_acceptance**i for i in range(5)) == pytest.approx(2.0)


def test_a_step_that_no_drafting_could_save_says_so(world):
    """Verification alone of 70 ms for 3 tokens of 20: no drafting is quick enough."""
    found = break_even(prepared_with_rounds(world, verify_ns=70, draft_ns=10))
    assert found.draft_limit_ns is None
    assert found.draft_reason
    assert found.margin.high < 1


def test_a_step_dearer_than_all_its_tokens_has_no_acceptance(world):
    """120 ms for at most five tokens of 20: no acceptance is enough."""
    found = break_even(prepared_with_rounds(world, verify_ns=110, draft_ns=10))
    assert found.needed_acceptance is None
    assert "whatever is accepted" in found.acceptance_reason


def test_an_engine_that_hides_its_rounds_has_no_break_even(world):
    """No rounds, no row: nothing is made up from counters."""
    prepared = prepare_run(world(items_per_segment=6, accepted=lambda _: None).run())
    assert compute_break_evens(prepared, collect_rounds(prepared)) == ()


def facts_of(prepared, services=()):
    found = compute_drafter_costs(prepared, collect_rounds(prepared), services)
    return {one.quantity: one for one in found}


def test_the_drafters_compute_is_split_by_rounds(world):
    """10 of 40 ms are drafting; verification adds 10 ms to an ordinary step."""
    facts = facts_of(prepared_with_rounds(world, verify_ns=30, draft_ns=10))
    assert facts["draft_share_of_step"].candidate == pytest.approx(0.25)
    assert facts["verify_time_per_step"].baseline == pytest.approx(20 * MS)
    assert facts["verify_time_per_step"].candidate == pytest.approx(30 * MS)


def test_without_rounds_the_services_counters_tell_drafting(world):
    """2 s drafting beside 6 s verifying: a quarter, with the source named."""
    prepared = prepare_run(world(loads=(("low", 1),), items_per_segment=6, accepted=lambda _: None).run())
    use = ServiceUse(
        arm="candidate", load="low", periods=1, periods_used=1, samples=2, seconds=1.0,
        draft_seconds=2.0, verify_seconds=6.0, preemptions=3.0, finished_requests=60.0,
        running=Gauge(mean=1.0, maximum=1.0, samples=5),
    )  # fmt: skip
    facts = facts_of(prepared, [use])
    assert facts["draft_share_of_step"].candidate == pytest.approx(0.25)
    assert "counters" in facts["draft_share_of_step"].source
    assert facts["preemptions_per_1000_requests"].candidate == pytest.approx(50.0)
    assert facts["step_time"].candidate is None
    assert facts["step_time"].reason


def test_cache_that_the_drafter_takes_moves_the_load_that_fits(world):
    """10,000 tokens instead of 12,000 at a mean context of 100: 100 requests fit instead of 120."""
    run = world(loads=(("low", 1),), items_per_segment=6).run()
    sizes = {"baseline": 12_000, "candidate": 10_000}
    arms = tuple(
        msgspec.structs.replace(one, settings={"capacity.kv_cache_tokens": sizes[one.arm]})
        for one in run.manifest.arms
    )
    manifest = msgspec.structs.replace(run.manifest, arms=arms)
    facts = facts_of(prepare_run(msgspec.structs.replace(run, manifest=manifest)))
    assert (facts["cache_capacity"].baseline, facts["cache_capacity"].candidate) == (12_000, 10_000)
    assert facts["cache_limited_concurrency"].baseline == pytest.approx(120)
    assert facts["cache_limited_concurrency"].candidate == pytest.approx(100)


def test_a_cache_that_nobody_states_is_none_with_the_reason(world):
    """No size in the settings: no capacity, and none of what follows from it."""
    facts = facts_of(prepare_run(world(loads=(("low", 1),), items_per_segment=6).run()))
    assert facts["cache_limited_concurrency"].candidate is None
    assert "no fixed size" in facts["cache_limited_concurrency"].reason
