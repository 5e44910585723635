"""The order of starts and waves, and grids that cannot be measured."""

from collections import Counter

import msgspec
import pytest

from draftproof.core.errors import UsageError
from draftproof.explore.schedule import CostGrid, check_grid, plan_starts

GRID = CostGrid(draft_lengths=(1, 2, 4), batches=(1, 2, 8), repeats=3)


def test_ordinary_decoding_is_first_and_last_and_lookup_follows_its_length():
    """Drift shows between the first and the last start; a length's two drafters meet the same drift."""
    starts = plan_starts(GRID, with_lookup=True)
    assert [start.index for start in starts] == list(range(8))
    assert (starts[0].draft_length, starts[-1].draft_length) == (0, 0)
    pairs = [(starts[at], starts[at + 1]) for at in range(1, 7, 2)]
    assert {own.draft_length for own, _ in pairs} == {1, 2, 4}
    for own, lookup in pairs:
        assert own.draft_length == lookup.draft_length
        assert (own.drafting, lookup.drafting) == ("own", "ngram")


def test_every_repeat_holds_every_batch_once_in_an_order_of_its_own():
    """Batches are randomised within each repeat, and not every repeat has the same order."""
    starts = plan_starts(GRID, with_lookup=False)
    orders = {start.batches[at : at + 3] for start in starts for at in range(0, 9, 3)}
    assert all(set(order) == {1, 2, 8} for order in orders)
    assert len(orders) > 1
    assert all(Counter(start.batches) == {1: 3, 2: 3, 8: 3} for start in starts)


def test_the_order_follows_from_the_seed():
    """The same seed gives the same order, another seed another."""
    again = plan_starts(GRID, with_lookup=True)
    assert plan_starts(GRID, with_lookup=True) == again
    assert plan_starts(msgspec.structs.replace(GRID, seed=2), with_lookup=True) != again


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"draft_lengths": ()}, "--draft-lengths"),
        ({"draft_lengths": (0, 2)}, "--draft-lengths"),
        ({"draft_lengths": (2, 2)}, "--draft-lengths"),
        ({"draft_lengths": (65,)}, "--draft-lengths"),
        ({"batches": (0,)}, "--batches"),
        ({"repeats": 0}, "--repeats"),
        ({"answer_tokens": 23}, "--answer-tokens"),
        ({"acceptance": -0.1}, "--acceptance"),
    ],
)
def test_a_grid_that_cannot_be_measured_names_its_option(changes, place):
    """Each fault is one sentence with the option at fault."""
    check_grid(GRID)
    with pytest.raises(UsageError) as caught:
        check_grid(msgspec.structs.replace(GRID, **changes))
    assert caught.value.place == place
