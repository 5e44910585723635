"""The HTML report: one self-contained file, readable without a network and without a script.

Lays the view model out with the templates beside this module. Every string from outside is escaped.
"""

import re
from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined

from draftproof.manifests import Manifest
from draftproof.report.model import build_model
from draftproof.verdict.results import Results

# What no HTML document may hold, what moves a terminal's cursor, and what turns the reading direction around.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_STAND_IN = "\N{REPLACEMENT CHARACTER}"


def render_html(results: Results, manifest: Manifest | None = None) -> str:
    """Render the whole report as one HTML document; the same input gives the same bytes.

    Args:
        results: what `results.json` holds.
        manifest: facts of the run; adds the host, the arms side by side, and their contracts.
    """
    model = build_model(results, manifest)
    page = _environment().get_template("report.html.j2").render(model=model) + "\n"
    return _CONTROL.sub(_STAND_IN, page)


@cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("draftproof.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
