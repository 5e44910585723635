"""Text of the commands: foreign text on a terminal, encodings without a character, readers that have gone."""

import io
import json
import os
import re
import sys
from pathlib import Path

import pytest
import typer

import draftproof.cli
from draftproof.cli.app import app, main
from draftproof.cli.console import make_printable, print_json, print_text, replace_unencodable

ENCODINGS = ("latin-1", "cp1252", "gbk", "shift_jis", "koi8-r", "ascii")
HARD = "gain −5 % × 2 — “é” 日本 😀 ▁█ \udcff"


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


def open_streams(monkeypatch, encoding):
    """Put streams of an encoding in the place of standard output and error."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding=encoding) for _ in range(2))
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    replace_unencodable()
    return out, err


def written(stream):
    stream.flush()
    return stream.buffer.getvalue().decode(stream.encoding)


@pytest.mark.parametrize("encoding", [*ENCODINGS, "utf-8"])
def test_a_character_that_an_encoding_lacks_is_replaced(monkeypatch, encoding):
    """Both streams get the whole text, with a replacement where the encoding has no such character."""
    out, err = open_streams(monkeypatch, encoding)
    print_text(HARD)
    sys.stderr.write(HARD)
    wanted = HARD.encode(encoding, "replace").decode(encoding)
    assert (written(out), written(err)) == (f"{wanted}\n", wanted)


@pytest.mark.parametrize("encoding", [*ENCODINGS, "utf-8"])
def test_json_keeps_every_character_in_every_encoding(monkeypatch, encoding):
    """What is no character of the encoding is escaped, so the JSON says what it says in UTF-8."""
    out, _ = open_streams(monkeypatch, encoding)
    said = {"text": HARD.replace("\udcff", "\x9b\u202e")}
    print_json(said)
    assert json.loads(written(out)) == said
    assert "\x9b" not in written(out)


def test_a_reader_that_has_gone_changes_nothing(monkeypatch):
    """A closed pipe behind the output is no fault of the run: the next line goes nowhere."""
    here, there = os.pipe()
    os.close(here)
    with os.fdopen(there, "w") as out:
        monkeypatch.setattr(sys, "stdout", out)
        print_text("one")
        assert os.fstat(out.fileno()) == Path(os.devnull).stat()
        print_text("two")


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_command_keeps_its_exit_code_in_every_encoding(monkeypatch, encoding):
    """A command that prints what the encoding lacks ends with its own code and says all the same."""

    def end():
        print_text(HARD)
        raise typer.Exit(30)

    out, err = open_streams(monkeypatch, encoding)
    monkeypatch.setattr(app.registered_commands[0], "callback", end)
    monkeypatch.setattr(sys, "argv", ["draftproof", "end"])
    assert main() == 30
    assert "gain" in written(out)
    assert written(err) == ""


def test_every_command_writes_through_one_place():
    """No module of the command line prints on its own."""
    folder = Path(draftproof.cli.__file__).parent
    loud = re.compile(r"typer\.echo|typer\.secho|\bprint\(|sys\.stdout\.write|stdout\.buffer")
    found = [path.name for path in folder.glob("*.py") if loud.search(path.read_text("utf-8"))]
    assert found == ["console.py"]
