"""The page of an experiment: one file in the report's style, readable without a network or a script. Pure."""

import re
from functools import cache

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

from draftproof.costs.page import build_page
from draftproof.costs.results import Costs

# What no HTML document may hold, what moves a terminal's cursor, and what turns the reading direction around.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_STAND_IN = "\N{REPLACEMENT CHARACTER}"


def render_costs_html(costs: Costs) -> str:
    """Render the whole page; the same costs give the same bytes."""
    page = _environment().get_template("costs.html.j2").render(page=build_page(costs)) + "\n"
    return _CONTROL.sub(_STAND_IN, page)


@cache
def _environment() -> Environment:
    return Environment(
        loader=ChoiceLoader([PackageLoader("draftproof.costs"), PackageLoader("draftproof.report")]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
