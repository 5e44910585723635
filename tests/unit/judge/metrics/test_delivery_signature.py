"""The delivery signature: hand-computed figures, bursts, and a hint that never says more than it may."""

from itertools import accumulate

import pytest
from tests.builders.records import MS_NS, build_failure, build_record

from draftproof.core.records import Chunk, ToolCall
from draftproof.judge.metrics.delivery import (
    count_arrivals,
    describe_hint,
    find_burst_bound_ns,
    find_hint,
    summarise_delivery,
)

TOGETHER_NS = 30_000


def build_burst(item_id="item-1", groups=3, size=4):
    """An answer whose chunks of one token arrive `size` at once, then nothing for 60 ms."""
    gaps = [*([TOGETHER_NS] * (size - 1)), 60 * MS_NS] * groups
    return build_record(item_id=item_id, tokens_per_chunk=(1,) * (size * groups), gap_ns=gaps[:-1])


def strip_counts(record, **fields):
    import msgspec

    chunks = tuple(Chunk(chunk.arrival_ns, None) for chunk in record.chunks)
    return msgspec.structs.replace(record, chunks=chunks, token_source=None, **fields)


def test_figures_are_pooled_over_chunks_as_counted_by_hand():
    """Tokens / chunks is pooled, first chunks are averaged, gaps are nearest-rank, failures are left out."""
    records = [
        build_record(
            tokens_per_chunk=(1, 3, 3, 1), gap_ns=(10 * MS_NS, 20 * MS_NS, 30 * MS_NS), text="a" * 12
        ),
        build_record(item_id="item-2", tokens_per_chunk=(2, 2), gap_ns=40 * MS_NS, text="b" * 6),
        build_failure(item_id="item-3"),
    ]
    found = summarise_delivery(records)
    assert (found.requests, found.chunks, found.counted_requests, found.counted_by) == (2, 6, 2, "per_chunk")
    assert found.tokens_per_chunk == pytest.approx(12 / 6)
    assert found.first_chunk_tokens == pytest.approx(1.5)
    assert found.several_tokens_share == pytest.approx(4 / 6)
    assert found.characters_per_chunk == pytest.approx(18 / 6)
    assert (found.gap_p10_ns, found.gap_p50_ns, found.gap_p99_ns) == (10 * MS_NS, 20 * MS_NS, 40 * MS_NS)
    assert found.burst_gap_share == 0.0
    assert found.chunks_per_arrival == 1.0


def test_the_pause_is_where_the_time_passes_not_where_the_gaps_are():
    """Three gaps of four are tiny, yet the pause is the fourth, so the three are bursts."""
    found = summarise_delivery([build_burst(), build_burst("item-2")])
    assert found.pause_ns == 60 * MS_NS
    assert found.burst_gap_share == pytest.approx(9 / 11)
    assert found.chunks_per_arrival == pytest.approx(4.0)
    assert found.tokens_per_arrival == pytest.approx(4.0)
    assert found.tokens_per_chunk == 1.0
    assert find_hint(found) == "bursts"


@pytest.mark.parametrize(
    ("gaps", "pause"), [((5, 5, 5), 5), ((1, 1, 1, 97), 97), ((0, 0), None), ((), None), ((0, 4), 4)]
)
def test_pause_of_one_stream(gaps, pause):
    """Half of the time passes in gaps up to the pause; no time, no pause."""
    chunks = tuple(Chunk(at, None) for at in accumulate(gaps, initial=0))
    found = summarise_delivery([build_record(chunks=chunks)]).pause_ns
    assert found == (pause if pause is not None or not gaps else 0.0)


def test_one_stalled_answer_does_not_period_ordinary_gaps_into_bursts():
    """A stall of ten seconds in one answer of five leaves the bound where it is."""
    even = [build_record(item_id=f"item-{n}", tokens_per_chunk=(1,) * 6) for n in range(4)]
    stalled = build_record(item_id="item-9", gap_ns=(20 * MS_NS, 10_000 * MS_NS, 20 * MS_NS))
    assert find_burst_bound_ns([*even, stalled]) == pytest.approx(2 * MS_NS)
    assert summarise_delivery([*even, stalled]).burst_gap_share == 0.0


def test_chunks_that_all_arrive_at_one_instant_are_one_arrival():
    """Where every gap is 0 all chunks came together; without a second chunk nothing can be said."""
    record = build_record(tokens_per_chunk=(1,) * 5, gap_ns=0)
    found = summarise_delivery([record])
    assert (found.burst_gap_share, found.chunks_per_arrival, found.pause_ns) == (1.0, 5.0, 0.0)
    assert count_arrivals(record, 0.0) == 1
    lone = summarise_delivery([build_record(tokens_per_chunk=(9,))])
    assert (lone.burst_gap_share, lone.chunks_per_arrival, lone.gap_p50_ns) == (None, None, None)
    assert lone.tokens_per_chunk == 9.0


def test_tokens_come_from_the_final_usage_where_chunks_are_not_counted():
    """Without counts per chunk the total still gives the mean; nothing else that needs counts is guessed."""
    found = summarise_delivery([strip_counts(build_record(tokens_per_chunk=(1, 4, 4)))])
    assert (found.counted_by, found.tokens_per_chunk) == ("final_usage", 3.0)
    assert found.first_chunk_tokens is None
    assert found.several_tokens_share is None
    assert "by the final usage" in describe_hint(found)


def test_without_any_count_only_characters_remain():
    """No usage at all: tokens are None, characters of text, reasoning and tool calls are counted."""
    calls = (ToolCall(name="find", arguments="{}"),)
    bare = strip_counts(
        build_record(tokens_per_chunk=(1, 1)),
        output_tokens=None,
        text="a" * 20,
        reasoning_text="b" * 8,
        tool_calls=calls,
    )
    found = summarise_delivery([bare])
    assert (found.counted_by, found.tokens_per_chunk, found.tokens_per_arrival) == (None, None, None)
    assert found.characters_per_chunk == 17.0
    assert find_hint(found) == "bundled_chunks"
    assert "tokens not counted" in describe_hint(found)


@pytest.mark.parametrize(
    ("records", "hint"),
    [
        ([], "unknown"),
        ([build_failure()], "unknown"),
        ([build_record(tokens_per_chunk=(1,) * 8)], "no_sign"),
        ([build_record(tokens_per_chunk=(1, 1, 2, 1, 1, 1, 1, 1))], "no_sign"),
        ([build_record(tokens_per_chunk=(1, 3, 4, 2))], "bundled_chunks"),
        ([build_burst()], "bursts"),
        (
            [build_record(tokens_per_chunk=(1, 3, 3, 3), gap_ns=(TOGETHER_NS, 60 * MS_NS, TOGETHER_NS))],
            "bundled_chunks_and_bursts",
        ),
    ],
)
def test_the_hint_names_what_was_seen_and_is_always_labelled(records, hint):
    """A hint says that it is one and never speaks of acceptance as known."""
    found = summarise_delivery(records)
    assert find_hint(found) == hint
    text = describe_hint(found)
    assert text.startswith("Hint")
    assert ("looks bundled" in text) == (hint not in {"unknown", "no_sign"})
    if "looks bundled" in text:
        assert "no proof" in text
        assert "nothing about acceptance follows" in text
