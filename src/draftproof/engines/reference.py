"""The reference engine: asked for token ids and for its record of every round."""

from typing import Any

import msgspec

from draftproof.engines.chat_fold import ChatFold
from draftproof.engines.chat_payload import build_chat_payload, render_response_schema
from draftproof.engines.protocol import AnswerFold, Speculation
from draftproof.workload.items import Item


class ReferenceAdapter:
    """Adapter of `draftproof serve`."""

    name = "reference"

    def build_payload(
        self,
        item: Item,
        *,
        seed: int | None,
        served_model: str,
        max_tokens: int | None = None,
        speculation: Speculation = None,
    ) -> dict[str, Any]:
        """Return the body of a request; `speculation` switches it for this request only."""
        payload = build_chat_payload(item, seed=seed, served_model=served_model, max_tokens=max_tokens)
        payload |= {"return_token_ids": True, "return_round_metrics": True}
        if item.response_schema is not None:
            payload["response_format"] = render_response_schema(item.response_schema)
        if speculation is not None:
            payload["speculation"] = msgspec.to_builtins(speculation)
        return payload

    def start_fold(self) -> AnswerFold:
        """Return a fold for one answer."""
        return ChatFold()
