"""Plain lines for a terminal: wrapped text, points, tables in columns.

Free of colour codes. Control characters in strings from outside are replaced, so that a name cannot steer the
reader's terminal.
"""

import textwrap
import unicodedata
from collections.abc import Iterable, Sequence

from draftproof.tell.report.write import MISSING

WIDTH_COLUMNS = 100
_INDENT = "  "


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
