"""How the tokens of first chunks came off, in words: they stand beside every time per token.

A time per token whose first chunk nobody counts is an interval: from one token in that chunk to as many as it
may hold (docs/metrics.md).
"""

from collections.abc import Iterable

from draftproof.report.quantities import format_ms
from draftproof.verdict.results import ArmCell, Effect, Results

METRIC = "tpot_ns"
COUNTED, ASSUMED, PARTLY = "first chunk counted", "first chunk not counted", "first chunk counted in part"
_ASSUMED_BASIS = "single_first_token_assumed"


def describe_basis(effects: Iterable[Effect]) -> str:
    """Return how the first chunks of some effects on time per token are counted, "" where nobody noted it."""
    noted = [one for one in effects if one.metric == METRIC and one.assumed_pairs is not None and one.pairs]
    assumed, pairs = sum(one.assumed_pairs or 0 for one in noted), sum(one.pairs for one in noted)
    if not noted:
        return ""
    return PARTLY if 0 < assumed < pairs else ASSUMED if assumed else COUNTED


def describe_deciding_basis(results: Results) -> str:
    """Return the basis of the candidate's effects where time per token decides, with a comma before it."""
    decides = results.metric == METRIC
    found = describe_basis(one for one in results.effects if decides and one.arm == "candidate")
    return f", {found}" if found else ""


def describe_arm_basis(cell: ArmCell) -> str:
    """Return how an arm's first chunks are counted, and up to what the mean reaches where they are not."""
    assumed, known = cell.tpot_bases.get(_ASSUMED_BASIS, 0), sum(cell.tpot_bases.values())
    if not known:
        return ""
    if not assumed:
        return COUNTED
    most = cell.tpot_most.value if cell.tpot_most else None
    reach = "" if most is None else f": mean up to {format_ms(most)}"
    return f"{PARTLY if assumed < known else ASSUMED}{reach}"
