"""Worlds in which tokens, ends and first chunks are stated so that a service looks faster than it is.

No token comes sooner but in one of them: a time per token falls because tokens came with the first chunk,
because slow ones were left out, or because more are stated than were sent.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise

import msgspec
import numpy as np
from study_worlds import ALL, BY_LENGTH, STANDARD, World
from tests.builders.runs import Requests

from draftproof.core.records import Chunk, RequestRecord
from draftproof.judge.observe.run_data import RunData

BUNDLE = 4  # tokens that the joining arm sends in one event
CHARACTERS = 3  # of a token in the texts of synthetic runs
KEPT, SLOW_TAIL = 0.92, 4.0  # share of an answer; how many times as long a token takes after that
MISCOUNT = 1.08
EMPTY_SHARE = 0.09  # of a run's answers, the longest
LATE_FIRST_MS, SHORT_ANSWERS, LONGER = 400.0, (16, 48), 4

SAMPLED = replace(STANDARD, temperature=0.7)


def cut_slow_tail(arm: str, drawn: Requests) -> Requests:
    """Make the last 8 % of every answer slow, and let the candidate leave them out."""
    kept = np.round(KEPT * drawn.tokens).astype(np.int64)
    if arm == "candidate":
        return drawn._replace(tokens=kept)
    slow = (drawn.tokens - kept) / (drawn.tokens - 1)
    return drawn._replace(tpot_ms=drawn.tpot_ms * (1 + (SLOW_TAIL - 1) * slow))


def shorten_answers(arm: str, drawn: Requests) -> Requests:  # noqa: ARG001
    """Give every answer 16 to 48 tokens and its first one after 400 ms."""
    lengths = SHORT_ANSWERS[0] + drawn.tokens % (SHORT_ANSWERS[1] - SHORT_ANSWERS[0] + 1)
    return drawn._replace(tokens=lengths, ttft_ms=drawn.ttft_ms + LATE_FIRST_MS)


def lengthen_answers(arm: str, drawn: Requests) -> Requests:  # noqa: ARG001
    """Make every answer four times as long."""
    return drawn._replace(tokens=drawn.tokens * LONGER)


def state_tokens(arm: str, drawn: Requests, *, arms: tuple[str, ...], factor: float) -> Requests:
    """Let some arms state `factor` times the tokens that they send, in the same time."""
    if arm not in arms:
        return drawn
    stated = np.round(factor * drawn.tokens).astype(np.int64)
    return drawn._replace(tokens=stated, tpot_ms=drawn.tpot_ms * (drawn.tokens - 1) / (stated - 1))


def mark_ends(run: RunData, reason: str) -> RunData:
    """Give the candidate's ends their reason, and the others' slow tails chunks of their own."""
    return _rewrite(run, partial(_mark_end, reason=reason))


def bundle_events(run: RunData, arms: tuple[str, ...], tokens: int = BUNDLE) -> RunData:
    """Let no chunk say its tokens, and let some arms send several tokens in one event, the first one too."""
    return _rewrite(run, lambda one: _tell_by_closing_usage(one, tokens if one.arm in arms else 1))


def keep_texts(run: RunData, arms: tuple[str, ...], factor: float, *, sampled: bool = False) -> RunData:
    """Give every answer the text of the tokens that were sent, another one in each arm if it is sampled."""
    return _rewrite(run, lambda one: _keep_text(one, factor if one.arm in arms else 1.0, sampled=sampled))


def empty_longest(run: RunData) -> RunData:
    """Let the candidate end its longest answers at once, well and without a word."""
    lengths = [one.output_tokens or 0 for one in run.records if one.arm == "candidate"]
    bound = float(np.quantile(lengths, 1 - EMPTY_SHARE))
    return _rewrite(run, lambda one: _empty(one) if _is_longest(one, bound) else one)


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


def _tell_by_closing_usage(one: RequestRecord, bundle: int) -> RequestRecord:
    """Send tokens of even pace in bundles: each arrives with the last of its bundle."""
    tokens, first, last = one.output_tokens or 0, one.chunks[0].arrival_ns, one.chunks[-1].arrival_ns
    pace = (last - first) / max(1, tokens - 1)
    sent = [*range(bundle, tokens, bundle), tokens]
    return msgspec.structs.replace(
        one,
        chunks=tuple(Chunk(first + round(pace * (count - 1)), None) for count in sent),
        piece_chars=tuple(CHARACTERS * (after - before) for before, after in pairwise((0, *sent))),
        token_source=None,
        speculation=None,
    )


def _keep_text(one: RequestRecord, factor: float, *, sampled: bool) -> RequestRecord:
    sent = round((one.output_tokens or 0) / factor)
    text = f"yes {one.arm}".ljust(CHARACTERS * sent, ".") if sampled else "yes" + " ok" * (sent - 1)
    return msgspec.structs.replace(one, text=text, speculation=None)


def _is_longest(one: RequestRecord, bound: float) -> bool:
    return one.arm == "candidate" and (one.output_tokens or 0) > bound


def _empty(one: RequestRecord) -> RequestRecord:
    return msgspec.structs.replace(
        one,
        chunks=(),
        token_source=None,
        output_tokens=1,
        text="",
        speculation=None,
        end_ns=one.chunks[0].arrival_ns,
    )


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
    World(
        name="bundled_events",
        text="Equal services, closing usage only, 16 to 48 tokens; the candidate sends four in one event.",
        ratios=NO_GAIN,
        layout=STANDARD,
        is_wide=True,
        ratio_spread=0.02,
        alter=shorten_answers,
        rewrite=partial(bundle_events, arms=("candidate",)),
    ),
    World(
        name="bundled_baseline",
        text="As before, but the baseline joins its events: the candidate looks slower.",
        ratios=NO_GAIN,
        layout=STANDARD,
        is_wide=True,
        ratio_spread=0.02,
        alter=shorten_answers,
        rewrite=partial(bundle_events, arms=("baseline", "baseline_null")),
    ),
    World(
        name="gain_by_closing_usage",
        text="40 % faster, 160 tokens and more; closing usage only, the candidate sends two in one event.",
        ratios=dict.fromkeys(ALL, 0.6),
        gains=ALL,
        layout=STANDARD,
        is_wide=True,
        alter=lengthen_answers,
        rewrite=partial(bundle_events, arms=("candidate",), tokens=2),
    ),
    World(
        name="overcounted",
        text="Equal services with equal greedy texts; the candidate states 8 % more tokens.",
        ratios=NO_GAIN,
        layout=STANDARD,
        ratio_spread=0.01,
        alter=partial(state_tokens, arms=("candidate",), factor=MISCOUNT),
        rewrite=partial(keep_texts, arms=("candidate",), factor=MISCOUNT),
    ),
    World(
        name="undercounted_baseline",
        text="As before; the candidate counts right and the baseline states 8 % fewer.",
        ratios=NO_GAIN,
        layout=STANDARD,
        ratio_spread=0.01,
        alter=partial(state_tokens, arms=("baseline", "baseline_null"), factor=1 / MISCOUNT),
        rewrite=partial(keep_texts, arms=("baseline", "baseline_null"), factor=1 / MISCOUNT),
    ),
    World(
        name="overcounted_samples",
        text="Sampled answers of equal services; the candidate states 8 % more tokens for its texts.",
        ratios=NO_GAIN,
        layout=SAMPLED,
        ratio_spread=0.01,
        alter=partial(state_tokens, arms=("candidate",), factor=MISCOUNT),
        rewrite=partial(keep_texts, arms=("candidate",), factor=MISCOUNT, sampled=True),
    ),
    World(
        name="empty_answers",
        text="End-to-end time decides; the candidate ends 9 % of its answers, the longest, without a word.",
        ratios=NO_GAIN,
        harms=ALL,
        layout=BY_LENGTH,
        metric="e2e_from_schedule_ns",
        rewrite=empty_longest,
    ),
)
