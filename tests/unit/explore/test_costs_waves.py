"""What one wave tells: step times from full batches only, and what shows that nothing can be told."""

import msgspec
import pytest
from cost_builders import TOKENS, build_round_wave, build_wave
from tests.builders.records import MS_NS, build_failure, build_record, build_round

from draftproof.core.errors import EngineError
from draftproof.core.records import SpecCounts
from draftproof.explore.batches import cost_wave, count_drafted, find_full_rounds, find_full_window
from draftproof.services.engines.facts import Series

NO_SERIES = Series()
COUNTERS = Series(draft_tokens=("drafted_total",), draft_seconds=("d",), verify_seconds=("v",))


def test_a_token_is_a_step_where_none_is_accepted():
    """The step's time is the time per token, the median over the wave's requests."""
    cost = cost_wave(build_wave(step_ms=20.0, drafted=2 * (TOKENS - 1)), NO_SERIES)
    assert cost.step_ns == pytest.approx(20 * MS_NS)
    assert (cost.requests, cost.drafted, cost.from_rounds) == (2, 2.0, False)
    assert (cost.draft_ns, cost.verify_ns) == (None, None)


def test_ramp_and_tail_are_left_out():
    """Only the time in which all decode counts: steps before the last begins and near an end do not."""
    quick = build_record(
        ttft_ns=0, tokens_per_chunk=(1,) * TOKENS, gap_ns=[MS_NS] * 10 + [20 * MS_NS] * (TOKENS - 11)
    )
    late = build_record(
        ttft_ns=10 * MS_NS,
        tokens_per_chunk=(1,) * TOKENS,
        gap_ns=[20 * MS_NS] * (TOKENS - 4) + [500 * MS_NS] * 3,
    )
    wave = msgspec.structs.replace(build_wave(length=2), records=(quick, late))
    assert cost_wave(wave, NO_SERIES).step_ns == pytest.approx(20 * MS_NS)


def test_the_window_opens_with_the_last_first_token_and_closes_before_the_first_end():
    """From the latest first chunk to the earliest chunk that has K + 1 tokens still to come."""
    wave = build_wave(step_ms=10.0, begins_ms=(0, 30), length=2)
    assert find_full_window(wave.records, 2) == (80 * MS_NS, (50 + 10 * (TOKENS - 4)) * MS_NS)


