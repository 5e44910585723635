"""Every plan that `init` can write loads, compares fairly as its engine reads it, and says what to do."""

import re
from itertools import product
from pathlib import Path
from typing import Any

import msgspec
import pytest

from draftproof.cli.new_plan import METHODS, Wanted, render_new_plan
from draftproof.core.errors import PlanError, UsageError
from draftproof.core.manifests import ArmManifest
from draftproof.judge.decide.forecast import forecast_shortfalls
from draftproof.measure.run.check import choose_items
from draftproof.plan.environment import resolve_headers
from draftproof.plan.faults import check_filled_in, find_placeholders
from draftproof.plan.loading import load_plan, parse_plan
from draftproof.plan.schema import Arm, Plan
from draftproof.services.arms.comparability import (
    check_comparable,
    find_known_forced,
    find_pinned,
    find_undeclared,
)
from draftproof.services.arms.launch import build_command, list_arms
from draftproof.services.engines import GENERIC, REFERENCE, EngineAdapter
from draftproof.services.engines.llamacpp import LLAMACPP
from draftproof.services.engines.sglang import SGLANG
from draftproof.services.engines.tensorrtllm import TENSORRT_LLM
from draftproof.services.engines.tgi import TGI
from draftproof.services.engines.vllm import VLLM

ADAPTERS: dict[str, EngineAdapter] = {
    one.name: one for one in (VLLM, SGLANG, TENSORRT_LLM, LLAMACPP, TGI, GENERIC, REFERENCE)
}
VARIANTS = [(engine, method) for engine, methods in METHODS.items() for method in methods or (None,)]
FAMILIES = {"ngram": "ngram", "draft_model": "draft_model", "eagle3": "attached", "mtp": "attached"}
LAUNCHED = [
    (engine, method) for engine, method in VARIANTS if engine not in {"openai", "reference", "tensorrt-llm"}
]


def filled(engine: str, method: str | None) -> Plan:
    """The plan as a user leaves it: every mark replaced."""
    draft = "org/draft" if method in {"draft_model", "eagle3"} else None
    text = render_new_plan(Wanted(engine=engine, method=method, model="org/model", draft=draft))
    return parse_plan(text.replace("FILL_IN", "filled-in"))


def read(plan: Plan, name: str) -> ArmManifest:
    """The manifest of an arm of which nothing is known but its plan and its command."""
    arm: Arm = list_arms(plan)[name]
    command = build_command(name, arm, plan)
    # The reference engine's command is made from the settings.
    told: dict[str, Any] = {}
    if command is not None and arm.engine != "reference":
        told = ADAPTERS[arm.engine].read_flags(command)
    stated = {} if arm.served_model is None else {"served_model": arm.served_model}
    return ArmManifest(
        arm=name,
        engine=arm.engine,
        engine_version="1",
        command=command,
        url=arm.url or "",
        settings=arm.settings | stated | told,
    )


@pytest.mark.parametrize(("engine", "method"), VARIANTS)
def test_a_new_plan_loads_and_is_read_in_a_minute(engine, method):
    """Every engine and method gives a plan that the schema accepts, short enough to be read whole."""
    text = render_new_plan(Wanted(engine=engine, method=method))
    plan = parse_plan(text)
    assert plan.name == (engine if method is None else f"{engine}-{method.replace('_', '-')}")
    assert {arm.engine for arm in list_arms(plan).values()} == {"generic" if engine == "openai" else engine}
    lines = text.splitlines()
    notes = [line for line in lines if line.startswith("#     ")]  # files that TensorRT-LLM wants
    forced = [line for line in lines if line.startswith("forced_by_method")]
    assert len(lines) - len(notes) - len(forced) <= 60
    assert max(len(line) for line in lines if line not in forced) <= 120


@pytest.mark.parametrize(("engine", "method"), VARIANTS)
def test_arms_of_a_new_plan_differ_only_where_it_declares_it(engine, method):
    """As the engine's own adapter reads the commands, neither arm differs from the baseline undeclared."""
    plan = filled(engine, method)
    for name in list_arms(plan):
        assert find_undeclared(read(plan, "baseline"), read(plan, name), plan.comparison) == ()


SPELLED = {
    "ngram": {"ngram", "NGRAM", "NGram", "n-gram", "ngram-simple"},
    "mtp": {"mtp", "EAGLE", "MTP", "draft-mtp"},
}


@pytest.mark.parametrize(("engine", "method"), VARIANTS)
def test_a_new_plan_takes_nothing_from_the_baseline_that_its_method_rules_out(engine, method):
    """No arm but the candidate is told to do without what the method forces, in flags or environment."""
    plan, adapter = filled(engine, method), ADAPTERS["generic" if engine == "openai" else engine]
    drafting = msgspec.structs.replace(read(plan, "candidate"), settings={})  # whichever method it is
    for name in ("baseline", "alternative"):
        if name in list_arms(plan):
            pinned = find_pinned(read(plan, name), list_arms(plan)[name], drafting, adapter)
            assert pinned == {}


