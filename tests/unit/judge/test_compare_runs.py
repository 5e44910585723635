"""Two runs of known truth side by side: what changed comes out with its size, what did not stays quiet."""

import random

import msgspec
import pytest

from draftproof.core.errors import UsageError
from draftproof.core.records import Chunk
from draftproof.judge.compare import EXIT_CODES, RunComparison, compare_runs
from draftproof.judge.compare.delivery import (
    LAST_BITS,
    UNCOUNTED,
    build_side,
    compare_delivery,
    read_interval,
    read_ratio,
)
from draftproof.judge.compare.outcomes import compare_envelopes, find_overlap
from draftproof.judge.compute import compute_results
from draftproof.judge.observe.run_data import prepare_run
from draftproof.judge.results.run import EnvelopeEntry
from draftproof.workload.items import ContainsCheck, Message

MS = 1_000_000
TWO_LOADS = {"segments": ("chat",), "items_per_segment": 8, "noise": 0.0}
SMALL = {"loads": (("low", 1),), "segments": ("chat",), "items_per_segment": 8, "noise": 0.0}


def row(comparison, quantity, arm="candidate", load="low"):
    found = [
        one for one in comparison.deliveries if (one.quantity, one.arm, one.load) == (quantity, arm, load)
    ]
    assert len(found) == 1, f"{quantity} of {arm} at {load}: {found}"
    return found[0]


def list_readings(comparison):
    return {one.reading for one in comparison.deliveries} | {one.reading for one in comparison.failures}


def replace(run, **fields):
    return msgspec.structs.replace(run, **fields)


def replace_manifest(run, **fields):
    return replace(run, manifest=replace(run.manifest, **fields))


def replace_items(run, change):
    return replace(run, items=tuple(change(number, item) for number, item in enumerate(run.items)))


def test_a_run_against_itself_has_not_changed(world):
    """Every ratio is exactly 1, every reading within noise, no fact differs, the exit code is 0."""
    run = world(**TWO_LOADS, arms=world.ALL_ARMS).run()
    found = compare_runs(run, run)
    assert found.conclusion == "unchanged"
    assert EXIT_CODES[found.conclusion] == 0
    assert {one.ratio.value for one in found.deliveries} == {1.0}
    assert list_readings(found) == {"within_noise"}
    assert (found.facts, found.envelope, found.not_compared) == ((), (), ())
    assert {one.arm for one in found.deliveries} == set(world.ALL_ARMS)
    assert len(found.deliveries) == 4 * 2 * 6
    assert (found.prompts.common, found.prompts.other_content) == (8, 0)


def test_ratios_are_those_computed_by_hand(world):
    """40 tokens in chunks of 3 after the first: 14 chunks 60 ms apart, against 40 chunks 20 ms apart."""
    before = world(**SMALL, accepted=lambda _: 0).run()
    after = world(
        **SMALL,
        accepted=lambda case: 2 if case.arm == "candidate" else 0,
        ttft_ms=lambda case: 125.0 if case.arm == "candidate" else 100.0,
    ).run()
    found = compare_runs(before, after)
    wanted = {
        "tpot_ns": (20 * MS, 20 * MS, 1.0),
        "ttft_from_schedule_ns": (100 * MS, 125 * MS, 1.25),
        "icl_p50_ns": (20 * MS, 60 * MS, 3.0),
        "tokens_per_chunk": (1.0, 40 / 14, 40 / 14),
        "chunks_per_arrival": (1.0, 1.0, 1.0),
        "output_tokens": (40.0, 40.0, 1.0),
    }
    for quantity, (old, new, ratio) in wanted.items():
        one = row(found, quantity)
        assert (one.before, one.after, one.ratio.value) == pytest.approx((old, new, ratio)), quantity
        assert one.prompts == one.ratio.n == 8
        assert (one.reading == "changed_noise_unknown") == (ratio != 1.0)
        assert row(found, quantity, arm="baseline").reading == "within_noise"


def test_a_service_that_now_bundles_is_found_and_the_untouched_arm_is_not(world):
    """Several tokens per chunk where there was one: changed beyond the null arms of both runs."""
    arms = ("baseline", "candidate", "baseline_null")
    before = world(**TWO_LOADS, arms=arms, accepted=lambda _: 0).run()
    after = world(**TWO_LOADS, arms=arms, accepted=lambda case: 3 if case.arm == "candidate" else 0).run()
    found = compare_runs(before, after)
    for load in ("low", "high"):
        one = row(found, "tokens_per_chunk", load=load)
        assert (one.reading, one.noise, one.noise_from) == ("changed", 1.0, "both")
        assert one.after == pytest.approx(40 / 11)
        assert row(found, "tpot_ns", load=load).reading == "within_noise"
    changed = {one.arm for one in found.deliveries if one.reading != "within_noise"}
    assert changed == {"candidate"}


