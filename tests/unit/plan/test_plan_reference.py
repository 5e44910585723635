"""The plan reference says what the schema enforces."""

import pytest

from draftproof.plan.keys import iterate_keys, list_known_keys, schema_at
from draftproof.plan.reference_doc import render_plan_reference
from draftproof.plan.schema import Limits, Plan, Thresholds


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
