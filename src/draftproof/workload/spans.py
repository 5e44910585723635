"""Spans of OpenTelemetry's GenAI conventions, as requests that were sent. Pure.

Read are the attributes `gen_ai.input.messages`, `gen_ai.system_instructions` and `gen_ai.tool.definitions`
(structured, or as JSON text), on a span or on its event `gen_ai.client.inference.operation.details`; those of
v1.36 and before, where a span's events are its messages (`gen_ai.user.message` …) or hold them
(`gen_ai.content.prompt`); and the indexed ones of OpenLLMetry (`gen_ai.prompt.0.content`,
`llm.request.functions.0.name`). Attributes are a map, as the SDKs print spans, or OTLP's list of keys with
typed values, alone or below `resourceSpans` or `resourceLogs`.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from draftproof.core.errors import WorkloadError
from draftproof.workload.calls import (
    TIME_UNREAD,
    Call,
    Facts,
    Fields,
    UnsendableError,
    as_count,
    clean_request,
    decode_text,
)
from draftproof.workload.moments import Moment, Unit, read_moment, scale

SPANS = "OpenTelemetry GenAI spans"
_TREES = {"resourceSpans": ("scopeSpans", "spans"), "resourceLogs": ("scopeLogs", "logRecords")}
# Attribute of a span -> field of the request.
_SAME = ("max_tokens", "temperature", "top_p", "top_k", "seed", "frequency_penalty", "presence_penalty")
_FIELDS = {f"gen_ai.request.{name}": name for name in _SAME} | {
    "gen_ai.request.model": "model",
    "gen_ai.request.stop_sequences": "stop",
    "gen_ai.request.choice.count": "n",
}
_WHOLE = frozenset({"max_tokens", "top_k", "seed", "n"})
_CHAT_OPERATIONS = ("chat", "generate_content")
_WORD = re.compile(r"[a-z_]{1,40}")
_MESSAGE_EVENT = re.compile(r"gen_ai\.(system|user|assistant|tool)\.message")
_INDEXED = re.compile(r"(gen_ai\.prompt|llm\.request\.functions)\.(\d{1,6})\.(.+)", re.DOTALL)
_INDEXED_CALL = re.compile(r"tool_calls\.(\d{1,6})\.(?:function\.)?(id|name|arguments)")
_DETAILS, _CONTENT = "gen_ai.client.inference.operation.details", "gen_ai.content.prompt"
_SCHEMA_UNKNOWN = "the JSON schema of the answer is not in the span, and a JSON object is asked for"
_REASONING_LEFT_OUT = "earlier reasoning of the assistant is left out"


def find_spans(value: object) -> list[Fields] | None:
    """Return the spans and log records that a decoded line has; None: it is no telemetry."""
    if not isinstance(value, dict):
        return None
    for tree, (scopes, leaves) in _TREES.items():
        if tree in value:
            groups = [scope for part in _objects(value[tree]) for scope in _objects(part.get(scopes))]
            return [leaf for scope in groups for leaf in _objects(scope.get(leaves))]
    attributes = value.get("attributes")
    names = [one.get("key") for one in _objects(attributes)] if isinstance(attributes, list) else attributes
    is_span = isinstance(names, dict | list) and any(
        str(name).startswith(("gen_ai.", "llm.")) for name in names
    )
    return [value] if is_span or "startTimeUnixNano" in value else None


def read_span(span: Fields, unit: Unit | None = None) -> Call:
    """Return the call that a span records. Raises UnsendableError: it is none, or cannot be sent."""
    attributes = _read_attributes(span.get("attributes"))
    events = [
        (_name_of(one), _read_attributes(one.get("attributes"))) for one in _objects(span.get("events"))
    ]
    for name, more in events:
        attributes |= more if name == _DETAILS else {}
    _refuse_other_operations(span, attributes)
    request, remarks = _read_request(attributes)
    messages, left_out = _read_messages(attributes, events)
    request["messages"] = messages
    body, more_remarks = clean_request(request)
    moment, unread = _read_start(span, unit)
    return Call(
        form=SPANS,
        request=body,
        moment=moment,
        facts=_read_facts(attributes),
        labels=_read_labels(attributes),
        remarks=(*remarks, *left_out, *more_remarks, *unread),
    )


def _objects(value: object) -> list[Fields]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _name_of(event: Fields) -> str:
    return str(event.get("name", event.get("eventName", "")))


def _read_attributes(given: object) -> Fields:
    if isinstance(given, dict):
        return {str(key): value for key, value in given.items() if value is not None}
    return {str(one.get("key")): _read_any_value(one.get("value")) for one in _objects(given)}


def _read_any_value(value: object) -> Any:
    """Return an `AnyValue` of OTLP's JSON, in which 64-bit integers are text."""
    if not isinstance(value, dict) or len(value) != 1:
        return value
    ((kind, inner),) = value.items()
    match kind:
        case "intValue":
            return int(inner) if isinstance(inner, str) and re.fullmatch(r"-?\d{1,19}", inner) else inner
        case "arrayValue":
            return [_read_any_value(one) for one in _objects(_inner(inner, "values"))]
        case "kvlistValue":
            return _read_attributes(_inner(inner, "values"))
        case "stringValue" | "doubleValue" | "boolValue":
            return inner
        case _:
            return value


