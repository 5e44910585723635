"""Draft-length policies: what they choose from scripted rounds, when they stop, when they return."""

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftproof.core.errors import UsageError
from draftproof.reference.draft_length import (
    Acceptance,
    Curve,
    PayGate,
    RoundCosts,
    best_length,
    check_table,
    estimate_gain,
    expected_tokens,
)
from draftproof.reference.draft_planner import Asking, Drafted, LengthPlanner, RoundTimes
from draftproof.reference.http.wire import parse_wanted
from draftproof.reference.http.wire_fields import BadRequestError
from draftproof.reference.types import SpeculationParams

TABLE = ((1, 4), (2, 1), (3, 0))


def simulate_tokens(acceptance: float, length: int) -> float:
    """Return the mean tokens of a round by summing over the place of the first rejection."""
    stopped = sum((place + 1) * acceptance**place * (1 - acceptance) for place in range(length))
    return stopped + (length + 1) * acceptance**length


@pytest.mark.parametrize("acceptance", [0.0, 0.3, 0.9, 1.0])
@pytest.mark.parametrize("length", [0, 1, 5])
def test_expected_tokens_is_the_mean_over_the_place_of_the_first_rejection(acceptance, length) -> None:
    """The closed form equals the sum over all outcomes of a round."""
    assert expected_tokens(acceptance, length) == pytest.approx(simulate_tokens(acceptance, length))


@pytest.mark.parametrize(
    ("acceptance", "verify", "draft", "expected"),
    [
        (0.8, (10.0, 0.0), 1.0, 6),
        (0.8, (10.0, 0.0), 12.0, 0),
        (0.5, (10.0, 4.0), 0.5, 1),
        (0.0, (9, 1), 1, 0),
    ],
)
def test_known_optima(acceptance, verify, draft, expected) -> None:
    """With verify = (base, per row) and a price per draft the best length is that of a sum over outcomes."""
    prices = [verify[0] + verify[1] * (k + 1) + draft * k for k in range(9)]
    table = [simulate_tokens(acceptance, k) / price for k, price in enumerate(prices)]
    assert table.index(max(table)) == expected
    assert best_length(acceptance, prices) == expected


@settings(deadline=None, derandomize=True)
@given(
    acceptance=st.floats(0.0, 1.0),
    prices=st.lists(st.floats(0.1, 100.0), min_size=2, max_size=12),
    lowest=st.integers(0, 1),
    coverage=st.floats(0.05, 1.0),
    others=st.floats(0.0, 8.0),
)
def test_no_length_beats_the_chosen_one(acceptance, prices, lowest, coverage, others) -> None:
    """For any acceptance and prices the choice yields most tokens per time among the allowed lengths."""

    def rate(k: int) -> float:
        return float((others + 1 + coverage * (simulate_tokens(acceptance, k) - 1)) / prices[k])

    chosen = best_length(acceptance, prices, lowest=lowest, coverage=coverage, others=others)
    assert lowest <= chosen < len(prices)
    assert rate(chosen) >= max(rate(k) for k in range(lowest, len(prices))) * (1 - 1e-9)


def test_acceptance_starts_from_its_prior_and_follows_recent_rounds() -> None:
    """The estimate is the stated quotient at first, moves to what rounds show, and forgets the old."""
    method = Acceptance()
    one = Acceptance(method)
    assert one.rate == pytest.approx(0.7)
    one.observe(asked=4, drafted=4, accepted=2)
    assert method.rate == pytest.approx((2 + 2 * 0.7) / (3 + 2))
    assert one.rate == pytest.approx((2 + 2 * method.rate) / (3 + 2))
    for _ in range(200):
        one.observe(asked=4, drafted=4, accepted=0)
    assert one.rate < 0.01
    for _ in range(60):
        one.observe(asked=4, drafted=2, accepted=2)
    assert one.rate > 0.9
    assert one.coverage == pytest.approx(0.5, abs=0.05)
    assert Acceptance(method).rate == method.rate


