"""What the services say of themselves: figures by hand, agreement with the client, faults by name."""

from collections import defaultdict

import msgspec
import pytest

from draftproof.core.manifests import ColdStart
from draftproof.core.records import TelemetrySample
from draftproof.judge.compute import compute_results
from draftproof.judge.decide.decision import decide_run
from draftproof.judge.metrics import host_use as host
from draftproof.judge.results.decide import read_reference
from draftproof.judge.results.run import Results
from draftproof.store.run_directory import encode_document

SPEC = "draftproof:spec_decode_num"
TOKENS, FINISHED = "draftproof:generation_tokens_total", "draftproof:request_success_total"
STEPS, DRAFTED, ACCEPTED = (
    f"{SPEC}_drafts_total",
    f"{SPEC}_draft_tokens_total",
    f"{SPEC}_accepted_tokens_total",
)
WAITING, ENGINE_STEPS = "draftproof:num_requests_waiting", "draftproof:engine_steps_total"
SECOND = 10**9


def fast(case):
    return 10.0 if case.arm == "candidate" else 20.0


def count(records):
    """Return what a service counts that made exactly these answers."""
    counts = [one.speculation for one in records if one.speculation]
    return {
        TOKENS: float(sum(one.output_tokens or 0 for one in records)),
        FINISHED: float(len(records)),
        STEPS: float(sum(one.num_spec_steps for one in counts)),
        DRAFTED: float(sum(one.num_draft_tokens for one in counts)),
        ACCEPTED: float(sum(one.num_accepted_draft_tokens for one in counts)),
        ENGINE_STEPS: 10.0 * len(records),
    }


def sampled(run, change=lambda _key, _gained: None, *, extra=(), during=None):
    """Return the run with samples at both ends of every period; `change` may alter what a period gained."""
    periods = defaultdict(list)
    for record in run.records:
        periods[record.load, record.block, record.arm].append(record)
    samples: list[TelemetrySample] = []
    totals: defaultdict[str, defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))
    for key, records in sorted(periods.items(), key=lambda one: (one[0][1], one[0][2])):
        gained = count(records)
        change(key, gained)
        total, at_ns = totals[key[2]], key[1] * 100 * SECOND
        samples.append(sample(key, at_ns, "start", {name: total[name] for name in gained}))
        if during is not None:
            samples.append(sample(key, at_ns + SECOND, "during", {n: total[n] for n in gained} | during))
        for name, gain in gained.items():
            total[name] += gain
        samples.append(sample(key, at_ns + 4 * SECOND, "end", {name: total[name] for name in gained}))
    return msgspec.structs.replace(run, telemetry=(*samples, *extra))


def sample(key, at_ns, mark, values, **options):
    load, block, arm = key
    return TelemetrySample(
        arm=arm, at_ns=at_ns, values=values, period=f"{load}/{block}", mark=mark, **options
    )


def use(results, arm="candidate", load="low"):
    return next(one for one in results.services if (one.arm, one.load) == (arm, load))


def row(results, quantity, arm="candidate", load="low"):
    wanted = (arm, load, quantity)
    return next(one for one in results.service_agreements if (one.arm, one.load, one.quantity) == wanted)


def codes(results, load):
    return {reason.code for cell in results.cells if cell.load == load for reason in cell.reasons}


@pytest.fixture(scope="module")
def honest(world):
    """Return the results of a run whose services count what the client got, read while it ran."""
    return compute_results(sampled(world(tpot_ms=fast).run(), during={WAITING: 3.0}))


def test_honest_counters_change_no_decision(world, honest):
    """Telemetry that agrees leaves every cell as it is without any."""
    without = decide_run(world(tpot_ms=fast).run())
    assert [cell.status for cell in honest.cells] == [cell.status for cell in without.cells]
    assert honest.verdict.decision == "adopt"


def test_figures_of_a_service_are_those_of_its_counters(honest):
    """Two segments of 20 answers with 40 tokens: 1600 tokens; 13 steps of 4 drafts, 2 kept, in each."""
    found = use(honest)
    assert (found.periods, found.periods_used, found.seconds) == (20, 20, 80.0)
    assert (found.generation_tokens, found.finished_requests) == (1600.0, 40.0)
    assert (found.num_spec_steps, found.num_draft_tokens) == (520.0, 2080.0)
    assert found.draft_acceptance_rate == 0.5
    assert found.mean_acceptance_length == 3.0
    assert found.tokens_per_engine_step == 4.0
    assert (found.waiting.mean, found.waiting.maximum, found.waiting.samples) == (3.0, 3.0, 20)