def _inner(value: object, key: str) -> object:
    return value.get(key) if isinstance(value, dict) else None


def _refuse_other_operations(span: Fields, attributes: Fields) -> None:
    operation = attributes.get("gen_ai.operation.name", attributes.get("llm.request.type"))
    if operation is None and not any(key.startswith("gen_ai.") for key in attributes):
        raise UnsendableError("a span that is no call of a model")
    if operation is not None and operation not in _CHAT_OPERATIONS:
        shown = operation if isinstance(operation, str) and _WORD.fullmatch(operation) else "unnamed"
        raise UnsendableError(f"a call of another kind than chat ({shown})")
    status = span.get("status")
    code = str(_inner(status, "code") or _inner(status, "status_code") or "")
    if "error.type" in attributes or code == "2" or code.endswith("ERROR"):
        raise UnsendableError("a call that failed")
    if _MESSAGE_EVENT.fullmatch(str(attributes.get("event.name", span.get("eventName", "")))):
        raise UnsendableError("a message of a call that has its other messages in further records")


def _read_request(attributes: Fields) -> tuple[Fields, tuple[str, ...]]:
    request: Fields = {}
    for key, name in _FIELDS.items():
        value = attributes.get(key)
        if value is not None:
            request[name] = (
                int(value) if name in _WHOLE and isinstance(value, float) and value.is_integer() else value
            )
    tools = decode_text(attributes.get("gen_ai.tool.definitions"))
    found = _objects(tools) or [part for _, part in _gather(attributes, "llm.request.functions")]
    if found:
        request["tools"] = [_read_tool(one) for one in found]
    kinds = (attributes.get(key) for key in ("gen_ai.output.type", "gen_ai.openai.request.response_format"))
    if any(kind in ("json", "json_object", "json_schema") for kind in kinds):
        return request | {"response_format": {"type": "json_object"}}, (_SCHEMA_UNKNOWN,)
    return request, ()


def _read_tool(tool: Fields) -> Fields:
    """Return a definition as the protocol has it: the function below a key of its own."""
    if isinstance(tool.get("function"), dict):
        return {"type": "function"} | tool
    parameters = decode_text(tool.get("parameters", tool.get("input_schema")))
    function = {key: tool[key] for key in ("name", "description") if key in tool}
    return {"type": "function", "function": function | ({"parameters": parameters} if parameters else {})}


def _read_messages(
    attributes: Fields, events: list[tuple[str, Fields]]
) -> tuple[list[Fields], tuple[str, ...]]:
    """Return the messages, in whichever form they were recorded, and what of them is left out."""
    stated = decode_text(attributes.get("gen_ai.input.messages"))
    if isinstance(stated, list) and stated:
        system = decode_text(attributes.get("gen_ai.system_instructions"))
        parts = [{"type": "text", "content": system}] if isinstance(system, str) else _objects(system)
        head = [{"role": "system", "parts": parts}] if parts else []
        messages = [one for message in (*head, *stated) for one in _read_parts(message)]
        return messages, (_REASONING_LEFT_OUT,) if _has_reasoning(stated) else ()
    indexed = [_read_indexed(fields) for _, fields in _gather(attributes, "gen_ai.prompt")]
    if indexed:
        return indexed, ()
    told = [one for name, fields in events for one in _read_event(name, fields)]
    if not told:
        raise UnsendableError("a span without the messages (capturing of content is off)")
    return told, ()


def _has_reasoning(messages: list[Any]) -> bool:
    return any(
        part.get("type") == "reasoning"
        for message in messages
        if isinstance(message, dict)
        for part in _objects(message.get("parts"))
    )


