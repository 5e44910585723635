"""From chat messages or a plain prompt to token ids.

Owns where tools go for chat templates that know none. The tokenizer is a `transformers` one; its template
decides everything else.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from jinja2 import TemplateError

from draftproof.reference.http.token_text import ChatTokenizer
from draftproof.reference.http.tools import read_tools, render_tools
from draftproof.reference.http.wire import check_text_length
from draftproof.reference.http.wire_fields import BadRequestError

_ROLES = ("system", "developer", "user", "assistant", "tool")
_DEFAULT_SYSTEM = "You are a helpful assistant."


def chat_token_ids(body: Mapping[str, Any], tokenizer: ChatTokenizer, max_model_len: int) -> tuple[int, ...]:
    """Return the prompt of a chat request.

    Raises BadRequestError: messages or tools are not of the OpenAI form, the model has no template, or the
    text is far longer than `max_model_len` tokens.
    """
    tools, stated = read_tools(body), body.get("messages")
    if not isinstance(stated, list) or not stated:
        raise BadRequestError("messages must be a non-empty list.", "messages")
    messages = [_message(message, f"messages[{index}]") for index, message in enumerate(stated)]
    if not tokenizer.chat_template:
        raise BadRequestError("This model has no chat template; use /v1/completions.", "messages")
    native = "tools" in str(tokenizer.chat_template)
    if not native:
        messages = _without_native_tools(messages, tools)
    try:
        text = tokenizer.apply_chat_template(
            messages, tools=tools or None if native else None, add_generation_prompt=True, tokenize=False
        )
    except TemplateError as fault:
        raise BadRequestError(
            f"The model's chat template refuses these messages: {fault}.", "messages"
        ) from fault
    check_text_length(text, max_model_len)
    return tuple(tokenizer.encode(text, add_special_tokens=False))


def completion_token_ids(
    body: Mapping[str, Any], tokenizer: ChatTokenizer, max_model_len: int
) -> tuple[int, ...]:
    """Return the prompt of a plain completion: one string, or one list of token ids.

    Raises BadRequestError: another form, several prompts, an id outside the vocabulary, or a text far longer
    than `max_model_len` tokens.
    """
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if isinstance(prompt, str) and prompt:
        check_text_length(prompt, max_model_len)
        return tuple(tokenizer.encode(prompt, add_special_tokens=True))
    if isinstance(prompt, list) and prompt and all(type(token) is int for token in prompt):
        if not all(0 <= token < len(tokenizer) for token in prompt):
            raise BadRequestError(f"prompt has token ids outside 0 to {len(tokenizer) - 1}.", "prompt")
        return tuple(prompt)
    raise BadRequestError("prompt must be one non-empty string or one non-empty list of token ids.", "prompt")


def _message(message: Any, place: str) -> dict[str, Any]:
    if not isinstance(message, Mapping) or message.get("role") not in _ROLES:
        raise BadRequestError(f"{place} needs a role out of {', '.join(_ROLES)}.", f"{place}.role")
    role = "system" if message["role"] == "developer" else message["role"]
    calls = _tool_calls(message.get("tool_calls"), f"{place}.tool_calls")
    checked = {
        "role": role,
        "content": _content(message.get("content"), f"{place}.content", empty_ok=bool(calls)),
    }
    return checked | ({"tool_calls": calls} if calls else {})


def _content(value: Any, place: str, *, empty_ok: bool) -> str:
    if isinstance(value, str):
        return value
    if value is None and empty_ok:
        return ""
    if isinstance(value, list) and all(_is_text_part(part) for part in value):
        return "".join(part["text"] for part in value)
    raise BadRequestError(f"{place} must be a string or a list of text parts.", place)


def _is_text_part(part: Any) -> bool:
    return isinstance(part, Mapping) and part.get("type") == "text" and isinstance(part.get("text"), str)


def _tool_calls(value: Any, place: str) -> list[dict[str, Any]]:
    """Return earlier calls of the assistant with their arguments as JSON values, as templates expect them."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise BadRequestError(f"{place} must be a list.", place)
    return [_tool_call(call, f"{place}[{index}]") for index, call in enumerate(value)]


def _tool_call(call: Any, place: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise BadRequestError(f"{place} needs function.name.", place)
    arguments = function.get("arguments", "{}")
    try:
        # Python's own reader lets half surrogate pairs pass, which no tokenizer takes.
        parsed = msgspec.json.decode(arguments) if isinstance(arguments, str) else arguments
    except msgspec.MsgspecError as fault:
        raise BadRequestError(f"{place}.function.arguments is not JSON.", place) from fault
    return {"type": "function", "function": {"name": function["name"], "arguments": parsed}}


def _without_native_tools(
    messages: Sequence[dict[str, Any]], tools: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return messages of role and text alone: tools go into the system prompt, calls become text."""
    plain = []
    for message in messages:
        calls = [json.dumps(call["function"], ensure_ascii=False) for call in message.get("tool_calls", ())]
        content = "\n".join(filter(None, [message["content"], *calls])) if calls else str(message["content"])
        plain.append({"role": message["role"], "content": content})
    if not tools:
        return plain
    if plain[0]["role"] != "system":
        plain.insert(0, {"role": "system", "content": _DEFAULT_SYSTEM})
    plain[0]["content"] += "\n\n" + render_tools(tools)
    return plain
