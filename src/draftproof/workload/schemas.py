"""JSON schemas as a check applies them. Pure: references are never fetched."""

import re
from typing import Any

from referencing.exceptions import Unresolvable


def find_violation(value: object, schema: dict[str, Any]) -> tuple[bool | None, str]:
    """Return whether a value is valid under a schema, and its first fault; None where that stays open."""
    import jsonschema  # noqa: PLC0415 - its formats compile grammars for seconds, and most runs have no schema

    validator = jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)(schema)
    try:
        fault = jsonschema.exceptions.best_match(validator.iter_errors(value))
    except (Unresolvable, re.error, RecursionError, ArithmeticError) as error:
        return None, f"the schema cannot be applied: {type(error).__name__}"
    if fault is None:
        return True, "valid"
    return False, f"{fault.json_path}: {fault.message[:120]}"
