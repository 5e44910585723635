"""What a plan changes in how an arm is launched and asked is a setting like any other."""

import pytest
from arm_builders import manifest

from draftproof.core.errors import PlanError
from draftproof.plan.loading import parse_plan
from draftproof.services.arms.comparability import find_differences
from draftproof.services.arms.findings import judge_address
from draftproof.services.arms.launch import build_command
from draftproof.services.arms.manifest import describe_arm, find_inherited
from draftproof.services.engines import adapter_for

BASE = 'name = "t"\n[[load]]\nname = "single"\nconcurrency = 1\n[arms.baseline]\n'


def arm(text: str):
    """The candidate of a plan with this section."""
    return parse_plan(f'{BASE}[arms.candidate]\nengine = "vllm"\n{text}').arms.candidate


def test_program_environment_and_request_fields_are_compared():
    """Another model before the first flag, another variable, another field: each is a difference by key."""
    one = arm(
        'command = ["vllm", "serve", "/m/a", "--port", "{port}"]\nenv = { X = "1" }\nrequest = { n = 1 }'
    )
    other = arm('command = ["vllm", "serve", "/m/b", "--port", "{port}"]\nenv = { X = "2" }')
    assert describe_arm(one) == {"launch": "vllm serve /m/a", "env.X": "1", "request.n": 1}
    found = find_differences(
        manifest("baseline", describe_arm(one)), manifest("candidate", describe_arm(other))
    )
    assert [one.key for one in found] == ["env.X", "launch", "request.n"]


@pytest.mark.parametrize("flag", ['"--api-key", "abc"', '"--hf-token=abc"'])
def test_a_key_written_into_a_command_is_refused(flag):
    """It would be copied into every run; a reference to the environment is not."""
    plan = parse_plan(
        f'{BASE}[arms.candidate]\nengine = "vllm"\ncommand = ["v", "--port", "{{port}}", {flag}]'
    )
    with pytest.raises(PlanError, match=r"a secret in a plan.*\$\{NAME\}"):
        build_command("candidate", plan.arms.candidate, plan)
    referred = flag.replace("abc", "${KEY}")
    plan = parse_plan(
        f'{BASE}[arms.candidate]\nengine = "vllm"\ncommand = ["v", "--port", "{{port}}", {referred}]'
    )
    assert build_command("candidate", plan.arms.candidate, plan) is not None


def test_an_arm_that_is_the_baseline_itself_is_told():
    """One address asked the same way can show no difference; another model or field there can."""
    here = {"served_model": "m"}
    baseline = manifest("baseline", here, url="http://h")
    finding = judge_address(baseline, manifest("candidate", here, url="http://h"))
    assert finding is not None
    assert (finding.code, finding.severity) == ("same_service", "warning")
    assert judge_address(baseline, manifest("candidate", {"served_model": "n"}, url="http://h")) is None
    assert judge_address(baseline, manifest("candidate", here | {"request.x": 1}, url="http://h")) is None
    assert judge_address(baseline, manifest("candidate", here, url="http://other")) is None
    assert judge_address(baseline, manifest("baseline_null", here, url="http://h")) is None


def test_an_engine_s_own_variables_are_seen_though_the_plan_does_not_name_them():
    """One that accepts drafts by chance makes an arm approximate; keys and other variables stay out."""
    environment = {"SGLANG_SIMULATE_ACC_LEN": "4", "SGLANG_API_KEY": "k", "HOME": "/h", "SGLANG_X": "1"}
    launched = arm('command = ["s", "--port", "{port}"]\nenv = { SGLANG_X = "2" }')
    sglang = adapter_for("sglang")
    found = find_inherited(launched, sglang.facts, environment)
    assert found == {"env.SGLANG_SIMULATE_ACC_LEN": "4"}
    assert find_inherited(arm('url = "http://h"'), sglang.facts, environment) == {}
    lossy = sglang.find_lossy({"speculation.method": "NGRAM", **found})
    assert lossy is not None
    assert "by chance" in lossy