def test_a_curve_takes_medians_and_joins_them() -> None:
    """One outlier changes nothing, sizes between two seen ones lie on a line, unseen ones are forgotten."""
    curve = Curve()
    with pytest.raises(LookupError):
        curve.at(1)
    for time_ns in (10, 10, 900, 10, 10):
        curve.observe(2, time_ns)
    curve.observe(4, 30)
    assert [curve.at(size) for size in (1, 2, 3, 4, 6)] == [10, 10, 20, 30, 50]
    for _ in range(600):
        curve.observe(4, 30)
    assert (curve.smallest, curve.at(2)) == (4, 30)


def known_costs(*, base: int, row: int, draft: int, sequences: int = 1) -> RoundCosts:
    """Return costs learned from exact times of the given prices."""
    verification = Curve()
    for rows in (1, 20):
        verification.observe(rows, base + row * rows)
    costs = RoundCosts(verification)
    costs.observe_drafting(sequences, 4, 4 * draft)
    return costs


def test_gain_is_the_quotient_of_throughputs() -> None:
    """Two sequences that draft beside one that does not: tokens and time are those written out by hand."""
    costs = known_costs(base=1000, row=10, draft=50, sequences=2)
    gain = estimate_gain([2, 0], [0.5, 0.9], costs, coverage=1.0, others=1)
    with_drafts = (1 + 1.75 + 1) / (1000 + 10 * 5 + 2 * 50)
    assert gain == pytest.approx(with_drafts / (3 / (1000 + 10 * 3)))


@pytest.mark.parametrize("spread", [0.02, 0.1, 0.3])
@pytest.mark.parametrize("seed", range(5))
def test_the_gate_does_not_flap_on_noise_around_one(spread, seed) -> None:
    """Over 5000 rounds of noise around a gain of 1 the gate changes its mind thirty times at most."""
    rng, gate, states = random.Random(seed), PayGate(), []  # noqa: S311 - a test input
    for _ in range(5000):
        gate.observe(1.0 + rng.uniform(-spread, spread))
        states.append("on" if gate.state == "on" else "off")
    switches = sum(before != after for before, after in itertools.pairwise(states))
    assert switches <= (1 if spread < 0.05 else 30)


def rounds_off(gate: PayGate, gain: float | None) -> int:
    """Return for how many rounds the gate stays off while it is told one gain."""
    rounds = 0
    while gate.state == "off":
        gate.observe(gain)
        rounds += 1
    return rounds


def test_the_gate_stays_off_between_its_thresholds_and_returns_above() -> None:
    """Eight rounds below 1 close it; 1.03 does not open it again, 1.06 does; waits double."""
    gate = PayGate()
    for _ in range(7):
        gate.observe(0.9)
    gate.observe(1.0)
    assert gate.state == "on"
    for _ in range(8):
        gate.observe(0.9)
    waits = []
    for gain in (1.03, 1.03, 1.03, 1.06):
        waits.append(rounds_off(gate, gain))
        for _ in range(6):
            gate.observe(gain)
    assert (waits, gate.state) == ([16, 32, 64, 128], "on")


def test_an_open_gate_that_was_steady_probes_soon_again() -> None:
    """After 128 rounds on, the first wait is the shortest again."""
    gate = PayGate()
    gate._wait = 256
    for _ in range(128):
        gate.observe(1.2)
    for _ in range(8):
        gate.observe(0.8)
    assert rounds_off(gate, None) == 16


def play(planner, policy, acceptance, *, rounds, sequences=1, limit=8, base=1000, row=10, draft=50, seed=0):
    """Run rounds of given prices through a planner; return the lengths of each round."""
    rng = random.Random(seed)  # noqa: S311 - a test input
    asking = [Asking(str(index), "ngram", policy, limit) for index in range(sequences)]
    history = []
    for _ in range(rounds):
        lengths = planner.plan(asking, sequences)
        drafted = {}
        for request_id, length in lengths.items():
            accepted = 0
            while accepted < length and rng.random() < acceptance:
                accepted += 1
            drafted[request_id] = Drafted(length, length, accepted)
        rows = sequences + sum(lengths.values())
        longest = max(lengths.values())
        planner.learn(drafted, RoundTimes(rows, draft * longest, base + row * rows, has_prefill=False))
        history.append(list(lengths.values()))
    return history


