"""Reading one line of a workload file: our own form, ShareGPT's, OpenAI's batch line or a chat request.

Pure: a decoded JSON value in, an item out, with a remark on whatever is not sent as it stands. The form is
known from the keys of the object. A key whose value is null is a key that is absent, in every form. A field
of a request has a key of its own in an item, or goes out as given, or is left to the plan and named in the
workload's notes, or is refused by name: none is dropped in silence.
"""

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from draftproof.core.secrets import is_secret_name
from draftproof.workload.items import DEFAULT_LIMIT, Item
from draftproof.workload.segments import UNLABELLED

# Field of a request -> where an item has it.
OWN_KEYS = {
    "messages": "messages",
    "max_tokens": "max_tokens",
    "max_completion_tokens": "max_tokens",
    "temperature": "sampling.temperature",
    "top_p": "sampling.top_p",
    "top_k": "sampling.top_k",
    "seed": "sampling.seed",
    "stop": "stop",
    "tools": "tools",
    "tool_choice": "tool_choice",
}
# Fields by which an answer changes, beside those above; where a form has no place for them they are refused.
FURTHER_KEYS = frozenset(
    {
        *("chat_template_kwargs", "frequency_penalty", "ignore_eos", "logit_bias", "logprobs", "min_p"),
        *("min_tokens", "n", "parallel_tool_calls", "presence_penalty", "repetition_penalty"),
        *("response_format", "stop_token_ids", "functions", "function_call", "top_logprobs", "modalities"),
        *("reasoning_effort", "verbosity", "prediction", "service_tier", "prompt_cache_key", "guided_json"),
    }
)
# Field -> what is sent in its place. What changes no answer an item may still state in `request`.
_ASKED_BY_PLAN = {
    "model": "the model that the plan names is asked",
    "stream": "every answer is streamed",
    "stream_options": "usage is asked for as the engine can state it",
}
_NO_PART = "it changes no answer; arms.NAME.request may state it"
LEFT_TO_PLAN = _ASKED_BY_PLAN | dict.fromkeys(("user", "safety_identifier", "metadata", "store"), _NO_PART)
_BY_THE_ARMS = "the arms of the plan decide it"
_OTHER_LIMITS = ("max_new_tokens", "max_output_tokens", "n_predict")
# Field -> the values that do no harm, and why others are refused.
_REFUSED: dict[str, tuple[tuple[Any, ...], str]] = {
    "n": ((1,), "of several answers none has a time per token of its own"),
    "best_of": ((1,), "of several answers none has a time per token of its own"),
    "use_beam_search": ((False,), "of several beams none has a time per token of its own"),
    "echo": ((False,), "an answer that begins with its prompt is measured with it"),
    "prompt": ((), "a chat request has messages"),
    "input": ((), "a chat request has messages"),
    **dict.fromkeys(_OTHER_LIMITS, ((), "two limits leave it open which one holds; state it as max_tokens")),
}
# What tells a line that is the body of a chat request.
PROTOCOL_KEYS = OWN_KEYS.keys() | FURTHER_KEYS | LEFT_TO_PLAN.keys() | _REFUSED.keys()


