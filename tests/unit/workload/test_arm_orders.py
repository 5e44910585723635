"""The order of arms in each block: balanced for positions and for predecessors, drawn by the seed."""

from collections import Counter, defaultdict
from itertools import pairwise

import pytest

from draftproof.workload.arm_orders import draw_arm_orders

ARMS = ("baseline", "candidate", "baseline_null", "alternative")


def spread_loads(blocks: int, loads: int) -> list[str]:
    """The loads of a plan's blocks as they are run: to and fro."""
    return [
        f"load{place if block % 2 == 0 else loads - 1 - place}"
        for block in range(blocks)
        for place in range(loads)
    ]


def shares(orders, loads, arms) -> dict[tuple[str, str, str], float]:
    """Return how often each arm followed each other one, by load: shares of its periods."""
    counts: defaultdict[str, Counter[tuple[str, str]]] = defaultdict(Counter)
    before: tuple[str, ...] = ()
    for load, order in zip(loads, orders, strict=True):
        counts[load].update(pairwise((*before, *order)))
        before = order[-1:]
    return {
        (load, arm, other): pairs[other, arm] / sum(pairs[one, arm] for one in arms)
        for load, pairs in counts.items()
        for arm in arms
        for other in arms
    }


def imbalance(found: dict[tuple[str, str, str], float], arms: tuple[str, ...]) -> float:
    """Return the largest difference between two arms in how often they follow the same one."""
    loads = {load for load, _, _ in found}
    return max(
        abs(found[load, one, before] - found[load, other, before])
        for load in loads
        for before in arms
        for one in arms
        for other in arms
    )


@pytest.mark.parametrize(
    ("arms", "blocks", "loads", "most"),
    [(2, 6, 1, 0.2), (2, 6, 2, 0.2), (3, 6, 1, 0.34), (3, 6, 2, 0.34), (4, 8, 1, 0.4), (4, 12, 2, 0.34)],
)
def test_arms_follow_each_other_alike(arms, blocks, loads, most):
    """With six blocks a load no arm follows another much more often than a third one does, whatever the seed.

    The first period follows nothing, and so few blocks leave a difference of one or two periods. Rotations
    of one drawn order leave 0.6 to 0.8 with three or four arms.
    """
    names = ARMS[:arms]
    for seed in range(12):
        run = spread_loads(blocks, loads)
        assert imbalance(shares(draw_arm_orders(run, names, seed), run, names), names) <= most


@pytest.mark.parametrize("arms", [2, 3, 4])
def test_every_group_of_blocks_is_a_latin_square(arms):
    """In each group of as many blocks of a load as there are arms, each arm has each position once."""
    names, run = ARMS[:arms], spread_loads(2 * arms, 2)
    orders = draw_arm_orders(run, names, 3)
    for load in set(run):
        own = [order for order, name in zip(orders, run, strict=True) if name == load]
        for first in range(0, len(own), arms):
            assert all(set(column) == set(names) for column in zip(*own[first : first + arms], strict=True))


def test_arms_that_come_last_do_so_in_every_block():
    """The others share the first positions evenly, and follow the last one and each other alike."""
    run = spread_loads(6, 1)
    orders = draw_arm_orders(run, ARMS[:2], 1, last=("baseline_null",))
    assert {order[-1] for order in orders} == {"baseline_null"}
    assert Counter(order[0] for order in orders) == {"baseline": 3, "candidate": 3}


def test_the_seed_draws_the_order():
    """The same seed gives the same orders, however the arms are listed; others give others."""
    run = spread_loads(6, 2)
    assert draw_arm_orders(run, ARMS, 1) == draw_arm_orders(run, ARMS[::-1], 1)
    assert len({draw_arm_orders(run, ARMS, seed) for seed in range(6)}) == 6


def test_one_arm_is_in_order():
    """A plan of one arm needs no balance."""
    assert draw_arm_orders(["low", "low"], ("baseline",), 1) == (("baseline",), ("baseline",))
