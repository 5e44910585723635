"""The plan reference says what the schema enforces."""

import importlib
import sys
from pathlib import Path

import pytest

from draftproof.core.errors import PlanError
from draftproof.plan.faults import iterate_keys, list_known_keys, schema_at
from draftproof.plan.loading import parse_plan
from draftproof.plan.schema import Limits, Plan, Thresholds

sys.path.append(str(Path(__file__).parents[3] / "scripts"))
render_plan_reference = importlib.import_module("plan_reference").render_plan_reference


@pytest.mark.parametrize("model", [Thresholds, Limits])
def test_reference_has_every_key_of_a_table(model):
    """Every field of a table of the schema has its row."""
    text = render_plan_reference()
    assert all(f"| `{name}` |" in text for name in model.model_fields)


def test_reference_has_a_section_for_every_table():
    """Tables, nested tables and the list of load levels have sections."""
    text = render_plan_reference()
    for header in ("[target]", "[[load]]", "[arms.alternative]", "[limits]"):
        assert f"## `{header}`" in text


def test_reference_states_range_default_and_requirement():
    """A row states the allowed range and the default, or that the key is required."""
    text = render_plan_reference()
    assert "| `minimum_gain` | number | above 0 and below 1 | `0.05` |" in text
    assert "| `from_rps` | number | at least 0 and at most 100000 | required |" in text


def test_keys_are_those_of_the_plan():
    """Top-level keys come in the schema's order, and a list of tables is marked."""
    dotted = [key.dotted for key in iterate_keys()]
    assert list_known_keys(()) == tuple(Plan.model_fields)
    assert "load[].block_size" in dotted
    assert len(dotted) == len(set(dotted))


def test_place_that_no_plan_has_has_an_empty_schema():
    """Looking up a place outside the plan gives nothing, not an error."""
    assert schema_at(("target", "nothing", 3)) == {}


def test_every_form_of_a_text_is_in_words():
    """A key with a form of its own says which: the address of a Ray cluster is no plan's name."""
    forms = {key.dotted: key.allowed for key in iterate_keys() if key.allowed.startswith("text of the form")}
    assert forms == {}
    allowed = {key.dotted: key.allowed for key in iterate_keys()}
    assert allowed["limits.ray"] == "auto, HOST:PORT or ray://HOST:PORT"
    assert allowed["name"].startswith("lower-case letters")
    text = 'name = "t"\n[limits]\nray = "a b"\n[[load]]\nname = "a"\nconcurrency = 1\n'
    arms = "[arms.baseline]\n[arms.candidate]\n"
    with pytest.raises(
        PlanError, match=r"limits\.ray is 'a b', allowed is auto, HOST:PORT or ray://HOST:PORT"
    ):
        parse_plan(text + arms)
