"""Whether the answers of two arms can be compared: counted alike, warm alike, as long, and nothing hidden.

Equal greedy texts must have equal counts, else a time per token compares nothing. A warm-up ends when two
groups of requests agree, and two that are equally slow do: so each arm's counted requests are looked at once
more, in the order of their periods. Of a pair whose answers differ in length both are read up to the last
token of the shorter one. An arm that answers slow requests in a way that hides their times would look fast on
the rest.
"""

import math
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter

import msgspec
import numpy as np

from draftproof.core.records import RequestRecord
from draftproof.judge.decide.effects import METRICS, CellKey
from draftproof.judge.decide.guardrails import SUSPECT_PROMPTS, GuardrailFinding, find
from draftproof.judge.metrics.delivery import count_characters
from draftproof.judge.metrics.request import METRIC_WORDS, count_output_tokens, is_empty
from draftproof.judge.observe.columns import FROM_PROMPT, Columns
from draftproof.judge.observe.pairs import NO_PAIRS, Pairs, PairTable, is_same_text
from draftproof.judge.observe.run_data import ALL_SEGMENTS, Observation, PreparedRun
from draftproof.judge.results.decide import Reference, refer
from draftproof.judge.results.run import Reason
from draftproof.judge.stats.resampling import Floats
from draftproof.plan.schema import Thresholds

CODE = "counts_differ"
# As of the client's lag: less than a fifth of the smallest effect that is claimed is tolerated.
TOLERATED_PART = 0.2
REMEDY = (
    "find out which service counts wrong; where it states no tokens at its chunks, the model's tokenizer "
    "(target.tokenizer) counts the texts of both"
)


class Miscount(msgspec.Struct, frozen=True, kw_only=True):
    """Equal greedy texts of an arm and the baseline at one load that are counted otherwise.

    `unequal` of `equal` pairs with equal texts; `off` is what their counts differ by, as a share of the
    tokens of all of these.
    """

    arm: str
    load: str
    unequal: int
    equal: int
    off: float

    @property
    def text(self) -> str:
        """The fault in words."""
        return (
            f"The arm {self.arm} and the baseline count equal texts differently at load {self.load}: "
            f"{self.unequal} of {self.equal} pairs of equal greedy answers, "
            f"{100 * self.off:.1f} % of their tokens"
        )


def list_miscounts(prepared: PreparedRun, pairs: PairTable) -> tuple[Miscount, ...]:
    """Return where equal texts are counted otherwise in more than one prompt."""
    tokens = prepared.columns.read(lambda seen: _count_text(seen.record) if seen.is_ok else None)
    found = (
        _find_miscount(pairs.get((arm, "baseline"), NO_PAIRS).cell(ALL_SEGMENTS, load), tokens, arm, load)
        for load in prepared.loads
        for arm in ("candidate", "alternative")
    )
    return tuple(one for one in found if one is not None)


def find_miscounted(found: Iterable[Miscount], prepared: PreparedRun) -> dict[str, tuple[Reason, ...]]:
    """Return, by load, the faults of counts that are off by more than the smallest gain tolerates."""
    wrong = [one for one in found if not _is_tolerated(one, prepared)]
    return {
        load: tuple(
            Reason(
                code=CODE,
                text=f"{one.text}; times per token compare nothing there: {REMEDY}.",
                evidence=Reference(
                    "effects", one.arm, "baseline", quantity="output_tokens", at=(ALL_SEGMENTS, load)
                ),
            )
            for one in wrong
            if one.load == load
        )
        for load in dict.fromkeys(one.load for one in wrong)
    }


def warn_about_miscounts(found: Iterable[Miscount], prepared: PreparedRun) -> Iterator[str]:
    """Yield a sentence for each difference of counts that is too small to matter."""
    yield from (f"{one.text}." for one in found if _is_tolerated(one, prepared))


