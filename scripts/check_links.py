#!/usr/bin/env python3
"""Fail when a link of a Markdown page has no target, or the site does not name each page of docs/ once."""

import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
NAV = re.compile(r"^ +- [^:\n]+: (\S+\.md)$", re.MULTILINE)


def broken_links(page: Path) -> list[str]:
    """Return the relative targets of `page` that do not exist."""
    targets = (target.split("#")[0] for target in LINK.findall(page.read_text(encoding="utf-8")))
    return [t for t in targets if t and "://" not in t and not (page.parent / t).exists()]


def find_nav_faults(site: str, pages: set[str]) -> Iterator[str]:
    """Yield the pages that the navigation of `site`, the text of mkdocs.yml, lacks, repeats or makes up."""
    named = Counter(NAV.findall(site))
    yield from (f"mkdocs.yml: {page} is not in nav" for page in sorted(pages - named.keys()))
    yield from (f"mkdocs.yml: there is no docs/{page}" for page in sorted(named.keys() - pages))
    yield from (f"mkdocs.yml: {page} is in nav {count} times" for page, count in named.items() if count > 1)


def main() -> int:
    """Check every page of the repository root and of docs/."""
    docs = sorted(Path("docs").rglob("*.md"))
    pages = [*Path().glob("*.md"), *docs]
    faults = [f"broken link: {page}: {target}" for page in pages for target in broken_links(page)]
    site = Path("mkdocs.yml").read_text(encoding="utf-8")
    faults += find_nav_faults(site, {page.relative_to("docs").as_posix() for page in docs})
    sys.stdout.write("".join(f"{fault}\n" for fault in faults))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
