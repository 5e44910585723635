"""The terminal summary."""

import msgspec
import pytest
from tests.builders.results import build_results

from draftproof.tell.report import render_full
from draftproof.tell.report.write import WIDTH_COLUMNS, printable


def test_the_decision_is_the_first_thing_said():
    """The first line names the decision and the level of evidence."""
    first = render_full(build_results()).splitlines()[0]
    assert first.startswith("ADOPT IN A LIMITED ENVELOPE")
    assert "pilot hypothesis" in first


def test_every_cell_has_its_line():
    """Status, change and interval of each segment and load are listed."""
    text = render_full(build_results(segments=2, loads=2))
    lines = [line for line in text.splitlines() if line.startswith(("  rewriting", "  grounded_answer"))]
    assert len(lines) == 4
    assert all("%" in line and "[" in line for line in lines)


def test_what_failed_is_counted_by_kind():
    """The one timeout of the candidate is named, and nobody else's."""
    text = render_full(build_results())
    assert text.count("1 Timeout") == 1


def test_a_run_without_successes_gives_dashes():
    """No number is invented for a run in which all requests failed."""
    lines = render_full(build_results(failing=True)).splitlines()
    row = next(line for line in lines if line.startswith("  rewriting"))
    assert row.split()[-5:] == ["Invalid", "—", "6", "more", "needed"]


def test_prose_keeps_inside_the_width():
    """Long warnings are wrapped."""
    results = msgspec.structs.replace(build_results(), warnings=("very long words " * 40,))
    warned = [line for line in render_full(results).splitlines() if "very long" in line]
    assert len(warned) > 3
    assert max(map(len, warned)) <= WIDTH_COLUMNS


@pytest.mark.parametrize("evil", ["\x1b[2J", "\r", "\u202e", "\x9b31m", "\n"])
def test_names_cannot_steer_the_terminal(evil):
    """Escape codes, line breaks and direction marks in a name are replaced by a stand-in."""
    assert "\N{REPLACEMENT CHARACTER}" in printable(f"a{evil}b")
    results = msgspec.structs.replace(build_results(), run_name=f"a{evil}b")
    assert f"a{evil}b" not in render_full(results)


def test_wide_letters_keep_the_columns_straight():
    """A Chinese segment name takes two columns a letter, so the next column still lines up."""
    results = build_results(segments=2, loads=1)
    names = ("task=改写", "task=rewriting")
    cells = tuple(
        msgspec.structs.replace(cell, segment=name) for cell, name in zip(results.cells, names, strict=True)
    )
    text = render_full(msgspec.structs.replace(results, cells=cells, segments=names))
    chinese = next(line for line in text.splitlines() if line.startswith("  改写"))
    latin = next(line for line in text.splitlines() if line.startswith("  rewriting"))
    assert latin.index("alone") - chinese.index("alone") == 2


def test_an_empty_run_still_renders():
    """Nothing measured gives a short text, not an error."""
    empty = dict.fromkeys(
        ("arm_cells", "effects", "differences", "agreements", "estimators", "cells", "diagnosis"), ()
    )
    text = render_full(msgspec.structs.replace(build_results(), segments=(), loads=(), arms=(), **empty))
    assert "No cell was judged." in text
