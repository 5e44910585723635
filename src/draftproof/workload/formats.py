"""Reading one line of a workload file in the native form, ShareGPT's, or that of an OpenAI batch file.

Pure: a decoded JSON value in, an item out. The form is told from the keys of the object.
"""

from typing import Any

import msgspec

from draftproof.workload.items import Item
from draftproof.workload.segments import UNLABELLED

_SHAREGPT_ROLES = {"human": "user", "gpt": "assistant", "chatgpt": "assistant"}
_SAMPLING_KEYS = ("temperature", "top_p", "top_k", "seed")


def parse_item(value: object) -> Item:
    """Return the item that a decoded line states; an item without labels gets {"task": "unlabelled"}.

    Raises:
        msgspec.ValidationError: a key that is not known, or a value of the wrong type.
    """
    if isinstance(value, dict) and "conversations" in value:
        value = _convert_sharegpt(value)
    elif isinstance(value, dict) and "custom_id" in value:
        value = _convert_batch(value)
    item = msgspec.convert(value, Item)
    return item if item.segments else msgspec.structs.replace(item, segments={"task": UNLABELLED})


def _convert_sharegpt(value: dict[str, Any]) -> dict[str, Any]:
    """Keep the turns up to the last one of the person; what the assistant said after it is left out."""
    turns = msgspec.convert(value["conversations"], list[dict[str, Any]])
    messages = [
        {"role": _SHAREGPT_ROLES.get(str(turn.get("from")), turn.get("from")), "content": turn.get("value")}
        for turn in turns
    ]
    while messages and messages[-1]["role"] == "assistant":
        messages.pop()
    return {"id": str(value.get("id", "")), "messages": messages, "segments": {}}


def _convert_batch(value: dict[str, Any]) -> dict[str, Any]:
    """Take the chat request of an OpenAI batch line; the model it names is left to the plan."""
    body = value.get("body")
    if value.get("url") != "/v1/chat/completions" or not isinstance(body, dict):
        raise msgspec.ValidationError("A batch line needs url `/v1/chat/completions` and an object in `body`")
    messages = msgspec.convert(body.get("messages", []), list[dict[str, Any]])
    optional = {
        "max_tokens": body.get("max_completion_tokens", body.get("max_tokens")),
        "sampling": {key: body[key] for key in _SAMPLING_KEYS if body.get(key) is not None},
        "stop": [body["stop"]] if isinstance(body.get("stop"), str) else body.get("stop"),
        "tools": body.get("tools"),
        "tool_choice": body.get("tool_choice"),
        "response_schema": _read_response_schema(body.get("response_format")),
    }
    return {
        "id": value["custom_id"],
        "messages": [_join_parts(message) for message in messages],
        "segments": {},
    } | {key: part for key, part in optional.items() if part is not None}


def _join_parts(message: dict[str, Any]) -> dict[str, Any]:
    """Join text parts into one string; parts of another kind stay and fail the type check."""
    content = message.get("content")
    if not isinstance(content, list):
        return message
    texts = [part.get("text") for part in content if isinstance(part, dict) and part.get("type") == "text"]
    if len(texts) < len(content):
        return message
    return message | {"content": "".join(str(text) for text in texts)}


def _read_response_schema(response_format: object) -> object:
    if not isinstance(response_format, dict):
        return None
    wrapped = response_format.get("json_schema")
    return wrapped.get("schema") if isinstance(wrapped, dict) else None
