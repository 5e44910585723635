"""Decode steps from llama.cpp's timings: exact where every step is seen, None where one may be hidden."""

from draftproof.core.records import SpecCounts
from draftproof.services.engines.chat.frames import EngineBlocks, Timings
from draftproof.services.engines.llamacpp import LLAMACPP


def read(*rows):
    """Read blocks given as (tokens, milliseconds, drafted, accepted)."""
    timings = (
        Timings(
            prompt_n=5,
            prompt_ms=20.5,
            predicted_n=tokens,
            predicted_ms=at_ms,
            draft_n=drafted,
            draft_n_accepted=accepted,
        )
        for tokens, at_ms, drafted, accepted in rows
    )
    return LLAMACPP.read_blocks(EngineBlocks(timings=tuple(timings)))


def test_tokens_of_one_time_are_one_step():
    """Three tokens of one time are one verification step; the first token is of the prefill."""
    reading = read(
        *((1, 0.001, None, None), (2, 6.0, None, None)),
        *((3, 9.5, 3, 2), (4, 9.5, 3, 2), (5, 9.5, 3, 2)),
        *((6, 13.0, 6, 2), (6, 13.0, 6, 2)),
    )
    assert reading.decode_steps == 3
    assert reading.speculation == SpecCounts(2, 6, 2, (1, 0, 1), (3, 3), (2, 0))
    assert (reading.server.prefill_ns, reading.server.decode_ns) == (20_500_000, 13_000_000)
    assert reading.warnings == ()


def test_no_draft_counters_mean_that_nothing_was_drafted():
    """The server leaves zeros out: an answer without drafts has counters of zero, not unknown ones."""
    reading = read((1, 0.001, None, None), (2, 5.0, None, None), (3, 10.0, None, None))
    assert reading.decode_steps == 2
    assert reading.speculation == SpecCounts(0, 0, 0)


def test_a_stop_inside_an_accepted_prefix_is_one_step():
    """Of four accepted drafts one was kept before the end: one step, counted as the server counts it."""
    reading = read((1, 0.001, None, None), (2, 5.0, 4, 4), (3, 5.0, 4, 4))
    assert reading.decode_steps == 1
    assert reading.speculation == SpecCounts(1, 4, 4, (0, 0, 0, 0, 1), (4,), (4,))


def test_withheld_ordinary_steps_are_counted():
    """A character of three tokens comes in one chunk; without drafts each token was a step."""
    reading = read((1, 0.001, None, None), (4, 15.0, None, None), (5, 20.0, None, None))
    assert reading.decode_steps == 4
    assert reading.speculation == SpecCounts(0, 0, 0)


def test_a_withheld_step_among_drafts_hides_the_verification_steps():
    """Two steps in one gap drafted four tokens, one or both of them: steps are known, verifications not."""
    reading = read((1, 0.001, None, None), (4, 11.0, 4, 1), (5, 15.0, 4, 1))
    assert reading.decode_steps == 3
    assert reading.speculation is None


def test_a_withheld_tail_of_a_verification_step_is_no_further_step():
    """The last of four tokens came with the next step's chunk: two steps, though gaps hold 3 and 2 tokens."""
    reading = read((1, 0.001, None, None), (4, 9.0, 3, 3), (6, 12.0, 3, 3))
    assert reading.decode_steps == 2
    assert reading.speculation is None


def test_withheld_text_inside_one_step_hides_nothing():
    """Four tokens of one time are one step, in however many chunks they come."""
    reading = read((1, 0.001, None, None), (2, 9.0, 3, 3), (5, 9.0, 3, 3))
    assert reading.decode_steps == 1
    assert reading.speculation == SpecCounts(1, 3, 3, (0, 0, 0, 1), (3,), (3,))


def test_where_a_stop_may_have_cut_a_hidden_step_nothing_is_said():
    """Accepted drafts after withheld text may not all be in the answer: the steps are not known."""
    reading = read((1, 0.001, None, None), (3, 11.0, 4, 1), (5, 15.0, 8, 4))
    assert (reading.decode_steps, reading.speculation) == (None, None)


def test_a_withheld_first_token_is_still_of_the_prefill():
    """An answer whose first chunk has three tokens took two decode steps for it."""
    assert read((3, 10.0, None, None), (4, 15.0, None, None)).decode_steps == 3


def test_one_block_at_the_end_tells_times_only():
    """A server that was not asked for timings at every token tells nothing of steps."""
    reading = read((40, 200.0, 30, 20))
    assert (reading.speculation, reading.decode_steps) == (None, None)
    assert reading.server.decode_ns == 200_000_000


def test_timings_of_two_choices_are_named_and_not_read():
    """Counts that fall belong to two answers; a step made of both would be neither."""
    reading = read((1, 0.001, None, None), (2, 5.0, None, None), (1, 0.001, None, None))
    assert reading.decode_steps is None
    assert "more than one answer" in reading.warnings[0]


def test_blocks_without_counts_tell_nothing():
    """A release that renames its fields is no error and no zero."""
    reading = LLAMACPP.read_blocks(EngineBlocks(timings=(Timings(), Timings())))
    assert (reading.speculation, reading.decode_steps, reading.warnings) == (None, None, ())
    assert LLAMACPP.read_blocks(EngineBlocks()).server.decode_ns is None
