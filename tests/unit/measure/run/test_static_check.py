"""What a plan's command shows to be wrong before anything is started."""

import sys

import pytest

from draftproof.measure.run.static_check import find_faults
from draftproof.plan.loading import parse_plan
from draftproof.workload.items import Item, Message

PLAN = """\
name = "t"
load = [{{ name = "low", concurrency = 1 }}]
[engine]
name = "{engine}"
command = "{program} {flags} --port {{port}}"
[arms.baseline]
[arms.candidate]
add = "{add}"
"""
DRAFTING = {
    "vllm": "--speculative-config.method ngram",
    "llamacpp": "--spec-type ngram-simple",
    "reference": "--speculation ngram",
}


def find_of_context(engine, flags, items):
    text = PLAN.format(engine=engine, program=sys.executable, flags=flags, add=DRAFTING[engine])
    return [str(one) for one in find_faults(parse_plan(text), items, 10) if "its context" in str(one)]


def build_item(words, max_tokens=64):
    text = "word " * words
    return Item(id="a", messages=(Message(role="user", content=text),), segments={}, max_tokens=max_tokens)


@pytest.mark.parametrize(
    ("engine", "flags"),
    [
        ("vllm", "--max-model-len 512"),
        ("llamacpp", "-c 2048 -np 4"),
        ("reference", "-m draftproof serve --max-model-len 512"),
    ],
)
def test_prompts_and_answers_that_cannot_fit_are_found(engine, flags):
    """Of every arm, from the command alone; what may fit is left to the services."""
    for long in (build_item(10, max_tokens=512), build_item(4000)):
        found = find_of_context(engine, flags, [long, build_item(10)])
        assert len(found) == 2
        assert all("its context of 512 tokens has no room for 1 of 2 prompts" in one for one in found)
    assert find_of_context(engine, flags, [build_item(400)]) == []


def test_a_reference_engine_that_states_no_context_has_its_own():
    """2,048 tokens."""
    assert find_of_context("reference", "-m draftproof serve", [build_item(20, max_tokens=2048)])
    assert not find_of_context("reference", "-m draftproof serve", [build_item(20, max_tokens=1024)])
