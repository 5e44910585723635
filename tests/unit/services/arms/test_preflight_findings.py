"""What preflight finds, and what it makes of it."""

from typing import Any

import msgspec
import pytest
from arm_builders import ATTACHED, NGRAM, OFF, item, manifest, model_folder, plan

from draftproof.core.errors import IncompatibleError, InvalidRunError, UsageError
from draftproof.measure.client.exchange import Exchange
from draftproof.plan.loading import parse_plan
from draftproof.plan.schema import Arm
from draftproof.services.arms.contract import build_contract
from draftproof.services.arms.findings import PreflightFinding, judge_context, judge_features, judge_probe
from draftproof.services.arms.preflight import PreflightReport, run_preflight
from draftproof.services.arms.probe import ProbeResult
from draftproof.services.arms.request_fit import compute_needs, load_token_counter
from draftproof.services.engines import ADAPTERS, GENERIC, REFERENCE, ProbeObservation
from draftproof.services.engines.proof import Proof, prove_speculation
from draftproof.services.engines.protocol import Answer
from draftproof.workload.items import Sampling
from draftproof.workload.labels import estimate_tokens


def probe(stated, steps: int | None, answer: Answer | None = None, warnings=(), error=None) -> ProbeResult:
    """A probe of a service that counts `steps` verification steps, None for one that counts none."""
    exchange = Exchange(
        outcome="ok",
        sent_ns=0,
        headers_ns=1,
        end_ns=9,
        http_status=200,
        error=None,
        malformed_raw=None,
        answer=answer or Answer(token_source="token_ids", output_tokens=2),  # noqa: S106
        warnings=warnings,
    )
    state: Any = "undisclosed" if steps is None else "drafting" if steps else "idle"
    proof = Proof(state=state, source="x", num_spec_steps=steps)
    return ProbeResult(manifest=stated, exchange=exchange, proof=proof, metrics_error=error)


@pytest.mark.parametrize(
    ("arm", "settings", "steps", "code"),
    [
        ("candidate", NGRAM, 0, "speculation_inactive"),
        ("candidate", NGRAM, None, "speculation_unproven"),
        ("candidate", NGRAM, 7, None),
        ("candidate", ATTACHED, 0, "speculation_inactive"),
        ("alternative", OFF | {"speculation.method": "draft_model"}, 0, "speculation_inactive"),
        ("baseline", OFF | {"speculation.method": "self"}, 0, "speculation_not_off"),
        ("candidate", ATTACHED, 1, None),
        ("candidate", {}, 0, "speculation_inactive"),
        ("baseline", None, 0, None),
        ("baseline", None, 3, "speculation_not_off"),
        ("baseline_null", None, 3, "speculation_not_off"),
        ("alternative", {}, 2, "speculation_not_off"),
    ],
)
def test_probe_is_judged_by_what_the_arm_must_do(arm, settings, steps, code):
    """A candidate that does not draft and a baseline that does are both found by name."""
    findings = judge_probe(probe(manifest(arm, settings), steps), GENERIC)
    assert [finding.code for finding in findings] == ([code] if code else [])


@pytest.mark.parametrize("method", ["ngram", "draft_model", "attached", "self"])
def test_a_drafter_that_never_drafts_is_named_by_its_method(method):
    """The message says whose drafts are missing."""
    (finding,) = judge_probe(probe(manifest("candidate", {"speculation.method": method}), 0), GENERIC)
    assert f"the drafter of {method} drafted no token" in finding.text
    assert finding.severity == "error"


def test_unproven_speculation_only_warns():
    """A service that discloses nothing may be measured, with a warning."""
    (finding,) = judge_probe(probe(manifest("candidate", NGRAM), None), GENERIC)
    assert finding.severity == "warning"


def contract_of(limit: int | None):
    settings = NGRAM if limit is None else NGRAM | {"max_model_len": limit}
    return build_contract(manifest("candidate", settings), plan(), plan().arms.candidate, REFERENCE)


def test_item_that_does_not_fit_by_estimate_warns_and_says_so():
    """An estimate never forbids a run, and is called an estimate."""
    needs = compute_needs([item("long", "x" * 400)], 16)
    (finding,) = judge_context(contract_of(64), needs)
    assert (finding.code, finding.severity) == ("context_too_long", "warning")
    assert "estimate" in finding.text
    assert "long" in finding.text


