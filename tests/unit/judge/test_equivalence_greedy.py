"""Greedy equivalence: the phrase for every kind of run, golden limits, margins, and narrowing of causes."""

from pathlib import Path

import msgspec
import pytest
from output_worlds import ARMS, SAME, OutputWorld, Said, differs_in
from scipy import stats

from draftproof.judge.compute import compute_results
from draftproof.judge.decide.equivalence.assess import compute_equivalence
from draftproof.judge.decide.equivalence.greedy import choose_tie_nats, exact_one_sided
from draftproof.judge.observe.pairs import pair_observations
from draftproof.judge.observe.run_data import prepare_run
from draftproof.store import RunDirectory


def parting(*, prompts, margin, arm="candidate", null=0, null_margin=None, load=None):
    """Outputs that part at the third token, where the margin is known in both arms."""

    def answer(asked):
        told, margins = list(SAME), [3.0] * 4
        mine = asked.number < prompts and asked.arm == arm
        equal = asked.number < null and asked.arm == "baseline_null"
        if (mine or equal) and load in (None, asked.load):
            told[2] = 99
        if asked.number < max(prompts, null):
            margins[2] = null_margin if asked.number < null and null_margin is not None else margin
        return Said(told, margins)

    return answer


@pytest.mark.parametrize(("prompts", "limit"), [(24, "11.7 %"), (36, "8.0 %"), (100, "3.0 %")])
def test_equal_outputs_are_tested_up_to_the_rule_of_three(prompts, limit):
    """None of n differs: the exact one-sided limit is 1 − 0.05^(1/n), about 3 / n."""
    row = OutputWorld(prompts=prompts).rows()["candidate", "busy"]
    assert row.difference_bound == pytest.approx(1 - 0.05 ** (1 / prompts))
    assert (row.status, row.cause, row.n) == ("tested", None, prompts)
    assert (
        row.phrase == f"tested: no difference larger than {limit} of greedy prompts seen at {prompts} prompts"
    )


def test_a_guarantee_that_nothing_contradicts_is_called_one():
    """The contract says guaranteed and every output is the same."""
    rows = OutputWorld(contracts={"candidate": "guaranteed by method"}).rows()
    assert {rows["candidate", load].phrase for load in ("single", "busy", "all loads")} == {"guaranteed"}
    assert not any(row.is_contradicted for row in rows.values())


@pytest.mark.parametrize("contract", ["approximate", "assumed", "tested", None])
def test_nothing_but_a_guarantee_is_called_guaranteed(contract):
    """Equal outputs make no guarantee: least of all for an approximate method (A8)."""
    rows = OutputWorld(contracts={"candidate": contract}).rows()
    assert {rows["candidate", load].status for load in ("single", "busy", "all loads")} == {"tested"}


def test_repeats_of_a_prompt_are_no_new_prompts():
    """24 prompts asked five times are 24 prompts: the limit stays that of 24."""
    row = OutputWorld(repeats=5).rows()["candidate", "all loads"]
    assert (row.greedy.pairs, row.greedy.prompts) == (240, 24)
    assert row.difference_bound == pytest.approx(1 - 0.05 ** (1 / 24))


def test_a_prompt_that_differs_once_differs():
    """One repeat of one prompt at one load is enough."""

    def answer(asked):
        hit = asked == ("candidate", "busy", 2, 0)
        return Said((5, 6, 9, 8) if hit else SAME)

    row = OutputWorld(answer=answer, repeats=4).rows()["candidate", "all loads"]
    assert (row.greedy.differing_pairs, row.greedy.differing_prompts, row.status) == (1, 1, "differs")


def test_differing_alone_beyond_the_null_is_the_algorithm():
    """With one request in flight 8 of 24 differ in float32, where ties are rare; the null repeats itself."""
    rows = OutputWorld(answer=differs_in(8), precision="float32").rows()
    assert rows["candidate", "single"].phrase == "differs: algorithm"
    assert rows["candidate", "all loads"].phrase == "differs: algorithm"


