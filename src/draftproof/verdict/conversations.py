"""Requests grouped to the conversations that they are turns of, as columns. Pure."""

from typing import NamedTuple

import numpy as np

from draftproof.stats.resampling import Floats, Ints
from draftproof.verdict.columns import Bools, Columns


class Conversations(NamedTuple):
    """The conversations of some requests of one arm at one load.

    `owners`, shape (requests,): whose turn each is. `first`, shape (conversations,): the place among all
    observations of one of its turns. `is_completed`: every turn was asked and answered.
    """

    owners: Ints
    first: Ints
    is_completed: Bools

    @property
    def size(self) -> int:
        """How many there are."""
        return len(self.first)

    def all_of(self, states: Floats) -> Floats:
        """Return 0 where a turn's state is 0, else NaN where one is NaN, else 1; shape (conversations,)."""
        failed = np.bincount(self.owners, weights=states == 0, minlength=self.size) > 0
        unknown = np.bincount(self.owners, weights=np.isnan(states), minlength=self.size) > 0
        found: Floats = np.where(failed, 0.0, np.where(unknown, np.nan, 1.0))
        return found


def group_conversations(columns: Columns, places: Ints) -> Conversations:
    """Return the conversations of the observations at these places."""
    _, first, owners = np.unique(columns.conversations[places], return_index=True, return_inverse=True)
    owners = owners.reshape(-1)
    turns = columns.turns[places]
    width = int(turns.max(initial=0)) + 1
    asked = np.bincount(np.unique(owners * width + turns) // width, minlength=len(first))
    lost = np.bincount(owners, weights=~columns.is_ok[places], minlength=len(first))
    whole = asked == columns.turns_of_item[places[first]]
    return Conversations(owners, places[first], whole & (lost == 0))


def all_of(*states: Floats) -> Floats:
    """Return 0 where any state is 0, else NaN where one is NaN, else 1."""
    stacked = np.stack(states)
    failed, unknown = (stacked == 0).any(axis=0), np.isnan(stacked).any(axis=0)
    found: Floats = np.where(failed, 0.0, np.where(unknown, np.nan, 1.0))
    return found
