"""Expected rounds of an answer: closed forms, and every pattern of acceptance one by one."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from draftproof.core.records import ScreenedAnswer
from draftproof.explore.renewal import EVERYTHING, choose_length, expect_rounds, pool_answers, price_steps
from draftproof.judge.results.run import Figure


def constant(starts, longest, chance):
    """Return the tables of an answer of which every draft within it is kept with one chance."""
    inside = np.arange(starts)[:, None] + np.arange(longest) < starts
    return np.where(inside, chance, 0.0), np.full(starts, longest)


@pytest.mark.parametrize("length", [1, 3, 8])
@pytest.mark.parametrize("starts", [1, 2, 7, 40])
def test_certain_drafts_take_whole_rounds(starts, length) -> None:
    """Drafts that are all kept commit k + 1 tokens a round, drafts that never are one."""
    kept, made = constant(starts, 8, 1.0)
    assert expect_rounds(kept, made, [length])[0].rounds == math.ceil(starts / (length + 1))
    none = expect_rounds(np.zeros_like(kept), made, [length])[0]
    assert none.rounds == none.drafting_rounds == starts
    assert none.reached == (starts, *[0.0] * (length - 1))


@pytest.mark.parametrize("chance", [0.1, 0.5, 0.93])
@pytest.mark.parametrize("starts", [1, 2, 5, 30])
def test_one_draft_a_round_has_a_closed_form(starts, chance) -> None:
    """R(n) = n / (1 + a) + a (1 - (-a)^n) / (1 + a)^2 solves R(n) = 1 + (1 - a) R(n - 1) + a R(n - 2)."""
    kept, made = constant(starts, 1, chance)
    wanted = starts / (1 + chance) + chance * (1 - (-chance) ** starts) / (1 + chance) ** 2
    assert expect_rounds(kept, made, [1])[0].rounds == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize("length", [2, 5])
def test_long_answers_commit_what_leviathan_says(length) -> None:
    """Tokens a round tend to (1 - a^(k + 1)) / (1 - a)."""
    kept, made = constant(4000, length, 0.7)
    rounds = expect_rounds(kept, made, [length])[0].rounds
    assert 4000 / rounds == pytest.approx((1 - 0.7 ** (length + 1)) / 0.3, rel=2e-3)


def walk(is_kept, made, length):
    """Go through an answer whose drafts are kept or not as a table says: the counts of its rounds."""
    starts = len(made)
    counts = {"rounds": 0, "drafting_rounds": 0, "drafted": 0}
    reached, held = [0] * length, [0] * length
    start = 0
    while start < starts:
        drafts = min(length, made[start])
        accepted = next((at for at in range(drafts) if not is_kept[start][at]), drafts)
        counts["rounds"] += 1
        counts["drafting_rounds"] += drafts > 0
        counts["drafted"] += drafts
        for at in range(min(accepted + 1, drafts)):
            reached[at] += 1
            held[at] += at < accepted
        start += accepted + 1
    return [*counts.values(), *reached, *held]


@pytest.mark.parametrize("seed", range(6))
def test_expectations_are_those_of_every_pattern(seed) -> None:
    """All patterns of acceptance, each with its probability, give the same counts on average."""
    generator = np.random.default_rng(seed)
    starts, longest = int(generator.integers(2, 5)), 3
    made = generator.integers(0, longest + 1, starts)
    inside = np.arange(starts)[:, None] + np.arange(longest) < starts
    kept = np.where(inside & (np.arange(longest) < made[:, None]), generator.random((starts, longest)), 0.0)
    for length, found in zip((1, 2, 3), expect_rounds(kept, made, [1, 2, 3]), strict=True):
        total = np.zeros(3 + 2 * length)
        for pattern in itertools.product((False, True), repeat=starts * longest):
            is_kept = np.array(pattern).reshape(starts, longest)
            weight = np.where(is_kept, kept, 1 - kept).prod()
            if weight:
                total += weight * np.array(walk(is_kept, made, length))
        got = [found.rounds, found.drafting_rounds, found.drafted, *found.reached, *found.kept]
        assert got == pytest.approx(total.tolist(), abs=1e-12)


@given(st.data(), st.integers(1, 20), st.integers(1, 8))
def test_what_holds_for_every_answer(data, starts, longest) -> None:
    """Each round commits its kept drafts and one token; the last one may end with a draft."""
    made = data.draw(arrays(np.int64, starts, elements=st.integers(0, longest)))
    chances = data.draw(arrays(np.float64, (starts, longest), elements=st.floats(0, 1)))
    inside = np.arange(starts)[:, None] + np.arange(longest) < starts
    kept = np.where(inside & (np.arange(longest) < made[:, None]), chances, 0.0)
    for length, found in enumerate(expect_rounds(kept, made, range(1, longest + 1)), start=1):
        assert math.ceil(starts / (length + 1)) - 1e-9 <= found.rounds <= starts + 1e-9
        assert starts - 1e-9 <= found.rounds + sum(found.kept) <= starts + 1 + 1e-9
        assert sum(found.kept) <= found.drafted + 1e-9
        assert found.drafting_rounds <= found.rounds + 1e-9
        assert all(b <= a + 1e-9 for a, b in zip(found.reached, found.kept, strict=True))


def test_tables_that_do_not_fit_are_refused() -> None:
    """Numbers that are no probabilities, and lengths beyond the tables, are errors."""
    kept, made = constant(3, 2, 0.5)
    for bad in ((kept + 1, made, [1]), (kept, made[:2], [1]), (kept, made, [3])):
        with pytest.raises(ValueError, match="do not fit"):
            expect_rounds(*bad)


def answer(item_id, rounds, *, segment="task=chat", length=2, tokens=10, drafting=None):
    """Return an answer with a draft in every round."""
    drafting = rounds if drafting is None else drafting
    return ScreenedAnswer(
        item_id=item_id,
        segment=segment,
        method="ngram",
        draft_length=length,
        tokens=tokens,
        rounds=rounds,
        drafting_rounds=drafting,
        drafted=length * drafting,
        reached=(drafting, 1.0),
        kept=(1.0, 0.5),
    )


def test_answers_are_pooled_over_their_totals() -> None:
    """Tokens a round are all tokens over all rounds, not a mean of answers; positions pool their counts."""
    cells = pool_answers([answer("a", 2.0), answer("b", 8.0), answer("c", 5.0, segment="task=code")])
    everything, chat, code = cells
    assert [cell.segment for cell in cells] == [EVERYTHING, "task=chat", "task=code"]
    assert chat.tokens_per_round.value == 2.0
    assert chat.rounds_per_answer == 5.0
    assert chat.position_acceptance == (0.2, 0.5)
    assert everything.prompts == 3
    interval = everything.tokens_per_round
    assert interval.low is not None
    assert interval.high is not None
    assert interval.low < 2.0 < interval.high
    assert code.tokens_per_round.low is None
    assert code.ratios == {}


class Step:
    """A timed step."""

    def __init__(self, draft_length, batch, ratio, drafting="own"):
        self.draft_length, self.batch, self.drafting = draft_length, batch, drafting
        self.ratio = Figure(value=ratio)


class _Prices:
    method, batches = "ngram", (1, 4)
    steps = (Step(0, 1, 1.0), Step(2, 1, 1.2), Step(4, 1, 1.5), Step(0, 4, 1.0), Step(4, 4, 3.0))


PRICES: Any = _Prices()  # costs as far as predictions read them


def test_a_step_price_makes_rounds_time() -> None:
    """Rounds without drafts cost one ordinary step, others what the draft length costs, over the tokens."""
    [cell, _] = pool_answers([answer("a", 5.0, drafting=3.0)], PRICES)
    assert cell.ratios[1].value == pytest.approx((2 + 3 * 1.2) / 10)
    assert cell.ratios[4].value == pytest.approx((2 + 3 * 2.0) / 10)  # half way to four drafts
    assert price_steps(PRICES, "attached", 1) == {0: 1.0}
    [unknown, _] = pool_answers([answer("a", 5.0, length=6)], PRICES)
    assert unknown.ratios == {}


def test_the_best_length_is_the_cheapest() -> None:
    """Of the draft lengths of a method the one with the lowest ratio is chosen, none without prices."""
    cells = pool_answers([answer("a", 5.0, length=2), answer("a", 4.5, length=4)], PRICES)
    chosen = choose_length([cell for cell in cells if cell.segment == EVERYTHING], 1)
    assert chosen is not None
    assert chosen.draft_length == 2
    assert choose_length(cells, 8) is None