def test_in_coarse_arithmetic_rounding_is_not_excluded_without_margins():
    """The same in bfloat16: the pass that verifies drafts rounds otherwise, so no one is blamed yet."""
    promised = {"candidate": "guaranteed by method"}
    row = OutputWorld(answer=differs_in(8), contracts=promised).rows()["candidate", "single"]
    assert (row.phrase, row.is_contradicted) == ("differs: undetermined", False)
    assert any("without token margins the cause may be rounding" in text for text in row.why)


def test_differing_only_in_a_batch_is_batching():
    """Equal with one request in flight, different above it; whether the null does so too is said."""
    alone = OutputWorld(answer=differs_in(8, load="busy")).rows()
    assert [alone["candidate", load].phrase.partition(":")[0] for load in ("single", "busy")] == [
        "tested",
        "differs",
    ]
    assert alone["candidate", "busy"].cause == alone["candidate", "all loads"].cause == "batching"
    assert any("the null does not" in text for text in alone["candidate", "busy"].why)

    def both(asked):
        return Said((5, 6, 9, 8) if asked.arm != "baseline" and asked.load == "busy" else SAME)

    rows = OutputWorld(answer=both).rows()
    assert rows["candidate", "busy"].cause == "batching"
    assert any("the null differs here as well" in text for text in rows["candidate", "busy"].why)


def test_differing_as_often_as_the_null_is_numerics():
    """The baseline does not repeat itself either, alone as in a batch."""

    def answer(asked):
        return Said((5, 6, 9, 8) if asked.arm != "baseline" and asked.number < 6 else SAME)

    rows = OutputWorld(answer=answer).rows()
    assert {rows["candidate", load].phrase for load in ("single", "busy", "all loads")} == {
        "differs: numerics"
    }
    assert rows["candidate", "single"].greedy.beyond_null.value == 0.0
    assert rows["candidate", "single"].difference_bound == pytest.approx(1 - 0.05 ** (1 / 24))


def test_too_few_to_tell_stay_undetermined():
    """One of 24 differs and the null does not: neither shown to be beyond it nor explained by it."""
    row = OutputWorld(answer=differs_in(1)).rows()["candidate", "single"]
    assert row.phrase == "differs: undetermined"
    assert row.difference_bound == pytest.approx(stats.beta.ppf(0.95, 2, 23))


def test_ties_are_numerics_however_many():
    """Ten outputs part where the two likeliest tokens lay 0.1 nat apart, in bfloat16."""
    rows = OutputWorld(answer=parting(prompts=10, margin=0.1)).rows()
    row = rows["candidate", "single"]
    assert (row.phrase, row.greedy.margins.tied, row.greedy.margins.known) == ("differs: numerics", 10, 10)
    assert rows["candidate", "all loads"].cause == "numerics"


def test_ties_do_not_excuse_answers_that_got_shorter():
    """Every output parts at a tie, and each of the candidate's then ends early: rounding does not."""

    def answer(asked):
        if asked.arm == "candidate":
            return Said((5, 6, 99), [3.0, 3.0, 0.1])
        return Said((*SAME, 9, 10, 11, 12), [3.0, 3.0, 0.1, *([3.0] * 5)])

    row = OutputWorld(answer=answer).rows()["candidate", "single"]
    assert row.greedy.margins.tied == row.greedy.margins.divergences == 24
    assert row.phrase == "differs: algorithm"


def test_a_large_margin_is_the_algorithm_even_once_and_only_in_a_batch():
    """One output parts where the target was sure: no rounding does that."""
    rows = OutputWorld(answer=parting(prompts=1, margin=2.0, load="busy")).rows()
    assert rows["candidate", "busy"].phrase == "differs: algorithm"
    assert rows["candidate", "busy"].greedy.margins.largest_nats == 2.0


