#!/usr/bin/env python3
"""Write docs/plan.md from the plan's schema, or fail when the page is not what the schema says."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

from draftproof.plan.faults import Key, iterate_keys

PAGE = Path("docs/plan.md")
_INTRODUCTION = """\
# Plan reference

A plan is a TOML file. Unknown keys are errors. Every key below that has a default may be left out; the
report shows the value that was used. This page is generated from the schema.
"""
_TABLE_HEAD = "| key | type | allowed | default | meaning |\n|---|---|---|---|---|"


def render_plan_reference() -> str:
    """Return the whole reference, one section a table of the plan."""
    keys = [key for key in iterate_keys() if not key.is_table]
    descriptions = {key.dotted: key for key in iterate_keys() if key.is_table}
    parts = [_INTRODUCTION]
    tables: dict[str, list[Key]] = {}
    for key in keys:
        tables.setdefault(_table_of(key), []).append(key)
    for table, own in tables.items():
        parts.append("\n".join(_render_section(table, descriptions.get(table.removesuffix("[]")), own)))
    return "\n".join(parts)


def _table_of(key: Key) -> str:
    return key.dotted.rpartition(".")[0]


def _render_section(table: str, about: Key | None, keys: list[Key]) -> Iterator[str]:
    header = f"[[{table[:-2]}]]" if table.endswith("[]") else f"[{table}]"
    yield f"## `{header}`\n" if table else "## Top level\n"
    if about is not None and about.description:
        yield f"{about.description}\n"
    yield _TABLE_HEAD
    yield from (_render_row(key) for key in keys)
    yield ""


def _render_row(key: Key) -> str:
    name = key.dotted.rpartition(".")[2]
    default = (
        "required" if key.required else "none" if key.default is None else f"`{json.dumps(key.default)}`"
    )
    cells = (f"`{name}`", key.type_words, key.allowed, default, key.description)
    return f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |"


def main() -> int:
    """Write the page with --write, else check it."""
    wanted = render_plan_reference()
    if "--write" in sys.argv[1:]:
        PAGE.write_text(wanted, encoding="utf-8")
        return 0
    if PAGE.is_file() and PAGE.read_text(encoding="utf-8") == wanted:
        return 0
    sys.stderr.write(f"{PAGE} is not what the schema says: run `make docs`.\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
