"""What changed in what was concluded: effects by cell, envelope, decision. Pure.

Each run's own figures, each over its own prompts: an effect is a ratio inside one run already.
"""

from collections.abc import Iterable

from draftproof.verdict.comparing.comparison import EffectChange, EnvelopeChange, ReasonChange
from draftproof.verdict.load_size import LoadLimit
from draftproof.verdict.results import Cell, EnvelopeEntry, Figure, Results


def compare_effects(before: Results, after: Results) -> tuple[EffectChange, ...]:
    """Return every cell of either run, in A's order, changed or not."""
    old, new = _index_cells(before.cells), _index_cells(after.cells)
    return tuple(_compare_cell(key, old.get(key), new.get(key)) for key in dict.fromkeys((*old, *new)))


def compare_envelopes(before: Results, after: Results) -> tuple[EnvelopeChange, ...]:
    """Return the segments whose envelope differs."""
    old, new = _index_envelope(before.verdict.envelope), _index_envelope(after.verdict.envelope)
    return tuple(
        EnvelopeChange(segment=segment, before=old.get(segment), after=new.get(segment))
        for segment in dict.fromkeys((*old, *new))
        if _limits(old.get(segment)) != _limits(new.get(segment))
    )


def compare_reasons(before: Results, after: Results) -> tuple[ReasonChange, ...]:
    """Return the verdict's reasons that only one run gives; one that both give is the same reason.

    The figures inside a sentence differ from run to run: code and evidence say which reason it is.
    """
    old, new = ({(r.code, r.evidence): r.text for r in one.verdict.reasons} for one in (before, after))
    return tuple(
        ReasonChange(code=key[0], evidence=key[1], before=old.get(key), after=new.get(key))
        for key in dict.fromkeys((*old, *new))
        if (key in old) != (key in new)
    )


def are_apart(before: Figure | None, after: Figure | None) -> bool | None:
    """Return whether two intervals do not overlap, None where one of them is not known."""
    if before is None or after is None:
        return None
    if before.low is None or before.high is None or after.low is None or after.high is None:
        return None
    return before.high < after.low or after.high < before.low


def _compare_cell(key: tuple[str, str], before: Cell | None, after: Cell | None) -> EffectChange:
    old, new = (before.effect if before else None), (after.effect if after else None)
    return EffectChange(
        segment=key[0],
        load=key[1],
        status_before=before.status if before else None,
        status_after=after.status if after else None,
        before=old,
        after=new,
        is_apart=are_apart(old, new),
    )


def _index_cells(cells: Iterable[Cell]) -> dict[tuple[str, str], Cell]:
    return {(cell.segment, cell.load): cell for cell in cells}


def _limits(entry: EnvelopeEntry | None) -> tuple[LoadLimit, int | None] | None:
    """Return what ends an entry: the load, and the context where harm was shown beyond it."""
    if entry is None:
        return None
    return (entry.limit, entry.max_context_tokens if entry.context == "limited" else None)


def _index_envelope(entries: Iterable[EnvelopeEntry]) -> dict[str, EnvelopeEntry]:
    return {entry.segment: entry for entry in entries}
