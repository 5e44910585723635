"""What is computed on columns is what its plain definition gives, whatever the values and their order."""

import math
from itertools import accumulate

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.builders.records import build_record

from draftproof.core.records import Chunk
from draftproof.judge.metrics.delivery import (
    BURST_SHARE_OF_PAUSE,
    collect_streams,
    find_burst_bound_ns,
)
from draftproof.judge.metrics.estimators import (
    Answers,
    gaps_of_chunks,
    span_over_tokens_minus_one,
)
from draftproof.judge.metrics.request import chunk_gaps_ns, count_output_tokens, tokens_per_chunk
from draftproof.judge.metrics.service import nearest_rank, percentile, token_weighted
from draftproof.judge.stats.quantiles import quantile_interval, quantile_intervals
from draftproof.judge.stats.resampling import assign_strata, draw_seeded_weights, draw_weights, index_labels
from draftproof.judge.stats.totals import sum_by_cluster

SHARES = st.floats(0, 1)
VALUES = st.lists(st.one_of(st.floats(0, 1e12), st.just(math.inf)), max_size=40)
LABELS = st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=3))
CHUNKS = st.lists(
    st.builds(Chunk, st.integers(0, 10**12), st.one_of(st.none(), st.integers(0, 400))),
    min_size=1,
    max_size=8,
)
ANSWERS = st.lists(CHUNKS.map(lambda chunks: build_record(chunks=tuple(chunks))), max_size=12)


@given(VALUES, SHARES)
def test_a_percentile_of_an_array_is_that_of_its_sorted_values(values, q):
    """Selecting a rank gives the value that sorting gives, failures at infinity included."""
    expected = sorted(values)[nearest_rank(len(values), q) - 1] if values else None
    assert percentile(np.array(values, dtype=np.float64), q) == expected == percentile(values, q)


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(-1, 5))), SHARES)
def test_a_token_weighted_percentile_counts_every_token(pairs, q):
    """The value is the one at the rank among values written out once per token."""
    reached = sorted(value for value, count in pairs for _ in range(count))
    expected = reached[nearest_rank(len(reached), q) - 1] if reached else None
    assert token_weighted([value for value, _ in pairs], [count for _, count in pairs], q) == expected


@given(LABELS)
def test_labels_are_numbered_in_sorted_order(labels):
    """Hashed labels get the numbers that sorting every row gives."""
    expected = np.unique(np.array(labels, dtype=str), return_inverse=True)[1].tolist()
    assert index_labels(np.array(labels, dtype=str)).tolist() == expected


@given(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 3)), min_size=1))
def test_clusters_with_the_same_strata_share_one(rows):
    """Two clusters lie in one stratum if they meet the same strata and enough others do."""
    clusters = index_labels([cluster for cluster, _ in rows])
    met: dict[int, set[int]] = {}
    for cluster, (_, stratum) in zip(clusters.tolist(), rows, strict=True):
        met.setdefault(cluster, set()).add(stratum)
    found = assign_strata(clusters, [stratum for _, stratum in rows]).tolist()
    kinds = [tuple(sorted(met[cluster])) for cluster in range(len(found))]
    for one in range(len(found)):
        for other in range(one):
            if kinds[one] == kinds[other]:
                assert found[one] == found[other]
    shared = [kind for kind in kinds if kinds.count(kind) > 1]
    if len(shared) == len(kinds):
        assert len(set(found)) == len(set(kinds))


@given(st.lists(st.integers(0, 2), min_size=2, max_size=9), st.integers(0, 2**32 - 1))
def test_remembered_draws_are_those_of_the_seed(groups, seed):
    """Weights of a seed are the same bits whether they are drawn or remembered."""
    strata = index_labels([*groups, *groups])
    expected = draw_weights(strata, 7, np.random.default_rng(seed))
    for _ in range(2):
        assert np.array_equal(draw_seeded_weights(strata, 7, seed), expected)


@given(st.lists(st.tuples(st.floats(-1e9, 1e9), st.sampled_from("abc"))))
def test_totals_of_clusters_are_summed_without_rounding(rows):
    """Each total is the exact sum of its own rows."""
    totals = sum_by_cluster([y for y, _ in rows], [1.0] * len(rows), [name for _, name in rows])
    for name, total in zip(totals.labels, totals.above, strict=True):
        assert total == math.fsum(y for y, own in rows if own == name)


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=90), st.data())
def test_several_quantiles_are_each_what_one_alone_is(values, data):
    """Sorting once changes no interval."""
    labels = data.draw(st.lists(st.sampled_from("abcd"), min_size=len(values), max_size=len(values)))
    several = quantile_intervals(values, (0.5, 0.95), 0.95, np.array(labels))
    assert several == tuple(quantile_interval(values, q, 0.95, np.array(labels)) for q in (0.5, 0.95))


@given(ANSWERS)
def test_streams_hold_what_each_answer_holds(answers):
    """Gaps, tokens and their completeness are those of the answers one by one."""
    streams = collect_streams(answers)
    assert streams.gaps_ns.tolist() == [gap for record in answers for gap in chunk_gaps_ns(record)]
    assert streams.counted.tolist() == [tokens_per_chunk(record) is not None for record in answers]
    ends = list(accumulate(streams.sizes.tolist(), initial=0))
    for record, start, end in zip(answers, ends, ends[1:], strict=False):
        expected = tokens_per_chunk(record) or (0,) * len(record.chunks)
        assert tuple(streams.tokens[start:end].tolist()) == expected


def find_pause_ns(gaps_ns):
    """Return the gap up to which half of the time passes, None where none passes."""
    reached = accumulate(sorted(gaps_ns))
    found = [gap for gap, passed in zip(sorted(gaps_ns), reached, strict=True) if 2 * passed >= sum(gaps_ns)]
    return next((gap for gap in found if gap > 0), None)


def mean_chunk_gap(record):
    """Return the mean gap between the chunks of one request."""
    gaps = chunk_gaps_ns(record)
    return sum(gaps) / len(gaps) if gaps else None


def mean_span_per_token(record):
    """Return (last − first chunk) / (N − 1) of one request with two chunks and two tokens."""
    tokens = count_output_tokens(record) or 0
    return sum(chunk_gaps_ns(record)) / (tokens - 1) if tokens > 1 and len(record.chunks) > 1 else None


@given(ANSWERS)
def test_the_bound_of_a_burst_is_a_tenth_of_the_median_pause(answers):
    """Pauses found for all answers at once are those of each answer."""
    gaps = [found for record in answers if (found := chunk_gaps_ns(record))]
    pauses = [pause for each in gaps if (pause := find_pause_ns(each)) is not None]
    middle = percentile(pauses, 0.5)
    expected = (0.0 if gaps else None) if middle is None else BURST_SHARE_OF_PAUSE * middle
    assert find_burst_bound_ns(answers) == expected


@pytest.mark.parametrize(
    ("mean", "sample"),
    [(mean_chunk_gap, gaps_of_chunks), (mean_span_per_token, span_over_tokens_minus_one)],
)
@given(CHUNKS)
def test_an_estimator_of_one_request_is_the_mean_of_its_sample(mean, sample, chunks):
    """The closed form of one request is the mean over what the estimator pools."""
    record = build_record(chunks=tuple(chunks))
    values = sample(Answers([record])).values.tolist()
    assert mean(record) == (sum(values) / len(values) if values else None)
