"""Sampled equivalence in worlds of known truth: equal distributions, and four ways of being another."""

import random

import msgspec
import pytest
from output_worlds import (
    LIMIT,
    OutputWorld,
    Said,
    baseline_draw,
    draw_length,
    hotter_draw,
    sample,
    sampled_world,
)
from scipy import stats

from draftproof.core.records import Withheld, WithheldSequence
from draftproof.judge.decide.equivalence.assess import compute_equivalence, units_needed
from draftproof.judge.inform.unmeasured import list_unmeasured
from draftproof.judge.observe.pairs import pair_observations
from draftproof.judge.observe.run_data import prepare_run

ONE_LOAD = (("single", 1),)


def biased(rng):
    """One token of eight three and a half times as likely as it should be."""
    return sample(rng, weights=(8, 4, 2, 1, 1, 1, 1, 4), length=draw_length)


def truncated(rng):
    """The limit on tokens comes at 14 of 24."""
    said = baseline_draw(rng)
    ids = said.token_ids[:14]
    return Said(ids, finish="length" if len(said.token_ids) > 14 else "stop")


def stuck(rng):
    """Starts every answer with the same token."""
    said = baseline_draw(rng)
    return said._replace(token_ids=[0, *said.token_ids[1:]])


def shown(row):
    return {test.statistic for test in row.tests if test.differs}


def test_equal_distributions_are_tested_and_the_size_is_stated():
    """Independent draws from one distribution: no statistic differs, and d is that of the mean length."""
    row = sampled_world(candidate=baseline_draw).rows()["candidate", "all loads"]
    assert row.status == "tested"
    assert row.bound_of == "mean_length"
    assert 0.0 < row.difference_bound < 0.3
    assert row.phrase.startswith("tested: no difference larger than ")
    assert row.phrase.endswith(
        "% in the mean length of sampled answers seen at 12 prompts with 96 paired draws"
    )


@pytest.mark.parametrize(
    ("candidate", "expected"),
    [
        (hotter_draw, {"distinct_share", "repeated_share", "bigram_distance"}),
        (biased, {"bigram_distance"}),
        (truncated, {"output_tokens", "finish_reason"}),
        (stuck, {"first_token"}),
    ],
)
def test_another_distribution_is_found_by_the_statistic_that_sees_it(candidate, expected):
    """More temperature, one token too likely, answers cut, a fixed beginning: alone, so the algorithm."""
    row = sampled_world(candidate=candidate, prompts=30, repeats=6, loads=ONE_LOAD).rows()[
        "candidate", "single"
    ]
    assert expected & shown(row)
    assert row.phrase == "differs: algorithm"


def count_false_alarms(trials, **more):
    found = 0
    for trial in range(trials):
        rows = sampled_world(candidate=baseline_draw, trial=trial, loads=ONE_LOAD, **more).rows()
        found += rows["candidate", "single"].status == "differs"
    return found


def test_false_alarms_stay_at_their_level():
    """Equal distributions over 80 runs: all tests of an arm together hold 5 %, within noise."""
    alarms = count_false_alarms(80, prompts=8, repeats=2)
    assert stats.binomtest(alarms, 80, 0.05, alternative="greater").pvalue > 0.005


@pytest.mark.slow
def test_false_alarms_over_a_thousand_runs():
    """The long form: 5 % in all, within noise."""
    alarms = count_false_alarms(1000, prompts=8, repeats=3)
    assert stats.binomtest(alarms, 1000, 0.05, alternative="greater").pvalue > 0.005


def test_a_seed_that_both_arms_share_keeps_the_level():
    """Arms that draw with the same seed are equal or nearly so: nothing is shown to differ."""

    def answer(asked):
        rng = random.Random(repr((asked.repeat, asked.number)))  # noqa: S311
        said = baseline_draw(rng)
        other = asked.arm == "candidate" and asked.number == 0
        return said._replace(token_ids=[7, *said.token_ids[1:]]) if other else said

    row = OutputWorld(answer=answer, temperature=0.8, repeats=4, prompts=12).rows()["candidate", "all loads"]
    assert row.status == "tested"


def test_sampled_answers_that_are_all_the_same_have_an_exact_limit():
    """A seed that both arms follow gives the same words: the limit is that of prompts, however few."""

    def answer(asked):
        return baseline_draw(random.Random(repr((asked.repeat, asked.number))))  # noqa: S311

    world = OutputWorld(answer=answer, temperature=0.8, repeats=2, prompts=3, loads=ONE_LOAD)
    row = world.rows()["candidate", "single"]
    assert (row.status, row.bound_of, row.n) == ("tested", "differing_prompts", 3)
    assert row.difference_bound == pytest.approx(1 - 0.05 ** (1 / 3))
    assert "of sampled prompts seen at 3 prompts, every answer the same" in row.phrase


def test_a_service_that_ignores_the_seed_shows_one_draw_a_prompt():
    """Every repeat word for word the same: five repeats of eight prompts are eight draws, not forty."""

    def answer(asked):
        return baseline_draw(random.Random(repr((asked.arm, asked.number))))  # noqa: S311

    row = OutputWorld(answer=answer, temperature=0.8, repeats=5, prompts=8, loads=ONE_LOAD).rows()[
        "candidate", "single"
    ]
    assert row.sampled_draws == 8
    assert not shown(row)