def test_what_an_engine_does_not_show_is_none(honest):
    """No preemptions, cache or energy in the samples: unknown in the results, and named as not measured."""
    found = use(honest)
    assert (found.preemptions, found.cache_usage, found.energy_per_output_token_joules) == (None, None, None)
    assert found.accepted_by_position == ()
    assert "Power and energy per token." in honest.not_measured
    assert "Use of the key-value caches." in honest.not_measured
    assert "Queue and running requests inside the services." not in honest.not_measured


def test_client_and_service_agree_exactly(honest):
    """Every count is the same on both sides, and the steps from chunks are those from the fields."""
    for quantity in ("output_tokens", "finished_requests", "num_draft_tokens", "num_accepted_draft_tokens"):
        found = row(honest, quantity)
        assert (found.standing, found.difference) == ("exact", 0.0)
    steps = row(honest, "tokens_per_decode_step")
    assert steps.standing in ("exact", "close")
    assert steps.client == pytest.approx(3.0, rel=0.01)


def test_a_small_difference_is_close_and_stated(world):
    """Four tokens too many in 1600 are within 1 %, and the difference is there to be read."""

    def change(key, gained):
        gained[TOKENS] += 4 if key == ("low", 0, "candidate") else 0

    results = compute_results(sampled(world(tpot_ms=fast).run(), change))
    found = row(results, "output_tokens")
    assert (found.standing, found.difference, found.client) == ("close", 4.0, 1600.0)
    assert results.verdict.decision == "adopt"


def test_a_service_that_counts_less_is_warned_about(world):
    """A replica that is not read shows as fewer tokens than the client got: numbers that disagree."""

    def change(key, gained):
        gained[TOKENS] -= 40 if key[2] == "candidate" else 0

    results = compute_results(sampled(world(tpot_ms=fast).run(), change))
    assert row(results, "output_tokens").standing == "differs"
    assert any("counts 800 output tokens fewer" in text for text in results.warnings)
    assert results.verdict.decision == "adopt"


def test_foreign_traffic_in_a_deciding_period_makes_its_load_invalid(world):
    """Three requests too many in one period of the candidate: what was measured at that load is not ours."""

    def change(key, gained):
        gained[FINISHED] += 3 if key == ("low", 4, "candidate") else 0

    results = compute_results(sampled(world(tpot_ms=fast).run(), change))
    assert {(cell.load, cell.status) for cell in results.cells} == {("low", "invalid"), ("high", "gain")}
    assert codes(results, "low") == {"foreign_traffic"}
    (text,) = {reason.text for reason in results.cells[0].reasons}
    assert "candidate in period low/4: 5 requests finished and 2 sent" in text
    assert [one.bound for one in results.diagnosis] == ["decode-bound", "decode-bound"]


def test_two_requests_too_many_are_fine(world):
    """A health check or two are no traffic."""

    def change(key, gained):
        gained[FINISHED] += 2 if key == ("low", 4, "candidate") else 0

    assert decide_run(sampled(world(tpot_ms=fast).run(), change)).decision == "adopt"


def test_long_foreign_answers_show_in_the_tokens(world):
    """One stranger's request with as many tokens as three of ours is foreign traffic too."""

    def change(key, gained):
        gained[FINISHED] += 1 if key == ("low", 4, "baseline") else 0
        gained[TOKENS] += 120 if key == ("low", 4, "baseline") else 0

    assert "foreign_traffic" in codes(compute_results(sampled(world(tpot_ms=fast).run(), change)), "low")


def test_foreign_traffic_of_the_null_decides_nothing(world):
    """The second baseline only measures noise."""

    def change(key, gained):
        gained[FINISHED] += 50 if key[2] == "baseline_null" else 0

    run = world(tpot_ms=fast, arms=("baseline", "candidate", "baseline_null")).run()
    assert "foreign_traffic" not in codes(compute_results(sampled(run, change)), "low")


