"""How many tokens to draft now. Pure: decided from rounds that are over, with no clock of its own.

A length never depends on tokens drawn in the round it is chosen for, so verification stays exact whatever the
policy. With `adaptive` and `auto` it depends on measured times: two runs with one seed may give other samples
of the same distribution. Greedy output does not depend on it.

What a round costs and what it yields, estimated from rounds that are over. Pure: times come in as numbers.

A round of n sequences that draft k tokens each yields n E(k) tokens, E(k) = 1 + a + ... + a^k with a the
chance that a draft is accepted after those before it were (Leviathan et al. 2023, equation 1), and takes the
time to draft k tokens and to verify n (k + 1) rows.
"""

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from draftproof.core.errors import UsageError
from draftproof.reference.types import BatchTable

_WINDOW = 5
_MAX_AGE = 512
_PRIOR_ACCEPTANCE = 0.7
_PRIOR_TOKENS = 2.0
_KEEP_SEQUENCE = 0.95
_KEEP_METHOD = 0.99


def expected_tokens(acceptance: float, length: int) -> float:
    """Return E(k) = (1 - a^(k + 1)) / (1 - a), the tokens of a round with k = `length` drafts."""
    if acceptance >= 1.0:
        return length + 1.0
    return float((1.0 - acceptance ** (length + 1)) / (1.0 - acceptance))


def best_length(
    acceptance: float,
    prices: Sequence[float],
    *,
    lowest: int = 0,
    coverage: float = 1.0,
    others: float = 0.0,
) -> int:
    """Return the k from `lowest` on that yields most tokens per second, the smallest of equals.

    `acceptance`: a of equation 1, from 0 to 1. `prices`: time of a round by k = 0, 1, ...; any unit, above 0.
    `lowest`: smallest k to consider, below `len(prices)`. `coverage`: drafted tokens over those asked for; a
    lookup may find none. `others`: sequences of the same pass that draft in another way, per sequence that
    drafts; each yields 1.
    """
    best, best_rate, tokens, power = lowest, -1.0, 0.0, 1.0
    for length, price in enumerate(prices):
        tokens += power  # E(length)
        power *= acceptance
        rate = (others + 1.0 + coverage * (tokens - 1.0)) / price
        if length >= lowest and rate > best_rate:
            best, best_rate = length, rate
    return best


class Acceptance:
    """How often drafts were accepted lately, pooled over positions.

    A round tests its drafts up to the first that is rejected. `rate` is the sum of accepted over the sum of
    tested drafts, both discounted by a constant factor a round, beside a prior worth two tested drafts: the
    method's own rate for a sequence, 0.7 for a method. `coverage` is drafted over asked-for tokens, likewise.
    `prior`: the estimate a sequence starts from; None for that of a method.
    """

    def __init__(self, prior: "Acceptance | None" = None) -> None:
        self._prior = prior
        self._keep = _KEEP_METHOD if prior is None else _KEEP_SEQUENCE
        self._accepted = self._tested = self._drafted = self._asked = 0.0

    def observe(self, *, asked: int, drafted: int, accepted: int) -> None:
        """Take in a round that asked for drafts; also counts for the method."""
        if self._prior is not None:
            self._prior.observe(asked=asked, drafted=drafted, accepted=accepted)
        self._drafted = self._keep * self._drafted + drafted
        self._asked = self._keep * self._asked + asked
        if drafted:
            self._accepted = self._keep * self._accepted + accepted
            self._tested = self._keep * self._tested + min(accepted + 1, drafted)

    @property
    def rate(self) -> float:
        """The chance that a draft is accepted after those before it were."""
        prior = _PRIOR_ACCEPTANCE if self._prior is None else self._prior.rate
        return (self._accepted + _PRIOR_TOKENS * prior) / (self._tested + _PRIOR_TOKENS)

    @property
    def coverage(self) -> float:
        """Drafted tokens over those asked for; 1 at first."""
        return (self._drafted + _PRIOR_TOKENS) / (self._asked + _PRIOR_TOKENS)


