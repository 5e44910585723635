"""Speed-up, acceptance and efficiency of each proposal family over the same engine with speculation off."""

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ratios import decode_speedup, rate_ratio, spread
from sides import Call, Calls, EngineSide, Limit, Prompt, Side, interleave

from draftproof.reference.engine import Engine
from draftproof.reference.types import RoundStats, SpeculationMethod

OFF = "off"
Families = Mapping[str, tuple[Engine, SpeculationMethod]]  # by name: where it runs, and as what
Repeats = Sequence[Sequence[Call]]


class Drafting(NamedTuple):
    """How a family drafts: at most so many tokens, and no further where it is less sure than this."""

    draft_tokens: int
    stop_below: float

    def __str__(self) -> str:
        return f"{self.draft_tokens} tokens, stop below {self.stop_below}"


def choose_drafting(
    families: Families, prompts: Sequence[Prompt], ways: Sequence[Drafting], limit: Limit, repeats: int
) -> tuple[dict[str, Drafting], dict[str, dict[str, float]]]:
    """Return the fastest way of each family on `prompts`, and tokens per second of all ways.

    Nothing else is measured on these prompts. Lookup is never unsure, so it has only the ways without a stop.
    """
    wanted = {
        (name, way): EngineSide(engine, method, *way)
        for name, (engine, method) in families.items()
        for way in ways
        if method != "ngram" or way.stop_below == 0
    }
    if not wanted:
        return {}, {}
    sides: dict[str, Side] = {f"{name} {way}": side for (name, way), side in wanted.items()}
    calls = interleave(sides, prompts, limit, repeats)
    rates = {name: statistics.median(_total_rates(repeated, repeats)) for name, repeated in calls.items()}
    own = {name: [way for other, way in wanted if other == name] for name in families}
    best = {name: max(found, key=lambda way: rates[f"{name} {way}"]) for name, found in own.items()}
    tried = {
        name: {str(way): round(rates[f"{name} {way}"], 2) for way in found} for name, found in own.items()
    }
    return best, tried


def _total_rates(calls: Repeats, repeats: int) -> list[float]:
    totals = [[one[period] for one in calls] for period in range(repeats)]
    return [sum(len(c.token_ids) for c in one) / sum(c.seconds for c in one) for one in totals]


def measure_segment(
    families: Families, ways: Mapping[str, Drafting], prompts: Sequence[Prompt], limit: Limit, repeats: int
) -> Calls:
    """Return the answers of every family, and of the engine with speculation off, to a segment's prompts."""
    first = next(iter(families.values()))[0]
    sides: dict[str, Side] = {OFF: EngineSide(first)}
    for name, (engine, method) in families.items():
        sides[name] = EngineSide(engine, method, *ways[name])
    return interleave(sides, prompts, limit, repeats)


def describe_family(calls: Calls, name: str, way: Drafting) -> dict[str, Any]:
    """Return a family's speed-up and acceptance on a segment.

    `median` is of whole calls, prefill included; `decode` leaves the prefill out. `accepted_per_position`
    counts, over rounds that drafted at full length, those that accepted at least so many drafts, as a share.
    `differing_answers` counts prompts whose answer is not that of ordinary decoding; native kernels
    give none.
    """
    off, own = calls[OFF], calls[name]
    rounds = collect_rounds(own)
    full = [one for one in rounds if one.proposed == way.draft_tokens]
    return rate_ratio(own, off) | {
        "decode": decode_speedup(own, off),
        **way._asdict(),
        "tokens_per_round": round(statistics.fmean(one.committed for one in rounds), 3) if rounds else None,
        "proposed_per_round": round(statistics.fmean(one.proposed for one in rounds), 3) if rounds else None,
        "accepted_per_position": [
            round(sum(one.accepted > place for one in full) / len(full), 3) if full else None
            for place in range(way.draft_tokens)
        ],
        "tokens_per_s": spread(statistics.median(call.rate for call in one) for one in own),
        "differing_answers": sum(a[0].token_ids != b[0].token_ids for a, b in zip(own, off, strict=True)),
    }


def collect_rounds(calls: Repeats) -> list[RoundStats]:
    """Return all decode rounds of a side."""
    return [round_ for repeated in calls for call in repeated for round_ in call.rounds]


def overhead_share(calls: Repeats) -> float | None:
    """Return the share of a side's rounds outside target and drafter passes: sampling, scheduling."""
    rounds = collect_rounds(calls)
    outside = sum(one.sample_ns + one.schedule_ns for one in rounds)
    whole = outside + sum(one.draft_ns + one.verify_ns for one in rounds)
    return round(outside / whole, 4) if whole else None


def describe_efficiency(calls: Calls, name: str) -> dict[str, Any]:
    """Return a family's measured decode speed-up over the bound of its acceptance and pass times.

    The bound is the speed-up if nothing but passes took time:

        bound = sum(committed) * ordinary / sum(draft + verify)

    with sums over all rounds of the family. `ordinary` is the median time of the target's pass with
    speculation off on the same prompts. `draft` and `verify` are the times of the drafter's and the target's
    pass as the engine reports them, each the median over rounds of a kind: those that proposed equally many,
    an answer's first round apart, in which a drafter reads the prompt. Sampling, scheduling and what
    surrounds the rounds are in the measured speed-up and not in the bound: what `efficiency` lacks to 1 is
    the engine's overhead and the chance of the machine. Ordinary decoding has overhead too, which the bound
    does not count either: where it is large, `efficiency` may exceed 1.
    """
    ordinary_ns = statistics.median(one.verify_ns for one in collect_rounds(calls[OFF]))
    kinds: dict[tuple[int, bool], list[RoundStats]] = defaultdict(list)
    for call in (call for repeated in calls[name] for call in repeated):
        for at, one in enumerate(call.rounds):
            kinds[(one.proposed, at == 0)].append(one)
    rounds = collect_rounds(calls[name])
    passes_ns = sum(_typical_ns(kind) * len(kind) for kind in kinds.values())
    bound = sum(one.committed for one in rounds) * ordinary_ns / passes_ns
    measured = _decode_rate(calls[name]) / _decode_rate(calls[OFF])
    return {
        "efficiency": round(measured / bound, 4),
        "decode_speedup": round(measured, 4),
        "bound": round(bound, 4),
        "ordinary_pass_ms": round(ordinary_ns / 1e6, 3),
        "draft_pass_ms": _median_ms(one.draft_ns for one in rounds),
        "verify_pass_ms": _median_ms(one.verify_ns for one in rounds),
    }


def _typical_ns(rounds: Sequence[RoundStats]) -> float:
    draft = statistics.median(one.draft_ns for one in rounds)
    return draft + statistics.median(one.verify_ns for one in rounds)


def _median_ms(values: Iterable[int]) -> float:
    return round(statistics.median(values) / 1e6, 3)


def _decode_rate(calls: Repeats) -> float:
    """Return the tokens per second of all prompts together, prefill left out, as the bound counts them."""
    tokens = sum(len(one[0].token_ids) - 1 for one in calls)
    return tokens / sum(statistics.median(call.seconds - call.first_s for call in one) for one in calls)
