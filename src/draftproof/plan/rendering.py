"""A plan back to TOML, every default written out. Pure."""

import json
import re
from collections.abc import Iterator
from typing import Any

from draftproof.plan.schema import Plan

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
