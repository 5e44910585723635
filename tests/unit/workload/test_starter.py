"""Claims about the starter set that ships with the package."""

import re
from collections import Counter

import pytest

from draftproof.workload.items import Item
from draftproof.workload.reader import load_workload
from draftproof.workload.segments import compute_coverage

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
DIMENSIONS = {"task", "language", "sampling", "prompt_length", "history", "answer_length", "traffic"}
SCRIPTS = {"ar": "[\u0621-\u064a]", "zh": "[\u4e00-\u9fff]", "en": "[A-Za-z]"}


def text_of(item: Item) -> str:
    return "\n".join(message.content for message in item.messages)


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
    assert set(counts) == {(task, language) for task in TASKS for language in SCRIPTS}
    assert min(counts.values()) >= 4


def test_every_task_has_ten_greedy_english_items():
    """The demo can choose ten English items at temperature 0 for each task."""
    counts = Counter(
        item.segments["task"]
        for item in WORKLOAD.items
        if item.segments["language"] == "en" and item.sampling.temperature == 0
    )
    assert set(counts) == TASKS
    assert min(counts.values()) >= 10


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
    assert bool(item.tools) is (item.segments["task"] == "tool_selection")


def test_no_two_items_ask_the_same():
    """No prompt occurs twice."""
    texts = [text_of(item) for item in WORKLOAD.items]
    assert len(set(texts)) == len(texts)


def test_critical_checks_sit_where_a_program_reads_the_answer():
    """Critical checks belong to structured output and tool selection alone, and to all of these."""
    critical = {item.id for item in WORKLOAD.items if any(check.critical for check in item.checks)}
    expected = {
        item.id for item in WORKLOAD.items if item.segments["task"] in {"structured", "tool_selection"}
    }
    assert critical == expected