def test_the_tie_is_finer_in_float32():
    """0.1 nat is a tie in bfloat16 and far beyond rounding in float32."""
    answer = parting(prompts=10, margin=0.1)
    assert OutputWorld(answer=answer, precision="float32").rows()["candidate", "single"].cause == "algorithm"
    assert choose_tie_nats(("float32", "float32")) == 0.001
    assert choose_tie_nats(("float32", None)) == choose_tie_nats(("bfloat16", "float32")) == 0.25


def test_the_null_widens_the_tie():
    """Where two equal arms part at 0.6 nat, a margin of 0.6 is no sign of a fault, one of 0.9 is."""
    inside = parting(prompts=4, margin=0.6, null=2, null_margin=0.6)
    beyond = parting(prompts=4, margin=0.9, null=2, null_margin=0.6)
    assert OutputWorld(answer=inside).rows()["candidate", "single"].cause == "numerics"
    assert OutputWorld(answer=beyond).rows()["candidate", "single"].cause == "algorithm"


def test_the_larger_of_two_margins_counts():
    """An arm that calls its own wrong token a tie is not believed over the baseline's margin."""

    def answer(asked):
        hit = asked.arm == "candidate" and asked.number < 3
        return Said((5, 6, 9, 8) if hit else SAME, [3.0, 3.0, 0.01 if hit else 2.5, 3.0])

    assert OutputWorld(answer=answer).rows()["candidate", "single"].cause == "algorithm"


def test_an_arm_that_drafts_nothing_has_no_algorithm_at_fault():
    """The alternative decodes as the baseline does: its other settings remain, unnamed."""
    world = OutputWorld(answer=differs_in(12, arm="alternative"), arms=(*ARMS, "alternative"))
    row = world.rows()["alternative", "single"]
    assert (row.phrase, row.is_contradicted) == ("differs: undetermined", False)


def test_without_a_null_no_cause_is_claimed():
    """What two equal arms would show is not known."""
    row = OutputWorld(answer=differs_in(8), arms=("baseline", "candidate")).rows()["candidate", "single"]
    assert row.phrase == "differs: undetermined"
    assert any("without a null arm" in text for text in row.why)


def test_the_null_itself_is_numerics_or_batching():
    """Two equal arms that differ have no algorithm between them."""
    rows = OutputWorld(answer=differs_in(8, arm="baseline_null")).rows()
    assert rows["baseline_null", "single"].cause == "numerics"
    rows = OutputWorld(answer=differs_in(8, arm="baseline_null", load="busy")).rows()
    assert rows["baseline_null", "busy"].cause == "batching"


def test_nothing_comparable_is_unknown():
    """Every request of the candidate failed."""
    rows = OutputWorld(
        answer=lambda asked: Said(SAME, outcome="timeout" if asked.arm == "candidate" else "ok")
    ).rows()
    assert rows["candidate", "all loads"].phrase == "unknown: no prompt was answered in both arms"
    assert (rows["candidate", "all loads"].difference_bound, rows["candidate", "all loads"].tests) == (
        None,
        (),
    )


def test_digests_are_compared_as_they_are():
    """Texts as digests and token ids as prefix chains: equality and the first divergence hold on them."""

    def answer(asked):
        hit = asked.arm == "candidate" and asked.number < 8
        chain = (11, 902, 77, 78) if hit else (11, 902, 4031, 4032)
        return Said(chain, [3.0, 3.0, 0.05, 3.0], text=f"hmac:{chain}")

    row = OutputWorld(answer=answer).rows()["candidate", "single"]
    assert (row.greedy.differing_prompts, row.greedy.margins.tied, row.phrase) == (8, 8, "differs: numerics")
    texts = OutputWorld(
        answer=lambda asked: Said(None, text=f"hmac:{asked.arm == 'candidate' and asked.number < 8}")
    )
    assert texts.rows()["candidate", "single"].greedy.differing_prompts == 8


