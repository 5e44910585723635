"""The rule file says what is watched, under which limit, and what is not watched."""

import re
from pathlib import Path

import msgspec
import pytest
from watched_runs import (
    ENGINES,
    HOLDOUT,
    JOB,
    MANIFEST,
    RESULTS,
    ROLLBACK,
    alerts_of,
    make_plan,
    parse_rules,
    rules_text,
)

from draftproof.judge.results.run import EnvelopeEntry
from draftproof.services.engines import adapter_for
from draftproof.tell.monitoring import render_rules, watch_run
from draftproof.tell.monitoring.recordings import quote, select_jobs

PAYLOADS = Path(__file__).parents[3] / "fixtures" / "payloads"
ROLLS_BACK = {
    "DraftproofFirstTokenTail",
    "DraftproofTokenTail",
    "DraftproofNetSlowdown",
    "DraftproofFailures",
    "DraftproofStandstill",
    "DraftproofCachePressure",
}


def exported_names(engine: str) -> set[str]:
    """The sample names in what an engine's release was recorded to export."""
    files = {
        "vllm": ["vllm/metrics_ngram_after.prom"],
        "llamacpp": ["llamacpp/ngram_simple_metrics_after.txt"],
    }[engine]
    text = "\n".join((PAYLOADS / name).read_text(encoding="utf-8") for name in files)
    names = set(re.findall(r"^([a-zA-Z_:][\w:]*)", text, re.MULTILINE))
    # The recordings leave buckets out: they are shown beside the count of a histogram.
    return names | {f"{name.removesuffix('_count')}_bucket" for name in names if name.endswith("_count")}


def used_names(text: str) -> set[str]:
    """The sample names that a rule file selects, recorded series left out."""
    exprs = "\n".join(rule["expr"] for rule in parse_rules(text))
    names = set(re.findall(r"([a-zA-Z_:][\w:]*)\{", exprs))
    return {name for name in names if not name.startswith(("arm:draftproof", "pair:draftproof"))}


@pytest.mark.parametrize("engine", ["vllm", "llamacpp"])
def test_every_selected_series_is_one_that_the_engine_exports(engine):
    """No rule asks for a name that is not among those recorded from the engine itself."""
    used = used_names(rules_text(make_plan(engine)))
    assert used
    assert used <= exported_names(engine)


def test_every_series_of_the_reference_engine_is_exported_by_it():
    """No rule asks the reference engine for a name that its server does not give out."""
    from draftproof.reference.counters import EngineStats
    from draftproof.reference.http.exposition import RequestCounters, ServerCollector, render_metrics

    text = render_metrics(ServerCollector(RequestCounters(), EngineStats, "target", 4)).decode()
    exported = set(re.findall(r"^([a-zA-Z_:][\w:]*)\{", text, re.MULTILINE))
    assert used_names(rules_text(make_plan("reference"))) <= exported


@pytest.mark.parametrize("engine", ENGINES)
def test_no_rule_takes_gaps_between_chunks_for_time_per_token(engine):
    """No rule reads a histogram of gaps but SGLang's, which divides a gap by the tokens it brought."""
    used = used_names(rules_text(make_plan(engine)))
    assert not {name for name in used if "inter_token" in name and not name.startswith("sglang:")}


@pytest.mark.parametrize("engine", ENGINES)
def test_each_rule_says_what_a_person_needs(engine):
    """Every alert has a severity, an action, the run, a summary, what to do and the plan's hash."""
    for name, rule in alerts_of(rules_text(make_plan(engine))).items():
        assert rule["labels"]["severity"] in {"critical", "warning", "info"}
        assert rule["labels"]["action"] == ("rollback" if name in ROLLS_BACK else "look")
        assert rule["labels"]["run"] == f"demo-{RESULTS.plan_sha256[:12]}"
        assert rule["annotations"]["summary"]
        assert rule["annotations"]["runbook"]
        assert RESULTS.plan_sha256 in rule["annotations"]["evidence"]


@pytest.mark.parametrize("engine", [*ENGINES, "generic"])
def test_what_is_not_watched_is_listed_in_the_file(engine):
    """Whatever the engine cannot tell stands in a comment, with the reason."""
    plan = make_plan(engine)
    watch = watch_run(RESULTS, plan, MANIFEST, jobs=(JOB,))
    comments = " ".join(
        line.strip().removeprefix("#").strip()
        for line in rules_text(plan, holdout=()).splitlines()
        if line.lstrip().startswith("#")
    )
    assert {one.why for one in watch.unwatched} >= {
        f"{adapter_for(engine).signals.title}: {why}" for why in adapter_for(engine).signals.missing.values()
    }
    for one in watch.unwatched:
        assert f"{one.what}: {one.why}" in comments


