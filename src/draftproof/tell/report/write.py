"""How numbers and lines are written: digits, units, intervals; wrapped text, points, columns. Pure.

A missing value is always `MISSING`, never 0. Lines for a terminal are free of colour codes, and control
characters in strings from outside are replaced, so that a name cannot steer the reader's terminal.
"""

import math
import re
import textwrap
import unicodedata
from collections.abc import Callable, Iterable, Sequence

from draftproof.judge.results.decide import Figure

MISSING = "—"
MINUS = "−"
NS_PER_MS = 1e6
WIDTH_COLUMNS = 100
_INDENT = "  "
_HEAD = re.compile(r" *(?:\d+\. )?")
Write = Callable[[float | None], str]


def number(value: float | None) -> str:
    """Write about three significant digits, with thousands separators; infinity as ∞."""
    if value is None or math.isnan(value):
        return MISSING
    if math.isinf(value):
        return "∞" if value > 0 else f"{MINUS}∞"
    size = abs(value)
    decimals = 0 if size == 0 or size >= 99.95 else 1 if size >= 9.995 else 2 if size >= 0.9995 else 3
    return _signed(f"{value:,.{decimals}f}")


def ms(value_ns: float | None) -> str:
    """Write nanoseconds as milliseconds, without the unit."""
    return MISSING if value_ns is None else number(value_ns / NS_PER_MS)


def ratio(value: float | None) -> str:
    """Write a ratio with two decimals, three below 0.1, one from 10 on."""
    if value is None or not math.isfinite(value):
        return number(value)
    return f"{value:.{3 if value < 0.1 else 1 if value >= 10 else 2}f}"


def times(value: float | None) -> str:
    """Write a factor, e.g. "1.20×"."""
    return MISSING if value is None else f"{ratio(value)}×"


def change(value: float | None) -> str:
    """Write a ratio as the change from 1 in per cent: 0.62 becomes −38%, 1.004 becomes +0.4%."""
    if value is None or not math.isfinite(value):
        return number(value)
    return points(value - 1)


def points(difference: float | None) -> str:
    """Write a difference of shares in per cent with its sign; one decimal below ten points."""
    if difference is None or not math.isfinite(difference):
        return number(difference)
    percent = difference * 100
    digits = 1 if abs(percent) < 9.95 else 0
    text = f"{percent:+,.{digits}f}%"
    return f"{0:.{digits}f}%" if float(text[:-1].replace(",", "")) == 0 else _signed(text)


def share(value: float | None) -> str:
    """Write a share in per cent; what is not exactly 0 or 1 is never rounded to 0% or 100%."""
    if value is None or not math.isfinite(value):
        return number(value)
    if value in (0, 1):
        return f"{value:.0%}"
    if 0 < value < 0.0005:
        return "<0.1%"
    return ">99.9%" if 0.9995 <= value < 1 else _signed(f"{value:.1%}")


def count(value: float | None) -> str:
    """Write a count, rounded to a whole number, with thousands separators."""
    return MISSING if value is None else f"{round(value):,}"


def seconds(value: float | None) -> str:
    """Write seconds with their unit."""
    return MISSING if value is None else f"{number(value)} s"


def hours(value: float | None) -> str:
    """Write a time in hours, below one in minutes."""
    if value is None:
        return MISSING
    return f"{number(value)} h" if value >= 1 else f"{number(60 * value)} min"


def probability(value: float | None, least: str = "<0.001") -> str:
    """Write a p-value; `least` is what stands for one below 0.001."""
    if value is None:
        return MISSING
    return least if value < 0.001 else f"{value:.3f}"


def size(size_bytes: float | None) -> str:
    """Write a size in MiB or GiB."""
    return sizes([size_bytes])[0]


def sizes(sizes_bytes: Sequence[float | None]) -> list[str]:
    """Write sizes that are shown beside each other in one unit, that of the smallest."""
    known = [one for one in sizes_bytes if one is not None]
    is_large = bool(known) and min(known) >= 2**30
    unit, digits, name = (2**30, 1, "GiB") if is_large else (2**20, 0, "MiB")
    return [MISSING if one is None else f"{one / unit:,.{digits}f} {name}" for one in sizes_bytes]


def digest(sha256: str | None) -> str:
    """First twelve characters of a hash, enough to compare by eye."""
    return MISSING if not sha256 else sha256.removeprefix("sha256:")[:12]


def interval(figure: Figure, write: Write) -> str:
    """Return "[low, high]", empty without an interval; an open end is the dash."""
    if figure.low is None and figure.high is None:
        return ""
    return f"[{write(figure.low)}, {write(figure.high)}]"


def needed(figure: Figure) -> str:
    """Return "12 more needed" where the figure says so."""
    return f"{figure.needed:,} more needed" if figure.needed else ""


def interval_or_why(figure: Figure, write: Write) -> str:
    """Return the interval; without one what is needed, else why there is none."""
    return interval(figure, write) or needed(figure) or figure.reason or ""


def _signed(text: str) -> str:
    return text.replace("-", MINUS)


def printable(text: str) -> str:
    """Replace control and formatting characters, line breaks included, by a visible stand-in."""
    return "".join("\N{REPLACEMENT CHARACTER}" if unicodedata.category(c)[0] == "C" else c for c in text)


def join(sections: Iterable[list[str]]) -> str:
    """Return sections of lines as one text, an empty line between them; empty ones are left out."""
    return "\n\n".join("\n".join(section) for section in sections if section) + "\n"


def section(title: str, lines: list[str]) -> list[str]:
    """Put a title above lines; no lines, no title."""
    return [title, *lines] if lines else []


def wrap(text: str, first: str = _INDENT, further: str = _INDENT) -> list[str]:
    """Break a text into indented lines."""
    return textwrap.wrap(
        printable(text),
        WIDTH_COLUMNS,
        initial_indent=first,
        subsequent_indent=further,
        break_on_hyphens=False,
    )


def wrap_line(text: str) -> list[str]:
    """Break a line that has its own indent, and its number in a list; what follows stands further in."""
    found = _HEAD.match(text)
    head = found[0] if found else ""
    further = len(head) + (0 if head.strip() else len(_INDENT))
    return wrap(text[len(head) :], head, " " * further) or [""]


def bullets(texts: Iterable[str]) -> list[str]:
    """Make every text a point of a list."""
    return [line for text in texts for line in wrap(text, f"{_INDENT}- ", f"{_INDENT}  ")]


def align(rows: Sequence[Sequence[str]]) -> list[str]:
    """Set rows in columns, two spaces apart; a missing text shows the dash."""
    clean = [[printable(text) or MISSING for text in row] for row in rows]
    widths = [max(map(_width, column)) for column in zip(*clean, strict=True)]
    return [
        (_INDENT + "  ".join(t + " " * (w - _width(t)) for t, w in zip(row, widths, strict=True))).rstrip()
        for row in clean
    ]


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Set rows in columns under a header; no rows, no header."""
    return align([header, *rows]) if rows else []


def _width(text: str) -> int:
    """Columns on a terminal: wide East Asian characters take two, combining marks none."""
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text
    )