def test_item_that_does_not_fit_by_count_is_an_error(tmp_path):
    """With the tokenizer at hand a prompt that does not fit forbids the run."""
    needs = compute_needs(
        [item("long", "red lamp " * 40)], 16, load_token_counter(model_folder(tmp_path) / "tokenizer.json")
    )
    assert needs[0].prompt_tokens == 80 + 8
    (finding,) = judge_context(contract_of(64), needs)
    assert finding.severity == "error"


def test_items_that_fit_are_no_finding():
    """Prompt and capped answer together at the limit still fit."""
    needs = compute_needs([item("a", "x" * 32, max_tokens=500)], 16)
    assert needs[0].total_tokens == 8 + 8 + 16
    assert judge_context(contract_of(32), needs) == []
    assert judge_context(contract_of(31), needs) != []


def test_unknown_context_is_said():
    """A service that does not tell its context length gets a warning, not a pass."""
    (finding,) = judge_context(contract_of(None), compute_needs([item()], None))
    assert finding.code == "context_unknown"


def test_estimate_counts_other_scripts_one_a_character():
    """Four ASCII characters are a token; an Arabic or Chinese character is one each."""
    assert estimate_tokens("abcde") == 2
    assert estimate_tokens("سؤال") == 4
    assert estimate_tokens("问abcd") == 2


def test_tools_are_part_of_the_prompt():
    """An item's tools take context as well."""
    with_tools = compute_needs([item(tools=({"type": "function"},))], 1)[0]
    assert with_tools.prompt_tokens > compute_needs([item()], 1)[0].prompt_tokens


def test_unsupported_feature_is_an_error_with_the_items():
    """Items that ask for what the engine refuses are named before the run, three of them and a count."""
    arm = Arm(engine="tgi", url="http://h")
    off = manifest("baseline", {"speculation.method": "off"})
    items = [item(f"i{n}", sampling=Sampling(top_k=3)) for n in range(5)]
    assert judge_features(off, arm, [item()]) == []
    (finding,) = judge_features(off, arm, items)
    assert (finding.code, finding.severity) == ("unsupported_feature", "error")
    assert "top_k" in finding.text
    assert "i0, i1, i2 and 2 more" in finding.text


def test_what_is_served_in_another_way_than_the_targets_warns():
    """TGI checks a schema under drafts by the state before the step: the outputs are not the target's."""
    arm = Arm(engine="tgi", url="http://h")
    items = [item(response_schema={"type": "object"})]
    drafting = manifest("candidate", {"speculation.method": "n-gram"})
    (finding,) = judge_features(drafting, arm, items)
    assert (finding.code, finding.severity) == ("output_not_equivalent", "warning")
    assert judge_features(manifest("baseline", {"speculation.method": "off"}), arm, items) == []


def test_preflight_reads_the_items_and_the_plans_request_fields():
    """A field of `request` that the drafting engine refuses stops the run before its first request."""
    arms = "".join(
        f'[arms.{arm}]\nengine = "vllm"\nurl = "http://a"\nrequest = {{ min_p = 0.1 }}\n'
        for arm in ("baseline", "candidate")
    )
    made = parse_plan(f'name = "t"\n[[load]]\nname = "single"\nconcurrency = 1\n{arms}')
    probes = [
        probe(manifest(arm, {"speculation.method": method}, engine="vllm", engine_version="0.32.0"), steps)
        for arm, method, steps in (("baseline", "off", 0), ("candidate", "ngram", 3))
    ]
    found = run_preflight(made, probes, [item("x")]).errors
    assert [(one.code, one.arm) for one in found] == [("unsupported_feature", "candidate")]