def test_unknown_service_has_no_rule():
    """Of a service whose metrics are unknown nothing is watched, and the file says so."""
    text = rules_text(make_plan("generic"))
    assert parse_rules(text) == []
    told = text.replace("\n#", " ")
    assert " ".join(told.split()).count("nothing is known of this service's metrics") == 1


def test_a_hold_out_that_the_plan_promises_is_watched_under_the_plans_name():
    """A stated share brings the comparison even where no job is named, as in a package."""
    plan = make_plan("vllm", rollback="holdout_share = 0.05")
    text = rules_text(plan, holdout=())
    assert 'job="watched-holdout"' in text
    assert {"DraftproofNetSlowdown", "DraftproofFailures", "DraftproofNoComparison"} <= alerts_of(text).keys()


def test_without_a_hold_out_nothing_is_compared():
    """No hold-out: no slowdown, no excess of failures, and both are listed as not watched."""
    plan = make_plan("vllm")
    alerts = alerts_of(rules_text(plan, holdout=()))
    assert not {"DraftproofNetSlowdown", "DraftproofFailures", "DraftproofNoComparison"} & alerts.keys()
    unwatched = {one.what for one in watch_run(RESULTS, plan, MANIFEST).unwatched}
    assert {"net slowdown", "failed requests"} <= unwatched


def test_hold_out_on_another_engine_is_not_compared():
    """Two engines count different quantities: their ratio is never made."""
    plan = make_plan("vllm", baseline="sglang")
    watch = watch_run(RESULTS, plan, MANIFEST, jobs=(JOB,), holdout_jobs=(HOLDOUT,))
    assert all(one.arm == "candidate" for one in watch.recordings)
    assert any("different engines" in one.why for one in watch.unwatched)


def test_plan_without_limits_falls_back_to_thresholds_and_says_so():
    """What [rollback] leaves open follows from thresholds and objectives, by name, or is not watched."""
    plan = make_plan("vllm", rollback="")
    alerts = alerts_of(rules_text(plan))
    assert "> 1.05" in alerts["DraftproofNetSlowdown"]["expr"]
    assert "> 0.02" in alerts["DraftproofFailures"]["expr"]
    assert not {"DraftproofTokenTail", "DraftproofFirstTokenTail", "DraftproofLowAcceptance"} & alerts.keys()
    comments = " ".join(rules_text(plan).split())
    assert "The limit 1.05 follows from 1 + thresholds.harm_margin" in comments
    assert "rollback.max_tpot_ms or objectives.tpot_ms" in comments


def test_limit_that_no_alert_uses_is_not_named():
    """Without a hold-out, or with a share of the plan's own, the margins of the thresholds limit nothing."""
    assert "follows from thresholds.failure_margin" not in rules_text(make_plan("vllm"), holdout=())
    own = make_plan("vllm", rollback="max_failed_share = 0.1")
    assert "follows from thresholds.failure_margin" not in rules_text(own)


def test_objective_stands_in_for_a_tail_limit():
    """An objective of the plan is the limit of the tail where [rollback] has none, in seconds."""
    plan = make_plan("vllm", rollback="")
    plan = plan.model_copy(update={"objectives": plan.objectives.model_copy(update={"tpot_ms": 30.0})})
    assert "> 0.03\n" in alerts_of(rules_text(plan))["DraftproofTokenTail"]["expr"]


@pytest.mark.parametrize(("quantile", "least"), [("p90", 30), ("p95", 30), ("p99", 100)])
def test_tail_needs_a_request_beyond_it(quantile, least):
    """A tail is judged from the plan's floor on, and never with fewer requests than one beyond it."""
    plan = make_plan("vllm", rollback=f'{ROLLBACK}\nquantile = "{quantile}"')
    assert f">= {least}" in alerts_of(rules_text(plan))["DraftproofTokenTail"]["expr"]


