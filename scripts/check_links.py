#!/usr/bin/env python3
"""Fail when a relative link of a Markdown page points at nothing."""

import re
import sys
from pathlib import Path

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def broken_links(page: Path) -> list[str]:
    """Return the relative targets of `page` that do not exist."""
    targets = (target.split("#")[0] for target in LINK.findall(page.read_text(encoding="utf-8")))
    return [t for t in targets if t and "://" not in t and not (page.parent / t).exists()]


def main() -> int:
    """Check every page of the repository root and of docs/."""
    pages = [*Path().glob("*.md"), *Path("docs").rglob("*.md")]
    faults = [f"{page}: {target}" for page in pages for target in broken_links(page)]
    sys.stdout.write("".join(f"broken link: {fault}\n" for fault in faults))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