def test_requests_that_were_broken_off_are_not_foreign(world):
    """What a service made for an own request without an end is allowed for, and the text says it."""
    run = world(tpot_ms=fast, outcome=lambda case: "cancelled" if case.number == 4 else "ok").run()
    records = tuple(
        msgspec.structs.replace(one, phase="fill", output_tokens=4) if one.outcome == "cancelled" else one
        for one in run.records
    )

    def change(key, gained):
        gained[TOKENS] += 100 if key[1] % 20 == 4 else 0

    results = compute_results(sampled(msgspec.structs.replace(run, records=records), change))
    assert "foreign_traffic" not in codes(results, "low")
    found = row(results, "output_tokens")
    assert (found.standing, "over 19 of 20 periods" in found.text) == ("exact", True)


def test_a_restart_in_mid_period_makes_its_load_invalid(world):
    """A counter that falls between two samples of a period is a restart, and the counter is named."""
    run = sampled(world(tpot_ms=fast).run())
    fallen = sample(("high", 21, "baseline"), 21 * 100 * SECOND + SECOND, "during", {TOKENS: 0.0})
    results = compute_results(msgspec.structs.replace(run, telemetry=(*run.telemetry, fallen)))
    assert {(cell.load, cell.status) for cell in results.cells} == {("low", "gain"), ("high", "invalid")}
    assert codes(results, "high") == {"counter_reset"}
    found = use(results, "baseline", "high")
    assert (found.periods, found.periods_used) == (20, 19)
    assert "period high/21" in found.unused[0]


def idle_at_high(case):
    return 2 if (case.arm, case.load) == ("candidate", "low") else 0


def test_a_drafter_that_is_idle_at_one_load_is_named(world):
    """Speculation that drafts at one load and not at another makes the other one invalid."""
    results = decide_run(world(tpot_ms=fast, accepted=idle_at_high).run())
    assert {(cell.load, cell.status) for cell in results.cells} == {("low", "gain"), ("high", "invalid")}
    assert codes(results, "high") == {"speculation_idle"}


@pytest.mark.parametrize(
    ("engine", "settings"),
    [
        ("reference", {"speculation.policy": "batch"}),
        ("vllm", {"speculation.num_speculative_tokens_per_batch_size": "[[1, 4, 4], [5, 64, 0]]"}),
        ("sglang", {"speculation.adaptive": True}),
        ("tensorrt-llm", {"speculation.max_concurrency": 4}),
    ],
)
def test_a_declared_policy_may_pause(world, engine, settings):
    """A schedule or policy that the settings declare is measured as what it is: ordinary decoding there."""
    run = world(accepted=idle_at_high).run()
    arms = tuple(
        msgspec.structs.replace(one, settings=settings if one.arm == "candidate" else {})
        for one in run.manifest.arms
    )
    manifest = msgspec.structs.replace(run.manifest, arms=arms)
    candidate = run.plan.arms.candidate.model_copy(update={"engine": engine})
    planned = run.plan.model_copy(update={"arms": run.plan.arms.model_copy(update={"candidate": candidate})})
    results = compute_results(msgspec.structs.replace(run, manifest=manifest, plan=planned))
    assert "invalid" not in {cell.status for cell in results.cells}
    assert "speculation_paused" in codes(results, "high")
    assert "speculation_paused" not in codes(results, "low")
    assert any("ordinary decoding was measured there" in text for text in results.warnings)


@pytest.mark.parametrize("settings", [{"speculation.policy": "fixed"}, {"speculation.adaptive": False}])
def test_a_policy_that_never_pauses_excuses_nothing(world, settings):
    """A fixed draft length or a policy that is off leaves the idle drafter a fault."""
    run = world(accepted=idle_at_high).run()
    arms = tuple(msgspec.structs.replace(one, settings=settings) for one in run.manifest.arms)
    run = msgspec.structs.replace(run, manifest=msgspec.structs.replace(run.manifest, arms=arms))
    assert codes(compute_results(run), "high") == {"speculation_idle"}


def refuse_all(run, load):
    """Return the run with every draft of the candidate at a load rejected."""

    def change(one):
        if (one.arm, one.load) != ("candidate", load):
            return one
        rounds = tuple(msgspec.structs.replace(part, accepted=0, committed=1) for part in one.rounds)
        counts = msgspec.structs.replace(
            one.speculation, num_accepted_draft_tokens=0, acceptance_histogram=(len(rounds),)
        )
        return msgspec.structs.replace(one, rounds=rounds, speculation=counts)

    return msgspec.structs.replace(run, records=tuple(change(one) for one in run.records))