def test_load_limit_is_the_widest_of_the_envelope_over_the_replicas():
    """The envelope's highest load, measured over two replicas, is half as much for each."""
    plan = make_plan("vllm")
    candidate = plan.arms.candidate.model_copy(update={"metrics_urls": ("http://a/m", "http://b/m")})
    plan = plan.model_copy(update={"arms": plan.arms.model_copy(update={"candidate": candidate})})
    envelope = tuple(
        EnvelopeEntry(segment=name, max_concurrency=most, max_context_tokens=None)
        for name, most in (("a", 2), ("b", 12))
    )
    verdict = msgspec.structs.replace(RESULTS.verdict, envelope=envelope)
    text = render_rules(msgspec.structs.replace(RESULTS, verdict=verdict), plan, MANIFEST)
    assert "> 6\n" in alerts_of(text)["DraftproofLoadBeyondEnvelope"]["expr"] + "\n"


def rate_text(engine):
    verdict = msgspec.structs.replace(
        RESULTS.verdict,
        envelope=(EnvelopeEntry(segment="a", max_concurrency=None, max_context_tokens=None, max_rps=12.5),),
    )
    return render_rules(msgspec.structs.replace(RESULTS, verdict=verdict), make_plan(engine), MANIFEST)


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm", "tgi"])
def test_an_envelope_by_rate_is_watched_by_rate(engine):
    """Where open loops alone were measured the rate has an alert, and requests in flight have no limit."""
    alerts = alerts_of(rate_text(engine))
    assert alerts["DraftproofRateBeyondEnvelope"]["expr"].strip().endswith("> 12.5")
    assert "DraftproofLoadBeyondEnvelope" not in alerts


def test_ranks_that_state_one_fact_are_not_added_up():
    """SGLang's schedulers of one service state the same requests: once, without the parts of the total."""
    text = rules_text(make_plan("sglang"))
    exprs = " ".join(rule["expr"] for rule in parse_rules(text))
    for name in ("num_running_reqs", "num_queue_reqs", "num_retracted_requests_total"):
        places = [at.start() for at in re.finditer(f"sglang:{name}", exprs)]
        assert places
        for at in places:
            assert (
                "max without (tp_rank, pp_rank, moe_ep_rank)" in exprs[max(0, at - 80) : at]
                or "!=" in exprs[at : at + 90]
            )
    assert 'priority=""' in exprs


def test_an_engine_that_counts_no_requests_says_that_its_rate_is_not_watched():
    """Without a counter of requests there is no series to hold against the envelope's rate."""
    text = rate_text("llamacpp")
    assert "DraftproofRateBeyondEnvelope" not in alerts_of(text)
    assert "rate beyond the envelope" in text


@pytest.mark.parametrize("decision", ["defer", "inconclusive", "invalid"])
def test_traffic_without_an_envelope_is_an_alert(decision):
    """Where the verdict adopts nothing, any traffic on the candidate is outside, whatever its load."""
    verdict = msgspec.structs.replace(RESULTS.verdict, decision=decision)
    text = render_rules(msgspec.structs.replace(RESULTS, verdict=verdict), make_plan("vllm"), MANIFEST)
    assert "DraftproofOutsideEnvelope" in alerts_of(text)
    assert "DraftproofLoadBeyondEnvelope" not in alerts_of(text)


def test_same_run_gives_the_same_bytes():
    """Rendering twice gives one text."""
    assert rules_text(make_plan("sglang")) == rules_text(make_plan("sglang"))


def test_release_that_was_not_checked_is_named():
    """Metric names are only as good as the releases they were checked with: another one is pointed out."""
    comments = " ".join(rules_text(make_plan("vllm")).split())
    assert "checked with vLLM 0.32" in comments
    assert "the run had 0.1.0" in comments


def test_text_of_a_plan_cannot_leave_its_comment():
    """A line end in a text of the plan makes no line of its own in the file."""
    plan = make_plan("vllm")
    results = msgspec.structs.replace(RESULTS, run_name="x\ngroups: []\n# y")
    text = render_rules(results, plan, MANIFEST)
    assert sum(line.startswith("groups:") for line in text.splitlines()) == 1


def test_jobs_are_matched_as_they_are_spelled():
    """One job is matched exactly, several by an expression in which a dot is a dot."""
    assert select_jobs(["a.b"]) == 'job="a.b"'
    assert select_jobs(["a.b", "c"]) == 'job=~"a\\\\.b|c"'


def test_quoted_text_holds_no_character_that_yaml_refuses():
    """Control characters and separators are escaped; what lies beyond the basic plane is not."""
    assert quote('a"\x00\x7f\x85\u2028\U0001f600') == '"a\\"\\u0000\\u007f\\u0085\\u2028\U0001f600"'
