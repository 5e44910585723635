"""Tools of a chat request, calls that are forced, and which JSON schema an answer must satisfy. Pure.

A forced call is the object {"name": ..., "arguments": {...}} and nothing else, in this order of keys, so that
its name is known before its arguments arrive. A schema travels to the engine as JSON text, its keys in the
client's order.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from draftproof.reference.http.wire_fields import BadRequestError, shown

FORCING = "tool_choice"
_NO_ARGUMENTS: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
_LONGEST_HEAD = 4096  # characters; behind them a text becomes no call
_HEAD = re.compile(r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"arguments"\s*:\s*(?=\{)')


def read_tools(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the tools the prompt shows.

    Raises BadRequestError: a tool or the choice is not of the OpenAI form.
    """
    tools = body.get("tools")
    tools = [] if tools is None else tools
    if not isinstance(tools, list):
        raise BadRequestError("tools must be a list.", "tools")
    for index, tool in enumerate(tools):
        _check_tool(tool, f"tools[{index}]")
    return [] if body.get(FORCING) == "none" else tools


def forced_call_schema(body: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the schema of the one call that `tool_choice` asks for, None where the model may choose.

    Raises BadRequestError: a choice of another form, or of a tool that is not there.
    """
    tools, choice = read_tools(body), body.get(FORCING)
    if choice in (None, "auto", "none"):
        return None
    functions = [tool["function"] for tool in tools]
    if choice != "required":
        functions = [function for function in functions if function["name"] == _chosen_name(choice)]
    if not functions:
        raise BadRequestError("tool_choice forces a call, and tools has no tool for it.", FORCING)
    if len(functions) == 1:
        return _call_schema(functions[0], "#")
    return {"anyOf": [_call_schema(one, f"#/anyOf/{index}") for index, one in enumerate(functions)]}


def render_tools(tools: Sequence[Mapping[str, Any]]) -> str:
    """Return a compact text that states the functions, one line of JSON each, and how to call one."""
    lines = [json.dumps(tool["function"], ensure_ascii=False, separators=(",", ":")) for tool in tools]
    return "\n".join(
        [
            "You can call these functions, one JSON object a line:",
            *lines,
            'To call one, answer with nothing but {"name": NAME, "arguments": {...}}.',
        ]
    )


class CallText:
    """Takes the text of a forced call in pieces: first the name, then the arguments, each piece once.

    `name` is None until it is complete; `complete` says that the arguments are closed.
    """

    def __init__(self) -> None:
        self.name: str | None = None
        self.complete = False
        self._held: list[str] = []
        self._held_chars = 0
        self._depth = 0
        self._in_string = self._escaped = False

    def push(self, text: str) -> str:
        """Take text and return the part of the arguments in it, as it was written."""
        if self.name is None:
            head = self._find_head(text)
            if head is None:
                return ""
            self.name, text, self._held = str(json.loads(head[1])), head.string[head.end() :], []
        return text[: self._arguments_end(text)]

    def flush(self) -> str:
        """Return text that never became a call."""
        held, self._held = "".join(self._held), []
        return held

    def _find_head(self, text: str) -> re.Match[str] | None:
        """Hold more text and look for the call's head, as long as there may yet be one."""
        is_late = self._held_chars > _LONGEST_HEAD
        self._held.append(text)
        self._held_chars += len(text)
        return None if is_late else _HEAD.match("".join(self._held))

    def _arguments_end(self, text: str) -> int:
        """Return how many characters of `text` belong to the arguments, an object."""
        if self.complete:
            return 0
        for index, char in enumerate(text):
            self._take(char)
            if self._depth == 0:
                self.complete = True
                return index + 1
        return len(text)

    def _take(self, char: str) -> None:
        if self._escaped:
            self._escaped = False
        elif self._in_string:
            self._escaped, self._in_string = char == "\\", char != '"'
        elif char == '"':
            self._in_string = True
        else:
            self._depth += (char in "{[") - (char in "}]")


def _check_tool(tool: Any, place: str) -> None:
    function = tool.get("function") if isinstance(tool, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise BadRequestError(f"{place} needs type = function and function.name.", place)
    if not isinstance(function.get("parameters"), Mapping | None):
        raise BadRequestError(f"{place}.function.parameters must be an object, a JSON schema.", place)


def _chosen_name(choice: Any) -> str:
    function = choice.get("function") if isinstance(choice, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str):
        raise BadRequestError(
            'tool_choice must be none, auto, required or {"type": "function", "function": {"name": NAME}}.',
            FORCING,
        )
    return name


def _call_schema(function: Mapping[str, Any], place: str) -> dict[str, Any]:
    """Return the schema of a call of one function; `place` is where it will lie in the whole schema."""
    stated = function.get("parameters")
    parameters = _NO_ARGUMENTS if stated is None else {"type": "object", **stated}
    if parameters["type"] != "object":
        raise BadRequestError(
            f"tools has parameters of {function['name']!r} that are not of type object.", "tools"
        )
    return {
        "type": "object",
        "properties": {
            "name": {"const": function["name"]},
            "arguments": _moved(parameters, f"{place}/properties/arguments"),
        },
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


def _moved(schema: Any, place: str) -> Any:
    """Return a schema whose local references point to where it lies now."""
    if isinstance(schema, list):
        return [_moved(item, place) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    return {
        key: place + value[1:]
        if key == "$ref" and isinstance(value, str) and value.startswith("#")
        else _moved(value, place)
        for key, value in schema.items()
    }


_ANY_OBJECT: dict[str, Any] = {"type": "object"}


def read_schema(body: Mapping[str, Any], *, chat: bool) -> tuple[str, str] | None:
    """Return the field that constrains the answer and its schema as JSON text, None where any text will do.

    Raises BadRequestError: a field of another form, a constraint that is no JSON schema, or two constraints.
    """
    readers = {
        "response_format": _from_response_format,
        "guided_json": lambda value: None if value is None else _object(value, "guided_json"),
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
