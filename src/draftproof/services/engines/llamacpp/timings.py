"""llama.cpp's `timings` blocks to decode steps. Pure.

With `timings_per_token` every chunk has a block, and all tokens of one step carry the same time and the same
draft counters (release b11434, `tools/server/server-context.cpp`: the clock is read once for each step).
"""

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from draftproof.core.records import ServerTimings, SpecCounts
from draftproof.services.engines.chat.frames import EngineBlocks, Timings, ms_to_ns
from draftproof.services.engines.chat.metrics_block import MetricsReading


class _Moment(NamedTuple):
    """What one block states: the server's clock, and the answer's counts up to then."""

    at_ms: float | None
    tokens: int
    drafted: int
    accepted: int


class _Step(NamedTuple):
    """One decode step: drafts checked and accepted. Ordinary steps have none."""

    drafted: int
    accepted: int


# The first token comes from the prefill; before it there is nothing.
_START = _Moment(None, 0, 0, 0)


def read_timings(blocks: EngineBlocks) -> MetricsReading:
    """Return steps, drafts and server times of one answer; None where its blocks do not tell them.

    A block without draft counters means that nothing was drafted up to there: the server leaves zeros out.
    """
    if not blocks.timings or blocks.timings[-1].predicted_n == 0:  # zeros stand where nothing is known
        return MetricsReading()
    last = blocks.timings[-1]
    server = ServerTimings(prefill_ns=ms_to_ns(last.prompt_ms), decode_ns=ms_to_ns(last.predicted_ms))
    moments = [_to_moment(one) for one in blocks.timings]
    known = [moment for moment in moments if moment is not None]
    if len(moments) == 1 or len(known) < len(moments):
        # One block at the end has the sums and not the steps behind them.
        return MetricsReading(server=server)
    if any(
        new < old for before, now in pairwise(known) for old, new in zip(before[1:], now[1:], strict=True)
    ):
        return MetricsReading(warnings=("the timings fall in mid-stream: they are of more than one answer",))
    speculation, decode_steps = _count(known)
    return MetricsReading(speculation=speculation, server=server, decode_steps=decode_steps)


def _to_moment(one: Timings) -> _Moment | None:
    if one.predicted_n is None or one.predicted_ms is None:
        return None
    return _Moment(one.predicted_ms, one.predicted_n, one.draft_n or 0, one.draft_n_accepted or 0)


def _count(moments: Sequence[_Moment]) -> tuple[SpecCounts | None, int | None]:
    """Return the draft counters and the decode steps, each None where withheld text hides them."""
    last = moments[-1]
    if last.drafted == 0:
        return SpecCounts(0, 0, 0), max(0, last.tokens - 1)
    if _hides_steps(moments):
        return None, _count_hidden_steps(moments)
    steps = _to_steps(moments)
    return _summarise([step for step in steps if step.drafted]), len(steps)


def _hides_steps(moments: Sequence[_Moment]) -> bool:
    """Tell whether tokens are stated later than at the end of their step.

    A text that ends inside a character, or in what may become a stop string, is withheld with its tokens. The
    counts at the end of that step are then not stated, and those of the next chunk cover both steps.
    """
    return any(
        now.tokens - before.tokens > 1 and now.at_ms != before.at_ms
        for before, now in pairwise([_START, *moments])
    )


def _count_hidden_steps(moments: Sequence[_Moment]) -> int | None:
    """Every step commits its accepted drafts and one more token; a stop inside the last one may cut it."""
    last = moments[-1]
    before = next((one for one in reversed(moments) if one.at_ms != last.at_ms), _START)
    return None if last.accepted > before.accepted else last.tokens - 1 - last.accepted


def _to_steps(moments: Sequence[_Moment]) -> list[_Step]:
    """The server stamps all tokens of a step with one time, so every new time is a step."""
    ends = [now for now, after in pairwise([*moments, _START]) if after.at_ms != now.at_ms]
    return [
        _Step(now.drafted - before.drafted, now.accepted - before.accepted) for before, now in pairwise(ends)
    ]


def _summarise(steps: Sequence[_Step]) -> SpecCounts:
    accepted = Counter(step.accepted for step in steps)
    return SpecCounts(
        num_spec_steps=len(steps),
        num_draft_tokens=sum(step.drafted for step in steps),
        num_accepted_draft_tokens=sum(step.accepted for step in steps),
        acceptance_histogram=tuple(accepted[index] for index in range(max(accepted) + 1)),
        per_step_drafted=tuple(step.drafted for step in steps),
        per_step_accepted=tuple(step.accepted for step in steps),
    )
