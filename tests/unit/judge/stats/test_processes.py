"""The variance between processes: recovered, pooled, and nothing where blocks tell it as well."""

import math
from dataclasses import replace

import numpy as np
import pytest

from draftproof.judge.stats.bootstrap import RatioEstimate, paired_ratio
from draftproof.judge.stats.periods import (
    ProcessSpread,
    ProcessTable,
    process_spread,
    weigh_processes,
    widen_by_processes,
)


def make_table(luck, blocks, *, noise=0.0, rng=None, kinds=None) -> ProcessTable:
    """A load whose arms, the rows of `luck`, have so many processes each, one after the other."""
    arms, processes = luck.shape
    own = np.arange(blocks) * processes // blocks
    rng = rng or np.random.default_rng(0)
    shared = rng.normal(0, 0.3, (blocks, 1))
    values = luck.T[own] + shared + rng.normal(0, noise, (blocks, arms))
    return ProcessTable(
        values=values,
        processes=own[:, None] + processes * np.arange(arms)[None, :],
        kinds=np.arange(arms) if kinds is None else np.array(kinds),
    )


def spread_of(*tables: ProcessTable) -> ProcessSpread:
    found = process_spread(tables)
    assert found is not None
    return found


def estimate() -> RatioEstimate:
    rng = np.random.default_rng(3)
    below = rng.lognormal(0, 0.2, 60)
    return paired_ratio(below * rng.lognormal(0, 0.05, 60), below, np.arange(60), resamples=200, seed=1)


def test_without_noise_the_variance_is_that_of_the_differences():
    """Two arms of three processes: half the sample variance of the three differences, with 2 degrees."""
    luck = np.array([[0.1, -0.2, 0.05], [0.0, 0.1, 0.3]])
    spread = spread_of(make_table(luck, 6))
    assert spread.variance == pytest.approx(np.var(luck[0] - luck[1], ddof=1) / 2)
    assert spread.degrees == pytest.approx(2.0)
    assert spread.processes == 6


def test_arms_are_pooled_and_loads_that_share_processes_count_once():
    """Four arms of three processes have 6 degrees of freedom at one load as at two, else 12."""
    luck = np.random.default_rng(1).normal(0, 0.1, (4, 3))
    one, other = make_table(luck, 6), make_table(luck, 9)
    apart = replace(other, processes=other.processes + 100)
    degrees = [spread_of(*tables).degrees for tables in ([one], [one, other], [one, apart])]
    assert degrees == pytest.approx([6.0, 6.0, 12.0])


def test_processes_of_equal_arms_are_of_one_kind():
    """A null arm adds a degree of freedom: what equal arms differ by is the luck of their processes."""
    luck = np.random.default_rng(1).normal(0, 0.1, (3, 3))
    assert spread_of(make_table(luck, 6)).degrees == pytest.approx(4.0)
    found = spread_of(make_table(luck, 6, kinds=(0, 1, 0)))
    assert found.degrees == pytest.approx(5.0)
    differences = luck - luck.mean(axis=0)
    differences[1] -= differences[1].mean()
    differences[[0, 2]] -= differences[[0, 2]].mean()
    assert found.variance == pytest.approx((differences**2).sum() / 5)


@pytest.mark.parametrize("true", [0.0, 0.02, 0.08])
def test_the_variance_is_right_on_average(true):
    """Over many draws, beside noise of 1 % a period: three arms with three processes at two loads."""
    rng = np.random.default_rng(7)
    found = []
    for _ in range(600):
        luck = rng.normal(0, true, (3, 3))
        loads = [make_table(luck, 6, noise=0.01, rng=rng, kinds=(0, 1, 0)) for _ in range(2)]
        found.append(spread_of(*loads).variance)
    assert np.mean(found) == pytest.approx(true**2, rel=0.1, abs=0.005**2)


@pytest.mark.parametrize("processes", [1, 6])
def test_nothing_is_told_of_one_process_or_of_one_a_block(processes):
    """One process is told from its arm by nothing, one a block from its block by nothing."""
    luck = np.random.default_rng(2).normal(0, 0.1, (3, processes))
    assert process_spread([make_table(luck, 6, noise=0.01)]) is None
    assert process_spread([]) is None


def test_each_process_has_the_weight_of_its_answers():
    """Three equal processes of each arm: 2/3; one answering half of them: more; a shared one: none."""
    three = np.repeat([0, 1, 2], 4)
    assert weigh_processes(three, three + 3) == pytest.approx(2 / 3)
    assert weigh_processes(np.repeat([0, 1], 6), three + 3) == pytest.approx(1 / 2 + 1 / 3)
    assert weigh_processes(three, three) == 0.0
    assert weigh_processes([], []) == 0.0


def test_the_variance_between_blocks_stands_for_processes_of_one_block():
    """Redrawn at every block nothing is to be added; of one process for all blocks, all of it."""
    blocks = np.repeat(np.arange(6), 4)
    assert weigh_processes(blocks, blocks + 6, blocks) == pytest.approx(0.0)
    one, two = np.zeros(24, dtype=int), blocks // 2
    assert weigh_processes(one, one + 1, blocks) == pytest.approx(2.0)
    assert 0.0 < weigh_processes(two, two + 6, blocks) < weigh_processes(two, two + 6)


def test_an_interval_takes_in_the_variance_with_its_degrees_of_freedom():
    """The squares of the errors add up; the degrees of freedom are Satterthwaite's; the value stays."""
    plain, spread = estimate(), ProcessSpread(variance=0.01, degrees=4.0, processes=9)
    assert plain.standard_error is not None
    mine = np.repeat([0, 1, 2], 20)
    wide = widen_by_processes(plain, spread, mine, mine + 3)
    assert wide.value == plain.value
    assert wide.standard_error == pytest.approx(math.sqrt(plain.standard_error**2 + 0.01 * 2 / 3))
    assert 4.0 < wide.degrees_of_freedom < 4.2
    assert (wide.low or 0.0) < (plain.low or 0.0)
    assert (wide.high or 0.0) > (plain.high or 0.0)


def test_what_is_not_known_widens_nothing():
    """No spread, no variance, or processes that both arms share: the estimate itself."""
    plain, mine = estimate(), np.zeros(60, dtype=int)
    known = ProcessSpread(variance=0.01, degrees=4.0, processes=9)
    assert widen_by_processes(plain, None, mine, mine + 1) is plain
    assert widen_by_processes(plain, replace(known, variance=0.0), mine, mine + 1) is plain
    assert widen_by_processes(plain, known, mine, mine) is plain
