"""The report: one self-contained HTML page and one terminal text, both pure functions of the results.

Nothing here measures, decides or re-computes; it shows what `results.json` holds, with its intervals,
counts and reasons. No clock, no network, no script in the page.
"""

from draftproof.tell.report.page import render_html
from draftproof.tell.report.text import render_full, render_text

__all__ = ["render_full", "render_html", "render_text"]