def join_events(run, tokens):
    """Return the run with so many tokens in each event of the candidate, known by closing usage alone."""

    def join(one):
        size = tokens if one.arm == "candidate" else 1
        ends = [*range(size, one.output_tokens, size), one.output_tokens]
        first, last = one.chunks[0].arrival_ns, one.chunks[-1].arrival_ns
        pace = (last - first) / (one.output_tokens - 1)
        chunks = tuple(Chunk(first + round(pace * (end - 1)), None) for end in ends)
        bare = {"token_ids": None, "rounds": None, "speculation": None, "token_source": None}
        return replace(one, chunks=chunks, **bare)

    return replace(run, records=tuple(map(join, run.records)))


def test_a_rate_that_nobody_counts_is_not_compared_where_chunks_changed(world):
    """A service that now joins four tokens of 40 is not 8 % faster: its rate is not known."""
    arms = ("baseline", "candidate", "baseline_null")
    run = world(**SMALL, arms=arms, accepted=lambda _: None).run()
    found = compare_runs(join_events(run, 1), join_events(run, 4))
    one = row(found, "tpot_ns")
    assert (one.reading, one.ratio.reason) == ("not_compared", UNCOUNTED)
    assert one.ratio.value == pytest.approx(36 / 39)
    assert row(found, "tokens_per_chunk").reading == "changed"
    alike = compare_runs(join_events(run, 4), join_events(run, 4))
    assert row(alike, "tpot_ns").reading == "within_noise"


