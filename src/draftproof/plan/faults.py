"""The keys a plan may have, and one sentence for what is wrong with a plan. Pure.

Names, types, ranges, defaults and descriptions are read from the schema: error messages and the plan
reference take their facts from here, so neither can say something the schema does not enforce.
"""

import difflib
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import msgspec
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from draftproof.core.errors import PlanError
from draftproof.plan.schema import Plan

Location = Sequence[str | int]

PLACEHOLDER = "FILL_IN"
_SHOWN_CHARACTERS = 60
_NO_NUMBER = frozenset({"int_type", "float_type"})
_CLOSE_ENOUGH = 0.6  # difflib's own default: about two wrong letters in a word of six
_RANGE_WORDS = (
    ("minimum", "at least"),
    ("exclusiveMinimum", "above"),
    ("maximum", "at most"),
    ("exclusiveMaximum", "below"),
)
# What a text must look like, by the pattern that says so.
_FORM_WORDS = {
    r"^[a-z0-9][a-z0-9_-]{0,40}$": (
        "lower-case letters, digits, - and _, at most 41, starting with a letter or digit"
    ),
    r"^(auto|(ray://)?[^\s:/]+:\d{1,5})$": "auto, HOST:PORT or ray://HOST:PORT",
}
_TYPE_WORDS = {
    "string": "string",
    "integer": "integer",
    "number": "number",
    "boolean": "true or false",
    "object": "table",
    "array": "list",
}


class Key(msgspec.Struct, frozen=True, kw_only=True):
    """One key of a plan. `default` is None both for no default and for a default of none: see `required`."""

    dotted: str
    type_words: str
    allowed: str
    required: bool
    default: Any
    description: str
    is_table: bool


@cache
def plan_json_schema() -> dict[str, Any]:
    """Return the JSON schema of the plan."""
    return Plan.model_json_schema()


def dotted_key(location: Location) -> str:
    """Return a location as a person writes it: ("load", 0, "name") -> "load[0].name"."""
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def schema_at(location: Location) -> dict[str, Any]:
    """Return the schema of the value at `location`, {} where the plan has no such place."""
    node = plan_json_schema()
    for part in location:
        node = resolve(node)
        if isinstance(part, int):
            node = node.get("items", {})
        else:
            node = node.get("properties", {}).get(part) or node.get("additionalProperties") or {}
    return resolve(node)


def resolve(node: dict[str, Any]) -> dict[str, Any]:
    """Follow references and "this or none", and keep what is shown beside them, such as a default."""
    if "$ref" in node:
        target = plan_json_schema()["$defs"][node["$ref"].rsplit("/", 1)[1]]
        return resolve(target | {key: value for key, value in node.items() if key != "$ref"})
    variants = [variant for variant in node.get("anyOf", ()) if variant.get("type") != "null"]
    if len(variants) == 1:
        return resolve(variants[0] | {key: value for key, value in node.items() if key != "anyOf"})
    return node


def list_known_keys(location: Location) -> tuple[str, ...]:
    """Return the names a table at `location` may hold."""
    return tuple(schema_at(location).get("properties", {}))


def render_type(node: dict[str, Any]) -> str:
    """Return the type in words, e.g. "list of string"."""
    if "anyOf" in node:
        return " or ".join(render_type(variant) for variant in node["anyOf"])
    if node.get("type") == "array":
        return f"list of {render_type(resolve(node.get('items', {})))}"
    values = node.get("additionalProperties")
    if isinstance(values, dict):
        return f"table of {render_type(resolve(values))}"
    return _TYPE_WORDS.get(node.get("type", ""), "value")


def render_allowed(node: dict[str, Any]) -> str:
    """Return what values are allowed, in words, "" where the type is the only limit."""
    if "anyOf" in node:
        return ", or ".join(words for variant in node["anyOf"] if (words := render_allowed(variant)))
    choices = node.get("enum") or ([node["const"]] if "const" in node else [])
    if choices:
        return "one of " + ", ".join(str(choice) for choice in choices)
    if "pattern" in node:
        return _FORM_WORDS.get(node["pattern"], f"text of the form {node['pattern']}")
    if node.get("format") == "date":
        return "a date such as 2027-01-31"
    if "minItems" in node:
        return f"at least {node['minItems']} entry"
    return " and ".join(f"{words} {node[name]:.12g}" for name, words in _RANGE_WORDS if name in node)


def iterate_keys() -> Iterator[Key]:
    """Yield every key of a plan in the schema's order; a list of tables is written `load[]`."""
    yield from _iterate_table(plan_json_schema(), ())


def _iterate_table(table: dict[str, Any], location: tuple[str, ...]) -> Iterator[Key]:
    for name, raw in table.get("properties", {}).items():
        node = resolve(raw)
        is_list = node.get("type") == "array"
        element = resolve(node["items"]) if is_list else node
        yield _describe_key((*location, name), node, element, required=name in table.get("required", ()))
        if "properties" in element:
            yield from _iterate_table(element, (*location, f"{name}[]" if is_list else name))