class Curve:
    """A time by size: at a size seen, the median of its last five; between two, the straight line.

    Above the largest size the line from the smallest to the largest goes on; below the smallest its own time
    holds. A size that was not seen during the last 512 observations is forgotten.
    """

    def __init__(self) -> None:
        self._windows: dict[int, deque[int]] = {}
        self._seen: dict[int, int] = {}  # size -> when last, longest ago first
        self._sizes: list[int] = []
        self._times: dict[int, float] = {}
        self._now = 0

    def observe(self, size: int, time_ns: int) -> None:
        """Take in one time."""
        self._now += 1
        if size not in self._windows:
            self._windows[size] = deque(maxlen=_WINDOW)
            insort(self._sizes, size)
        self._windows[size].append(time_ns)
        self._times[size] = float(median(self._windows[size]))
        self._seen.pop(size, None)
        self._seen[size] = self._now
        self._forget()

    @property
    def smallest(self) -> int | None:
        """The smallest size known."""
        return self._sizes[0] if self._sizes else None

    def at(self, size: float) -> float:
        """Return the time at a size, ns. Raises LookupError: nothing was observed."""
        if not self._sizes:
            raise LookupError("nothing was observed")
        index = bisect_left(self._sizes, size)
        if index == 0:
            return self._times[self._sizes[0]]
        if index < len(self._sizes):
            return self._line(self._sizes[index - 1], self._sizes[index], size)
        low, high = self._sizes[0], self._sizes[-1]
        return self._times[high] if low == high else max(self._times[high], self._line(low, high, size))

    def _line(self, low: int, high: int, size: float) -> float:
        share = (size - low) / (high - low)
        return self._times[low] + share * (self._times[high] - self._times[low])

    def _forget(self) -> None:
        for size in list(self._seen):
            if self._now - self._seen[size] <= _MAX_AGE:
                return
            self._sizes.remove(size)
            del self._seen[size], self._windows[size], self._times[size]


class RoundCosts:
    """What the rounds of one method take.

    `verification`: all of a round but drafting, by rows of its pass; shared by all methods.
    """

    def __init__(self, verification: Curve) -> None:
        self.verification = verification
        self._drafting: dict[int, Curve] = {}  # sequences that draft -> time by draft length

    @property
    def knows_drafting(self) -> bool:
        """Whether drafting was ever timed."""
        return bool(self._drafting)

    def knows_plain(self, sequences: int) -> bool:
        """Whether a round of this many sequences without drafts can be separated from one with drafts."""
        smallest = self.verification.smallest
        return smallest is not None and smallest <= sequences

    def observe_drafting(self, sequences: int, length: int, time_ns: int) -> None:
        """Take in the time in which `sequences` drafted, the longest draft being `length`."""
        if sequences not in self._drafting:
            self._drafting[sequences] = Curve()
        self._drafting[sequences].observe(length, time_ns)

    def round_ns(self, rows: float, sequences: int, length: int) -> float:
        """Return the time of a round. `length`: the longest draft; 0 costs no drafting."""
        return max(1.0, self.verification.at(rows) + self._draft_ns(sequences, length))

    def prices(self, sequences: int, others: int, longest: int, coverage: float) -> list[float]:
        """Return the times of a round by k = 0 .. `longest`, where all `sequences` draft k tokens."""
        return [
            self.round_ns(others + sequences * (1.0 + coverage * length), sequences, length)
            for length in range(longest + 1)
        ]

    def _draft_ns(self, sequences: int, length: int) -> float:
        if not length:
            return 0.0
        nearest = min(self._drafting, key=lambda seen: abs(seen - sequences))
        curve = self._drafting[nearest]
        shortest = curve.smallest or length
        # Below the shortest draft seen, time is in proportion; a curve's own answer there would be too high.
        return curve.at(length) if length >= shortest else curve.at(shortest) * length / shortest