@pytest.mark.parametrize(
    ("engine", "method", "forced"),
    [
        ("vllm", "ngram", "async_scheduling"),
        ("sglang", "ngram", "max_running_requests"),
        ("sglang", "ngram", "attention_backend"),
        ("sglang", "eagle3", "mem_fraction_static"),
        ("tensorrt-llm", "ngram", "disable_overlap_scheduler"),
        ("tgi", "ngram", "prefill_chunking"),
    ],
)
def test_a_new_plan_declares_what_its_method_forces(engine, method, forced):
    """The difference that the engine makes by itself is declared, with the reason, and stops nothing."""
    plan = filled(engine, method)
    assert plan.comparison.forced_by_method.candidate[forced]
    today = read(plan, "baseline")
    drafting = msgspec.structs.replace(today, arm="candidate", settings=today.settings | {forced: "other"})
    check_comparable([today, drafting], plan.comparison)


@pytest.mark.parametrize(("engine", "method"), VARIANTS)
def test_a_new_plan_declares_only_what_its_engine_is_known_to_force(engine, method):
    """Every declared key is one of the adapter's for that method, and no method forces nothing it lacks."""
    declared = filled(engine, method).comparison.forced_by_method.candidate
    adapter = ADAPTERS["generic" if engine == "openai" else engine]
    spelled = [one for one in (*SPELLED.get(str(method), ()), method) if one in adapter.facts.families]
    known = find_known_forced(adapter, spelled[0]) if spelled else {}
    assert declared == known or method in {"draft_model", "eagle3"}


@pytest.mark.parametrize(("engine", "method"), VARIANTS)
def test_candidate_and_alternative_of_a_new_plan_really_differ_from_the_baseline(engine, method):
    """No arm is the baseline by mistake: its command, address, settings or environment is another one."""
    arms = list_arms(filled(engine, method))
    for name in arms.keys() - {"baseline", "baseline_null"}:
        assert arms[name] != arms["baseline"]


@pytest.mark.parametrize(("engine", "method"), LAUNCHED)
def test_launch_command_of_the_candidate_drafts_with_the_method_asked_for(engine, method):
    """The adapter reads the asked-for family from the candidate's command, and off from the two others."""
    plan = filled(engine, method)
    baseline, candidate, alternative = (
        read(plan, name).settings for name in ("baseline", "candidate", "alternative")
    )
    assert baseline["speculation.method"] == alternative["speculation.method"] == "off"
    if engine == "tgi":  # its method is told by the log alone
        assert candidate["speculation.num_spec_tokens"] == 2
        return
    families = ADAPTERS[engine].facts.families
    assert families[str(candidate["speculation.method"])] == FAMILIES[method]
    assert candidate["speculation.num_spec_tokens"] in {1, 2, 3, 4, 7, 8}
    assert (candidate.get("drafter") == "org/draft") is (method in {"draft_model", "eagle3"})


@pytest.mark.parametrize("method", METHODS["tensorrt-llm"])
def test_yaml_that_a_tensorrt_plan_shows_names_the_method_asked_for(method):
    """The decoding type in the comment is one the adapter knows, and the metrics are switched on."""
    text = render_new_plan(Wanted(engine="tensorrt-llm", method=method))
    (shown,) = re.findall(r"decoding_type: (\w+)", text)
    assert TENSORRT_LLM.facts.families[shown] == FAMILIES[method]
    assert "return_perf_metrics: true" in text


def test_per_request_counters_of_vllm_are_asked_of_the_candidate_alone():
    """A vLLM with --per-request-spec-decode-metrics does not start while speculation is off."""
    for method in METHODS["vllm"]:
        arms = list_arms(filled("vllm", method))
        asking = {
            name for name, arm in arms.items() if "--per-request-spec-decode-metrics" in (arm.command or ())
        }
        assert asking == {"candidate"}


@pytest.mark.parametrize(("engine", "method"), VARIANTS)
def test_a_new_plan_asks_enough_to_credit_a_gain_and_no_more_than_a_service_takes(engine, method):
    """The chosen items could show a gain, and the peak fits the requests that the commands allow."""
    plan = filled(engine, method)
    _, items = choose_items(plan)
    assert forecast_shortfalls(plan, items) == ()
    for name in list_arms(plan):
        settings = read(plan, name).settings
        allowed = [
            value
            for key in ("max_num_seqs", "max_running_requests", "max_batch_size", "parallel")
            if isinstance(value := settings.get(key), int)
        ]
        assert all((level.concurrency or 0) <= limit for level, limit in product(plan.load, allowed))
        # The defaults of the others allow 48 and more.
        assert bool(allowed) is (engine in {"llamacpp", "reference"})


