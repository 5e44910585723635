"""What a verdict computes on columns is what plain Python reads off the same requests one by one."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.builders.records import build_record

from draftproof.core.records import Chunk, SpecCounts
from draftproof.judge.metrics.acceptance import pool_acceptance
from draftproof.judge.metrics.request import compute_request_metrics
from draftproof.judge.metrics.service import evaluate_times, is_on_time
from draftproof.judge.observe.columns import number_rows
from draftproof.judge.stats.bootstrap import _weighted_median
from draftproof.judge.stats.quantile_ratio import _count_top, _cut_tail, _split_top, _Tail, _weigh_top
from draftproof.judge.stats.resampling import draw_weights
from draftproof.plan.schema import Objectives

ROWS = st.integers(2, 300)
SEEDS = st.integers(0, 2**32 - 1)
LIMITS_MS = st.one_of(st.none(), st.integers(1, 40))
CHUNKS = st.lists(
    st.builds(Chunk, st.integers(0, 40_000_000), st.one_of(st.none(), st.integers(0, 9))), max_size=3
)
COUNTS = st.lists(st.integers(0, 3), min_size=1, max_size=3).map(
    lambda histogram: SpecCounts(
        sum(histogram),
        3 * sum(histogram),
        sum(place * steps for place, steps in enumerate(histogram)),
        tuple(histogram),
    )
)


def plain_median(values, index, weights):
    """Return the smallest value at which the weights of the sorted rows reach half, draw by draw."""
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[:, index[order]], axis=1)
    return values[order][np.argmax(reached >= 0.5 * reached[:, -1:] * (1 - 1e-12), axis=1)]


@given(rows=ROWS, clusters=st.integers(2, 20), ties=st.booleans(), is_stratified=st.booleans(), seed=SEEDS)
@settings(deadline=None)
def test_a_drawn_median_is_that_of_walking_all_rows(rows, clusters, ties, is_stratified, seed):
    """Stretch by stretch the median of every draw is the one that all its rows in order give."""
    rng = np.random.default_rng(seed)
    index = rng.integers(0, clusters, rows)
    index[:clusters] = np.arange(min(clusters, rows))
    clusters = int(index.max()) + 1
    strata = np.arange(clusters) % 2 if is_stratified and clusters >= 4 else np.zeros(clusters, dtype=np.intp)
    weights = draw_weights(strata, 20, rng)
    values = rng.gamma(3.0, 2.0, rows).round(0 if ties else 9) + 1.0
    assert _weighted_median(values, index, weights).tolist() == plain_median(values, index, weights).tolist()


@given(rows=ROWS, q=st.sampled_from([0.5, 0.9, 0.95]), ties=st.booleans(), shift=st.floats(-3, 3), seed=SEEDS)
@settings(deadline=None)
def test_the_top_of_both_arms_needs_only_the_largest_of_each(rows, q, ties, shift, seed):
    """Each cluster has as many values in the common top as it has among all values of both arms."""
    rng = np.random.default_rng(seed)
    above, below = rng.normal(0, 1, (2, rows)).round(1 if ties else 12)
    above[rng.random(rows) < 0.02] = np.inf
    index, top = np.arange(rows) % max(1, rows // 3), max(1, round(2 * rows * (1 - q)))
    shift = round(shift, 1) if ties else shift
    every = _Tail(above, below, index, index, int(index.max()) + 1, top, ([], []), {})
    for found, wanted in zip(
        _split_top(_cut_tail(above, below, index, top), shift), _split_top(every, shift), strict=True
    ):
        assert found.tolist() == wanted.tolist()


@given(rows=ROWS, q=st.sampled_from([0.5, 0.9, 0.95]), ties=st.booleans(), seed=SEEDS)
@settings(deadline=None)
def test_a_top_that_was_met_before_is_counted_as_if_it_were_new(rows, q, ties, seed):
    """However an arm is moved, ties included, what is kept of a top is what counting it anew gives."""
    rng = np.random.default_rng(seed)
    above, below = rng.normal(0, 1, (2, rows)).round(1 if ties else 12)
    above[rng.random(rows) < 0.02] = np.inf
    index, top = np.arange(rows) % max(1, rows // 3), max(1, round(2 * rows * (1 - q)))
    tail = _cut_tail(above, below, index, top)._replace(weights=(0.9, 1.1))
    for shift in rng.uniform(-3, 3, 40).round(1 if ties else 12).tolist():
        assert _count_top(tail, shift) == _weigh_top(tail, shift)


@given(
    requests=st.lists(st.tuples(CHUNKS, st.booleans(), st.one_of(st.none(), st.integers(0, 9))), max_size=8),
    ttft_ms=LIMITS_MS,
    tpot_ms=LIMITS_MS,
    e2e_ms=LIMITS_MS,
)
@settings(deadline=None)
def test_requests_are_on_time_on_columns_as_one_by_one(requests, ttft_ms, tpot_ms, e2e_ms):
    """A column of answers tells of each request what its record and metrics tell."""
    records = [
        build_record(chunks=tuple(chunks), outcome="ok" if is_ok else "timeout", output_tokens=tokens)
        for chunks, is_ok, tokens in requests
    ]
    measured = [compute_request_metrics(record, 10**9) for record in records]
    objectives = Objectives(ttft_ms=ttft_ms, tpot_ms=tpot_ms, e2e_ms=e2e_ms)
    found = evaluate_times(
        np.array([record.outcome == "ok" for record in records], dtype=np.bool_),
        np.array([len(record.chunks) for record in records], dtype=np.intp),
        ttft_ns=np.array([one.ttft_from_schedule_ns for one in measured], dtype=np.float64),
        tpot_ns=np.array([one.tpot_ns for one in measured], dtype=np.float64),
        tpot_most_ns=np.array([one.tpot_most_ns for one in measured], dtype=np.float64),
        e2e_ns=np.array([one.e2e_from_schedule_ns for one in measured], dtype=np.float64),
        tokens=np.array([one.output_tokens for one in measured], dtype=np.float64),
        objectives=objectives,
    )
    plain = [is_on_time(record, one, objectives) for record, one in zip(records, measured, strict=True)]
    assert [None if np.isnan(state) else bool(state) for state in found] == plain


@given(st.lists(COUNTS, min_size=1, max_size=12))
@settings(deadline=None)
def test_pooled_histograms_are_added_step_by_step(counts):
    """Histograms that occur several times count as often as they occur."""
    pooled = pool_acceptance([build_record(speculation=one) for one in counts])
    longest = (
        max(len(one.acceptance_histogram) for one in counts if one.num_spec_steps)
        if any(one.num_spec_steps for one in counts)
        else 0
    )
    wanted = [
        sum(one.acceptance_histogram[place] for one in counts if place < len(one.acceptance_histogram))
        for place in range(longest)
    ]
    assert pooled is not None
    assert list(pooled.acceptance_histogram) == wanted


@given(st.lists(st.tuples(st.integers(-3, 2**61), st.integers(0, 2**61), st.integers(0, 3)), max_size=12))
@settings(deadline=None)
def test_rows_have_one_number_where_all_their_parts_are_equal(rows):
    """Numbers of rows are equal, and in order, as the tuples of their parts are."""
    parts = [np.array([row[place] for row in rows], dtype=np.intp) for place in range(3)]
    numbers = number_rows(*parts).tolist()
    for one, mine in zip(rows, numbers, strict=True):
        for other, theirs in zip(rows, numbers, strict=True):
            assert (one == other, one < other) == (mine == theirs, mine < theirs)