@pytest.mark.parametrize(("acceptance", "draft"), [(0.9, 20), (0.8, 100), (0.6, 60), (0.3, 20)])
@pytest.mark.parametrize("policy", ["adaptive", "auto"])
def test_adaptive_lengths_come_close_to_the_best(policy, acceptance, draft) -> None:
    """After learning, the lengths chosen reach 95 % of the throughput of the best fixed length."""

    def rate(k: int) -> float:
        return float(simulate_tokens(acceptance, k) / (1000 + 10 * (k + 1) + draft * k))

    lengths = [
        round_[0] for round_ in play(LengthPlanner(TABLE), policy, acceptance, rounds=600, draft=draft)
    ]
    settled = lengths[200:]
    achieved = sum(simulate_tokens(acceptance, k) for k in settled) / sum(
        1000 + 10 * (k + 1) + draft * k for k in settled
    )
    assert achieved >= 0.95 * max(rate(k) for k in range(9))
    assert settled.count(0) <= len(settled) // 32


@pytest.mark.parametrize("policy", ["adaptive", "auto"])
def test_drafting_that_does_not_pay_is_rare(policy) -> None:
    """With drafts always rejected, and with drafts dearer than what they save, few rounds still draft."""
    for acceptance, draft in ((0.0, 50), (0.5, 700)):
        lengths = play(LengthPlanner(TABLE), policy, acceptance, rounds=1000, draft=draft)
        assert sum(any(round_) for round_ in lengths[200:]) <= 60


def test_auto_returns_when_drafting_pays_again() -> None:
    """Off after a bad stretch, on after the drafter has become good; the same numbers decide the same."""
    planner, twin = LengthPlanner(TABLE), LengthPlanner(TABLE)
    for one in (planner, twin):
        assert sum(any(r) for r in play(one, "auto", 0.0, rounds=200)[100:]) <= 12
    later = play(planner, "auto", 0.95, rounds=900)
    assert sum(any(r) for r in later[-200:]) >= 190
    assert planner.gains["ngram"] > 1.5
    assert play(twin, "auto", 0.95, rounds=900) == later


def test_a_cheap_lookup_that_seldom_finds_stays_on() -> None:
    """Drafts found in one round of seven, nearly free to look for, are asked for in almost every round."""
    planner, rng, lengths = LengthPlanner(TABLE), random.Random(3), []  # noqa: S311 - a test input
    for _ in range(600):
        length = planner.plan([Asking("one", "ngram", "auto", 4)], 1)["one"]
        found = length if rng.random() < 1 / 7 else 0
        rows = 1 + found
        drafted = {"one": Drafted(length, found, min(found, rng.randint(0, 4)))}
        planner.learn(drafted, RoundTimes(rows, 1, 1000 + 10 * rows, has_prefill=False))
        lengths.append(length)
    assert lengths.count(0) <= 30


def test_what_a_drafter_missed_is_no_price_of_a_draft() -> None:
    """A first round that is dear because the drafter reads the prompt leaves the estimated gain alone."""
    gains = []
    for first_ns in (40, 10**9):
        planner = LengthPlanner(TABLE)
        for number in range(4):
            length = planner.plan([Asking("one", "ngram", "adaptive", 4)], 1)["one"]
            draft_ns = first_ns if number == 0 else 10 * length
            outcome = {"one": Drafted(length, length, length)}
            planner.learn(outcome, RoundTimes(1 + length, draft_ns, 1000, has_prefill=number == 2))
        gains.append(planner.gains["ngram"])
    assert gains[0] == gains[1] > 1


