"""Claims about choosing and counting items by segment."""

import pytest

from draftproof.errors import WorkloadError
from draftproof.workload.items import Item, LengthCheck, Message, Workload
from draftproof.workload.segments import compute_coverage, segment_key, select


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
