"""Effects, votes and coverage read off columns are those read off the pairs one by one."""

import numpy as np
import pytest
from tests.builders.runs import Layout, Requests, build_run, order_periods

from draftproof.judge.decide.counting import count_hidden
from draftproof.judge.decide.effects import (
    METRICS,
    compare_arms,
)
from draftproof.judge.decide.guardrails import QUANTITIES, compute_differences, count_votes
from draftproof.judge.observe.pairs import DECISIVE, NULL, pair_observations
from draftproof.judge.observe.run_data import ALL_SEGMENTS, prepare_run


def read(seen, metric):
    """Return a request's own metric if it is answered, positive, and its times run forwards."""
    value = getattr(seen.metrics, metric)
    return value if seen.is_ok and seen.in_order and value is not None and value > 0 else None


def in_cell(pairs, segment, load):
    """Return the pairs of a cell, one by one."""
    return [pair for pair in pairs if pair.load == load and segment in (ALL_SEGMENTS, pair.segment)]


@pytest.fixture(scope="module")
def prepared():
    """Return a run in which some requests failed."""
    layout, rng = Layout(prompts=12, block_size=4), np.random.default_rng(3)
    drawn = {
        (arm, segment, load): Requests(
            tpot_ms=rng.gamma(9.0, 5.0, 12),
            ttft_ms=rng.gamma(9.0, 9.0, 12),
            tokens=rng.integers(1, 40, 12),
            is_ok=rng.random(12) > 0.1,
        )
        for arm in layout.arms
        for segment in layout.segments
        for load, _ in layout.loads
    }
    return prepare_run(build_run(layout, drawn, order_periods(layout, rng)))


@pytest.mark.parametrize("metric", METRICS)
def test_an_effect_is_that_of_its_usable_pairs(prepared, metric):
    """Every cell's ratio is the one of its pairs, each held against the mean of two equal answers."""
    null = pair_observations(prepared)[NULL]
    twins = {pair.versus.record.request_id: pair.arm for pair in null if pair.arm.timed}
    pairs = pair_observations(prepared)[DECISIVE]
    for effect in compare_arms(prepared, pairs, DECISIVE, metric, prepared.columns.metric(metric)):
        cell = (effect.segment, effect.load)
        seen = [pair for pair in in_cell(list(pairs), *cell) if pair.timed]
        both = [(read(pair.arm, metric), read(pair.versus, metric), pair) for pair in seen]
        known = [
            (above, (below + (twin if twin is not None else below)) / 2, pair.item_id)
            for above, below, pair in both
            if None not in (above, below)
            for other in [twins.get(pair.versus.record.request_id)]
            for twin in [None if other is None else read(other, metric)]
        ]
        ratio = sum(above for above, _, _ in known) / sum(below for _, below, _ in known)
        assert effect.ratio.value == pytest.approx(ratio)
        assert (effect.pairs, effect.prompts) == (len(known), len({item for _, _, item in known}))


@pytest.mark.parametrize("quantity", QUANTITIES)
def test_votes_are_those_of_the_pairs(prepared, quantity):
    """Every difference is based on one vote for each prompt that both arms have a state of."""
    is_judged = {
        "failed_share": lambda _: True,
        "passed_share": lambda pair: None not in (pair.arm.is_passed, pair.versus.is_passed),
        "limit_share": lambda pair: (
            pair.is_ok and {pair.arm.record.finish_reason} | {pair.versus.record.finish_reason} != {None}
        ),
    }
    pairs = pair_observations(prepared)
    for one in compute_differences(prepared, pairs):
        if one.quantity == quantity:
            inside = pairs[one.arm, one.versus].cell(one.segment, one.load)
            judged = [pair for pair in inside if is_judged[quantity](pair)]
            assert one.difference.n == len({pair.item_id for pair in judged})
            assert sum(count_votes(inside, quantity).values()) == one.difference.n


def test_hidden_metrics_are_counted_in_answered_pairs(prepared):
    """A metric is hidden where the partner shows it and the arm does not."""
    pairs = pair_observations(prepared)[DECISIVE]
    for (segment, load), covered in count_hidden(prepared, pairs).items():
        inside = [pair for pair in in_cell(list(pairs), segment, load) if pair.is_ok and pair.timed]
        for one in covered:
            known = [pair for pair in inside if read(pair.versus, one.metric) is not None]
            hidden = sum(read(pair.arm, one.metric) is None for pair in known)
            assert (one.known, one.hidden) == (len(known), hidden)


def test_places_of_a_cell_are_those_of_its_observations(prepared):
    """A cell's columns hold its own observations in their order."""
    for segment in (ALL_SEGMENTS, *prepared.segments):
        places = prepared.indices_of("candidate", "high", segment)
        found = [prepared.observations[place] for place in places.tolist()]
        assert found == prepared.of_arm("candidate", "high", segment)
        gaps = [gap for one in found for gap in one.metrics.icl_ns]
        assert prepared.columns.gaps_of(places).tolist() == gaps
