"""References to the environment, and the secrets behind them."""

import pytest

from draftproof.core.errors import PlanError
from draftproof.plan.environment import (
    collect_secrets,
    find_secrets,
    list_values,
    mask_values,
    resolve_headers,
    resolve_plan,
    resolve_references,
)
from draftproof.plan.loading import parse_plan
from draftproof.services.arms.launch import list_arms

ENVIRONMENT = {"KEY": "sk-0123456789", "SHORT": "ab"}


def test_references_are_replaced_and_an_unset_one_is_named():
    """`${NAME}` becomes its value; a name that is not set is an error with the key and the fix."""
    assert resolve_references("Bearer ${KEY}", ENVIRONMENT, "p") == "Bearer sk-0123456789"
    assert resolve_references("$KEY {KEY}", ENVIRONMENT, "p") == "$KEY {KEY}"
    with pytest.raises(PlanError, match=r"p: the environment variable NONE is not set.*export NONE"):
        resolve_references("${NONE}", ENVIRONMENT, "p")


@pytest.mark.parametrize("name", ["Authorization", "X-Api-Key", "api-key", "Cookie"])
def test_a_key_written_into_a_plan_is_refused(name):
    """A literal secret would be copied into every run."""
    with pytest.raises(PlanError, match="a secret in a plan"):
        resolve_headers({name: "abc"}, ENVIRONMENT, "arms.candidate.headers")
    assert resolve_headers({name: "${KEY}"}, ENVIRONMENT, "p") == ((name, "sk-0123456789"),)


def test_other_headers_may_be_written_out_and_line_breaks_may_not():
    """A plain header passes; one with a line break would be two headers."""
    assert resolve_headers({"X-Team": "a"}, {}, "p") == (("X-Team", "a"),)
    with pytest.raises(PlanError, match="line break"):
        resolve_headers({"X-Team": "a\r\nb: c"}, {}, "p")


def test_secrets_are_masked_wherever_they_stand_and_short_values_are_not_secrets():
    """What a reference stands for never reaches a text; a two-letter value would spoil every text."""
    secrets = collect_secrets(["Bearer ${KEY}", "${SHORT}", "${NONE}"], [], ENVIRONMENT)
    assert secrets == ("sk-0123456789",)
    assert mask_values("wrong key sk-0123456789!", secrets) == "wrong key ***!"


def test_of_a_command_only_what_is_named_a_secret_is_one():
    """A folder that a command refers to stays readable in messages; a key does not."""
    environment = {"ENGINE_FOLDER": "/opt/engines", "HF_TOKEN": "hf_012345"}
    assert collect_secrets([], ["${ENGINE_FOLDER}/bin", "${HF_TOKEN}"], environment) == ("hf_012345",)


REFERRING = """
name = "t"
[target]
model = "${HUB}/target"
[[load]]
name = "a"
concurrency = 1
[arms.baseline]
url = "http://a"
engine = "vllm"
headers = { Authorization = "Bearer ${KEY}", X-Team = "${TEAM}" }
[arms.candidate]
engine = "vllm"
command = ["vllm", "serve", "{model}", "--port", "{port}", "--model", "${HUB}/draft"]
env = { HF_TOKEN = "${HF_TOKEN}", HF_HOME = "${HUB}" }
[arms.candidate.drafter]
identity = "${HUB}/draft"
licence = "${KEY}"
[arms.candidate.settings]
drafter = "${HUB}/draft"
[approval]
rollback_artefact = "${IMAGE}"
"""
VALUES = {
    "HUB": "/models",
    "KEY": "sk-0123456789",
    "TEAM": "ab",
    "HF_TOKEN": "hf_0123",
    "IMAGE": "img@sha256:1",
}


def referring():
    plan = parse_plan(REFERRING)
    return plan, find_secrets(list_arms(plan).values(), VALUES)


def test_the_facts_of_a_plan_hold_values_and_secrets_stay_references():
    """Target, settings and drafter are resolved; what a header refers to is never written out."""
    plan, secrets = referring()
    resolved = resolve_plan(plan, VALUES, secrets)
    assert resolved.target.model == "/models/target"
    candidate = resolved.arms.candidate
    assert candidate.drafter == {"identity": "/models/draft", "licence": "${KEY}"}
    assert candidate.settings == {"drafter": "/models/draft"}
    assert candidate.command == plan.arms.candidate.command
    assert resolved.arms.baseline.headers == plan.arms.baseline.headers
    with pytest.raises(PlanError, match=r"target\.model: the environment variable HUB is not set"):
        resolve_plan(plan, {}, ())


def test_what_every_reference_stood_for_is_kept_and_secrets_are_masked():
    """Short values of headers and tokens of the command's environment are masked like long keys."""
    plan, secrets = referring()
    assert list_values(plan, VALUES, secrets) == {
        "HF_TOKEN": "***", "HUB": "/models", "IMAGE": "img@sha256:1", "KEY": "***", "TEAM": "***",
    }  # fmt: skip
    assert "IMAGE" not in list_values(plan, {"HUB": "/models"}, ())
