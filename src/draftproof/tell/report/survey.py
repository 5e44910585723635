"""What a log of requests comes to, as a person reads it before a plan is written: at most twenty lines."""

from collections.abc import Iterable

from draftproof.tell.report import write
from draftproof.workload.labels import DIMENSIONS
from draftproof.workload.logs import Found, Log

MOST_LINES = 20
_LABELS, _ROWS, _REASONS = 5, 5, 3
_PLURALS = {"entry": "entries"}


def _warn_of_private(log: Log) -> str:
    """Say what prompts seem to contain, and that it stays in them."""
    found = _list_private(log.private)
    return f"Seems to contain: {found}; it stays in the prompts unless you take these lines out of the log"


def render_log(log: Log) -> str:
    """Render a log: what can be sent, its labels, the proposed split, what is left out, what looks private.

    Nothing of a prompt is shown. Notes that would make more than twenty lines are counted.
    """
    lines = [
        *write.wrap(_sum_up(log), first="", further="  "),
        *write.table(("Dimension", "Requests by label"), _list_dimensions(log)),
        *write.wrap(f"Proposed: segment_by = {_write_list(log.proposed.segment_by)}. {_why(log)}", "", "  "),
        *write.section("Left out", write.bullets(_list_refused(log.refused))),
        *(write.wrap(f"{_warn_of_private(log)}.", "", "  ") if log.private else ()),
    ]
    notes = list(log.notes)
    while notes and len(lines) + len(_write_notes(log, notes)) > MOST_LINES:
        notes.pop()
    return "\n".join([*lines, *_write_notes(log, notes)][:MOST_LINES]) + "\n"


def _write_notes(log: Log, shown: list[str]) -> list[str]:
    more = len(log.notes) - len(shown)
    rest = [f"{more} further note{'s' if more > 1 else ''}."] if more else []
    return write.section("Notes", write.bullets([*shown, *rest]))


def _sum_up(log: Log) -> str:
    parts = [f"{len(log.items):,} of {_count(log.lines, 'entry')} can be sent ({log.form})"]
    if log.copies:
        parts.append(
            f"{_count(log.copies, 'request')} repeat{'s' if log.copies == 1 else ''} an earlier prompt"
        )
    if log.mean_rps is not None and log.span_s is not None:
        parts.append(f"{log.mean_rps:.3g} requests/s over {log.span_s:,.0f} s")
    if (tokens := log.responses.median_output_tokens) is not None:
        parts.append(f"median answer {tokens:,.0f} tokens")
    if log.responses.cut_share is not None:
        parts.append(f"{100 * log.responses.cut_share:.3g} % of answers cut at the token limit")
    return "; ".join(parts) + "."


def _list_dimensions(log: Log) -> list[tuple[str, str]]:
    """Return the dimensions of several labels, those of the proposal first, each with its frequent labels."""
    proposed = log.proposed.segment_by
    known = {name: at for at, name in enumerate((*DIMENSIONS, *proposed))}
    several = (name for name, counts in log.dimensions.items() if len(counts) > 1 or name in proposed)
    names = sorted(several, key=lambda name: (name not in proposed, known.get(name, len(known)), name))
    rows = [(name, _list_labels(log.dimensions[name])) for name in names[:_ROWS]]
    further = ", ".join(names[_ROWS:])
    return [*rows, ("further", further)] if further else rows


def _list_labels(counts: dict[str, int]) -> str:
    ordered = sorted(counts.items(), key=lambda one: (-one[1], one[0]))
    shown = ", ".join(f"{label} {count:,}" for label, count in ordered[:_LABELS])
    more = len(ordered) - _LABELS
    return f"{shown}, {more} more" if more > 0 else shown


def _list_refused(found: tuple[Found, ...]) -> list[str]:
    shown = found if len(found) <= _REASONS else found[: _REASONS - 1]
    texts = [f"{_count(one.count, 'entry')}: {one.what} ({_name_lines(one)})" for one in shown]
    rest = found[len(shown) :]
    more = f"{_count(sum(one.count for one in rest), 'entry')}: {len(rest)} further reasons"
    return [*texts, more] if rest else texts


def _list_private(found: tuple[Found, ...]) -> str:
    texts = [f"{one.what} ({_count(one.count, 'request')}, {_name_lines(one)})" for one in found[:_LABELS]]
    more = len(found) - _LABELS
    return "; ".join([*texts, *([f"{_count(more, 'further kind')}"] if more > 0 else [])])


def _name_lines(found: Found) -> str:
    shown = ", ".join(map(str, found.first_lines))
    more = " …" if found.count > len(found.first_lines) else ""
    return f"line{'s' if len(found.first_lines) > 1 else ''} {shown}{more}"


def _count(number: int, unit: str) -> str:
    return f"{number:,} {unit if number == 1 else _PLURALS.get(unit, unit + 's')}"


def _write_list(names: Iterable[str]) -> str:
    return "[" + ", ".join(f'"{name}"' for name in names) + "]"


def _why(log: Log) -> str:
    return log.proposed.why[:1].upper() + log.proposed.why[1:] + "."
