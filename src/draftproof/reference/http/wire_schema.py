"""Which JSON schema an answer must satisfy.

Pure. It comes from OpenAI's `response_format`, from vLLM's `guided_json` or `structured_outputs`, or is the
form of a forced tool call. A schema travels to the engine as JSON text, its keys in the client's order.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from draftproof.reference.http.tools import FORCING, forced_call_schema
from draftproof.reference.http.wire_fields import BadRequestError, shown

_ANY_OBJECT: dict[str, Any] = {"type": "object"}


def read_schema(body: Mapping[str, Any], *, chat: bool) -> tuple[str, str] | None:
    """Return the field that constrains the answer and its schema as JSON text, None where any text will do.

    Raises:
        BadRequestError: a field of another form, a constraint that is no JSON schema, or two constraints.
    """
    readers = {
        "response_format": _from_response_format,
        "guided_json": _from_guided_json,
        "structured_outputs": _from_structured_outputs,
    } | ({FORCING: lambda _value: forced_call_schema(body)} if chat else {})
    found = [(field, readers[field](body.get(field))) for field in readers]
    wanted = [(field, schema) for field, schema in found if schema is not None]
    if len(wanted) > 1:
        raise BadRequestError(
            f"{wanted[0][0]} and {wanted[1][0]} both constrain the answer; send one of them.", wanted[1][0]
        )
    return (wanted[0][0], msgspec.json.encode(wanted[0][1]).decode()) if wanted else None


def _from_response_format(value: Any) -> Mapping[str, Any] | None:
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise BadRequestError(
            f'response_format must be an object such as {{"type": "json_object"}}, not {shown(value)}.',
            "response_format",
        )
    kind = value.get("type")
    if kind == "text":
        return None
    if kind == "json_object":
        return _ANY_OBJECT
    if kind != "json_schema":
        raise BadRequestError(
            f"response_format.type must be text, json_object or json_schema, not {shown(kind)}.",
            "response_format",
        )
    named = value.get("json_schema")
    schema = named.get("schema") if isinstance(named, Mapping) else None
    if not isinstance(schema, Mapping):
        raise BadRequestError(
            "response_format.json_schema.schema must be an object, a JSON schema.", "response_format"
        )
    return schema


def _from_guided_json(value: Any) -> Mapping[str, Any] | None:
    return None if value is None else _object(value, "guided_json")


def _from_structured_outputs(value: Any) -> Mapping[str, Any] | None:
    if value is None:
        return None
    if isinstance(value, Mapping):
        stated = {key: inner for key, inner in value.items() if inner is not None}
        if set(stated) == {"json"}:
            return _object(stated["json"], "structured_outputs")
        if stated == {"json_object": True} and stated["json_object"] is True:
            return _ANY_OBJECT
    raise BadRequestError(
        'structured_outputs must be {"json": SCHEMA} or {"json_object": true}.', "structured_outputs"
    )


def _object(value: Any, field: str) -> Mapping[str, Any]:
    """Return a schema that is an object or the text of one."""
    if isinstance(value, str):
        try:
            value = msgspec.json.decode(value)
        except msgspec.DecodeError as fault:
            raise BadRequestError(f"{field} is text that is not JSON: {fault}.", field) from fault
    if not isinstance(value, Mapping):
        raise BadRequestError(f"{field} must hold an object, a JSON schema.", field)
    return value