def estimate_gain(
    lengths: Sequence[int], rates: Sequence[float], costs: RoundCosts, *, coverage: float, others: int
) -> float:
    """Return the throughput of a round with these drafts over that of the same round without any.

    `coverage`: drafted tokens over those asked for. `others`: further sequences of the pass, a row and a
    token each.
    """
    pairs = list(zip(lengths, rates, strict=True))
    tokens = others + sum(1.0 + coverage * (expected_tokens(rate, k) - 1.0) for k, rate in pairs)
    drafting = sum(1 for length in lengths if length)
    rows = others + len(lengths) + coverage * sum(lengths)
    plain = others + len(lengths)
    drafted_ns = costs.round_ns(rows, drafting, max(lengths, default=0))
    return tokens / drafted_ns * costs.round_ns(plain, 0, 0) / plain


_OFF_BELOW = 1.0
_ON_FROM = 1.05
_PATIENCE = 8  # rounds
_PROBE_ROUNDS = 6
_FIRST_WAIT, _LONGEST_WAIT = 16, 256  # rounds off before a probe
_STEADY_ROUNDS = 128  # on for so long, the wait starts from the first again
_RETRY_ROUNDS = 32  # a sequence that drafts nothing tries again after as many
_FIRST_PLAIN, _LONGEST_INTERVAL = 4, 64  # rounds until one without drafts is timed


@dataclass(slots=True)
class DraftHistory:
    """What is remembered of one sequence: its acceptance, and for how many rounds it has not drafted.

    `caught_up` says that it drafted in the round before, so that its drafter has little to read first.
    """

    acceptance: Acceptance
    paused: int = 0
    caught_up: bool = False


@dataclass(frozen=True, slots=True)
class Situation:
    """The sequences of one method and policy in the round to come, and the rest of its pass.

    `limits`: by sequence the most it may draft, at least 1. `others`: further decoding sequences of the pass.
    `coverage`: the method's drafted tokens over those asked for. `costs`: what rounds of the method take.
    """

    histories: Sequence[DraftHistory]
    limits: Sequence[int]
    others: int
    coverage: float
    costs: RoundCosts

    @property
    def decoding(self) -> int:
        """Decoding sequences in all."""
        return self.others + len(self.limits)

    @property
    def is_known(self) -> bool:
        """Whether drafted and plain rounds have been timed."""
        return self.costs.knows_drafting and self.costs.knows_plain(self.decoding)

    def best(self, *, lowest: int = 0) -> list[int]:
        """Return by sequence the length of most tokens per second, as if all chose it."""
        count = len(self.limits)
        prices = self.costs.prices(count, self.others, max(self.limits), self.coverage)
        return [
            best_length(
                history.acceptance.rate,
                prices[: limit + 1],
                lowest=lowest,
                coverage=self.coverage,
                others=self.others / count,
            )
            for history, limit in zip(self.histories, self.limits, strict=True)
        ]

    def gain(self) -> float | None:
        """Return the estimated gain of the best drafts over none, where each drafts if none should."""
        if not self.is_known:
            return None
        lengths = self.best()
        rates = [history.acceptance.rate for history in self.histories]
        return estimate_gain(
            lengths if any(lengths) else self.best(lowest=1),
            rates,
            self.costs,
            coverage=self.coverage,
            others=self.others,
        )


def check_table(table: BatchTable) -> None:
    """Refuse a table that is not (decoding sequences from, length) in rising order, the first from 1."""
    sizes = [size for size, _ in table]
    rising = sizes == sorted(set(sizes)) and sizes[:1] == [1]
    if not rising or any(length < 0 for _, length in table):
        raise UsageError(
            f"{table} is no table of draft lengths",
            place="draft_length_by_batch",
            fix="give (sequences from, length) in rising order, the first from 1, lengths 0 or more",
        )


def look_up_lengths(table: BatchTable, situation: Situation) -> list[int]:
    """Return the table's length for the number of decoding sequences, cut to each sequence's limit."""
    length = [length for size, length in table if size <= situation.decoding][-1]
    return [min(length, limit) for limit in situation.limits]


