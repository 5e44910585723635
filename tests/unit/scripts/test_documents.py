"""Documents: the site names each page once, one page names each command, and the README is short."""

import re
from pathlib import Path

from check_links import find_nav_faults, main

from draftproof.cli.app import COMMANDS
from draftproof.judge.compare import EXIT_CODES as COMPARED
from draftproof.judge.results.run import EXIT_CODES

ROOT = Path(__file__).parents[3]
COMMAND_PAGE = (ROOT / "docs" / "commands.md").read_text("utf-8")


def test_links_hold_and_each_page_is_in_the_site_once(monkeypatch):
    """Every link of a page has its target, and mkdocs.yml names every page of docs/ once."""
    monkeypatch.chdir(ROOT)
    assert main() == 0


def test_a_page_that_is_missing_doubled_or_invented_is_named():
    """Each way in which the navigation can differ from docs/ is a sentence with the page."""
    nav = "nav:\n  - Home: a.md\n  - More:\n      - Again: a.md\n      - Gone: b/c.md\n"
    assert list(find_nav_faults(nav, {"a.md", "d.md"})) == [
        "mkdocs.yml: d.md is not in nav",
        "mkdocs.yml: there is no docs/b/c.md",
        "mkdocs.yml: a.md is in nav 2 times",
    ]


def test_the_page_of_commands_has_each_command():
    """docs/commands.md has a row for every command and for no other."""
    table = COMMAND_PAGE.partition("## Commands")[2].partition("## ")[0]
    first = re.findall(r"^\| (`[^|]+`) \|", table, re.MULTILINE)
    named = {name for cell in first for name in re.findall(r"`([a-z-]+)`", cell)}
    assert named == {command.__name__.replace("_", "-") for command, _ in COMMANDS}


def test_exit_codes_are_those_of_the_program():
    """The README and docs/commands.md state the exit code of each verdict, and of each comparison."""
    readme = (ROOT / "README.md").read_text("utf-8")
    codes = re.findall(r"^\| [a-z ]+ \| .* \| (\d+) \|$", readme, re.MULTILINE)
    assert list(map(int, codes)) == list(EXIT_CODES.values())
    table = COMMAND_PAGE.partition("## Exit codes")[2]
    rows = re.findall(r"^\| (\d+) \| (?:`run`|the same)", table, re.MULTILINE)
    assert list(map(int, rows)) == list(EXIT_CODES.values())
    assert f"| {', '.join(map(str, COMPARED.values()))} | `compare` |" in table


def test_the_readme_is_short():
    """The README has 120 lines at most."""
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) <= 120