def _read_parts(message: object) -> Iterator[Fields]:
    """Yield the messages of the protocol for one of the conventions: answers of tools are messages there."""
    if not isinstance(message, dict):
        raise UnsendableError("a message that is no object")
    if not isinstance(message.get("parts"), list):
        yield message
        return
    texts, calls, answers = [], [], []
    for part in _objects(message["parts"]):
        kind, content = part.get("type"), part.get("content")
        if kind == "text" and isinstance(content, str):
            texts.append({"type": "text", "text": content})
        elif kind == "tool_call":
            calls.append(_read_tool_call(part))
        elif kind == "tool_call_response":
            answers.append(_read_tool_answer(part))
        elif kind != "reasoning":
            raise UnsendableError("a part of a message that is no text")
    if texts or calls:
        content = {"content": texts[0]["text"] if len(texts) == 1 else texts} if texts else {}
        yield {"role": message.get("role")} | content | ({"tool_calls": calls} if calls else {})
    yield from answers


def _read_tool_call(part: Fields) -> Fields:
    named = {"id": part["id"]} if part.get("id") is not None else {}
    function = {"name": part.get("name"), "arguments": part.get("arguments") or {}}
    return named | {"type": "function", "function": function}


def _read_tool_answer(part: Fields) -> Fields:
    said = part.get("response", part.get("result"))
    text = said if isinstance(said, str) else _write_json(said)
    named = {"tool_call_id": part["id"]} if part.get("id") is not None else {}
    return {"role": "tool", "content": text} | named


def _write_json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _gather(attributes: Fields, prefix: str) -> list[tuple[int, Fields]]:
    """Return the fields of indexed attributes, `PREFIX.0.name` and so on, by their index."""
    found: dict[int, Fields] = {}
    for key, value in attributes.items():
        match = _INDEXED.fullmatch(key)
        if match is not None and match[1] == prefix:
            found.setdefault(int(match[2]), {})[match[3]] = value
    return sorted(found.items())


def _read_indexed(fields: Fields) -> Fields:
    calls: dict[int, Fields] = {}
    for key, value in fields.items():
        if match := _INDEXED_CALL.fullmatch(key):
            calls.setdefault(int(match[1]), {})[match[2]] = value
    message: Fields = {key: fields[key] for key in ("role", "tool_call_id") if key in fields}
    content = decode_text(fields.get("content"))
    is_parts = isinstance(content, list) and bool(content) and all("type" in one for one in _objects(content))
    said = content if is_parts else fields.get("content")
    message |= {"content": said} if said not in (None, "") or not calls else {}
    return message | ({"tool_calls": [_read_tool_call(calls[at]) for at in sorted(calls)]} if calls else {})


def _read_event(name: str, fields: Fields) -> Iterator[Fields]:
    """Yield the messages that an event of a span has."""
    if name == _CONTENT:
        stated = decode_text(fields.get("gen_ai.prompt"))
        yield from _objects(stated) or (
            [{"role": "user", "content": stated}] if isinstance(stated, str) else []
        )
    elif match := _MESSAGE_EVENT.fullmatch(name):
        calls = _objects(decode_text(fields.get("tool_calls")))
        message = {"role": fields.get("role", match[1])}
        message |= {"content": fields["content"]} if "content" in fields else {}
        message |= {"tool_call_id": fields["id"]} if match[1] == "tool" and "id" in fields else {}
        yield message | ({"tool_calls": calls} if calls else {})


def _read_start(span: Fields, unit: Unit | None) -> tuple[Moment | None, tuple[str, ...]]:
    """Return when a span began; a log record's time is that of its end, and is no arrival."""
    try:
        if (nanoseconds := span.get("startTimeUnixNano")) is not None:
            return Moment(scale(int(nanoseconds), "ns"), "zoned"), ()
        if (stated := span.get("start_time", span.get("startTime"))) is not None:
            return read_moment({"timestamp": stated}, unit), ()
    except (WorkloadError, ValueError, TypeError, OverflowError):
        return None, (TIME_UNREAD,)
    return None, ()


def _read_facts(attributes: Mapping[str, Any]) -> Facts:
    reasons = decode_text(attributes.get("gen_ai.response.finish_reasons"))
    reason = (
        reasons[0]
        if isinstance(reasons, list) and reasons
        else attributes.get("gen_ai.completion.0.finish_reason")
    )
    count = {name: as_count(attributes.get(f"gen_ai.usage.{name}_tokens")) for name in (*_OUTPUT, *_INPUT)}
    return Facts(
        finish_reason=reason if isinstance(reason, str) and _WORD.fullmatch(reason) else None,
        output_tokens=next((count[name] for name in _OUTPUT if count[name] is not None), None),
        prompt_tokens=next((count[name] for name in _INPUT if count[name] is not None), None),
    )


_OUTPUT, _INPUT = ("output", "completion"), ("input", "prompt")


def _read_labels(attributes: Fields) -> dict[str, str]:
    named = {"model": "gen_ai.request.model", "agent": "gen_ai.agent.name"}
    return {name: attributes[key] for name, key in named.items() if isinstance(attributes.get(key), str)}
