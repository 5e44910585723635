"""What stands between a plan and an answer, largest first: said alike by check, verdict and samples. Pure."""

from collections.abc import Collection, Iterable

from draftproof.verdict.run_data import ALL_SEGMENTS
from draftproof.verdict.samples.results import Need, SamplePlan, Shortfall
from draftproof.verdict.samples.wording import METRIC_WORDS, STATISTIC_WORDS
from draftproof.verdict.wording import name_segment

CellKey = tuple[str, str]  # segment, load


def describe_missing(found: SamplePlan, cells: Collection[CellKey]) -> str | None:
    """Return what some cells lack most, None where nothing that prompts could mend.

    First what no number of prompts mends, in the plan and then in the run; then the largest number.
    """
    blocking = [one for one in list_blocking(found.shortfalls, cells) if one.more is None]
    if blocking:
        return blocking[0].text.rstrip(".")
    impossible = [need for need in found.needs if need.reason is not None and _concerns(found, need, cells)]
    if impossible:
        return f"no number of prompts would show {_name_need(found, impossible[0])}: {impossible[0].reason}"
    short = [need for need in found.needs if need.more and _concerns(found, need, cells)]
    if not short:
        return None
    worst = max(short, key=lambda need: (need.more or 0, need.segment, need.load))
    return f"{_name_need(found, worst)} takes about {worst.more:,} more prompts (an estimate)"


def list_blocking(shortfalls: Iterable[Shortfall], cells: Collection[CellKey]) -> list[Shortfall]:
    """Return the shortfalls that stand in the way of any of some cells, of most cells first."""
    counted = [(sum(one.blocks(*cell) for cell in cells), one) for one in shortfalls]
    return [one for count, one in sorted(counted, key=lambda row: -row[0]) if count]


def describe_blocked(found: SamplePlan) -> str | None:
    """Return in how many cells no gain could be credited, and the first reason; None where there is none."""
    cells = [(need.segment, need.load) for need in found.needs if need.aim == "gain"]
    blocked = [cell for cell in cells if list_blocking(found.shortfalls, [cell])]
    if not blocked:
        return None
    where = (
        "no gain can be credited"
        if len(blocked) == len(cells)
        else (f"no gain can be credited in {len(blocked)} of {len(cells)} cells")
    )
    return f"{where}. First: {list_blocking(found.shortfalls, blocked)[0].text}"


def find_more(found: SamplePlan, cell: CellKey) -> int | None:
    """Return how many more prompts the gain of one cell takes, None where none would do or none is asked."""
    own = [one for one in found.needs if one.aim == "gain" and (one.segment, one.load) == cell]
    return own[0].more if own else None


def _concerns(found: SamplePlan, need: Need, cells: Collection[CellKey]) -> bool:
    """Return whether a need decides any of the cells; some withhold only with representative evidence."""
    if need.aim in ("tail", "limit") and not found.is_representative:
        return False
    return any(need.segment in (segment, ALL_SEGMENTS) and need.load == load for segment, load in cells)


def _name_need(found: SamplePlan, need: Need) -> str:
    if need.aim == "gain":
        metric = METRIC_WORDS.get(need.quantity, need.quantity)
        return (
            f"a gain of {100 * found.question.gain:g} % in {STATISTIC_WORDS[need.statistic]} of {metric} in "
            f"{name_segment(need.segment)} at load {need.load}"
        )
    names = {
        "tail": "that the tail is no worse",
        "failures": "that failures are no more",
        "checks": "that answers pass their checks as often",
        "limit": "that as many answers end at the token limit",
    }
    return f"{names[need.aim]} at load {need.load}"