def test_contracts_name_what_a_plan_refers_to(monkeypatch):
    """`${NAME}` in the target's and the drafter's facts is its value in the contract, but for secrets."""
    monkeypatch.setenv("HUB", "/models")
    monkeypatch.setenv("TEAM_TOKEN", "t0ken-value")
    made = parse_plan(
        'name = "t"\n[target]\nmodel = "${HUB}/m"\nlicence = "${TEAM_TOKEN}"\n[[load]]\nname = "single"\n'
        'concurrency = 1\n[arms.baseline]\nengine = "vllm"\nurl = "http://a"\n[arms.candidate]\n'
        'engine = "vllm"\nurl = "http://b"\n[arms.candidate.drafter]\nidentity = "${HUB}/d"\n'
    )
    probes = [
        probe(manifest(arm, {"speculation.method": method}, engine="vllm", engine_version="0.32.0"), steps)
        for arm, method, steps in (("baseline", "off", 0), ("candidate", "draft_model", 3))
    ]
    baseline, candidate = run_preflight(made, probes, [item("x")]).contracts
    assert candidate.target_model == baseline.target_model == "/models/m"
    assert candidate.target_licence == "${TEAM_TOKEN}"
    assert candidate.drafter_identity == "/models/d"


def test_preflight_counts_the_devices_of_every_arm():
    """A command with eight-fold tensor parallelism takes eight devices; a budget of one stops the run."""
    arms = "".join(f'[arms.{arm}]\nengine = "vllm"\nurl = "http://a"\n' for arm in ("baseline", "candidate"))
    made = parse_plan(f'name = "t"\n[[load]]\nname = "single"\nconcurrency = 1\n{arms}')
    settings = {"speculation.method": "off", "tensor_parallel_size": 8}
    stated = manifest("baseline", settings, engine="vllm", engine_version="0.32.0")
    with pytest.raises(IncompatibleError, match="takes 8 devices"):
        run_preflight(made, [probe(stated, 0)], [item("x")])


@pytest.mark.parametrize(
    ("code", "kind", "exit_code"),
    [
        ("speculation_inactive", InvalidRunError, 40),
        ("tokenizer_mismatch", IncompatibleError, 2),
        ("unsupported_feature", UsageError, 2),
    ],
)
def test_errors_become_the_error_of_their_kind(code, kind, exit_code):
    """Each finding ends the run with its own exit code and counts the others."""
    finding = PreflightFinding(code=code, severity="error", arm="candidate", text="it is so.")
    report = PreflightReport(contracts=(), findings=(finding, finding))
    with pytest.raises(kind, match=r"arms\.candidate: it is so \(1 further finding\)\.") as caught:
        report.raise_errors()
    assert caught.value.exit_code == exit_code


def test_warnings_do_not_stop_a_run():
    """A report of warnings alone raises nothing."""
    finding = PreflightFinding(code="context_unknown", severity="warning", arm="candidate", text="x")
    report = PreflightReport(contracts=(), findings=(finding,))
    report.raise_errors()
    assert report.errors == ()


def test_what_an_answer_lacks_is_told_before_the_run():
    """No token counts, metrics that cannot be read and an answer at odds with itself are warnings by name."""
    silent = probe(
        manifest("candidate", NGRAM),
        3,
        Answer(),
        warnings=("chunks carry 3 tokens by token_ids, usage says 4",),
        error="no metrics",
    )
    findings = judge_probe(silent, GENERIC)
    assert [(one.code, one.severity) for one in findings] == [
        ("tokens_uncounted", "warning"),
        ("answer_at_odds", "warning"),
        ("metrics_unread", "warning"),
    ]


@pytest.mark.parametrize(
    ("version", "warned"), [("0.1.0", False), ("0.1", False), ("0.12", True), ("9", True)]
)
def test_a_release_that_was_never_checked_is_told(version, warned):
    """An unknown release is measured all the same, with a warning that names those that were checked."""
    stated = manifest("candidate", NGRAM, engine_version=version)
    findings = judge_probe(probe(stated, 3), REFERENCE)
    assert ["release_unchecked" in one.code for one in findings] == ([True] if warned else [])


def test_an_idle_drafter_is_told_with_its_cause():
    """The engine's own explanation stands in the message; so for an uncounted arm that is known to be off."""
    found: tuple[tuple[Any, bool], ...] = (("idle", False), ("undisclosed", True))
    for state, is_off in found:
        idle = msgspec.structs.replace(
            probe(manifest("candidate", NGRAM), None),
            proof=Proof(state=state, source="x", cause="no --spec-type was given", is_off=is_off),
        )
        (finding,) = judge_probe(idle, GENERIC)
        assert finding.code == "speculation_inactive"
        assert "Cause: no --spec-type was given." in finding.text