def test_answers_that_only_got_shorter_differ_in_length():
    """Outputs differ in the null as often, but the candidate's are cut: length tells them apart (F7)."""

    def answer(asked):
        base = [5, 6, 7, 8, 9, 10, 11, 12]
        if asked.arm == "baseline":
            return Said(base)
        told = [5, 99 + asked.number, *base[2:]]
        return Said(told[:5], finish="length") if asked.arm == "candidate" else Said(told)

    row = OutputWorld(answer=answer).rows()["candidate", "single"]
    shown = {test.statistic: test for test in row.tests if test.differs}
    assert set(shown) == {"output_tokens", "cut_share"}
    assert shown["output_tokens"].difference.value == -3
    assert (row.status, row.cause) == ("differs", "algorithm")


def test_recorded_runs_of_real_engines():
    """Of vLLM in float32 every output is the baseline's; llama.cpp differs in a batch alone."""
    runs = Path(__file__).parents[2] / "fixtures" / "runs"

    def judge(name):
        prepared = prepare_run(RunDirectory.open(runs / name).load())
        rows = compute_equivalence(prepared, pair_observations(prepared))
        return {(row.arm, row.load): row.phrase for row in rows}

    vllm, llama = judge("vllm-ngram"), judge("llamacpp-ngram")
    equal = "tested: no difference larger than {} of greedy prompts seen at {} prompts"
    assert vllm["candidate", "all loads"] == equal.format("11.7 %", 24)
    assert llama["candidate", "single"] == equal.format("8.0 %", 36)
    assert llama["candidate", "busy"] == llama["candidate", "all loads"] == "differs: batching"
    assert llama["alternative", "single"] == "differs: undetermined"


def test_mcnemars_exact_p_value():
    """Fleiss, Levin & Paik (2003): the discordant pairs are binomial; 8 against 1 gives 10 / 512."""
    assert exact_one_sided(8, 1) == pytest.approx(10 / 512)
    assert exact_one_sided(0, 0) == 1.0
    assert exact_one_sided(0, 5) == 1.0


def test_a_contradicted_guarantee_withholds_a_gain_and_warns(world):
    """Outputs that differ with one request in flight, beyond the null, cannot be those of an exact method."""

    def run(text, **fields):
        made = world(
            tpot_ms=lambda case: 10.0 if case.arm == "candidate" else 20.0,
            text=text,
            arms=("baseline", "candidate", "baseline_null"),
            **fields,
        ).run()
        promised = {"candidate": "guaranteed by method"}
        contract = OutputWorld(contracts=promised, precision="float32").run().manifest.contracts
        return msgspec.structs.replace(
            made, manifest=msgspec.structs.replace(made.manifest, contracts=contract)
        )

    honest = compute_results(run(lambda _: "yes"))
    assert {cell.status for cell in honest.cells} == {"gain"}
    assert not any("contradict" in text for text in honest.warnings)
    lying = compute_results(run(lambda case: "yes, sir" if case.arm == "candidate" else "yes"))
    assert {cell.status for cell in lying.cells} == {"inconclusive"}
    codes = {reason.code for cell in lying.cells for reason in cell.reasons}
    assert "equivalence_contradicted" in codes
    assert any("guaranteed by method, but they contradict it" in text for text in lying.warnings)


def test_ties_and_batches_contradict_nothing():
    """A guarantee holds up to rounding: ties do not break it, a sure token that changed does."""
    promised = {"candidate": "guaranteed by method"}
    ties = OutputWorld(answer=parting(prompts=10, margin=0.1), contracts=promised).rows()
    sure = OutputWorld(answer=parting(prompts=1, margin=2.0), contracts=promised).rows()
    assert not ties["candidate", "all loads"].is_contradicted
    assert ties["candidate", "all loads"].status == "differs"
    assert sure["candidate", "single"].is_contradicted
    assert sure["candidate", "all loads"].is_contradicted
