"""How many pairs an effect leaves out because one arm gives no usable figure. Pure.

An arm that answers its slow requests in a way that hides their times would otherwise look fast on the rest.
A pair in which the other arm has no figure either says nothing against this one.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping

import msgspec

from draftproof.verdict.effects import METRICS, CellKey, is_usable
from draftproof.verdict.guardrails import Finding
from draftproof.verdict.pairs import Pair
from draftproof.verdict.results import Reason

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


def count_hidden(pairs: Iterable[Pair]) -> dict[CellKey, tuple[Coverage, ...]]:
    """Return, by cell, how often the arm hides each metric that its partner shows."""
    by_cell: defaultdict[CellKey, list[Pair]] = defaultdict(list)
    for pair in pairs:
        if pair.is_ok and pair.timed:
            by_cell[pair.segment, pair.load].append(pair)
    return {cell: tuple(_cover(found, metric) for metric in METRICS) for cell, found in by_cell.items()}


def judge_coverage(
    cell: CellKey, hidden: Mapping[CellKey, tuple[Coverage, ...]], margin: float
) -> tuple[Finding, ...]:
    """Return one open finding for each metric that the candidate hides in more than `margin` of the pairs."""
    return tuple(
        Finding(standing="open", reason=_explain(cell, one))
        for one in hidden.get(cell, ())
        if one.hidden > margin * one.known
    )


def _cover(pairs: Iterable[Pair], metric: str) -> Coverage:
    known = [pair for pair in pairs if is_usable(pair.versus, metric)]
    hidden = sum(not is_usable(pair.arm, metric) for pair in known)
    return Coverage(metric=metric, known=len(known), hidden=hidden)


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
