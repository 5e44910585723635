"""What documents show is what the commands print: each ```console block is run, in the order of its page.

A line `$ draftproof ...` is called in a fresh folder that has the example log and a kept run; the lines below
are its output, of which a line `…` leaves lines out. After a wanted change:

    DRAFTPROOF_REFRESH_GOLDEN=1 python -m pytest tests/golden/docs
"""

import os
import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest
import typer

from draftproof.cli import app as commands
from draftproof.cli import init, main

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "docs" / "examples"
BLOCK = re.compile(r"^```console\n(.*?)^```$", re.DOTALL | re.MULTILINE)
FENCED = re.compile(r"^```\w*\n(.*?)^```$", re.DOTALL | re.MULTILINE)
CALL = re.compile(r"^(?:\$ )?(?:\.venv/bin/)?draftproof ([a-z][^\n]*)", re.MULTILINE)
ANY_LINES = "…"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SHOWING = [page for page in PAGES if BLOCK.search(page.read_text("utf-8"))]


@pytest.fixture
def call(tmp_path, monkeypatch, capsys):
    """Return a function that calls one shown command in a folder as the pages have it: its output."""
    monkeypatch.chdir(tmp_path)
    for name in ("VLLM_CPU_KVCACHE_SPACE", "LD_PRELOAD"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(init, "_has_accelerator", lambda: False)
    program = tmp_path / "bin" / "vllm"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    shutil.copy(EXAMPLES / "requests.jsonl", tmp_path)
    shutil.copytree(ROOT / "tests" / "fixtures" / "runs" / "vllm-ngram", tmp_path / "run1")
    code = 0

    def run(line):
        nonlocal code
        words = shlex.split(line.replace("\\\n", ""), comments=True)
        if words == ["echo", "$?"]:
            return f"{code}\n"
        if words[0] == "cat":
            return Path(words[1]).read_text("utf-8")
        monkeypatch.setattr(sys, "argv", words)
        code = main()
        return capsys.readouterr().out

    return run


def _read_calls(block):
    """Return the commands of a block, each with the lines that are shown below it."""
    parts = re.split(r"^\$ ((?:.*\\\n)*.*)\n", block, flags=re.MULTILINE)
    assert parts[0] == "", "a block begins with a command"
    return list(zip(parts[1::2], parts[2::2], strict=True))


def _tidy(text):
    return re.sub(r"[ \t]+$", "", text, flags=re.MULTILINE).strip("\n")


def _abridge(printed, shown):
    """Return an output as it is shown: whole, or the first and last so many lines around `…`."""
    lines, like = _tidy(printed).split("\n"), _tidy(shown).split("\n")
    if ANY_LINES not in like:
        return "\n".join(lines)
    first = like.index(ANY_LINES)
    last = len(like) - first - 1
    return "\n".join([*lines[:first], ANY_LINES, *lines[len(lines) - last :]])


@pytest.mark.parametrize("page", SHOWING, ids=lambda page: page.name)
def test_a_page_shows_what_its_commands_print(page, call):
    """Every shown output is that of its command, figures included."""
    text = page.read_text("utf-8")
    for block in BLOCK.findall(text):
        fresh = block
        for line, shown in _read_calls(block):
            printed = _abridge(call(line), shown)
            fresh = fresh.replace(f"$ {line}\n{shown}", f"$ {line}\n{printed}\n", 1)
            assert os.environ.get("DRAFTPROOF_REFRESH_GOLDEN") or _tidy(shown) == printed, line
        text = text.replace(block, fresh, 1)
    if os.environ.get("DRAFTPROOF_REFRESH_GOLDEN"):
        page.write_text(text, "utf-8")


def test_every_shown_call_has_a_command_and_options_that_exist():
    """Calls in blocks of any page name commands and options of the command line."""
    group = typer.main.get_group(commands.app)
    faults = []
    for page in PAGES:
        for block in FENCED.findall(page.read_text("utf-8")):
            for shown in CALL.findall(block.replace("\\\n", "")):
                words = shlex.split(shown, comments=True)
                command = group.commands.get(words[0])
                known = {opt for one in command.params for opt in one.opts} if command else set()
                options = {word.partition("=")[0] for word in words[1:] if word.startswith("--")}
                if command is None or options - known - {"--help"}:
                    faults.append(f"{page.name}: draftproof {shown}")
    assert faults == []