def count_sent_tokens(record: RequestRecord) -> int | None:
    """Return the tokens by which an answer's time is divided: those of its chunks, else its total.

    None of a total of which some were never streamed: it is not that of the text.
    """
    last = record.chunks[-1].cumulative_tokens if record.chunks else None
    if last is not None:
        return last
    return None if record.unstreamed_tokens else count_output_tokens(record)


def read_tokens_per_character(columns: Columns) -> Floats:
    """Return the tokens for each character of an answer's text, shape (observations,), NaN if unknown."""
    return columns.read(lambda seen: _divide_by_text(seen.record) if seen.is_ok else None)


def _divide_by_text(record: RequestRecord) -> float | None:
    tokens, characters = count_sent_tokens(record), count_characters(record)
    return tokens / characters if tokens is not None and characters else None


def _count_text(record: RequestRecord) -> int | None:
    return None if is_empty(record) else count_sent_tokens(record)


def _find_miscount(pairs: Pairs, tokens: Floats, arm: str, load: str) -> Miscount | None:
    """Return what equal greedy texts are off by; texts are compared only where counts differ."""
    greedy = pairs.greedy
    mine, theirs = tokens[greedy.mine], tokens[greedy.theirs]
    differs = ~np.isnan(mine) & ~np.isnan(theirs) & (mine != theirs)
    records = pairs.columns.records
    unequal = [
        index
        for index in np.flatnonzero(differs).tolist()
        if is_same_text(records[greedy.mine[index]], records[greedy.theirs[index]])
    ]
    if len(np.unique(pairs.columns.prompts[greedy.mine[unequal]])) < SUSPECT_PROMPTS:
        return None
    alike = greedy.is_same & (mine == theirs)
    off = float(np.abs(mine - theirs)[unequal].sum())
    whole = float(theirs[unequal].sum() + theirs[alike].sum())
    return Miscount(
        arm=arm, load=load, unequal=len(unequal), equal=len(unequal) + int(alike.sum()), off=off / whole
    )


def _is_tolerated(one: Miscount, prepared: PreparedRun) -> bool:
    return one.off <= TOLERATED_PART * prepared.plan.thresholds.minimum_gain


STRETCHES = 16
LEAST_OF_A_STRETCH = 5
SLOWER = 1.2
# Of stretches that differ by chance alone, one first one is the slowest as often as any other, so that the
# requests themselves have to differ as well: three standard errors of a rank sum.
LEAST_Z = 3.0
DECIDING = ("baseline", "candidate")


class ColdSpell(msgspec.Struct, frozen=True, kw_only=True):
    """The slow first requests of an arm at a load.

    `requests` of `all_requests`, all starts of the arm together; `slower` is their median time per token over
    that of the others. `shift` is the mean time per token of all over that of the others.
    """

    load: str
    arm: str
    requests: int
    all_requests: int
    slower: float
    shift: float