class AdaptiveLength:
    """The length of most expected tokens per second, by sequence.

    Until rounds are timed it drafts all it may. The fourth round is timed without drafts; so is a later one,
    after intervals that double up to 64 rounds. A sequence for which nothing pays tries the best length above
    none after 32 rounds.
    """

    def __init__(self) -> None:
        self._since_plain, self._interval = 0, _FIRST_PLAIN

    def lengths(self, situation: Situation) -> list[int]:
        """Return lengths from what is known."""
        self._since_plain += 1
        if not situation.costs.knows_drafting:
            return list(situation.limits)
        if self._since_plain >= self._interval:
            self._since_plain, self._interval = 0, min(2 * self._interval, _LONGEST_INTERVAL)
            return [0] * len(situation.limits)
        return self._choose(situation) if situation.is_known else list(situation.limits)

    def observe(self, gain: float | None, *, was_plain: bool) -> None:
        """Note when a round without drafts was timed."""
        del gain
        if was_plain:
            self._since_plain = 0

    def _choose(self, situation: Situation) -> list[int]:
        lengths = situation.best()
        due = [history.paused >= _RETRY_ROUNDS for history in situation.histories]
        if not any(due):
            return lengths
        trials = situation.best(lowest=1)
        return [trial if again else length for length, trial, again in zip(lengths, trials, due, strict=True)]


class PayGate:
    """A switch with hysteresis over the estimated gain of drafting, updated once a round.

    Off after eight rounds in a row below 1. After a wait it probes for six rounds, and goes on if the gain of
    the last three is 1.05 or more on average. The wait starts at 16 rounds and doubles up to 256 each time it
    goes off; it starts again at 16 after 128 rounds on.
    """

    def __init__(self) -> None:
        self.state: Literal["on", "off", "probing"] = "on"
        self._low = self._on_rounds = self._left = 0
        self._wait = _FIRST_WAIT
        self._gains: list[float] = []

    def observe(self, gain: float | None) -> None:
        """Count a round; an unknown gain only counts while off."""
        if self.state == "off":
            self._left -= 1
            if self._left <= 0:
                self.state, self._gains = "probing", []
        elif gain is not None and self.state == "on":
            self._observe_on(gain)
        elif gain is not None:
            self._observe_probe(gain)

    def _observe_on(self, gain: float) -> None:
        self._on_rounds += 1
        self._low = self._low + 1 if gain < _OFF_BELOW else 0
        if self._on_rounds == _STEADY_ROUNDS:
            self._wait = _FIRST_WAIT
        if self._low >= _PATIENCE:
            self._switch_off()

    def _observe_probe(self, gain: float) -> None:
        self._gains.append(gain)
        if len(self._gains) < _PROBE_ROUNDS:
            return
        late = self._gains[_PROBE_ROUNDS // 2 :]
        if sum(late) / len(late) >= _ON_FROM:
            self.state, self._low, self._on_rounds = "on", 0, 0
        else:
            self._switch_off()

    def _switch_off(self) -> None:
        self.state, self._left = "off", self._wait
        self._wait = min(2 * self._wait, _LONGEST_WAIT)


class AutoLength:
    """Adaptive, and off while the estimated gain over ordinary decoding says so (see PayGate)."""

    def __init__(self) -> None:
        self.gate = PayGate()
        self._adaptive = AdaptiveLength()

    def lengths(self, situation: Situation) -> list[int]:
        """Return no drafts while off, the best drafts above none while probing, else adaptive lengths."""
        if self.gate.state == "off":
            return [0] * len(situation.limits)
        if self.gate.state == "probing" and situation.is_known:
            return situation.best(lowest=1)
        return self._adaptive.lengths(situation)

    def observe(self, gain: float | None, *, was_plain: bool) -> None:
        """Move the gate."""
        self._adaptive.observe(gain, was_plain=was_plain)
        self.gate.observe(gain)
