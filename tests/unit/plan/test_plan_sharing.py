"""`[engine]`: every arm has what it says, and states only how it differs."""

import pytest

from draftproof.core.errors import PlanError
from draftproof.plan.loading import parse_plan, render_plan, thresholds_sha256

PLAN = """
name = "shared"
load = [{ name = "single", concurrency = 1 }]
[engine]
name = "vllm"
command = "vllm serve m --port {port} --max-num-seqs 8"
env = { A = "1", B = "1" }
[arms.candidate]
add = '''--speculative-config '{"method": "ngram"}' --max-num-seqs 4'''
env = { B = "2" }
"""


def test_the_baseline_is_the_engine_and_the_candidate_adds_to_it():
    """A flag that the command has is replaced, tables are added key by key, quotations hold words."""
    arms = parse_plan(PLAN).arms
    assert arms.baseline.command == ("vllm", "serve", "m", "--port", "{port}", "--max-num-seqs", "8")
    assert arms.candidate.command == (
        *("vllm", "serve", "m", "--port", "{port}"),
        *("--speculative-config", '{"method": "ngram"}', "--max-num-seqs", "4"),
    )
    assert (arms.baseline.env, arms.candidate.env) == ({"A": "1", "B": "1"}, {"A": "1", "B": "2"})
    assert arms.baseline.engine == arms.candidate.engine == "vllm"
    assert arms.alternative is None


def test_a_plan_that_shares_is_the_plan_written_out():
    """Written out and read again it is the same plan, with the same thresholds."""
    plan = parse_plan(PLAN)
    assert parse_plan(render_plan(plan)) == plan
    assert "[engine]" not in render_plan(plan)
    assert thresholds_sha256(parse_plan(render_plan(plan))) == thresholds_sha256(plan)


def test_an_arm_with_an_address_takes_no_command_and_the_other_way_round():
    """What an arm states stands in the place of what it shares."""
    attached = parse_plan(PLAN.replace("add = '''", "url = 'http://x:1'\nserved_model = '''")).arms
    assert (attached.candidate.command, attached.candidate.url) == (None, "http://x:1")
    assert attached.candidate.env == {"B": "2"}
    other = PLAN.replace('command = "vllm serve m --port {port} --max-num-seqs 8"', 'url = "http://x:1"')
    launched = parse_plan(other.replace("add = '''", "command = '''vllm {port} ")).arms
    assert (launched.baseline.url, launched.candidate.url) == ("http://x:1", None)


def test_settings_are_shared_as_tables_and_as_dotted_keys():
    """Both spellings of a setting are one key."""
    plan = parse_plan(
        'name = "n"\nload = [{ name = "s", concurrency = 1 }]\n'
        '[engine]\nsettings = { max_num_seqs = 8, speculation.method = "off" }\n'
        '[arms.candidate]\nsettings = { "speculation.method" = "ngram" }\n'
    )
    assert plan.arms.baseline.settings == {"max_num_seqs": 8, "speculation.method": "off"}
    assert plan.arms.candidate.settings == {"max_num_seqs": 8, "speculation.method": "ngram"}


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('name = "vllm"', 'nmae = "vllm"', "unknown key engine.nmae. Fix: perhaps name is meant."),
        ('name = "vllm"', 'name = "vlm"', "engine.name is 'vlm', allowed is one of reference, vllm,"),
        ('"1" }', '"1", C = 3 }', "engine.env.C is 3, allowed is a string"),
        ('= "vllm serve', "= \"'vllm serve", "engine.command: No closing quotation"),
        ("'''--spec", "'''\"--spec", "arms.candidate.add: No closing quotation"),
        ("add = '''", "add = 3\nserved_model = '''", "arms.candidate.add is 3"),
        (
            "command = ",
            "served_model = ",
            "arms.candidate: add has no command to add to; state engine.command",
        ),
        ("[engine]", "[engines]", "unknown key engines"),
    ],
)
def test_what_is_wrong_is_one_sentence_with_the_key_as_it_was_written(old, new, said):
    """The table that is shared is named, not the arms that repeat it."""
    assert old in PLAN
    with pytest.raises(PlanError) as caught:
        parse_plan(PLAN.replace(old, new, 1))
    assert said in str(caught.value)
    assert ("further" in str(caught.value)) is (new == "[engines]")  # then no arm has what it shares


def test_a_switch_that_is_said_anew_takes_no_word_of_the_command_with_it():
    """What is behind a switch is the model, not its value."""
    text = PLAN.replace("vllm serve m --port {port}", "vllm serve --eager m --port {port}")
    text = text.replace("--max-num-seqs 4'''", "--eager --max-num-seqs=4'''")
    assert parse_plan(text).arms.candidate.command == (
        *("vllm", "serve", "m", "--port", "{port}"),
        *("--speculative-config", '{"method": "ngram"}', "--eager", "--max-num-seqs=4"),
    )