def count_cold(times: Floats) -> int:
    """Return how many of the first requests of one start were slow by a step, 0 where none were.

    `times` per token, shape (requests,), in the order of sending, are cut into stretches. The first ones, up
    to half, are a step if the median of each is `SLOWER` times that of the slowest behind them and the
    requests differ in rank.
    """
    stretches = min(STRETCHES, times.size // LEAST_OF_A_STRETCH)
    if stretches < 4:
        return 0
    cut = np.array_split(times, stretches)
    medians = np.array([np.median(one) for one in cut])
    steps = [
        count
        for count in range(1, stretches // 2 + 1)
        if medians[:count].min() >= SLOWER * medians[count:].max()
    ]
    cold = sum(one.size for one in cut[: steps[-1]]) if steps else 0
    return cold if cold and _rank_z(times, cold) >= LEAST_Z else 0


def find_cold_spells(prepared: PreparedRun) -> tuple[ColdSpell, ...]:
    """Return the cold spells of a run, loads and arms in its order."""
    return tuple(
        spell
        for load in prepared.loads
        for arm in prepared.arms
        if (spell := _find_spell(prepared, load, arm)) is not None
    )


def withhold_for_cold(spells: Sequence[ColdSpell], thresholds: Thresholds) -> dict[str, tuple[Reason, ...]]:
    """Return by load why nothing is concluded there, where cold requests move the ratio of the arms."""
    found: dict[str, tuple[Reason, ...]] = {}
    allowed = math.log1p(min(thresholds.minimum_gain, thresholds.harm_margin) / 2)
    for load in dict.fromkeys(one.load for one in spells):
        own = {one.arm: one for one in spells if one.load == load}
        moved = sum(
            math.log(own[arm].shift) * sign for arm, sign in zip(DECIDING, (-1, 1), strict=True) if arm in own
        )
        if abs(moved) > allowed:
            cold = "; ".join(_describe(own[arm]) for arm in DECIDING if arm in own)
            text = (
                f"At load {load} the first counted requests belong to an arm that was still getting warm: "
                f"{cold}. That alone moves candidate / baseline by {math.expm1(moved):+.1%}, so nothing is "
                "concluded there. Raise limits.warmup_requests above that number and measure again."
            )
            found[load] = (Reason(code="cold_periods", text=text, evidence=Reference("periods", at=load)),)
    return found


def warn_about_cold(spells: Sequence[ColdSpell]) -> Iterator[str]:
    """Yield a sentence for each load at which an arm was cold."""
    for load in dict.fromkeys(one.load for one in spells):
        cold = "; ".join(_describe(one) for one in spells if one.load == load)
        yield (
            f"At load {load} the first counted requests were slow by a step: {cold}. All of them count. Set "
            "limits.warmup_requests above that number, or look for what ran beside the run as it began."
        )


def _describe(spell: ColdSpell) -> str:
    return (
        f"{spell.arm}, {spell.requests} of {spell.all_requests} requests took {spell.slower:.2f} times as "
        "long per token as the others"
    )


def _find_spell(prepared: PreparedRun, load: str, arm: str) -> ColdSpell | None:
    every, cold = list[Floats](), list[Floats]()
    for times in _split_by_start(prepared, load, arm):
        count = count_cold(times)
        every.append(times)
        cold.append(times[:count])
    if not sum(one.size for one in cold):
        return None
    rest = np.concatenate([one[slow.size :] for one, slow in zip(every, cold, strict=True)])
    slow, whole = np.concatenate(cold), np.concatenate(every)
    return ColdSpell(
        load=load,
        arm=arm,
        requests=slow.size,
        all_requests=whole.size,
        slower=float(np.median(slow) / np.median(rest)),
        shift=float(whole.mean() / rest.mean()),
    )


def _split_by_start(prepared: PreparedRun, load: str, arm: str) -> list[Floats]:
    """Return times per token in the order of sending, one array for each process of the arm."""
    found = defaultdict[str | None, list[tuple[int, int, str, float]]](list)
    for seen in prepared.of_arm(arm, load):
        tpot_ns, sent_ns = seen.metrics.tpot_ns, seen.record.sent_ns
        if seen.is_ok and seen.timed and tpot_ns and sent_ns is not None:
            block = seen.record.block
            process = prepared.process_labels.get((load, block, arm))
            found[process].append((block, sent_ns, seen.record.request_id, tpot_ns))
    return [np.array([one[-1] for one in sorted(own)]) for own in found.values()]


def _rank_z(times: Floats, first: int) -> float:
    """Return by how many standard errors the rank sum of the first requests is above its expectation."""
    rest = times.size - first
    below = np.searchsorted(np.sort(times[first:]), times[:first], side="left").sum()
    return float((below - first * rest / 2) / math.sqrt(first * rest * (times.size + 1) / 12))


WORDS = METRIC_WORDS | {"output_tokens": "length of the answer"}


class Coverage(msgspec.Struct, frozen=True, kw_only=True):
    """In how many answered, timed pairs of a cell the other arm has a metric, and this arm lacks it."""

    metric: str
    known: int
    hidden: int


def count_hidden(prepared: PreparedRun, pairs: Pairs) -> dict[CellKey, tuple[Coverage, ...]]:
    """Return, by cell, how often the arm hides each metric that its partner shows."""
    return {
        (segment, load): tuple(
            _cover(prepared.columns, pairs.cell(segment, load), metric) for metric in METRICS
        )
        for load in prepared.loads
        for segment in prepared.segments
    }


def evaluate_coverage(
    cell: CellKey, hidden: Mapping[CellKey, tuple[Coverage, ...]], margin: float
) -> tuple[GuardrailFinding, ...]:
    """Return one open finding for each metric that the candidate hides in more than `margin` of the pairs."""
    return tuple(_explain(cell, one) for one in hidden.get(cell, ()) if one.hidden > margin * one.known)


def _cover(columns: Columns, pairs: Pairs, metric: str) -> Coverage:
    mine, theirs = pairs.mine, pairs.theirs
    answered = columns.is_ok & columns.timed
    if metric in FROM_PROMPT:
        answered &= ~columns.asks_again
    usable = columns.in_order & (columns.metric(metric) > 0)
    known = answered[mine] & answered[theirs] & usable[theirs]
    return Coverage(metric=metric, known=int(known.sum()), hidden=int((known & ~usable[mine]).sum()))


def _explain(cell: CellKey, one: Coverage) -> GuardrailFinding:
    text = (
        f"The candidate's {WORDS[one.metric]} is not usable in {one.hidden} of {one.known} pairs in which "
        "the baseline's is, so what the others show may be chosen."
    )
    return find("open", "metric_hidden", text, refer("effects", cell, one.metric))


_REACHED = attrgetter("cumulative_tokens")


def read_at_equal_length(pairs: Pairs, metric: str) -> Floats | None:
    """Return a time of each request at the length of its pair's shorter answer, shape (observations,).

    `metric` is "tpot_ns" or "e2e_from_schedule_ns". The time itself where both answers have one length or the
    stream does not count its chunks; None where that is so of every pair.
    """
    columns = pairs.columns
    values, tokens = columns.metric(metric), columns.metric("output_tokens")
    mine, theirs = tokens[pairs.mine], tokens[pairs.theirs]
    differing = np.flatnonzero(~np.isnan(mine) & ~np.isnan(theirs) & (mine != theirs))
    found, read = values.copy(), _READERS[metric]
    for index in differing.tolist():
        shorter = int(min(mine[index], theirs[index]))
        ends = [int(pairs.mine[index]), int(pairs.theirs[index])]
        times = [read(columns.observations[end], shorter) for end in ends]
        if None not in times:
            found[ends] = times
    return None if np.array_equal(found, values, equal_nan=True) else found


def read_rate(seen: Observation, tokens: int) -> float | None:
    """Return the time per token after the first chunk up to so many tokens, ns; None where it has none."""
    counts = _count(seen.record)
    if counts is None:
        return None
    last = max(1, bisect_right(counts, tokens) - 1)
    if last >= len(counts) or counts[last] == counts[0]:
        return None
    chunks = seen.record.chunks
    return (chunks[last].arrival_ns - chunks[0].arrival_ns) / (counts[last] - counts[0])


def read_arrival(seen: Observation, tokens: int) -> float | None:
    """Return the time from the schedule to the arrival of so many tokens, ns; None without counts."""
    counts = _count(seen.record)
    if counts is None:
        return None
    index = min(bisect_left(counts, tokens), len(counts) - 1)
    return float(seen.record.chunks[index].arrival_ns - seen.record.scheduled_ns)


_READERS = {"tpot_ns": read_rate, "e2e_from_schedule_ns": read_arrival}


def _count(record: RequestRecord) -> list[int] | None:
    """Return the cumulative tokens of the chunks, None where one is not known or there is none."""
    counts = [*map(_REACHED, record.chunks)]
    return None if not counts or None in counts else counts
