"""A sentence that compares two arms reads the null of the verdict, and is silent where cells are invalid."""

import msgspec
import pytest

from draftproof.judge.compute import compute_results
from draftproof.judge.decide.effects import read_direction
from draftproof.judge.inform.diagnosis.steps import StepCost, name_step_cost, widen_margin
from draftproof.judge.results.decide import Figure
from draftproof.judge.results.run import EstimatorRow
from draftproof.tell.report.tokens import disagreement_sentence

ARMS = ("baseline", "candidate", "baseline_null")
ONE = {"segments": ("chat",), "items_per_segment": 12, "arms": ARMS}


def pace(*, candidate, null):
    """Times per token of a candidate and of a second baseline against 20 ms."""
    factors = {"candidate": candidate, "baseline_null": null}
    return lambda case: 20.0 * factors.get(case.arm, 1.0)


@pytest.mark.parametrize(
    ("low", "high", "null", "side"),
    [(0.8, 0.9, 1.0, "below"), (0.8, 0.9, 1.12, None), (1.1, 1.2, 1.0, "above"), (1.1, 1.2, 1.12, None)],
)
def test_a_ratio_has_a_side_only_beyond_what_equal_arms_differ_by(low, high, null, side):
    """0.9 is below 1 by 11 %, 1.1 above it by 10 %: a null difference of 12 % takes either side away."""
    assert read_direction(Figure(value=(low + high) / 2, low=low, high=high), null) == side


def test_an_unknown_interval_has_no_side():
    """Without limits nothing is below or above 1."""
    assert read_direction(None, 1.0) is None
    assert read_direction(Figure(value=0.5), 1.0) is None


def test_a_step_within_the_null_is_open():
    """A margin of 0.9 to 0.95 is too dear a step alone, and open where equal arms differ by 6 %."""
    step, margin = StepCost(tokens_per_step=2.0, cost=2.2), Figure(value=0.92, low=0.90, high=0.95)
    assert name_step_cost(step, margin) == "dear_verification"
    assert name_step_cost(step, widen_margin(margin, 1.06)) == "step_open"


def test_the_diagnosis_quotes_no_speed_up_within_the_null(world):
    """Equal arms 15 % apart: a candidate 12 % faster predicts nothing, one 60 % faster does."""
    within = compute_results(world(**ONE, tpot_ms=pace(candidate=0.88, null=0.85)).run())
    beyond = compute_results(world(**ONE, tpot_ms=pace(candidate=0.4, null=0.85)).run())
    assert all("speed-up predicts" not in one.text for one in within.diagnosis)
    assert all("is not shown" in one.text for one in within.diagnosis)
    assert all("speed-up predicts" in one.text for one in beyond.diagnosis)


@pytest.fixture
def invalid(world):
    """Results of a run in which the client was late in every period."""
    run = world(**ONE, tpot_ms=pace(candidate=0.14, null=0.13), lag_ms=lambda _: 500.0).run()
    return compute_results(run)


def test_an_invalid_run_compares_no_arms_in_words(invalid):
    """A ratio of 0.14 in invalid cells is quoted by no diagnosis, cost or answer."""
    assert {cell.status for cell in invalid.cells} == {"invalid"}
    texts = [one.text for one in invalid.diagnosis]
    texts += [one.text for one in invalid.diagnoses.parts]
    texts += [sign.text for one in invalid.diagnoses.remedies for sign in one.evidence]
    texts += [one.text for one in invalid.economics.worths]
    texts += [one.answer for one in invalid.questions]
    for text in texts:
        assert "speed-up predicts" not in text
        assert "0.14" not in text
        assert "candidate / baseline over all tasks" not in text
    assert all(one.token_ratio.value is None for one in invalid.economics.worths)


def test_a_question_says_what_equal_arms_differ_by(world):
    """The effect at the highest load is shown beside the null of that load."""
    found = compute_results(world(**ONE, tpot_ms=pace(candidate=0.4, null=0.85)).run())
    (answer,) = [one.answer for one in found.questions if "over all tasks is" in one.answer]
    assert "two equal services, is 0.8" in answer


def test_estimators_count_what_is_beyond_their_own_null():
    """0.95 is faster beside a null of 0.99 and within a null of 0.93."""
    row = EstimatorRow(
        load="low",
        estimator="chunk_gap",
        used_by="x",
        baseline_mean_ns=1.0,
        candidate_mean_ns=0.95,
        ratio_mean=0.95,
        ratio_p50=0.95,
        ratio_p99=0.95,
        null_ratio_mean=0.99,
    )
    assert "1 of 1 see the candidate faster, 0 slower by more than it sees" in disagreement_sentence([row])
    within = msgspec.structs.replace(row, null_ratio_mean=0.93)
    assert "0 of 1 see the candidate faster, 0 slower" in disagreement_sentence([within])
    alone = msgspec.structs.replace(row, null_ratio_mean=None)
    assert disagreement_sentence([alone]).endswith("1 of 1 see the candidate faster, 0 slower.")