def test_an_acceptance_length_of_exactly_one_is_a_fault(world):
    """2080 drafts of which none is accepted are a drafter that does not fit, by name."""
    results = decide_run(refuse_all(world(tpot_ms=fast).run(), "high"))
    assert codes(results, "high") == {"never_accepted"}
    assert {cell.status for cell in results.cells if cell.load == "low"} == {"gain"}


def test_a_few_rejected_drafts_prove_nothing(world):
    """Below fifty drafts a good drafter may be out of luck."""
    run = world(tpot_ms=fast, tokens=lambda _: 4, items_per_segment=6, segments=("chat",)).run()
    assert "never_accepted" not in codes(compute_results(refuse_all(run, "high")), "high")


def silent(world, **options):
    """Return a run whose answers disclose nothing of speculation."""
    return world(accepted=lambda _: None, tpot_ms=fast, **options).run()


def test_counters_tell_where_answers_do_not(world):
    """Drafts that only the counters show are speculation that happens: no warning, no fault."""

    def change(key, gained):
        gained |= dict.fromkeys((STEPS, DRAFTED, ACCEPTED), 30.0 if key[2] == "candidate" else 0.0)

    results = compute_results(sampled(silent(world), change))
    assert results.verdict.decision == "adopt"
    assert not any("discloses no speculation counters" in text for text in results.warnings)
    assert row(results, "num_draft_tokens").standing == "unknown"


@pytest.mark.parametrize(
    ("drafts", "accepted", "code"),
    [({"low": 30, "high": 0}, 10, "speculation_idle"), ({"low": 30, "high": 30}, 0, "never_accepted")],
)
def test_faults_are_found_in_the_counters_alone(world, drafts, accepted, code):
    """An idle load and drafts that are never accepted are found where only counters disclose."""

    def change(key, gained):
        made = float(drafts[key[0]]) if key[2] == "candidate" else 0.0
        gained |= {STEPS: made, DRAFTED: made, ACCEPTED: min(made, float(accepted))}

    assert codes(compute_results(sampled(silent(world), change)), "high") == {code}


def test_a_baseline_that_drafts_by_its_counters_makes_the_run_invalid(world):
    """The counters of the baseline must not move, whatever its answers keep to themselves."""

    def change(_key, gained):
        gained |= dict.fromkeys((STEPS, DRAFTED, ACCEPTED), 5.0)

    results = compute_results(sampled(silent(world), change))
    assert "baseline_speculates" in {reason.code for reason in results.verdict.reasons}


def test_periods_that_were_not_sampled_prove_no_idleness(world):
    """No drafts in the periods that were read, and others unread: that is unknown and no fault."""

    def change(key, gained):
        made = 30.0 if (key[0], key[2]) == ("low", "candidate") else 0.0
        gained |= dict.fromkeys((STEPS, DRAFTED, ACCEPTED), made)

    run = sampled(silent(world), change)
    kept = tuple(one for one in run.telemetry if (one.period, one.mark) != ("high/25", "end"))
    results = decide_run(msgspec.structs.replace(run, telemetry=kept))
    assert "speculation_idle" not in codes(results, "high")


def test_replicas_are_added_up(world):
    """A second replica with 100 tokens a period more than doubles nothing: 1600 + 20 × 100."""
    run = sampled(world(tpot_ms=fast).run())
    more = [
        msgspec.structs.replace(one, replica=1, values={TOKENS: 100.0 * (one.mark == "end")})
        for one in run.telemetry
    ]
    results = compute_results(msgspec.structs.replace(run, telemetry=(*run.telemetry, *more)))
    assert use(results).generation_tokens == 3600.0


def test_an_address_that_never_answers_is_warned_about(world):
    """Two replicas are named in the plan and one gives samples: the sums are of half the service."""
    arms = {
        "baseline": {},
        "candidate": {"metrics_urls": ["http://127.0.0.1:1/metrics", "http://127.0.0.1:2/metrics"]},
    }
    results = compute_results(sampled(world(tpot_ms=fast, plan={"arms": arms}).run()))
    (text,) = [text for text in results.warnings if "metrics addresses" in text]
    assert text.startswith("Of the 2 metrics addresses that the plan names for candidate, 1 never gave")