def test_chunks_that_now_come_in_bursts_are_found(world):
    """One token per chunk as before, but four chunks at once: only chunks per arrival and gaps tell."""
    before = world(**SMALL, accepted=lambda _: None).run()

    def bunch(record):
        chunks = [
            Chunk(record.chunks[4 * (number // 4)].arrival_ns, chunk.cumulative_tokens)
            for number, chunk in enumerate(record.chunks)
        ]
        return replace(record, chunks=tuple(chunks), rounds=None, speculation=None)

    after = replace(before, records=tuple(map(bunch, before.records)))
    found = compare_runs(before, after)
    assert row(found, "chunks_per_arrival").ratio.value == pytest.approx(4.0)
    assert row(found, "chunks_per_arrival").reading == "changed_noise_unknown"
    assert row(found, "tokens_per_chunk").reading == "within_noise"
    gap = row(found, "icl_p50_ns")
    assert (gap.reading, gap.known_before, gap.known_after) == ("known_in_one_run", 8, 0)


@pytest.mark.parametrize(
    ("null", "reading", "source"),
    [(1.0, "changed", "both"), (1.10, "within_noise", "both"), (None, "changed_noise_unknown", "none")],
)
def test_null_arms_are_the_yardstick(world, null, reading, source):
    """A candidate 5 % slower is a change where equal arms agree, none where they lie 10 % apart."""
    arms = ("baseline", "candidate") if null is None else ("baseline", "candidate", "baseline_null")

    def pace(factor):
        return lambda case: 20.0 * {"candidate": factor, "baseline_null": null or 1.0}.get(case.arm, 1.0)

    before = world(**SMALL, arms=arms, tpot_ms=pace(1.0)).run()
    after = world(**SMALL, arms=arms, tpot_ms=pace(1.05)).run()
    one = row(compare_runs(before, after), "tpot_ns")
    assert (one.reading, one.noise_from) == (reading, source)
    assert one.ratio.value == pytest.approx(1.05)
    assert one.noise == (None if null is None else pytest.approx(null))


def test_the_null_of_one_run_is_used_and_named(world):
    """Where only A has a null arm, its noise counts and the row says whose it is."""
    before = world(**SMALL, arms=("baseline", "candidate", "baseline_null")).run()
    found = compare_runs(before, world(**SMALL).run())
    assert {one.noise_from for one in found.deliveries} == {"before"}
    assert {one.noise_from for one in found.failures} == {"before"}
    assert ("arms", "baseline_null", "measured", None) in {
        (one.group, one.key, one.before, one.after) for one in found.facts
    }


def test_a_stalled_request_of_a_null_arm_hides_no_change(world):
    """One of twelve null requests takes four times as long: its interval reaches far, and little counts."""

    def tpot(case, candidate):
        if case.arm == "baseline_null" and case.number == 3:
            return 80.0
        return candidate if case.arm == "candidate" else 20.0

    shape = SMALL | {
        "items_per_segment": 12,
        "noise": 0.01,
        "arms": ("baseline", "candidate", "baseline_null"),
    }
    before, after = (world(**shape, tpot_ms=lambda case, ms=ms: tpot(case, ms)).run() for ms in (10.0, 14.0))
    found = row(compare_runs(before, after), "tpot_ns")
    assert 1.0 <= found.noise < 1.15
    assert found.reading == "changed"


@pytest.mark.parametrize(
    ("interval", "noise", "reading"),
    [
        ((1.03, 1.09), None, "changed_noise_unknown"),
        ((0.99, 1.09), None, "within_noise"),
        ((1.03, 1.09), 1.02, "changed"),
        ((1.03, 1.09), 1.03, "within_noise"),
        ((0.90, 0.95), 1.04, "changed"),
        ((0.90, 0.97), 1.04, "within_noise"),
        ((1.0, 1.0), 1.0, "within_noise"),
        ((None, None), 1.0, "not_compared"),
    ],
)
def test_the_whole_interval_must_lie_beyond_the_noise(interval, noise, reading):
    """Both directions alike; what has no interval was not compared."""
    assert read_ratio(interval[0], interval[1], noise) == reading
    low, high = (None if end is None else end - 1 for end in interval)
    if noise != 1.04:
        reach = (0.0 if noise is None else noise - 1) + LAST_BITS
        assert read_interval(low, high, (-reach, reach), noise) == reading


def test_failures_are_compared_as_shares_of_the_same_prompts(world):
    """A third of the requests fails where none did: a change; times of the others are still compared."""
    before = world(segments=("chat",), items_per_segment=36).run()
    after = world(
        segments=("chat",),
        items_per_segment=36,
        outcome=lambda case: "timeout" if case.arm == "candidate" and case.number % 3 == 0 else "ok",
    ).run()
    found = compare_runs(before, after)
    one = next(each for each in found.failures if (each.arm, each.load) == ("candidate", "low"))
    assert one.before == 0.0
    assert one.after == one.difference.value == pytest.approx(1 / 3)
    assert one.reading == "changed_noise_unknown"
    assert row(found, "tpot_ns").prompts == 24
    assert found.conclusion == "changed"


def test_counts_that_are_no_longer_disclosed_are_a_change_not_a_gap(world):
    """A service that stops sending usage is named; characters take the place of tokens."""
    before = world(**SMALL).run()

    def silence(record):
        if record.arm != "candidate":
            return record
        chunks = tuple(Chunk(chunk.arrival_ns, None) for chunk in record.chunks)
        silent = {"output_tokens": None, "token_ids": None, "rounds": None, "speculation": None}
        return replace(record, chunks=chunks, token_source=None, **silent)

    found = compare_runs(before, replace(before, records=tuple(map(silence, before.records))))
    one = row(found, "tokens_per_chunk")
    assert (one.reading, one.known_before, one.known_after) == ("known_in_one_run", 8, 0)
    assert row(found, "characters_per_chunk").reading == "within_noise"
    assert found.conclusion == "changed"


def test_other_content_under_the_same_id_is_left_out(world):
    """Different workloads: only prompts with identical content are compared, and the rest is counted."""
    before = world(**SMALL).run()

    def change(number, item):
        if number < 2:
            return replace(item, messages=(Message(role="user", content="something else"),))
        return replace(item, checks=(ContainsCheck(all_of=("other",)),))

    after = replace_manifest(replace_items(before, change), workload_sha256="w2")
    found = compare_runs(before, after)
    assert (found.prompts.common, found.prompts.other_content) == (6, 2)
    assert row(found, "tpot_ns").prompts == 6
    assert ("workload", "sha256") in {(one.group, one.key) for one in found.facts}


@pytest.mark.parametrize("shared_id", [True, False])
def test_no_prompt_in_common_is_refused_in_one_sentence(world, shared_id):
    """Nothing is compared across prompts that differ."""
    before = world(**SMALL).run()

    def change(number, item):
        other = (Message(role="user", content=f"other {number}"),)
        return replace(item, messages=other) if shared_id else replace(item, id=f"new-{number}")

    after = replace_manifest(replace_items(before, change), workload_sha256="w2")
    with pytest.raises(UsageError, match="different workloads and no prompt in common") as refused:
        compare_runs(before, after)
    assert str(refused.value).count("\n") == 0


def test_a_limit_of_the_plan_is_part_of_a_prompt(world):
    """The same item under another cap of its answer asks for something else."""
    before = world(**SMALL).run()
    capped = world(**SMALL, plan={"workload": {"max_tokens": 8}}).run()
    with pytest.raises(UsageError, match="no prompt in common"):
        compare_runs(before, capped)


def test_a_missing_arm_is_a_change_and_cannot_be_asked_for(world):
    """An arm that only A has is named; --arm for it is refused with the arms that are there."""
    before = world(**SMALL, arms=("baseline", "candidate", "alternative")).run()
    after = world(**SMALL).run()
    found = compare_runs(before, after)
    assert [one.arm for one in found.arms] == ["baseline", "candidate"]
    assert ("arms", "alternative") in {(one.group, one.key) for one in found.facts}
    with pytest.raises(UsageError, match=r"'alternative' is not in run B.*baseline, candidate"):
        compare_runs(before, after, "alternative")
    with pytest.raises(UsageError, match="'x' is not in run A and B"):
        compare_runs(before, after, "x")


def test_one_arm_can_be_compared_alone(world):
    """With --arm baseline nothing of the candidate counts: its slow-down is not seen."""
    before = world(**SMALL).run()
    after = world(**SMALL, tpot_ms=lambda case: 40.0 if case.arm == "candidate" else 20.0).run()
    assert compare_runs(before, after).conclusion == "changed"
    alone = compare_runs(before, after, "baseline")
    assert {one.arm for one in alone.deliveries} == {"baseline"}
    assert (alone.conclusion, alone.effects) == ("unchanged", ())


def test_a_level_of_one_run_only_is_named_and_left_out(world):
    """A load that B lacks, or that means other requests in flight there, is not compared and is a change."""
    small = {name: value for name, value in SMALL.items() if name != "loads"}
    before = world(**small, loads=(("low", 1), ("high", 8), ("top", 16))).run()
    found = compare_runs(before, world(**small, loads=(("low", 1), ("high", 4))).run())
    assert found.loads == (("low", 1),)
    assert {one.load for one in found.deliveries} == {"low"}
    assert "Load top was measured in A only." in found.not_compared
    assert any("8 in flight in A and 4 in flight in B" in text for text in found.not_compared)
    assert found.conclusion == "changed"
    with pytest.raises(UsageError, match="no load level in common"):
        compare_runs(before, world(**small, loads=(("other", 1),)).run())


def test_too_few_prompts_are_never_called_unchanged(world):
    """Below the sample floor a comparison is refused, unless the configuration changed: that is said."""
    run = world(**SMALL | {"items_per_segment": 4}).run()
    with pytest.raises(UsageError, match=r"too few answers.*4 of at least 6 prompts"):
        compare_runs(run, run)
    found = compare_runs(run, replace_manifest(run, host={"cpu": "new"}))
    assert found.conclusion == "changed"
    assert {one.reading for one in found.deliveries} == {"not_compared"}


def test_facts_of_the_run_are_listed(world):
    """Host, findings, thresholds and seed: each with both values; the time of the run is none of them."""
    before = world(**SMALL).run()
    after = replace_manifest(
        world(**SMALL, thresholds={"minimum_gain": 0.1}).run(),
        host={"cpu": "new"},
        findings=("Before the run: candidate: unproven.",),
        seed=2,
        created_wall_ns=99,
        thresholds_sha256="t2",
    )
    found = {(one.group, one.key): (one.before, one.after) for one in compare_runs(before, after).facts}
    assert found["host", "cpu"] == (None, "new")
    assert found["thresholds", "sha256"] == ("t", "t2")
    assert found["thresholds", "thresholds.minimum_gain"] == (0.05, 0.1)
    assert found["findings", "finding"] == (None, "Before the run: candidate: unproven.")
    assert found["measurement", "seed"] == (1, 2)
    assert not any("wall" in key for _, key in found)


def test_effects_envelope_and_decision_are_compared(world):
    """A gain that turned into harm: cells lie apart, the envelope closes, the decision changes."""
    wide = TWO_LOADS | {"thresholds": {"failure_margin": 1.0, "quality_margin": 1.0}}
    before = world(**wide, tpot_ms=lambda case: 10.0 if case.arm == "candidate" else 20.0).run()
    after = world(**wide, tpot_ms=lambda case: 30.0 if case.arm == "candidate" else 20.0).run()
    found = compare_runs(before, after)
    assert (found.before.decision, found.after.decision, found.decision_changed) == ("adopt", "defer", True)
    assert {(one.status_before, one.status_after, one.is_apart) for one in found.effects} == {
        ("gain", "harm", True)
    }
    (entry,) = found.envelope
    assert entry.before is not None
    assert (entry.before.max_concurrency, entry.after) == (8, None)


def test_reasons_that_only_one_run_gives_are_listed(world):
    """A gain that turned into harm has new reasons; a run beside itself has none of its own."""
    wide = TWO_LOADS | {"thresholds": {"failure_margin": 1.0, "quality_margin": 1.0}}
    before = world(**wide, tpot_ms=lambda case: 10.0 if case.arm == "candidate" else 20.0).run()
    after = world(**wide, tpot_ms=lambda case: 30.0 if case.arm == "candidate" else 20.0).run()
    found = compare_runs(before, after)
    assert any(one.before is None and one.after for one in found.reasons)
    assert compare_runs(before, before).reasons == ()


@pytest.mark.parametrize(
    ("changes", "differs"),
    [
        ({"max_context_tokens": 612, "min_context_tokens": 9}, False),
        ({"max_concurrency": 4}, True),
        ({"context": "limited", "max_context_tokens": 400}, True),
    ],
)
def test_only_what_limits_a_segment_changes_its_envelope(world, changes, differs):
    """The longest context that happened to be measured moves with every answer; a cut for harm does not."""
    results = compute_results(world(**SMALL).run())
    entry = EnvelopeEntry(segment="task=chat", max_concurrency=8, max_context_tokens=600)
    other = msgspec.structs.replace(entry, **changes)
    old, new = (
        msgspec.structs.replace(results, verdict=msgspec.structs.replace(results.verdict, envelope=(one,)))
        for one in (entry, other)
    )
    assert bool(compare_envelopes(old, new)) is differs


def test_an_invalid_run_beats_everything(world):
    """A drafter that never drafts makes its run invalid, and the comparison with it."""
    run = world(**SMALL, accepted=lambda _: 0).run()
    good = world(**SMALL).run()
    assert compare_runs(good, run).conclusion == compare_runs(run, run).conclusion == "invalid"
    assert EXIT_CODES["invalid"] == 40


def test_the_comparison_survives_json_and_the_order_of_records(world):
    """What --json prints reads back as the same comparison; shuffled records change nothing."""
    before = world(**SMALL).run()
    after = world(**SMALL, accepted=lambda case: 3 if case.arm == "candidate" else 0).run()
    found = compare_runs(before, after)
    assert msgspec.json.decode(msgspec.json.encode(found), type=RunComparison) == found
    shuffled = list(after.records)
    random.Random(3).shuffle(shuffled)  # noqa: S311 - a fixed disorder
    assert compare_runs(before, replace(after, records=tuple(shuffled))) == found


def test_equal_services_measured_twice_rarely_differ(world):
    """Of 40 pairs of runs of one truth, at most 4 show any change: the family's 5 % with room for luck."""
    alarms = 0
    for seed in range(40):
        old, new = (prepare_run(_noisy_run(world, f"{seed}{name}")) for name in "ab")
        overlap, arms = find_overlap(old, new), ("baseline", "candidate")
        rows, failures = compare_delivery(build_side(old), build_side(new), overlap, arms)
        readings = {one.reading for one in rows} | {one.reading for one in failures}
        alarms += readings != {"within_noise"}
    assert alarms <= 4


def _noisy_run(world, seed):
    def shake(case, spread):
        return 1 + spread * random.Random(f"{seed}{case}").gauss(0, 1)  # noqa: S311

    return world(
        **SMALL | {"items_per_segment": 10},
        tpot_ms=lambda case: 20.0 * shake(case, 0.05),
        ttft_ms=lambda case: 100.0 * shake(case, 0.08),
    ).run()


def test_runs_too_small_for_an_effect_are_not_called_unchanged(world):
    """Prompts enough for their delivery and too few of each segment for an effect: no pass."""
    run = world(**SMALL | {"segments": ("chat", "code", "sum"), "items_per_segment": 4}).run()
    found = compare_runs(run, run)
    assert {one.is_apart for one in found.effects} == {None}
    assert (found.conclusion, EXIT_CODES[found.conclusion]) == ("not_comparable", 30)
