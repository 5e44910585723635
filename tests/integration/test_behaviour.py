"""Whole runs on services of known behaviour: conversations, probes, judgements, and what they decide."""

import json
import sys

import msgspec
import pytest
from tests.builders.behaving import BehavingService, Behaviour
from tests.builders.playback import render_json_response
from tests.builders.scripted_server import ScriptedServer
from tests.builders.scripts import Script

from draftproof.measure.run.progress import Interrupted, Progress
from draftproof.measure.run.reporting import recompute
from draftproof.measure.run.runner import resume_run, run_plan
from draftproof.plan.loading import load_plan
from draftproof.store import RunDirectory, save_compacted

PLAN = """\
name = "behaving"
[workload]
path = "items.jsonl"
[[load]]
name = "pair"
concurrency = 2
block_size = 4
[arms.baseline]
engine = "generic"
url = "{baseline}"
[arms.candidate]
engine = "generic"
url = "{candidate}"
[comparison]
null_arm = false
resamples = 200
statistic = "p50"
[thresholds]
ttft_margin = 5.0
e2e_margin = 0.9
failure_margin = 1.0
quality_margin = 1.0
[limits]
request_s = 10.0
warmup_requests = 1
client_lag_ms = 5000.0
repeat_disturbed = false
{more}
"""
WEATHER = {
    "type": "function",
    "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {}}},
}
CALL = {"type": "tool_call", "names": ["get_weather"], "critical": True}
TALK = {
    "id": "talk",
    "messages": [{"role": "user", "content": "What is the weather?"}],
    "segments": {"task": "tools"},
    "tools": [WEATHER],
    "checks": [CALL],
    "max_tokens": 16,
    "follow_ups": [{"tool_results": ["sunny"], "content": "And tomorrow?", "checks": [CALL]}],
}
ITEMS = [
    TALK,
    *(
        {
            "id": f"plain-{n}",
            "messages": [{"role": "user", "content": f"number {n}"}],
            "segments": {"task": "tools"},
            "checks": [{"type": "stop"}],
            "stop": ["w9"],
            "max_tokens": 16,
        }
        for n in range(5)
    ),
]


def paced(behaviour):
    """A service slow enough for the client to measure its own lag during a period."""
    return BehavingService(msgspec.structs.replace(behaviour or Behaviour(), gap_s=0.004))


class Bench:
    """A folder with a workload and two attached services."""

    def __init__(self, folder):
        self.folder, self.out = folder, folder / "run"
        self.write(ITEMS)

    def write(self, items):
        (self.folder / "items.jsonl").write_text("".join(json.dumps(one) + "\n" for one in items))

    def run(self, baseline=None, candidate=None, *, more=""):
        with (
            ScriptedServer(paced(baseline)) as one,
            ScriptedServer(paced(candidate)) as other,
        ):
            path = self.folder / "plan.toml"
            path.write_text(PLAN.format(baseline=one.url, candidate=other.url, more=more))
            plan, text = load_plan(path)
            return run_plan(plan, text, self.out, self.no_model, Progress())

    @staticmethod
    def no_model(name):
        raise AssertionError(f"no arm needs the files of {name}")

    def contents(self):
        return RunDirectory.open(self.out).load()


@pytest.fixture
def bench(tmp_path):
    return Bench(tmp_path)


def test_conversations_and_probes_of_a_run_are_on_record_and_equal_anywhere(bench):
    """Every period and probe is there with its answer, and a compacted copy gives the same bytes."""
    results = bench.run()
    contents = bench.contents()
    talks = [one for one in contents.records if one.item_id == "talk" and one.phase == "measure"]
    assert sorted((one.arm, one.conversation_turn, one.outcome) for one in talks) == [
        (arm, period, "ok") for arm in ("baseline", "candidate") for period in (0, 1)
    ]
    assert {one.tool_calls[0].name for one in talks} == {"get_weather"}
    rows = {one.arm: one for one in results.conversations}
    assert (rows["candidate"].conversations, rows["candidate"].completed, rows["candidate"].multi_turn) == (
        6,
        6,
        1,
    )
    passed = {one.probe for one in results.behaviour if one.status == "passed" and one.arm == "candidate"}
    assert {"stop_string", "tool_call", "json_schema", "max_tokens", "streaming_shape"} <= passed
    kinds = {(one.arm, one.kind): (one.judged, one.passed) for one in results.check_kinds}
    assert kinds["candidate", "tool_call"] == (2, 2)
    assert kinds["candidate", "stop"] == (5, 5)
    folder = save_compacted(bench.out, bench.folder / "small")
    recompute(folder, write=True)
    assert (folder / "results.json").read_bytes() == (bench.out / "results.json").read_bytes()


def test_a_candidate_that_leaks_a_stop_string_is_not_adopted(bench):
    """The probe alone finds it, before any statistics could."""
    results = bench.run(candidate=Behaviour(leaks_stop=True))
    assert results.verdict.decision not in {"adopt", "adopt_limited"}
    assert "behaviour_regression" in {one.code for one in results.verdict.reasons}
    assert "a stop string" in (bench.out / "report.html").read_text()


def test_a_candidate_that_calls_the_wrong_tool_has_new_critical_errors(bench):
    """Both turns of the conversation are judged at the load level."""
    results = bench.run(candidate=Behaviour(calls_wrongly=True), more="behaviour_probes = false")
    assert results.behaviour == ()
    (cell,) = results.cells
    assert cell.status == "harm", cell.reasons
    assert "critical_errors" in {one.code for one in cell.reasons}


