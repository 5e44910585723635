"""Claims about the starter set that ships with the package."""

import hashlib
import re
from collections import Counter

import pytest

from draftproof.plan.loading import load_builtin_plan
from draftproof.workload.items import Item
from draftproof.workload.reader import load_workload
from draftproof.workload.segments import compute_coverage, select

WORKLOAD = load_workload("builtin:starter")
TASKS = {
    "short_fact",
    "explanation",
    "grounded",
    "tool_selection",
    "structured",
    "code",
    "rewriting",
    "chat",
}
# What a service needs beside text: few items each, apart, so that a service without it can leave them out.
BEHAVIOUR_TASKS = {"tool_call", "stop_string", "conversation"}
DIMENSIONS = {"task", "language", "sampling", "prompt_length", "history", "answer_length", "traffic"}
SCRIPTS = {"ar": "[\u0621-\u064a]", "zh": "[\u4e00-\u9fff]", "en": "[A-Za-z]"}


def text_of(item: Item) -> str:
    return "\n".join(message.text for message in item.messages)


def test_header_claims_no_more_than_synthetic_evidence():
    """The set is named, versioned, under the project's licence, and not called representative."""
    assert (WORKLOAD.name, WORKLOAD.licence, WORKLOAD.evidence) == ("starter", "Apache-2.0", "synthetic")


def test_set_has_the_promised_size():
    """At least 140 items ship."""
    assert len(WORKLOAD.items) >= 140


def test_every_item_is_labelled_in_every_dimension():
    """No item lacks a label."""
    assert {frozenset(item.segments) for item in WORKLOAD.items} == {frozenset(DIMENSIONS)}


def test_every_task_comes_in_every_language():
    """Each of the eight tasks has at least four items in each of the three languages."""
    counts = Counter((item.segments["task"], item.segments["language"]) for item in WORKLOAD.items)
    assert set(counts) == {(task, language) for task in TASKS | BEHAVIOUR_TASKS for language in SCRIPTS}
    assert min(count for (task, _), count in counts.items() if task in TASKS) >= 4


def test_every_task_has_ten_greedy_english_items():
    """The demo can choose ten English items at temperature 0 for each task."""
    counts = Counter(
        item.segments["task"]
        for item in WORKLOAD.items
        if item.segments["language"] == "en" and item.sampling.temperature == 0
    )
    assert set(counts) == TASKS | BEHAVIOUR_TASKS
    assert min(counts[task] for task in TASKS) >= 10


def test_the_demos_items_are_those_it_was_measured_with():
    """Items that came later belong to tasks of their own and change no choice of the demo."""
    plan, _ = load_builtin_plan("demo")
    choice = plan.workload
    chosen = select(WORKLOAD, choice.where, choice.items_per_segment, choice.segment_by, plan.seed)
    digest = hashlib.sha256(" ".join(item.id for item in chosen).encode()).hexdigest()
    assert (len(chosen), digest[:16]) == (36, "e79159e044ac0418")


def test_behaviour_items_use_what_their_task_names():
    """Real tool calls that are forced, stop strings that are sent, turns that follow on real answers."""
    by_task = {
        task: [item for item in WORKLOAD.items if item.segments["task"] == task] for task in BEHAVIOUR_TASKS
    }
    assert all(item.tools and item.tool_choice == "required" for item in by_task["tool_call"])
    assert all(item.stop for item in by_task["stop_string"])
    assert all(item.turns > 1 for item in by_task["conversation"])
    assert all(len(one.checks) >= 2 for item in by_task["conversation"] for one in item.follow_ups)


@pytest.mark.parametrize(
    ("dimension", "labels"),
    [
        ("sampling", {"regulated", "creative"}),
        ("prompt_length", {"short", "medium", "long"}),
        ("history", {"none", "multi_turn"}),
        ("answer_length", {"short", "medium", "long"}),
        ("traffic", {"interactive", "batch"}),
    ],
)
def test_every_label_is_covered(dimension, labels):
    """Each label of a dimension has at least ten items."""
    counts = compute_coverage(WORKLOAD.items, ("task",)).by_dimension[dimension]
    assert set(counts) == labels
    assert min(counts.values()) >= 10


@pytest.mark.parametrize("item", WORKLOAD.items, ids=lambda item: item.id)
def test_item_is_what_its_labels_say(item):
    """Sampling, history, script, limit and number of checks agree with the labels."""
    creative = item.segments["sampling"] == "creative"
    assert (item.sampling.temperature >= 0.7) is creative
    assert (item.sampling.seed is not None) is creative
    roles = [message.role for message in item.messages]
    assert ("assistant" in roles) is (item.segments["history"] == "multi_turn")
    assert roles[-1] == "user"
    assert re.search(SCRIPTS[item.segments["language"]], text_of(item))
    assert 48 <= item.max_tokens <= 96
    assert len(item.checks) >= 2
    needs_tools = item.segments["task"] in {"tool_selection", "tool_call"}
    assert bool(item.tools) is needs_tools or item.segments["task"] == "conversation"


def test_no_two_items_ask_the_same():
    """No prompt occurs twice."""
    texts = [text_of(item) for item in WORKLOAD.items]
    assert len(set(texts)) == len(texts)


def test_critical_checks_sit_where_a_program_reads_the_answer():
    """Critical checks belong to structured output and tool calls alone, and to all of these."""
    critical = {item.id for item in WORKLOAD.items if any(check.critical for check in item.checks)}
    expected = {
        item.id
        for item in WORKLOAD.items
        if item.segments["task"] in {"structured", "tool_selection"} or item.tool_choice is not None
    }
    assert critical == expected