def find_request_faults(request: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is wrong with the further fields of a request."""
    for name, value in request.items():
        if name in OWN_KEYS:
            yield f"request.{name}: state it as {OWN_KEYS[name]}"
        elif name in _ASKED_BY_PLAN:
            yield f"request.{name}: {_ASKED_BY_PLAN[name]}"
        elif is_secret_name(name):
            yield f"request.{name} would be copied into every run; send a secret as a header of the arm"
        elif "speculat" in name:
            yield f"request.{name} cannot be stated by an item: {_BY_THE_ARMS}"
        elif (why := explain_unmeasurable(name, value)) is not None:
            yield f"request.{name} = {_shorten(value)} cannot be measured: {why}"


def explain_unmeasurable(name: str, value: object) -> str | None:
    """Return why a request whose field `name` has this value cannot be measured, None where it can."""
    harmless, why = _REFUSED.get(name, ((value,), None))
    return None if value in harmless else why


def split_request(body: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the fields of a body that go out as given, and the names of those that are left to the plan."""
    given = {key: value for key, value in body.items() if key not in OWN_KEYS and key not in LEFT_TO_PLAN}
    return given, tuple(key for key in LEFT_TO_PLAN if key in body)


def _shorten(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"


_ROLES = (
    dict.fromkeys(("human", "user"), "user")
    | dict.fromkeys(("gpt", "chatgpt", "assistant", "bing", "bard", "model"), "assistant")
    | dict.fromkeys(("tool", "observation", "function_response"), "tool")
    | {"system": "system", "developer": "developer"}
)
_SYSTEM_KEYS = ("system", "system_prompt", "system_message")
_MESSAGE_KEYS = ("name", "tool_calls", "tool_call_id")
_TURN_KEYS = {"from", "role", "value", "content", *_MESSAGE_KEYS}
_MEDIA = ("image", "images", "video", "videos", "audio", "audios")
# Keys of our own form that a conversation may have.
_SHAREGPT_OWN = (
    *("segments", "max_tokens", "sampling", "stop", "tool_choice", "request", "checks", "follow_ups"),
)
_SHAREGPT_KEYS = frozenset({"id", "conversations", *_SYSTEM_KEYS, "tools", *_MEDIA, *_SHAREGPT_OWN})
_BATCH_KEYS = ("custom_id", "method", "url", "body")
# Keys of an item that no chat request has.
OUR_KEYS = frozenset(Item.__struct_fields__) - PROTOCOL_KEYS
_SAMPLING_KEYS = ("temperature", "top_p", "top_k", "seed")
_ENCODER = msgspec.json.Encoder(order="sorted")
NO_LIMIT = f"no limit is stated, and max_tokens = {DEFAULT_LIMIT} is sent"
NO_TEMPERATURE = "no temperature is stated, and 0 (greedy) is sent"
ANSWER_LEFT_OUT = "the answer after the last question is left out"


class Line(NamedTuple):
    """An item, and what of its line is not sent as it stands, a phrase each."""

    item: Item
    remarks: tuple[str, ...] = ()


def parse_line(value: object, position: int) -> Line:
    """Return the item that a decoded line states.

    `position`: which item of its file it is; with a hash of the line it names one that has no id. Raises
    msgspec.ValidationError: a key that is not known, or a value of the wrong type.
    """
    if not isinstance(value, dict):
        return Line(msgspec.convert(value, Item))
    stated = without_nulls(value)
    if "conversations" in stated:
        converted, remarks = _convert_sharegpt(stated)
    elif "custom_id" in stated or ("url" in stated and "body" in stated):
        converted, remarks = _convert_batch(stated)
    elif "messages" in stated and stated.keys() & PROTOCOL_KEYS - set(Item.__struct_fields__):
        converted, remarks = _convert_request(stated)
    else:
        converted, remarks = _clean_native(stated), ()
    return _make_line(stated, converted, remarks, position)


def parse_request(body: Mapping[str, Any], position: int) -> Line:
    """Return the item of a chat request that is known to be one; see `parse_line`."""
    stated = without_nulls(body)
    return _make_line(stated, *_convert_request(stated), position)


def _make_line(
    stated: Mapping[str, Any], converted: Mapping[str, Any], remarks: tuple[str, ...], position: int
) -> Line:
    named = {"id": name_item(position, stated), "segments": {}}
    item = msgspec.convert(named | dict(converted), Item)
    labelled = item if item.segments else msgspec.structs.replace(item, segments={"task": UNLABELLED})
    return Line(labelled, remarks)


def name_item(position: int, stated: Mapping[str, Any]) -> str:
    """Return the id of an item that has none: its place among the items, and a hash of what its line says."""
    return f"i{position:06}-{hashlib.sha256(_ENCODER.encode(stated)).hexdigest()[:8]}"


def without_nulls(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return an object without the keys whose value is null."""
    return {key: part for key, part in value.items() if part is not None}


def _clean(value: Any, *keys: str) -> Any:
    """Return an object without nulls, also in the objects that its `keys` list; other values stay."""
    if not isinstance(value, dict):
        return value
    cleaned = without_nulls(value)
    for key in keys:
        if isinstance(cleaned.get(key), list):
            cleaned[key] = [_clean(one) for one in cleaned[key]]
    return cleaned


def _clean_native(value: dict[str, Any]) -> dict[str, Any]:
    cleaned: dict[str, Any] = _clean(value, "checks")
    cleaned |= {key: _clean(cleaned[key]) for key in ("sampling", "segments") if key in cleaned}
    if isinstance(cleaned.get("stop"), str):
        cleaned["stop"] = [cleaned["stop"]]
    if isinstance(cleaned.get("follow_ups"), list):
        cleaned["follow_ups"] = [_clean(one, "checks") for one in cleaned["follow_ups"]]
    return cleaned | _clean_messages(cleaned)


def _clean_messages(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return the messages of a line, if it has a list of them."""
    messages = value.get("messages")
    if not isinstance(messages, list):
        return {}
    return {"messages": [_clean_message(one, f"messages[{index}]") for index, one in enumerate(messages)]}


def _clean_message(message: Any, place: str) -> Any:
    """Return a message whose single text part is its text; empty lists say nothing, as nulls do."""
    if not isinstance(message, dict):
        return message
    cleaned = {
        key: part for key, part in message.items() if part is not None and (part != [] or key == "content")
    }
    content = cleaned.get("content")
    if isinstance(content, list):
        _check_parts(content, f"{place}.content")
        is_plain = len(content) == 1 and content[0].keys() == {"type", "text"}
        cleaned["content"] = content[0].get("text") if is_plain else content
    return cleaned


def _check_parts(parts: list[Any], place: str) -> None:
    for index, part in enumerate(parts):
        kind = part.get("type") if isinstance(part, dict) else part
        if kind != "text":
            raise msgspec.ValidationError(f"{place}[{index}] is of type {kind!r}, and only text can be sent")


def _convert_sharegpt(value: dict[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Keep the turns up to the last one of the person; the column `system` is the first message."""
    turns = msgspec.convert(value["conversations"], list[dict[str, Any]])
    if shown := [key for key in _MEDIA if value.get(key)]:
        raise msgspec.ValidationError(f"`{shown[0]}` belongs to the conversation, and only text can be sent")
    messages = [*_read_system(value, turns), *(_read_turn(turn, index) for index, turn in enumerate(turns))]
    own = {key: value[key] for key in _SHAREGPT_OWN if key in value}
    unused = [f"`{key}`" for key in _find_unused_columns(value)]
    of_turns = (key for turn in turns for key in without_nulls(turn) if key not in _TURN_KEYS)
    unused += [f"`{key}` of a turn" for key in dict.fromkeys(of_turns)]
    remarks = [*([] if "max_tokens" in own else [NO_LIMIT]), *(f"{name} is not used" for name in unused)]
    while messages and messages[-1]["role"] == "assistant":
        messages.pop()
        remarks.append(ANSWER_LEFT_OUT)
    converted = {"messages": _clean_messages({"messages": messages})["messages"], "tools": _read_tools(value)}
    return _clean_native(own) | converted | _read_id(value.get("id")), tuple(dict.fromkeys(remarks))


def _find_unused_columns(value: Mapping[str, Any]) -> Iterator[str]:
    """Yield the columns that say nothing of the request; one that does and has no place ends the reading."""
    for key in value:
        if key in OWN_KEYS.keys() - _SHAREGPT_KEYS or key in FURTHER_KEYS:
            where = OWN_KEYS.get(key, f"request.{key}")
            raise msgspec.ValidationError(f"`{key}` is a field of a request: state it as {where}")
        if key not in _SHAREGPT_KEYS:
            yield key


def _read_id(given: object) -> dict[str, str]:
    if given is None or given == "":
        return {}
    if isinstance(given, bool) or not isinstance(given, str | int):
        raise msgspec.ValidationError(f"id = {given!r} is neither text nor a whole number")
    return {"id": str(given)}


def _read_system(value: Mapping[str, Any], turns: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    given = [(key, value[key]) for key in _SYSTEM_KEYS if value.get(key)]
    first = _read_turn(turns[0], 0) if turns else {}
    if first.get("role") == "system":
        given.append(("the first turn", first["content"]))
    for key, text in given:
        if not isinstance(text, str):
            raise msgspec.ValidationError(f"Expected `str` in `{key}`, got {text!r}")
        if text != given[0][1]:
            raise msgspec.ValidationError(f"`{given[0][0]}` and {key} are two system messages")
    if given and first.get("role") != "system":
        yield {"role": "system", "content": given[0][1]}


def _read_turn(turn: Mapping[str, Any], index: int) -> dict[str, Any]:
    stated = without_nulls(turn)
    place = f"conversations[{index}]"
    for one, other in (("from", "role"), ("value", "content")):
        if one in stated and other in stated and stated[one] != stated[other]:
            raise msgspec.ValidationError(f"{place} has `{one}` and `{other}`")
    speaker = stated.get("from", stated.get("role"))
    if not isinstance(speaker, str) or speaker not in _ROLES:
        raise msgspec.ValidationError(f"{place} is from {speaker!r}, which is none of {', '.join(_ROLES)}")
    content = stated.get("value", stated.get("content"))
    extra = {key: stated[key] for key in _MESSAGE_KEYS if key in stated}
    return {"role": _ROLES[speaker], "content": content} | extra


def _read_tools(value: Mapping[str, Any]) -> Any:
    """Return the column `tools`: a list, or its JSON as text; a bare function is a tool of this type."""
    tools = value.get("tools") or []
    if isinstance(tools, str):
        try:
            tools = msgspec.json.decode(tools)
        except msgspec.DecodeError as error:
            raise msgspec.ValidationError(f"`tools` is text that is not JSON ({error})") from None
    listed = msgspec.convert(tools, list[dict[str, Any]])
    return [one if "type" in one else {"type": "function", "function": one} for one in listed]


def _convert_batch(value: dict[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Take the chat request of an OpenAI batch line."""
    if unknown := [key for key in value if key not in _BATCH_KEYS]:
        raise msgspec.ValidationError(f"A batch line has no `{unknown[0]}` beside {', '.join(_BATCH_KEYS)}")
    body = value.get("body")
    is_chat = value.get("url") == "/v1/chat/completions" and value.get("method", "POST") == "POST"
    if not is_chat or not isinstance(body, dict):
        raise msgspec.ValidationError(
            "A batch line needs method POST, url `/v1/chat/completions` and an object in `body`"
        )
    converted, remarks = _convert_body(without_nulls(body))
    return converted | without_nulls({"id": value.get("custom_id")}), remarks


def _convert_request(value: dict[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Take a line that is a chat request itself; keys of our own form may stand beside its fields."""
    own = _clean_native({key: part for key, part in value.items() if key in OUR_KEYS})
    body = {key: part for key, part in value.items() if key not in OUR_KEYS}
    if own.keys() - {"id"} and (unknown := sorted(body.keys() - PROTOCOL_KEYS)):
        raise msgspec.ValidationError(f"Object contains unknown field `{unknown[0]}`")
    for key in ("sampling", "request"):
        beside = msgspec.convert(own.pop(key, {}), dict[str, Any])
        if twice := sorted(body.keys() & beside.keys()):
            raise msgspec.ValidationError(f"`{twice[0]}` is stated twice, once in `{key}`")
        if key == "sampling" and (unknown := sorted(beside.keys() - set(_SAMPLING_KEYS))):
            raise msgspec.ValidationError(f"Object contains unknown field `{unknown[0]}` - at `$.sampling`")
        body |= beside
    converted, remarks = _convert_body(body)
    return converted | own, remarks


def _convert_body(body: dict[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Take a chat request; fields without a key in an item go out as given."""
    request, left = split_request(body)
    converted = {
        "messages": _clean_messages(body).get("messages", body.get("messages", [])),
        "sampling": {key: body[key] for key in _SAMPLING_KEYS if key in body},
        "request": request,
    }
    optional = {
        "max_tokens": _read_limit(body),
        "stop": [body["stop"]] if isinstance(body.get("stop"), str) else body.get("stop"),
        "tools": body.get("tools"),
        "tool_choice": body.get("tool_choice"),
        "response_schema": _read_response_schema(body.get("response_format")),
    }
    return converted | without_nulls(optional), tuple(_remark_on_body(body, left))


def _read_limit(body: Mapping[str, Any]) -> Any:
    limits = [body[key] for key in ("max_completion_tokens", "max_tokens") if key in body]
    if len(limits) > 1 and limits[0] != limits[1]:
        raise msgspec.ValidationError(
            f"max_completion_tokens = {limits[0]!r} and max_tokens = {limits[1]!r} are two limits"
        )
    return limits[0] if limits else None


def _remark_on_body(body: Mapping[str, Any], left: tuple[str, ...]) -> Iterator[str]:
    for key in left:
        yield f"`{key}` is left to the plan: {LEFT_TO_PLAN[key]}"
    if "max_tokens" not in body and "max_completion_tokens" not in body:
        yield NO_LIMIT
    if "temperature" not in body:
        yield NO_TEMPERATURE


def _read_response_schema(response_format: object) -> object:
    """Return the schema that a response format states, which goes out as given beside it."""
    if not isinstance(response_format, dict):
        return None
    wrapped = response_format.get("json_schema")
    return wrapped.get("schema") if isinstance(wrapped, dict) else None
