"""Any OpenAI-compatible service: what the protocol offers, and what vLLM adds to it.

Traps this adapter knows: one frame carries a whole verification step, so frames are never counted as tokens;
a server may refuse `return_token_ids` on streams (SGLang 0.5), for which `ask_token_ids=False` leaves it out.
"""

from typing import Any

from draftproof.engines.chat_fold import ChatFold
from draftproof.engines.chat_payload import build_chat_payload, render_response_schema
from draftproof.engines.protocol import AnswerFold, CountTokens, Speculation
from draftproof.errors import PlanError
from draftproof.workload.items import Item


class GenericAdapter:
    """Adapter of a service that is only known to speak the protocol.

    Args:
        ask_token_ids: ask for the ids of every chunk, the best count there is.
        count_tokens: counts the tokens of a text, for services that state no counts at all.
    """

    name = "generic"

    def __init__(self, *, ask_token_ids: bool = True, count_tokens: CountTokens | None = None) -> None:
        self._ask_token_ids = ask_token_ids
        self._count_tokens = count_tokens

    def build_payload(
        self,
        item: Item,
        *,
        seed: int | None,
        served_model: str,
        max_tokens: int | None = None,
        speculation: Speculation = None,
    ) -> dict[str, Any]:
        """Return the body of a request.

        Raises:
            PlanError: `speculation` is given; no field of the protocol carries it, and a service ignores
                unknown fields in silence.
        """
        if speculation is not None:
            raise PlanError(
                "this engine cannot switch speculation per request",
                place="engine generic",
                fix="start one service with speculation and one without.",
            )
        payload = build_chat_payload(item, seed=seed, served_model=served_model, max_tokens=max_tokens)
        if self._ask_token_ids:
            payload["return_token_ids"] = True
        if item.response_schema is not None:
            payload["response_format"] = render_response_schema(item.response_schema)
        return payload

    def start_fold(self) -> AnswerFold:
        """Return a fold for one answer."""
        return ChatFold(self._count_tokens)