@pytest.mark.parametrize(("engine", "method"), VARIANTS)
def test_only_what_the_caller_left_open_is_marked(engine, method):
    """Marks stand where model, drafter, addresses and files are missing, and with all given nowhere else."""
    open_keys = [
        key for key, _ in find_placeholders(parse_plan(render_new_plan(Wanted(engine=engine, method=method))))
    ]
    assert ("target.model" in open_keys) is (engine != "reference")
    needs_draft = method in {"draft_model", "eagle3"} and engine not in {"reference", "tensorrt-llm"}
    assert any(key.startswith("arms.candidate.command") for key in open_keys) is (
        needs_draft or engine == "tensorrt-llm"
    )
    draft = "org/draft" if method in {"draft_model", "eagle3"} else None
    given = render_new_plan(Wanted(engine=engine, method=method, model="org/model", draft=draft))
    left = [value for _, value in find_placeholders(parse_plan(given))]
    assert bool(left) is (engine in {"openai", "tensorrt-llm"})
    assert ("in place of every FILL_IN" in given) is bool(left)


def test_a_plan_that_is_not_filled_in_is_refused_by_key():
    """`check` and `run` name the first open key and count the others."""
    plan = parse_plan(render_new_plan(Wanted(engine="vllm", method="draft_model")))
    with pytest.raises(PlanError) as caught:
        check_filled_in(plan, "my.toml")
    assert str(caught.value).startswith(
        "my.toml: target.model is not filled in yet: 'FILL_IN_MODEL' (2 further)."
    )
    check_filled_in(filled("vllm", "draft_model"), "my.toml")


def test_a_local_path_is_written_so_that_it_means_the_same_elsewhere(tmp_path: Path, monkeypatch):
    """Paths that exist become absolute, awkward names too, and a local draft is named for the contract."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'mo"d\\el').mkdir()
    (tmp_path / "dra'ft").mkdir()
    wanted = Wanted(engine="vllm", method="draft_model", model='mo"d\\el', draft="dra'ft")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "plan.toml").write_text(render_new_plan(wanted))
    plan, _ = load_plan(elsewhere / "plan.toml")
    assert plan.target.model == str(tmp_path / 'mo"d\\el')
    assert plan.arms.candidate.drafter["path"] == str(tmp_path / "dra'ft")
    assert read(plan, "candidate").settings["drafter"] == str(tmp_path / "dra'ft")


def test_an_id_of_a_draft_is_no_path():
    """A drafter named by id is not taken for files on this machine."""
    plan = parse_plan(render_new_plan(Wanted(engine="sglang", method="eagle3", model="a/b", draft="c/d")))
    assert plan.arms.candidate.drafter == {"identity": "c/d"}


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        (
            Wanted(engine="exllama"),
            "no plan is known for 'exllama'. Fix: use one of: vllm, sglang, tensorrt-llm,",
        ),
        (Wanted(engine="tgi", method="eagle3"), "tgi has no method 'eagle3' here. Fix: use one of: ngram."),
        (Wanted(engine="vllm", method="medusa"), "Fix: use one of: ngram, draft_model, eagle3, mtp."),
        (Wanted(engine="openai", method="ngram"), "such a service does not say how it drafts"),
        (Wanted(engine="openai", draft="d"), "such a service takes no drafter"),
        (Wanted(engine="vllm", draft="d"), "--draft: the method ngram takes no drafter"),
        (Wanted(engine="vllm", model="a\nb"), "cannot be printed"),
    ],
)
def test_a_combination_without_a_template_is_one_sentence_with_what_there_is(wanted, said):
    """An engine, a method or a drafter that does not fit is refused, and the message lists what does."""
    with pytest.raises(UsageError) as caught:
        render_new_plan(wanted)
    assert said in str(caught.value)


def test_plan_for_an_undisclosed_service_takes_its_key_from_the_environment_only():
    """The key is resolved from the environment, must be set, and is refused where it is written out."""
    text = render_new_plan(Wanted(engine="openai", model="m"))
    for arm in list_arms(parse_plan(text)).values():
        headers = dict(resolve_headers(arm.headers, {"OPENAI_API_KEY": "k" * 20}, "arms.baseline.headers"))
        assert headers == {"Authorization": f"Bearer {'k' * 20}"}
        with pytest.raises(PlanError, match="OPENAI_API_KEY is not set"):
            resolve_headers(arm.headers, {}, "arms.baseline.headers")
    literal = parse_plan(text.replace("${OPENAI_API_KEY}", "k" * 20))
    with pytest.raises(PlanError, match="a secret in a plan would be copied into every run"):
        resolve_headers(literal.arms.baseline.headers, {"OPENAI_API_KEY": "k" * 20}, "arms.baseline.headers")
