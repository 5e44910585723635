"""How many tokens to draft now. Pure: decided from rounds that are over, with no clock of its own.

A length never depends on tokens drawn in the round it is chosen for, so verification stays exact whatever the
policy. With `adaptive` and `auto` it depends on measured times: two runs with one seed may give other samples
of the same distribution. Greedy output does not depend on it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from draftproof.core.errors import UsageError
from draftproof.reference.draft_costs import Acceptance, RoundCosts, best_length, estimate_gain
from draftproof.reference.types import BatchTable

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
    """A switch with hysteresis over the estimated gain of drafting, told of it once a round.

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
