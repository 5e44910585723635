"""How one turn is dealt to several load workers. Pure: the same deal for every arm and on every machine.

A conversation stays in one worker. Items are put in an order drawn from their ids and then dealt like cards,
so that the workers' parts differ by one item at most; slots, fill requests and arrivals of a lead are dealt
by their number.
"""

import msgspec

from draftproof.load.turn import Turn
from draftproof.workload.ordering import order_by_seed


class Share(msgspec.Struct, frozen=True):
    """The part `index` of `of` equal ones; the default is the whole."""

    index: int = 0
    of: int = 1

    @property
    def is_whole(self) -> bool:
        """Whether nobody else has a part."""
        return self.of == 1

    def owns(self, number: int) -> bool:
        """Tell whether the thing of this number is in this part."""
        return number % self.of == self.index

    def own_slots(self, slots: int) -> range:
        """Return the slots of a closed loop that are in this part."""
        return range(self.index, slots, self.of)

    def own_limit(self, limit: int) -> int:
        """Return this part of a limit; the parts sum up to it."""
        return len(self.own_slots(limit))


def count_parts(turn: Turn, workers: int) -> int:
    """Return into how many parts a turn is dealt: never more than requests may be open, so none is idle."""
    return max(1, min(workers, turn.max_in_flight if turn.concurrency is None else turn.concurrency))


def deal_items(turn: Turn, share: Share) -> frozenset[int]:
    """Return the places in the block whose items are in a part.

    In a closed loop a part has as many items as its slots are of all slots, within one a slot.
    """
    if share.is_whole:
        return frozenset(range(len(turn.item_ids)))
    places = {item_id: place for place, item_id in enumerate(turn.item_ids)}
    drawn = order_by_seed(places, "worker", turn.load, turn.block, turn.repeat)
    slots = turn.concurrency or share.of
    return frozenset(places[item_id] for rank, item_id in enumerate(drawn) if share.owns(rank % slots))
