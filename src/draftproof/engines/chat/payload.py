"""The part of a request that every OpenAI-compatible engine is asked in the same words."""

from typing import Any

import msgspec

from draftproof.workload.items import Item, Message


def build_chat_payload(
    item: Item, *, seed: int | None, served_model: str, max_tokens: int | None
) -> dict[str, Any]:
    """Return the body of /v1/chat/completions: streamed, with usage at every chunk.

    Usage is asked for in every arm alike, so that each is counted from the same source. `top_k`, which the
    protocol does not know, is sent only where the item asks for it.
    """
    sampling = item.sampling
    payload: dict[str, Any] = {
        "model": served_model,
        "messages": [_render_message(one) for one in item.messages],
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        "max_tokens": item.max_tokens if max_tokens is None else min(item.max_tokens, max_tokens),
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
    }
    optional = {
        "seed": seed,
        "top_k": sampling.top_k or None,
        "stop": list(item.stop) or None,
        "tools": list(item.tools) or None,
        "tool_choice": item.tool_choice,
    }
    stated = {key: value for key, value in optional.items() if value is not None}
    if item.response_schema is not None:
        stated["response_format"] = render_response_schema(item.response_schema)
    return payload | stated | item.request


def _render_message(message: Message) -> dict[str, Any]:
    """A message without content says so: the protocol has null there."""
    rendered: dict[str, Any] = msgspec.to_builtins(message)
    rendered.setdefault("content", None)
    return rendered


def render_response_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the `response_format` that asks for an answer valid under a JSON schema."""
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}
