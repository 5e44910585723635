"""Claims about choosing and counting items by segment."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftproof.core.errors import WorkloadError
from draftproof.judge.decide.wording import name_segment
from draftproof.tell.report import words
from draftproof.workload.items import Item, LengthCheck, Message, Workload
from draftproof.workload.reader import load_workload
from draftproof.workload.segments import compute_coverage, segment_key, select, show_labels, split_key

FILES = Path(__file__).parents[2] / "fixtures" / "files"


def make_item(name: str, **segments: str) -> Item:
    return Item(id=name, messages=(Message(role="user", content=name),), segments=segments)


ITEMS = tuple(
    make_item(f"{task}-{language}-{number}", task=task, language=language)
    for number in range(4)
    for task in ("chat", "code")
    for language in ("en", "ar")
)
WORKLOAD = Workload(
    name="w", version="1", licence="Apache-2.0", evidence="smoke", sha256="0" * 64, items=ITEMS
)


def test_key_names_dimensions_in_order():
    """The key follows the order asked for, and a missing label says so."""
    item = make_item("a", task="chat", language="ar")
    assert segment_key(item, ("language", "task")) == "language=ar,task=chat"
    assert segment_key(item, ("tier",)) == "tier=unlabelled"


HARD = st.text(st.sampled_from(' ,="\\/·_a\n\u00a0@'), max_size=4) | st.sampled_from(
    ["all", "All tasks", "é 日本"]
)


@settings(max_examples=300)
@given(st.lists(st.tuples(HARD, HARD), min_size=2, max_size=2, unique=True))
def test_no_two_segments_have_one_name(labels):
    """Whatever the labels hold, keys and what is shown differ, and a key tells its labels."""
    items = [make_item("i", a=one, b=other) for one, other in labels]
    for dimensions, count in ((("a", "b"), 2), (("a",), len({one for one, _ in labels}))):
        keys = [segment_key(item, dimensions) for item in items]
        assert len(set(keys)) == count
        assert [split_key(key) for key in keys] == [
            tuple((name, item.segments[name]) for name in dimensions) for item in items
        ]
        assert not any("\n" in key for key in keys)
        for joiner in ("/", " · "):
            shown = [show_labels(key, joiner) for key in keys]
            assert len({" ".join(text.split()) for text in [*shown, "all", "All tasks"]}) == count + 2


def test_the_handed_names_are_shown_as_given():
    """Labels with commas, equals signs and underscores are seven cells, each by its own name."""
    items = load_workload(FILES / "segment-names.jsonl").items
    keys = list(compute_coverage(items, ("task",)).by_segment)
    shown = [show_labels(key, "/") for key in keys]
    assert sorted(shown) == sorted(
        ["arts, k=5", "arts, n=5", "k_a", "k a", "Q&A, tier=gold", "Q&A, plan=gold", '""']
    )
    assert shown == [words.segment(key) for key in keys] == [name_segment(key) for key in keys]


@pytest.mark.parametrize(
    ("key", "shown"),
    [
        ("all", "all"),
        ("task=all", '"all"'),
        ("task=rewriting,language=ar", "rewriting/ar"),
        ('task="a,b=c",language=ar', "a,b=c/ar"),
        ("task=a/b", "a/b"),
        ("task=a/b,language=ar", '"a/b"/ar'),
        ("task=a b ", '"a b "'),
        ("task=a\u00a0b", '"a\\u00a0b"'),
        ("an old name", "an old name"),
    ],
)
def test_labels_are_shown_as_given_unless_they_could_be_taken_for_others(key, shown):
    """Quotes stand only where a label would be mistaken."""
    assert show_labels(key, "/") == shown


def test_where_keeps_only_matching_items():
    """Every dimension of the filter must match."""
    chosen = select(WORKLOAD, {"task": ["chat"], "language": ["ar"]}, None, ("task",), 1)
    assert {segment_key(item, ("task", "language")) for item in chosen} == {"task=chat,language=ar"}
    assert len(chosen) == 4


def test_per_segment_limits_each_segment_in_file_order():
    """Each segment gives at most the asked number, and the file's order is kept."""
    chosen = select(WORKLOAD, {}, 3, ("task",), 1)
    assert compute_coverage(chosen, ("task",)).by_segment == {"task=chat": 3, "task=code": 3}
    assert [item for item in ITEMS if item in chosen] == list(chosen)


def test_choice_follows_the_seed():
    """One seed always chooses the same items, and some other seed chooses others."""
    first = select(WORKLOAD, {}, 2, ("task",), 1)
    assert select(WORKLOAD, {}, 2, ("task",), 1) == first
    assert any(select(WORKLOAD, {}, 2, ("task",), seed) != first for seed in range(2, 8))


def test_choice_does_not_depend_on_file_order():
    """Turning the file round chooses the same items."""
    turned = Workload(
        name="w", version="1", licence="x", evidence="smoke", sha256="0" * 64, items=ITEMS[::-1]
    )
    first = {item.id for item in select(WORKLOAD, {}, 2, ("task",), 5)}
    assert {item.id for item in select(turned, {}, 2, ("task",), 5)} == first


@pytest.mark.parametrize(
    ("where", "segment_by", "words"),
    [
        ({"tier": ["gold"]}, ("task",), "dimension 'tier'"),
        ({"task": ["sing"]}, ("task",), "label 'sing'"),
        ({}, ("tier",), "dimension 'tier'"),
        ({"task": ["unlabelled"]}, ("task",), "no item matches"),
    ],
)
def test_wrong_selection_is_an_error_with_a_fix(where, segment_by, words):
    """An unknown dimension or label, or an empty choice, names itself and what is known."""
    with pytest.raises(WorkloadError) as caught:
        select(WORKLOAD, where, None, segment_by, 1)
    assert words in caught.value.message
    assert caught.value.fix


def test_coverage_counts_labels_and_checks():
    """Coverage counts items by label and those that nothing judges."""
    judged = Item(
        id="j",
        messages=(Message(role="user", content="x"),),
        segments={"task": "code"},
        checks=(LengthCheck(critical=True),),
    )
    coverage = compute_coverage((*ITEMS, judged), ("task",))
    assert coverage.by_dimension == {"language": {"ar": 8, "en": 8}, "task": {"chat": 8, "code": 9}}
    assert (coverage.items, coverage.unchecked, coverage.critical) == (17, 16, 1)
