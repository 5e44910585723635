"""The plan's candidate changed to draft K tokens and to answer at a fixed length."""

import pytest

from draftproof.core.errors import PlanError
from draftproof.explore.schedule import build_items, vary_arm
from draftproof.plan.schema import Arm

SETTINGS = {"speculation.method": "attached", "speculation.policy": "auto", "num_threads": 1}


def test_the_reference_engine_is_varied_by_its_settings():
    """Method and threads stay, the length is K, and no policy shortens drafts; K = 0 is off."""
    arm = Arm(settings=SETTINGS)
    assert vary_arm(arm, 3).arm.settings == {
        "num_threads": 1,
        "speculation.method": "attached",
        "speculation.num_spec_tokens": 3,
        "speculation.policy": "fixed",
        "speculation.stop_below": 0.0,
    }
    assert vary_arm(arm, 0).arm.settings == {"num_threads": 1, "speculation.method": "off"}


def test_a_serve_command_is_varied_by_its_flags():
    """The reference engine given as a command has its flags replaced in place of its settings."""
    command = ("draftproof", "serve", "--port", "{port}", "--speculation", "ngram", "--draft-policy", "auto")
    varied = vary_arm(Arm(command=command), 2).arm.command or ()
    assert varied[:4] == command[:4]
    assert varied[4:] == (
        *("--speculation", "ngram", "--num-spec-tokens", "2"),
        *("--draft-policy", "fixed", "--stop-below", "0.0", "--ngram-min", "1"),
    )
    assert vary_arm(Arm(command=command), 0).arm.command == (*command[:4], "--speculation", "off")


def test_answers_have_a_fixed_length_and_the_plans_own_fields_stand():
    """The end of sequence is ignored unless the plan's request says otherwise; other fields stay."""
    assert vary_arm(Arm(settings=SETTINGS, request={"min_p": 0.1}), 1).arm.request == {
        "ignore_eos": True,
        "min_p": 0.1,
    }
    assert (
        vary_arm(Arm(settings=SETTINGS, request={"ignore_eos": False}), 1).arm.request["ignore_eos"] is False
    )


def test_environment_of_an_engine_is_added_to_the_plans():
    """SGLang's simulated acceptance joins the arm's own environment."""
    command = ("x", "--port", "{port}", "--speculative-algorithm", "EAGLE")
    arm = vary_arm(Arm(engine="sglang", command=command, env={"A": "1"}), 2).arm
    assert arm.env["A"] == "1"
    assert arm.env["SGLANG_SIMULATE_ACC_LEN"] == "1"


@pytest.mark.parametrize(
    ("arm", "words"),
    [
        (Arm(url="http://127.0.0.1:1"), "cannot be started anew"),
        (Arm(engine="vllm"), "needs a command"),
        (Arm(), "the candidate does not speculate"),
        (Arm(settings={"speculation.method": "off"}), "the candidate does not speculate"),
        (Arm(command=("draftproof", "serve", "--port", "{port}")), "the candidate does not speculate"),
    ],
)
def test_arms_that_cannot_be_varied_are_one_sentence(arm, words):
    """An attached service, no command, no speculation: refused with the plan's key."""
    with pytest.raises(PlanError, match=words) as caught:
        vary_arm(arm, 1)
    assert str(caught.value.place).startswith("arms.candidate")
    assert caught.value.fix


def test_requests_of_a_wave_differ_and_repeat_themselves():
    """No two prompts of a wave are alike, and each holds the same sentence many times."""
    items = build_items(16, 40)
    prompts = [item.messages[0].text for item in items]
    assert len(set(prompts)) == 16
    assert {item.max_tokens for item in items} == {40}
    assert all(prompt.count("counts the boats") >= 5 for prompt in prompts)
