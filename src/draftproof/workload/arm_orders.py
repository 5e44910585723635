"""In which order the arms answer each block: balanced for positions and for what precedes. Pure.

Within a level, each group of as many blocks as there are arms is a Latin square. Among the orders that keep
it so, each block takes one that spreads the predecessors evenly: an arm that mostly follows one other arm
inherits what that one leaves behind (heat, clocks, caches). An arm may follow itself; where all predecessors
are equally frequent, a first-order carry-over moves every arm alike (Finney & Outhwaite 1956; Williams 1949).
Draws are hashes of the seed and of names: the same on every machine, whatever the place in the file.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise, permutations, product
from operator import eq


def hash_number(*parts: str | int) -> int:
    """Return a 256-bit number that depends on every part and on their order."""
    digest = hashlib.sha256("\x1f".join(str(part) for part in parts).encode()).digest()
    return int.from_bytes(digest, "big")


def order_by_seed(keys: Iterable[str], *salt: str | int) -> list[str]:
    """Return the keys in an order drawn by `salt`; equal keys stay together."""
    return sorted(keys, key=lambda key: hash_number(*salt, key))


Order = tuple[str, ...]
Pair = tuple[str, str]
# Designs drawn for a short plan; in a long one even the first is balanced, and every block costs time.
MOST_DESIGNS, BLOCKS_DRAWN = 12, 600


def draw_arm_orders(
    loads: Sequence[str], arms: Iterable[str], seed: int, *, last: Sequence[str] = ()
) -> tuple[Order, ...]:
    """Return the order of the arms in each block.

    `loads`: the load of each block, in the order in which they are run. `arms`: the arms that take any
    position. `last`: arms that come last in every block, in this order.
    """
    names = sorted(arms)
    designs = range(max(1, min(MOST_DESIGNS, BLOCKS_DRAWN // max(1, len(loads)))))
    drawn = (_Design(names, last, (seed, design)) for design in designs)
    return min(((one.fill(loads), one.imbalance) for one in drawn), key=lambda pair: pair[1])[0]


class _Design:
    """One design, filled block by block.

    `_excess` holds, by load, how much more often than on average one arm preceded another, times the arms.
    """

    def __init__(self, arms: Sequence[str], last: Sequence[str], salt: tuple[int, int]) -> None:
        self._arms, self._salt, self._size = (*arms, *last), salt, max(1, len(arms))
        self._orders = [(*order, *last) for order in permutations(arms)]
        self._seen: dict[str, list[Order]] = {}
        self._excess: dict[str, dict[Pair, int]] = {}
        self._before: Order = ()

    def fill(self, loads: Sequence[str]) -> tuple[Order, ...]:
        """Return the order of each block."""
        return tuple(self._take(number, load) for number, load in enumerate(loads))

    @property
    def imbalance(self) -> int:
        """How unevenly predecessors are spread: the sum of squares of the excess."""
        return sum(value * value for excess in self._excess.values() for value in excess.values())

    def _take(self, number: int, load: str) -> Order:
        seen = self._seen.setdefault(load, [])
        excess = self._excess.setdefault(load, dict.fromkeys(product(self._arms, self._arms), 0))
        square = seen[len(seen) // self._size * self._size :]
        free = [order for order in self._orders if not any(self._clash(order, row) for row in square)]
        costs = [self._cost(order, excess) for order in free]
        least = min(costs)
        best = [order for order, cost in zip(free, costs, strict=True) if cost == least]
        chosen = min(best, key=lambda order: hash_number("arms", *self._salt, load, number, *order))
        self._count(chosen, excess)
        seen.append(chosen)
        self._before = chosen[-1:]
        return chosen

    def _clash(self, order: Order, row: Order) -> bool:
        """Tell whether two orders have an arm at the same position; the last arms always have theirs."""
        return any(map(eq, order[: self._size], row))

    def _cost(self, order: Order, excess: Mapping[Pair, int]) -> int:
        """Return what an order adds to `imbalance`, up to a factor and what every order adds.

        The arm that ended the block before precedes two arms of this one, unless it ends this one as well:
        that spreads its successors over both.
        """
        follows = sum(excess[pair] for pair in pairwise((*self._before, *order)))
        return follows + (order[-1:] == self._before)

    def _count(self, order: Order, excess: dict[Pair, int]) -> None:
        for before, arm in pairwise((*self._before, *order)):
            excess[before, arm] += len(self._arms)
            for other in self._arms:
                excess[before, other] -= 1
