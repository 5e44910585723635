#!/usr/bin/env python3
"""Write docs/plan.md from the plan's schema, or fail when the page is not what the schema says."""

import sys
from pathlib import Path

from draftproof.plan.reference_doc import render_plan_reference

PAGE = Path("docs/plan.md")


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
