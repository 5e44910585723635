"""The plan reference in Markdown, generated from the schema. Pure.

The keys a plan may have, read from its schema: names, types, ranges, defaults, descriptions.

Pure. Error messages and the plan reference both take their facts from here, so neither can say something
the schema does not enforce.

A plan back to TOML, every default written out. Pure.
"""

import json
import re
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import msgspec

from draftproof.plan.schema import Plan

Location = Sequence[str | int]

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
    """Follow references and "this or none", and keep what stands beside them, such as a default."""
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
        yield _describe((*location, name), node, element, required=name in table.get("required", ()))
        if "properties" in element:
            yield from _iterate_table(element, (*location, f"{name}[]" if is_list else name))


def _describe(
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


_BARE_KEY = re.compile(r"^[A-Za-z0-9_-]+$")


def render_plan(plan: Plan) -> str:
    """Return a TOML text that reads back as an equal plan; values of none are left out."""
    return "\n".join(_render_table(plan.model_dump(mode="json", exclude_none=True), ())).lstrip("\n") + "\n"


def _render_table(table: dict[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    """Yield plain values first: after a sub-table's header they would belong to the sub-table."""
    nested = {key: value for key, value in table.items() if _is_nested(value)}
    for key, value in table.items():
        if key not in nested:
            yield f"{_render_key(key)} = {_render_value(value)}"
    for key, value in nested.items():
        here = (*path, key)
        name = ".".join(map(_render_key, here))
        for entry in value if isinstance(value, list) else (value,):
            yield f"\n[[{name}]]" if isinstance(value, list) else f"\n[{name}]"
            yield from _render_table(entry, here)


def _is_nested(value: object) -> bool:
    return isinstance(value, dict) or (isinstance(value, list) and any(isinstance(v, dict) for v in value))


def _render_key(key: str) -> str:
    return key if _BARE_KEY.match(key) else render_string(key)


def _render_value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return render_string(value)
    if isinstance(value, list):
        return f"[{', '.join(map(_render_value, value))}]"
    return repr(value)


def render_string(text: str) -> str:
    """Return a TOML basic string: JSON's escapes are a subset of TOML's but for the delete character."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