def test_drafts_of_requests_broken_off_explain_a_difference(world):
    """Where every period has a broken-off request, more drafts on the service are explained, fewer not."""
    run = world(tpot_ms=fast, outcome=lambda case: "cancelled" if case.segment == "chat" else "ok").run()

    def change(key, gained):
        gained[DRAFTED] += 4 if key[2] == "candidate" else 0
        gained[ACCEPTED] -= 1 if key[2] == "candidate" else 0

    results = compute_results(sampled(run, change))
    assert row(results, "num_draft_tokens").standing == "explained"
    assert row(results, "num_accepted_draft_tokens").standing == "differs"
    assert "20 requests in them were broken off" in row(results, "num_draft_tokens").text


def test_energy_is_divided_by_the_clients_tokens(world):
    """8 J of GPUs and 2 J of processors a period, over 80 tokens: an eighth of a joule per token."""
    run = sampled(world(tpot_ms=fast).run())

    def machine(one):
        end = one.mark == "end"
        values = {
            f'{host.GPU_ENERGY_JOULES}{{gpu="0"}}': 1000.0 + 8 * end,
            host.CPU_ENERGY_JOULES: 50.0 + 2 * end,
            host.RESIDENT_BYTES: 7.0 + end,
            host.CPU_SECONDS: 3.0 + 6 * end,
            f'{host.GPU_MEMORY_BYTES}{{gpu="0"}}': 5.0,
            f'{host.DCGM_MEMORY_MIB}{{gpu="0"}}': 9.0,
        }
        return msgspec.structs.replace(one, source="host", replica=1, values=values)

    extra = [machine(one) for one in run.telemetry]
    results = compute_results(msgspec.structs.replace(run, telemetry=(*run.telemetry, *extra)))
    found = use(results)
    assert (found.gpu_energy_joules, found.cpu_energy_joules) == (160.0, 40.0)
    assert found.energy_per_output_token_joules == 0.125
    assert (found.resident_max_bytes, found.cpu_seconds, found.gpu_memory_max_bytes) == (8.0, 120.0, 5.0)
    assert "Power and energy per token." not in results.not_measured
    assert {one.quantity for one in results.service_lines} == {"resident_bytes", "gpu_memory_bytes"}


def test_a_counter_of_energy_that_never_moves_is_unknown(world):
    """A virtual machine that shows a counter at rest has no energy of 0."""
    run = sampled(world(tpot_ms=fast).run())
    still = [
        msgspec.structs.replace(one, source="host", replica=1, values={host.CPU_ENERGY_JOULES: 5.0})
        for one in run.telemetry
    ]
    results = compute_results(msgspec.structs.replace(run, telemetry=(*run.telemetry, *still)))
    assert (use(results).cpu_energy_joules, use(results).energy_per_output_token_joules) == (None, None)


def test_starts_come_from_the_manifest(world):
    """Load time and the cold first request are shown as measured, and then not called unmeasured."""
    run = world().run()
    cold = ColdStart(outcome="ok", ttft_ns=5, e2e_ns=9)
    arms = tuple(msgspec.structs.replace(one, load_time_s=2.5, cold=cold) for one in run.manifest.arms)
    results = compute_results(
        msgspec.structs.replace(run, manifest=msgspec.structs.replace(run.manifest, arms=arms))
    )
    assert [one.load_time_s for one in results.service_starts] == [2.5, 2.5]
    assert results.service_starts[0].cold_ttft_ns == 5
    assert not any(text.startswith("Cold start") for text in results.not_measured)


def test_findings_of_the_preflight_are_warnings(world):
    """What was found before the run stands among the warnings, first."""
    run = world().run()
    manifest = msgspec.structs.replace(run.manifest, findings=("Before the run: candidate: odd.",))
    results = compute_results(msgspec.structs.replace(run, manifest=manifest))
    assert results.warnings[0] == "Before the run: candidate: odd."


def test_the_order_of_samples_does_not_matter(world):
    """The same samples in another order give the same bytes."""
    run = sampled(world(tpot_ms=fast, items_per_segment=6).run(), during={WAITING: 1.0})
    turned = msgspec.structs.replace(run, telemetry=run.telemetry[::-1])
    assert encode_document(compute_results(run)) == encode_document(compute_results(turned))


def test_results_of_an_older_release_still_load(honest):
    """results.json without the services' part reads as one that knows nothing of them."""
    old = msgspec.to_builtins(honest, enc_hook=str)
    for name in ("services", "service_starts", "service_agreements", "service_lines"):
        del old[name]
    loaded = msgspec.convert(old, Results, dec_hook=read_reference)
    assert (loaded.services, loaded.service_lines) == ((), ())