FRONT_END = {"http_requests_total": 7.0, "process_start_time_seconds": 1.0}
ADDRESS = "http://front:8080/metrics"
METHODS = {
    "vllm": "ngram",
    "sglang": "EAGLE3",
    "llamacpp": "ngram-simple",
    "tensorrt-llm": "NGram",
    "tgi": "n-gram",
}


@pytest.mark.parametrize("engine", sorted({*METHODS, "reference"}))
@pytest.mark.parametrize("output_tokens", [1, 48])
def test_metrics_without_counters_are_no_sign_of_an_idle_drafter(engine, output_tokens):
    """A front end's metrics leave speculation unproven: a warning that names them and the key."""
    settings: dict[str, Any] = {"speculation.method": METHODS.get(engine, "ngram")}
    seen = ProbeObservation(
        settings=settings,
        answer=Answer(output_tokens=output_tokens),
        before=FRONT_END,
        after=FRONT_END,
        metrics_urls=(ADDRESS,),
    )
    proof = prove_speculation(ADAPTERS[engine], seen)
    assert (proof.state, proof.is_off) == ("undisclosed", False)
    silent = msgspec.structs.replace(probe(manifest("candidate", settings), None), proof=proof)
    (finding,) = [one for one in judge_probe(silent, GENERIC) if one.code.startswith("speculation")]
    assert (finding.code, finding.severity) == ("speculation_unproven", "warning")
    for said in (ADDRESS, "no counters of drafts", "no other series of", "arms.candidate.metrics_urls"):
        assert said in finding.text
    PreflightReport(contracts=(), findings=(finding,)).raise_errors()


def test_an_engines_own_metrics_without_its_counters_say_so():
    """Log statistics are off in vLLM: no counters, which is not a count of none."""
    there = {'vllm:num_requests_running{engine="0"}': 0.0}
    seen = ProbeObservation(
        settings={"speculation.method": "ngram"}, before=there, after=there, metrics_urls=(ADDRESS,)
    )
    proof = prove_speculation(ADAPTERS["vllm"], seen)
    assert proof.source.endswith(f"the metrics at {ADDRESS} have no counters of drafts")
    assert "log stats are off" in str(proof.cause)


@pytest.mark.parametrize(
    ("engine", "fields", "cause"),
    [
        ("vllm", {"settings": {"speculation.method": "off"}}, "without a --speculative-config"),
        ("sglang", {"settings": {"speculation.method": "off"}}, "without --speculative-algorithm"),
        ("tensorrt-llm", {"log": "[SpeculationGate] Speculative decoding disabled: low"}, "for good"),
        ("tgi", {"settings": {"speculation.method": "off"}}, "without --speculate"),
        ("llamacpp", {"log": "failed to load draft model"}, "could not be loaded"),
    ],
)
def test_what_shows_that_nothing_drafts_needs_no_counters(engine, fields, cause):
    """A command or a log that says so is evidence, whatever the metrics lack."""
    seen = ProbeObservation(**({"settings": {}, "before": FRONT_END, "after": FRONT_END} | fields))
    proof = prove_speculation(ADAPTERS[engine], seen)
    assert (proof.state, proof.is_off) == ("undisclosed", True)
    assert cause in str(proof.cause)


@pytest.mark.parametrize(
    ("arm", "code"), [("candidate", "speculation_undeclared"), ("baseline", "speculation_not_off")]
)
def test_drafts_of_a_service_whose_command_says_off_are_an_error(arm, code):
    """Something that the plan does not state switches speculation on: it is not what was declared."""
    (finding,) = judge_probe(probe(manifest(arm, OFF), 4), GENERIC)
    assert (finding.code, finding.severity) == (code, "error")


def test_a_baseline_that_counts_accepted_drafts_alone_is_found():
    """An engine without counts of drafts still shows that drafts were accepted."""
    proof = Proof(state="drafting", source="x", num_accepted_draft_tokens=12)
    drafting = msgspec.structs.replace(probe(manifest("baseline", OFF), None), proof=proof)
    (finding,) = judge_probe(drafting, GENERIC)
    assert (finding.code, "12 tokens that were accepted" in finding.text) == ("speculation_not_off", True)