def test_a_method_learns_its_price_beside_another_that_pauses() -> None:
    """Rounds in which one method alone drafts teach its price, though sequences of another could draft."""
    planner = LengthPlanner(TABLE)
    asking = [
        Asking("one", "ngram", "auto", 4),
        Asking("two", "self", "batch", 4),
        Asking("x", "self", "batch", 4),
    ]
    for _ in range(40):
        lengths = planner.plan(asking, 3)
        outcome = {name: Drafted(length, length, 0) for name, length in lengths.items()}
        rows = 3 + sum(lengths.values())
        planner.learn(outcome, RoundTimes(rows, 10**6 * lengths["one"], 100 * rows, has_prefill=False))
    assert lengths == {"one": 0, "two": 0, "x": 0}
    assert planner.gains["ngram"] < 1


def test_one_bad_sequence_pauses_alone() -> None:
    """Of two sequences the one whose drafts fail stops drafting and the other goes on."""
    planner = LengthPlanner(TABLE)
    asking = [Asking("good", "ngram", "auto", 4), Asking("bad", "ngram", "auto", 4)]
    drafting = {"good": 0, "bad": 0}
    for _ in range(300):
        lengths = planner.plan(asking, 2)
        drafted = {
            "good": Drafted(lengths["good"], lengths["good"], lengths["good"]),
            "bad": Drafted(lengths["bad"], lengths["bad"], 0),
        }
        rows = 2 + sum(lengths.values())
        planner.learn(drafted, RoundTimes(rows, 10, 100 + 20 * rows, has_prefill=False))
        for request_id, length in lengths.items():
            drafting[request_id] += length > 0
    assert drafting["good"] > 280
    assert drafting["bad"] < 60


def test_rounds_with_prompts_teach_no_prices() -> None:
    """While every round carries prompt tokens, times stay unknown and most rounds draft all they may."""
    planner = LengthPlanner(TABLE)
    asking, lengths = [Asking("one", "ngram", "adaptive", 4)], []
    for _ in range(100):
        lengths.append(planner.plan(asking, 1)["one"])
        planner.learn({"one": Drafted(lengths[-1], 0, 0)}, RoundTimes(50, 10**9, 10**9, has_prefill=True))
    assert set(lengths) == {4}
    assert planner.gains == {}


def test_the_table_decides_by_batch_size() -> None:
    """The last entry that is reached holds, within a request's own limit; a request may draft less."""
    planner = LengthPlanner(TABLE)
    asking = [Asking("a", "ngram", "batch", 8), Asking("b", "ngram", "batch", 8)]
    assert planner.plan(asking[:1], 1) == {"a": 4}
    assert planner.plan(asking, 2) == {"a": 1, "b": 1}
    assert planner.plan(asking, 7) == {"a": 0, "b": 0}
    assert planner.plan([Asking("c", "ngram", "batch", 2)], 1) == {"c": 2}


@pytest.mark.parametrize("table", [(), ((2, 4),), ((1, 4), (1, 2)), ((1, 4), (3, 1), (2, 1)), ((1, -1),)])
def test_a_malformed_table_is_refused(table) -> None:
    """No entry for one sequence, sizes that do not rise and negative lengths are usage errors."""
    with pytest.raises(UsageError, match="no table of draft lengths"):
        check_table(table)


def test_a_request_may_choose_its_policy() -> None:
    """The server's policy holds unless a request names one; an unknown one is refused by name."""
    default = SpeculationParams(method="ngram", policy="auto")

    def policy_of(speculation) -> str:
        body = {"model": "m"} | ({} if speculation is None else {"speculation": speculation})
        return parse_wanted(body, default, "m", chat=True).speculation.policy

    assert [policy_of(s) for s in (None, "off", {"num_spec_tokens": 2}, {"policy": "batch"})] == [
        "auto",
        "auto",
        "auto",
        "batch",
    ]
    with pytest.raises(BadRequestError, match="policy must be one of fixed, adaptive, batch, auto"):
        policy_of({"policy": "best"})
