"""Why no answered request of a cell has a metric, and what helps where no number of prompts does. Pure."""

from collections import Counter
from typing import NamedTuple

import numpy as np

from draftproof.judge.observe.observed import Observation
from draftproof.judge.observe.pairs import Pairs

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
    places = np.concatenate([answered.mine, answered.theirs])
    causes = Counter(_find_cause(columns.observations[place]) for place in places[unknown[places]].tolist())
    return causes.most_common(1)[0][0]


def _find_cause(seen: Observation) -> Missing:
    if seen.metrics.output_tokens is None:
        return NO_COUNT
    return NOT_STREAMED if seen.record.unstreamed_tokens else ONE_CHUNK
