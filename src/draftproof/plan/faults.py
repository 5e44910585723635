"""One sentence for what is wrong with a plan: the key, the value, what is allowed, what was meant.

Pure: the schema's error list in, a PlanError out.
"""

import difflib
from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from draftproof.core.errors import PlanError
from draftproof.plan.reference_doc import (
    Location,
    dotted_key,
    iterate_keys,
    list_known_keys,
    render_allowed,
    render_type,
    schema_at,
)

_SHOWN_CHARACTERS = 60
_NO_NUMBER = frozenset({"int_type", "float_type"})
_CLOSE_ENOUGH = 0.6  # difflib's own default: about two wrong letters in a word of six


def describe_faults(error: ValidationError, values: dict[str, Any], source: str) -> PlanError:
    """Return the first fault as an error and count the others.

    Unknown keys come first: a mistyped key is often also reported as a missing one.

    Args:
        error: what the schema found.
        values: the plan's values as read, to name the key at fault as it was written.
        source: the file, for the error's place.
    """
    faults: dict[str, ErrorDetails] = {}
    for fault in sorted(error.errors(), key=lambda fault: fault["type"] != "extra_forbidden"):
        if not _follows(fault, error.errors()):
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
