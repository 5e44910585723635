"""A time per token that is known within bounds, or of no answer at all, and what helps then.

Where nobody counts the tokens of the first chunk an effect reaches from the least ratio that the bounds of
both arms allow to the greatest: what is to hold, holds for every number of tokens in between.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from draftproof.judge.observe.columns import ASSUMED
from draftproof.judge.observe.observed import Observation
from draftproof.judge.observe.pairs import Pairs
from draftproof.judge.results.run import Effect, Figure
from draftproof.judge.stats.bootstrap import RatioEstimate
from draftproof.judge.stats.resampling import Floats

BOUNDED = "tpot_ns"
REMEDY = (
    "have the service state its tokens at every chunk (running usage or token ids), or name the model's "
    "tokenizer in the plan (target.tokenizer), which counts them after the run"
)


def read_bounds(pairs: Pairs, metric: str) -> tuple[Floats, Floats] | None:
    """Return the values with the least ratio of the first arm to the other, and those with the greatest.

    Shape (observations,) each. None where the metric is known of every pair.
    """
    if metric != BOUNDED:
        return None
    columns = pairs.columns
    low, high = columns.metric(BOUNDED), columns.metric("tpot_most_ns")
    if not (high > low)[np.concatenate([pairs.mine, pairs.theirs])].any():
        return None
    is_mine = np.zeros(len(low), dtype=np.bool_)
    is_mine[pairs.mine] = True
    return np.where(is_mine, low, high), np.where(is_mine, high, low)


def count_assumed(pairs: Pairs) -> int:
    """Return of how many pairs with the metric a first chunk's tokens are assumed."""
    columns = pairs.columns
    known = columns.timed & ~np.isnan(columns.metric(BOUNDED))
    is_assumed = columns.tpot_basis == ASSUMED
    assumed = is_assumed[pairs.mine] | is_assumed[pairs.theirs]
    return int((assumed & known[pairs.mine] & known[pairs.theirs]).sum())


def note_basis(effect: Effect, pairs: Pairs) -> Effect:
    """Return an effect on time per token with the number of its pairs in which a first chunk is assumed."""
    return replace(effect, assumed_pairs=count_assumed(pairs)) if effect.metric == BOUNDED else effect


def span_bounds(effect: Effect, least: Effect, most: Effect, margins: Sequence[float]) -> Effect:
    """Return an effect whose intervals reach over those of its least and its greatest ratio.

    Where the bounds alone are on both sides of one of the `margins`, no number of prompts shows on which side
    it is.
    """
    remedy = REMEDY if _cross(least.ratio.value, most.ratio.value, margins) else None
    return replace(
        effect,
        ratio=_span(effect.ratio, least.ratio, most.ratio, remedy),
        simultaneous=_span(effect.simultaneous, least.simultaneous, most.simultaneous, remedy),
        sequence=_span_known(effect.sequence, least.sequence, most.sequence, remedy=remedy),
    )


def _span_known(*figures: Figure | None, remedy: str | None) -> Figure | None:
    known = [one for one in figures if one is not None]
    return _span(known[0], known[1], known[2], remedy) if len(known) == len(figures) else None


def _span(figure: Figure, least: Figure, most: Figure, remedy: str | None) -> Figure:
    low, high = span_limits((figure, least, most))
    return replace(figure, low=low, high=high, remedy=remedy)


def span_limits(ends: Iterable[Figure | RatioEstimate]) -> tuple[float | None, float | None]:
    """Return the least lower and the greatest upper limit; None where one of them has no such limit."""
    ends = list(ends)
    lows, highs = [one.low for one in ends], [one.high for one in ends]
    return _choose(min, lows), _choose(max, highs)


def _choose(choose: Callable[[list[float]], float], limits: Sequence[float | None]) -> float | None:
    known = [limit for limit in limits if limit is not None]
    return choose(known) if len(known) == len(limits) else None


def _cross(least: float | None, most: float | None, margins: Sequence[float]) -> bool:
    return least is not None and most is not None and any(least < margin < most for margin in margins)


COUNTED_METRICS = ("tpot_ns", "output_tokens")


class Missing(NamedTuple):
    """What answers lack, and what helps."""

    reason: str
    remedy: str


NO_COUNT = Missing(
    "nobody counts the tokens of the answers",
    "have the service state its usage (stream_options.include_usage), or name the model's tokenizer in the "
    "plan (target.tokenizer), which counts them after the run",
)
NOT_STREAMED = Missing(
    "the answers hold tokens that were never streamed, such as hidden reasoning",
    "have the service stream its reasoning, or let end-to-end time decide (comparison.metric)",
)
ONE_CHUNK = Missing(
    "the answers come whole in one chunk",
    "have the service stream, ask for longer answers, or let end-to-end time decide (comparison.metric)",
)


def explain_missing(pairs: Pairs, metric: str) -> Missing | None:
    """Return why a metric of tokens is known of no answered pair of a cell.

    None where a pair has it, where none was answered by a client on time, and for other metrics.
    """
    columns = pairs.columns
    timed = columns.timed[pairs.mine] & columns.timed[pairs.theirs]
    answered = pairs.where(pairs.is_ok & timed)
    if metric not in COUNTED_METRICS or not answered:
        return None
    unknown = np.isnan(columns.metric(metric))
    if not (unknown[answered.mine] | unknown[answered.theirs]).all():
        return None
    indices = np.concatenate([answered.mine, answered.theirs])
    causes = Counter(_find_cause(columns.observations[index]) for index in indices[unknown[indices]].tolist())
    return causes.most_common(1)[0][0]


def _find_cause(seen: Observation) -> Missing:
    if seen.metrics.output_tokens is None:
        return NO_COUNT
    return NOT_STREAMED if seen.record.unstreamed_tokens else ONE_CHUNK
