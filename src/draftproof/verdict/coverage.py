"""How many pairs an effect leaves out because one arm gives no usable figure. Pure.

An arm that answers its slow requests in a way that hides their times would otherwise look fast on the rest.
A pair in which the other arm has no figure either says nothing against this one.
"""

from collections.abc import Mapping

import msgspec

from draftproof.verdict.columns import FROM_PROMPT, Columns
from draftproof.verdict.effects import METRICS, CellKey
from draftproof.verdict.guardrails import Finding
from draftproof.verdict.pairs import Pairs
from draftproof.verdict.results import Reason
from draftproof.verdict.run_data import PreparedRun

WORDS = {
    "tpot_ns": "time per token",
    "ttft_from_schedule_ns": "time to first token",
    "e2e_from_schedule_ns": "end-to-end time",
    "output_tokens": "length of the answer",
}


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


def judge_coverage(
    cell: CellKey, hidden: Mapping[CellKey, tuple[Coverage, ...]], margin: float
) -> tuple[Finding, ...]:
    """Return one open finding for each metric that the candidate hides in more than `margin` of the pairs."""
    return tuple(
        Finding(standing="open", reason=_explain(cell, one))
        for one in hidden.get(cell, ())
        if one.hidden > margin * one.known
    )


def _cover(columns: Columns, pairs: Pairs, metric: str) -> Coverage:
    mine, theirs = pairs.mine, pairs.theirs
    answered = columns.is_ok & columns.timed
    if metric in FROM_PROMPT:
        answered &= ~columns.asks_again
    usable = columns.in_order & (columns.metric(metric) > 0)
    known = answered[mine] & answered[theirs] & usable[theirs]
    return Coverage(metric=metric, known=int(known.sum()), hidden=int((known & ~usable[mine]).sum()))


def _explain(cell: CellKey, one: Coverage) -> Reason:
    text = (
        f"The candidate's {WORDS[one.metric]} is not usable in {one.hidden} of {one.known} pairs in which "
        "the baseline's is, so what the others show may be chosen."
    )
    return Reason(
        code="metric_hidden",
        text=text,
        evidence=f"effects {one.metric}: candidate / baseline, {cell[0]} × {cell[1]}",
    )