def test_merged_chunks_are_counted_by_their_tokens():
    """A slow client that reads two steps at once does not make the step twice as long."""
    merged = build_record(ttft_ns=0, tokens_per_chunk=(2,) * (TOKENS // 2), gap_ns=40 * MS_NS)
    wave = msgspec.structs.replace(build_wave(batch=1, length=2), records=(merged,))
    assert cost_wave(wave, NO_SERIES).step_ns == pytest.approx(20 * MS_NS)


def test_a_batch_that_was_never_full_is_an_error():
    """Requests answered one after the other are no batch."""
    with pytest.raises(EngineError, match=r"never decoded 2 requests at once.*sequences"):
        cost_wave(build_wave(begins_ms=(0, 5000)), NO_SERIES)


def test_an_idle_drafter_is_an_error_and_an_uncounted_one_is_not_known():
    """No draft counted: error. Nothing counts drafts: None, not zero."""
    with pytest.raises(EngineError, match=r"does not draft 2 tokens a step but 0\.00"):
        cost_wave(build_wave(drafted=0), NO_SERIES)
    assert cost_wave(build_wave(), NO_SERIES).drafted is None
    assert cost_wave(build_wave(length=0), NO_SERIES).drafted is None


def test_drafts_are_counted_by_the_service_where_answers_are_silent():
    """The gain of a counter over the wave, per decode step and request; a counter that fell says nothing."""
    wave = build_wave(before={"drafted_total": 100.0}, after={"drafted_total": 100.0 + 78 * 1.5})
    assert count_drafted(wave, COUNTERS) == pytest.approx(1.5)
    assert count_drafted(msgspec.structs.replace(wave, after={"drafted_total": 1.0}), COUNTERS) is None
    idle = msgspec.structs.replace(wave, after={"drafted_total": 100.0})
    with pytest.raises(EngineError, match="does not draft"):
        cost_wave(idle, COUNTERS)


def test_accepted_drafts_are_an_error():
    """With accepted drafts a token is no step."""
    with pytest.raises(EngineError, match="accepted 60 drafts"):
        cost_wave(build_wave(drafted=78, accepted=30), NO_SERIES)


def test_failed_and_short_answers_are_errors():
    """A refused request and an answer that stops early end the experiment with their reason."""
    failed = msgspec.structs.replace(build_wave(), records=(build_failure(),))
    with pytest.raises(EngineError, match="http_error: http_error on purpose"):
        cost_wave(failed, NO_SERIES)
    short = msgspec.structs.replace(build_wave(), records=(build_record(tokens_per_chunk=(1,) * 9),))
    with pytest.raises(EngineError, match=r"ended after 9 tokens.*end of sequence"):
        cost_wave(short, NO_SERIES)


def test_a_device_timer_is_divided_by_the_steps_and_one_that_stands_still_is_none():
    """Seconds gained over a wave / its steps; an unmoved timer is not a time of zero."""
    steps = TOKENS - 1
    moved = build_wave(
        drafted=78, before={"d": 1.0, "v": 2.0}, after={"d": 1.0 + steps * 1e-3, "v": 2.0 + steps * 5e-3}
    )
    cost = cost_wave(moved, COUNTERS)
    assert [cost.draft_ns, cost.verify_ns] == pytest.approx([1e6, 5e6])
    still = msgspec.structs.replace(moved, after={"d": 1.0, "v": 2.0})
    assert cost_wave(still, COUNTERS).draft_ns is None


def test_rounds_are_read_in_place_of_arrivals():
    """Drafting, verification and the whole come from the engine's own record of full rounds."""
    cost = cost_wave(build_round_wave(draft_ms=3), NO_SERIES)
    assert cost.from_rounds
    assert cost.step_ns == pytest.approx(25 * MS_NS, abs=20)
    assert cost.draft_ns == pytest.approx(3 * MS_NS, abs=20)
    assert cost.verify_ns == pytest.approx(21 * MS_NS)
    assert (cost.steps, cost.drafted) == (12, 2.0)


def test_a_round_in_which_one_request_drafts_less_is_no_full_round():
    """Every request of the batch must have drafted K tokens, and no prompt may be in the round."""
    assert len(find_full_rounds(build_round_wave().records, 2, 2)) == 12
    assert find_full_rounds(build_round_wave(proposed=1).records, 2, 2) == []
    assert find_full_rounds(build_round_wave().records[:1], 2, 2) == []
    mixed = build_record(rounds=(build_round(proposed=2, prefill_tokens=7),))
    assert find_full_rounds((mixed,), 1, 2) == []
    with pytest.raises(EngineError, match=r"does not draft 2 tokens a step but 1\.50"):
        cost_wave(build_round_wave(proposed=1), NO_SERIES)


def test_rounds_of_smaller_batches_only_are_a_batch_never_full():
    """The sentence says how large the largest batch was."""
    wave = msgspec.structs.replace(build_round_wave(batch=2), batch=3)
    with pytest.raises(EngineError, match="largest batch was 2"):
        cost_wave(wave, NO_SERIES)


def test_without_a_fixed_acceptance_a_chunk_is_a_step():
    """Chunks of several tokens are one step each; drafts are counted per chunk."""
    counts = SpecCounts(20, 40, 40, (0, 0, 20))
    record = build_record(ttft_ns=0, tokens_per_chunk=(1, *(3,) * 20), gap_ns=30 * MS_NS, speculation=counts)
    wave = msgspec.structs.replace(build_wave(batch=1), records=(record,), synthetic=False)
    cost = cost_wave(wave, NO_SERIES)
    assert cost.step_ns == pytest.approx(30 * MS_NS)
    assert cost.drafted == pytest.approx(2.0)


def test_chunks_that_hold_several_steps_are_an_error():
    """An answer whose steps are told must have come in as many chunks, but for a few at its end."""
    counts = SpecCounts(20, 40, 0, (20,))
    merged = build_record(ttft_ns=0, tokens_per_chunk=(2,) * 20, gap_ns=30 * MS_NS, speculation=counts)
    wave = msgspec.structs.replace(build_wave(batch=1), records=(merged,), synthetic=False)
    with pytest.raises(EngineError, match="an answer of 39 steps came in 20 chunks"):
        cost_wave(wave, NO_SERIES)
