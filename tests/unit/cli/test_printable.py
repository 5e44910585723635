"""Foreign text on a terminal."""

import pytest

from draftproof.cli.printable import make_printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("run \x1b[2Jx", "run \\x1b[2Jx"),
        ("a\rb", "a\\rb"),
        ("\x9b31m", "\\x9b31m"),
        ("\u202egnp", "\\u202egnp"),
        ("two\nlines\tand é 日本", "two\nlines\tand é 日本"),
    ],
)
def test_no_text_of_a_package_steers_the_terminal(text, shown):
    """Controls and marks of direction are written out; letters of any language, lines and tabs stay."""
    assert make_printable(text) == shown