def test_too_few_draws_are_unknown_and_say_how_many_more():
    """Two prompts drawn once: 4 patterns of swaps cannot show anything at 5 %."""
    row = sampled_world(candidate=stuck, prompts=2, repeats=1, loads=ONE_LOAD).rows()["candidate", "single"]
    assert row.status == "unknown"
    assert "more paired draws are needed" in row.phrase
    assert {test.differs for test in row.tests} == {None}


def test_what_repeated_draws_would_tell_is_named_only_without_them():
    """The list of what was not measured asks for repeats of sampled prompts, and not once they are there."""
    ask = "Whether sampled outputs follow the same distribution: that needs repeated draws."
    told = {
        repeats: list(
            list_unmeasured(
                prepare_run(sampled_world(candidate=baseline_draw, prompts=2, repeats=repeats).run())
            )
        )
        for repeats in (1, 2)
    }
    assert (ask in told[1], ask in told[2]) == (True, False)


def test_units_needed_are_those_of_the_smallest_p_value():
    """2^(1−n) ≤ 0.05 / 6 from n = 8 on; one-sided one fewer."""
    assert units_needed(0.05 / 6, two_sided=True) == 8
    assert 2.0 ** (1 - 8) <= 0.05 / 6 < 2.0 ** (1 - 7)
    assert units_needed(0.05 / 6, two_sided=False) == 7


def test_a_null_that_shifts_alike_takes_the_blame_from_the_algorithm():
    """Where the baseline's second process draws otherwise as well, no cause is claimed."""

    def answer(asked):
        rng = random.Random(repr(asked))  # noqa: S311
        return baseline_draw(rng) if asked.arm == "baseline" else truncated(rng)

    world = OutputWorld(
        answer=answer,
        temperature=0.8,
        repeats=6,
        prompts=20,
        loads=ONE_LOAD,
        contracts={"candidate": "guaranteed by method"},
    )
    row = world.rows()["candidate", "single"]
    assert (row.phrase, row.is_contradicted) == ("differs: undetermined", False)


def test_a_shift_that_the_null_lacks_contradicts_a_guarantee():
    """The candidate alone is cut short, with a contract that calls its outputs guaranteed."""
    promised = {"candidate": "guaranteed by method"}
    world = sampled_world(candidate=truncated, prompts=20, repeats=6, loads=ONE_LOAD, contracts=promised)
    row = world.rows()["candidate", "single"]
    assert (row.phrase, row.is_contradicted) == ("differs: algorithm", True)


def test_a_shift_only_in_a_batch_is_batching():
    """Alone the same distribution, cut in a batch."""

    def answer(asked):
        rng = random.Random(repr(asked))  # noqa: S311
        cut = asked.arm == "candidate" and asked.load == "busy"
        return truncated(rng) if cut else baseline_draw(rng)

    rows = OutputWorld(answer=answer, temperature=0.8, repeats=6, prompts=20).rows()
    assert rows["candidate", "single"].status == "tested"
    assert rows["candidate", "busy"].phrase == "differs: batching"


def test_the_result_does_not_depend_on_the_order_of_records():
    """The same records backwards give the same rows, p-values and all."""
    run = sampled_world(candidate=hotter_draw).run()
    backwards = msgspec.structs.replace(run, records=tuple(reversed(run.records)))
    first, second = (
        compute_equivalence(prepared, pair_observations(prepared))
        for prepared in (prepare_run(run), prepare_run(backwards))
    )
    assert first == second


def test_withheld_answers_keep_what_can_be_told():
    """Lengths and endings stay; sequence statistics are those that were kept, or named as withheld."""
    run = sampled_world(candidate=truncated, prompts=30, repeats=6, loads=ONE_LOAD).run()

    def withhold(record, sequence):
        return msgspec.structs.replace(
            record,
            token_ids=tuple(range(record.output_tokens)),
            text="",
            withheld=Withheld(sequence=sequence),
        )

    bare = msgspec.structs.replace(run, records=tuple(withhold(one, None) for one in run.records))
    kept = msgspec.structs.replace(
        run,
        records=tuple(
            withhold(one, WithheldSequence(first=one.token_ids[0], distinct_share=0.5, repeated_share=0.1))
            for one in run.records
        ),
    )
    for made, known in ((bare, False), (kept, True)):
        prepared = prepare_run(made)
        rows = {
            (row.arm, row.load): row for row in compute_equivalence(prepared, pair_observations(prepared))
        }
        tests = {
            test.statistic: test for test in rows["candidate", "single"].tests if test.scope == "sampled"
        }
        assert tests["output_tokens"].differs
        assert (tests["distinct_share"].p is not None) == known
        if not known:
            assert tests["distinct_share"].difference.reason == "the answers are withheld"


def test_the_world_is_what_it_says():
    """The truncated arm really is cut more often, so that a finding of it is no accident."""
    rng = random.Random(1)  # noqa: S311
    lengths = [len(baseline_draw(rng).token_ids) for _ in range(500)]
    assert 0.3 < sum(length > 14 for length in lengths) / 500 < 0.8
    assert max(lengths) <= LIMIT