def _describe_key(
    location: tuple[str, ...], node: dict[str, Any], element: dict[str, Any], *, required: bool
) -> Key:
    is_table = "properties" in element
    return Key(
        dotted=dotted_key(location),
        type_words="list of tables" if is_table and node is not element else render_type(node),
        allowed=render_allowed(node),
        required=required,
        default=node.get("default"),
        description=node.get("description", ""),
        is_table=is_table,
    )


def describe_faults(error: ValidationError, values: dict[str, Any], source: str) -> PlanError:
    """Return the first fault as an error and count the others.

    Unknown keys come first: a mistyped key is often also reported as a missing one. The plan's values as read
    name the key at fault as it was written.
    """
    faults: dict[str, ErrorDetails] = {}
    of_engine = any(fault["loc"][:1] == ("engine",) for fault in error.errors())
    for fault in sorted(error.errors(), key=lambda fault: fault["type"] != "extra_forbidden"):
        # The arms repeat what is wrong with the table that they share.
        if not _follows(fault, error.errors()) and not (of_engine and fault["loc"][:1] == ("arms",)):
            faults.setdefault(dotted_key(_written_location(fault, values)), fault)
    first = next(iter(faults.values()))
    further = len(faults) - 1
    count = f" ({further} further error{'s' if further > 1 else ''} in this file)" if further else ""
    message, fix = _describe(first, _written_location(first, values))
    return PlanError(message.rstrip(".") + count, place=source, fix=fix)


def _follows(fault: ErrorDetails, every: Sequence[ErrorDetails]) -> bool:
    """Tell whether a list is called too short only because an entry of it is wrong."""
    own = fault["loc"]
    return fault["type"] == "too_short" and any(
        len(other["loc"]) > len(own) and other["loc"][: len(own)] == own for other in every
    )


def _written_location(fault: ErrorDetails, values: dict[str, Any]) -> Location:
    """Cut the names of union branches, which the schema appends and nobody wrote."""
    node: Any = values
    for index, part in enumerate(fault["loc"]):
        try:
            node = node[part]
        except (KeyError, IndexError, TypeError):
            keep = index + 1 if fault["type"] == "missing" else max(index, 1)
            return fault["loc"][:keep]
    return fault["loc"]


def _describe(fault: ErrorDetails, location: Location) -> tuple[str, str | None]:
    key = dotted_key(location)
    if fault["type"] == "extra_forbidden":
        return f"unknown key {key}.", _suggest(location)
    if fault["type"] == "missing":
        return f"the key {key} is missing.", f"add {key}."
    if fault["type"] == "value_error":
        return f"{key + ': ' if key else ''}{fault['ctx']['error']}.", None
    return f"{key} is {_show(fault['input'])}, allowed is {_name_allowed(fault, location)}.", f"change {key}."


def _name_allowed(fault: ErrorDetails, location: Location) -> str:
    """Say which values a key may have; of a value of another type also which type it must be."""
    node = schema_at(location)
    words, allowed = render_type(node), render_allowed(node)
    if words == "integer":
        words = "whole number"
    kind = words if words.startswith("true") else f"a {words}"
    if not allowed:
        return kind
    return f"{kind}, {allowed}" if fault["type"] in _NO_NUMBER else allowed


def _suggest(location: Location) -> str:
    name, known = str(location[-1]), list_known_keys(location[:-1])
    elsewhere = [key.dotted for key in iterate_keys() if key.dotted.rsplit(".", 1)[-1] == name]
    if elsewhere:
        return f"write it as {' or '.join(elsewhere)}."
    close = difflib.get_close_matches(name, known, n=3, cutoff=_CLOSE_ENOUGH)
    if close:
        return f"perhaps {' or '.join(close)} is meant."
    return f"remove it; known here: {', '.join(known)}."


def _show(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 1] + "…"


def check_filled_in(plan: Plan, source: str) -> None:
    """Refuse a plan in which a value still holds the mark of a new plan.

    Raises PlanError: names the first key that is not filled in, and counts the others.
    """
    found = list(find_placeholders(plan))
    if not found:
        return
    key, value = found[0]
    further = f" ({len(found) - 1} further)" if len(found) > 1 else ""
    raise PlanError(
        f"{key} is not filled in yet: {value!r}{further}.",
        place=source,
        fix="put a value of your own in its place; the comment beside it says what is meant.",
    )


def find_placeholders(plan: Plan) -> Iterator[tuple[str, str]]:
    """Yield the dotted key and the text of every value that is still to be filled in."""
    yield from _search(plan.model_dump(mode="json"), ())


def _search(node: Any, location: tuple[str | int, ...]) -> Iterator[tuple[str, str]]:
    if isinstance(node, str):
        if PLACEHOLDER in node:
            yield dotted_key(location), node
    elif isinstance(node, dict):
        for key, value in node.items():
            yield from _search(value, (*location, key))
    elif isinstance(node, list):
        for index, value in enumerate(node):
            yield from _search(value, (*location, index))