def test_a_service_without_tools_and_schemas_is_measured_all_the_same(bench):
    """Both arms refuse: unsupported, no regression, and the requests of the workload count as failures."""
    refusing = Behaviour(refuses=("tools", "response_format"))
    results = bench.run(refusing, refusing)
    found = {(one.arm, one.probe): one.status for one in results.behaviour}
    assert found["candidate", "tool_call"] == found["baseline", "json_schema"] == "unsupported"
    assert "behaviour_regression" not in {one.code for one in results.verdict.reasons}
    failed = [one for one in bench.contents().records if one.outcome != "ok" and one.phase == "measure"]
    assert sorted((one.arm, one.conversation_turn) for one in failed) == [
        (arm, period) for arm in ("baseline", "candidate") for period in (0, 1)
    ]


CODE = "def short(answer):\n    return len(answer.text) < 200, 'short enough'\n"
PYTHON = {"type": "python", "function": "rules.py:short", "critical": True}
JUDGE = {"type": "judge", "rubric": "Is it polite?"}


def judged_items():
    return [one | {"checks": [PYTHON, JUDGE]} for one in ITEMS[1:]]


def judge_service(reply):
    body = {"choices": [{"message": {"role": "assistant", "content": reply}}]}
    return ScriptedServer(Script(raw_response=render_json_response(200, body)))


def test_functions_and_judges_are_asked_at_the_end_of_a_run_and_never_by_a_report(bench):
    """The report is the same where neither the code nor the judge is at hand."""
    (bench.folder / "rules.py").write_text(CODE)
    bench.write(judged_items())
    with judge_service("yes") as judge:
        more = f'behaviour_probes = false\n[judge]\nurl = "{judge.url}"\nmodel = "j"'
        results = bench.run(more=more)
    assert len(bench.contents().judgements) == 2 * 5 * 3
    kinds = {(one.arm, one.kind): (one.judged, one.passed) for one in results.check_kinds}
    assert kinds["candidate", "python"] == kinds["baseline", "judge"] == (5, 5)
    assert [(one.answers, one.agreed) for one in results.judges] == [(10, 10)]
    before = (bench.out / "results.json").read_bytes()
    (bench.folder / "rules.py").unlink()
    recompute(bench.out, write=True)
    assert (bench.out / "results.json").read_bytes() == before


def test_what_a_judge_missed_is_asked_by_the_judge_command_alone(bench, call):
    """A run whose judge was away ends with a verdict that says so; the command makes up for it once."""
    (bench.folder / "rules.py").write_text(CODE)
    bench.write(judged_items())
    with judge_service("yes") as judge:
        url = judge.url
    more = f'behaviour_probes = false\n[judge]\nurl = "{url}"\nmodel = "j"'
    results = bench.run(more=more)
    assert any("10 checks of type judge were not judged" in text for text in results.warnings)
    code, out, _ = call("judge", bench.out)
    assert (code, "Judged 0 of 20" in out, "the judge did not answer" in out) == (1, True, True)
    with ScriptedServer(
        Script(raw_response=render_json_response(200, {"choices": [{"message": {"content": "no"}}]})),
        port=int(url.rsplit(":", 1)[1]),
    ):
        code, out, _ = call("judge", bench.out)
    assert (code, "Judged 20 of 20" in out) == (0, True)
    again = RunDirectory.open(bench.out).load_results()
    assert {one.kind: (one.judged, one.passed) for one in again.check_kinds}["judge"] == (5, 0)
    assert call("judge", bench.out)[:2] == (0, "Nothing to judge: no answer of this run lacks a judgement.\n")


@pytest.mark.parametrize(
    ("checks", "said"),
    [([PYTHON], "rules.py:short"), ([JUDGE], "the plan names no judge")],
)
def test_checks_that_cannot_be_judged_stop_a_run_before_it_starts(bench, checks, said, call):
    """A function that is not there, or a judge that nobody names, is one sentence with exit code 2."""
    bench.write([ITEMS[1] | {"checks": checks}])
    path = bench.folder / "plan.toml"
    path.write_text(PLAN.format(baseline="http://127.0.0.1:9", candidate="http://127.0.0.1:9", more=""))
    code, _, err = call("run", path, "--out", bench.out)
    assert (code, said in err, err.count("\n")) == (2, True, 1), err


def test_probes_that_were_begun_are_finished_by_a_resumed_run(bench, monkeypatch):
    """Ctrl-C between two probes loses neither the measured periods nor the probes so far."""
    from draftproof.measure.run import measure

    asked = []

    async def stop_midway(run, service_group, arm, _stop):
        asked.append(arm)
        if arm == "candidate":
            raise Interrupted
        await measure._probe_arm(run, service_group, arm)

    with monkeypatch.context() as patch:
        patch.setattr(sys.modules["draftproof.measure.run.measure"], "probe_arm", stop_midway)
        with pytest.raises(Interrupted):
            bench.run()
    assert asked == ["baseline", "candidate"]
    assert {one.arm for one in bench.contents().behaviours} == {"baseline"}
    plan = (bench.out / "plan.toml").read_text()
    ports = [int(line.rsplit(":", 1)[1].strip('"')) for line in plan.splitlines() if line.startswith("url")]
    with (
        ScriptedServer(BehavingService(), port=ports[0]),
        ScriptedServer(BehavingService(), port=ports[1]) as candidate,
    ):
        results = resume_run(bench.out, bench.no_model, Progress())
    assert {one.arm for one in results.behaviour} == {"baseline", "candidate"}
    assert candidate.served
    measured = [one for one in bench.contents().records if one.phase == "measure"]
    assert len(measured) == 2 * 7
