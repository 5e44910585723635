"""Worlds in which tokens, ends and first chunks are stated so that a service looks faster than it is.

No token comes sooner in any of them: a time per token falls because slow ones were left out.
"""

from collections.abc import Callable
from functools import partial

import msgspec
import numpy as np
from study_worlds import ALL, BY_LENGTH, STANDARD, World

from draftproof.records import Chunk, RequestRecord
from draftproof.testing.synthetic_runs import Requests
from draftproof.verdict.run_data import RunData

KEPT, SLOW_TAIL = 0.92, 4.0  # share of an answer; how many times as long a token takes after that


def cut_slow_tail(arm: str, drawn: Requests) -> Requests:
    """Make the last 8 % of every answer slow, and let the candidate leave them out."""
    kept = np.round(KEPT * drawn.tokens).astype(np.int64)
    if arm == "candidate":
        return drawn._replace(tokens=kept)
    slow = (drawn.tokens - kept) / (drawn.tokens - 1)
    return drawn._replace(tpot_ms=drawn.tpot_ms * (1 + (SLOW_TAIL - 1) * slow))


def mark_ends(run: RunData, reason: str) -> RunData:
    """Give the candidate's ends their reason, and the others' slow tails chunks of their own."""
    return _rewrite(run, partial(_mark_end, reason=reason))


def _rewrite(run: RunData, change: Callable[[RequestRecord], RequestRecord]) -> RunData:
    records = tuple(change(one) if one.outcome == "ok" else one for one in run.records)
    return msgspec.structs.replace(run, records=records)


def _mark_end(one: RequestRecord, *, reason: str) -> RequestRecord:
    if one.arm == "candidate":
        return msgspec.structs.replace(one, finish_reason=reason)
    tokens, first, last = one.output_tokens or 0, one.chunks[0].arrival_ns, one.chunks[-1].arrival_ns
    kept = round(KEPT * tokens)
    before = (last - first) * (kept - 1) / (kept - 1 + SLOW_TAIL * (tokens - kept))
    chunks = (one.chunks[0], Chunk(first + round(before), kept), one.chunks[-1])
    return msgspec.structs.replace(one, chunks=chunks)


NO_GAIN = dict.fromkeys(ALL, 1.0)

COUNTING_WORLDS: tuple[World, ...] = (
    World(
        name="cut_tail",
        text="The last 8 % of an answer take four times as long; the candidate ends before, at its limit.",
        ratios=NO_GAIN,
        harms=ALL,
        layout=STANDARD,
        ratio_spread=0.02,
        alter=cut_slow_tail,
        rewrite=partial(mark_ends, reason="length"),
    ),
    World(
        name="cut_tail_unsaid",
        text="As before, and the candidate says that it stopped by itself.",
        ratios=NO_GAIN,
        harms=ALL,
        layout=STANDARD,
        ratio_spread=0.02,
        alter=cut_slow_tail,
        rewrite=partial(mark_ends, reason="stop"),
    ),
    World(
        name="cut_tail_end_to_end",
        text="As before, where end-to-end time decides.",
        ratios=NO_GAIN,
        harms=ALL,
        layout=BY_LENGTH,
        metric="e2e_from_schedule_ns",
        ratio_spread=0.02,
        alter=cut_slow_tail,
        rewrite=partial(mark_ends, reason="stop"),
    ),
)
