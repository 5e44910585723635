"""What a request of one or more choices is answered with: chunks, bodies, usage and metrics.

Pure: the caller passes the clock's readings. Usage counts the prompt once and the tokens of every choice.
"""

from collections.abc import Iterable
from typing import Any

from draftproof.reference.http.answer import Answer, metrics_block
from draftproof.reference.http.choice import ChoiceWriter
from draftproof.reference.http.token_text import TokenTexts
from draftproof.reference.http.wire import Wanted
from draftproof.reference.types import RoundOutput


class Answers:
    """The answers of one request, in the OpenAI form.

    Args:
        request_id: the id the client sees.
        model: the served model's name.
        created_s: seconds since the epoch.
        prompt_token_ids: the prompt, shared by all choices.
        wanted: what the request asked for, the number of choices among it.
        received_ns: when the request was complete, on the server's monotonic clock.
        chat: chat form (messages and deltas) or plain completion form (texts).
        texts: what tokens look like.
    """

    def __init__(
        self,
        *,
        request_id: str,
        model: str,
        created_s: int,
        prompt_token_ids: tuple[int, ...],
        wanted: Wanted,
        received_ns: int,
        chat: bool,
        texts: TokenTexts,
    ) -> None:
        self.request_id, self.wanted, self.chat = request_id, wanted, chat
        self._prompt_token_ids = prompt_token_ids
        kind, chunk_kind = ("chat.completion", ".chunk") if chat else ("text_completion", "")
        self._head = {"id": request_id, "object": kind, "created": created_s, "model": model}
        self._chunk_head = self._head | {"object": kind + chunk_kind}
        self.each = [
            Answer(() if index else prompt_token_ids, wanted.speculation, received_ns)
            for index in range(wanted.n)
        ]
        self._writers = [
            ChoiceWriter(index, wanted, texts, chat=chat, call_id=f"call_{request_id}_{index}")
            for index in range(wanted.n)
        ]

    def add(self, index: int, output: RoundOutput, now_ns: int) -> None:
        """Take in what a round delivered to a choice at `now_ns`."""
        self.each[index].add(output, now_ns)

    def usage(self) -> dict[str, int]:
        """Return the tokens counted so far; only delivered tokens count."""
        prompt = len(self._prompt_token_ids)
        completion = sum(len(answer.token_ids) for answer in self.each)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
        }

    def metrics(self) -> dict[str, Any]:
        """Return the metrics block; of several choices the pooled one and, in `choices`, that of each."""
        rounds = self.wanted.return_round_metrics
        block = metrics_block(self.each, rounds=rounds)
        if len(self.each) > 1:
            block["choices"] = [metrics_block([answer], rounds=rounds) for answer in self.each]
        return block

    def opening_chunks(self) -> Iterable[dict[str, Any]]:
        """Yield the role chunks of a chat stream, one a choice; the first states the prompt if asked for."""
        for index, writer in enumerate(self._writers):
            chunk = self._chunk(writer.opening())
            if self.wanted.return_token_ids and index == 0:
                chunk["prompt_token_ids"] = list(self._prompt_token_ids)
            yield chunk

    def round_chunk(self, index: int, output: RoundOutput) -> dict[str, Any]:
        """Return the one event of a round: text and new token ids and, at the end, the finish reason."""
        return self._chunk(self._writers[index].piece(output))

    def usage_chunk(self) -> dict[str, Any]:
        """Return the closing chunk: no choices, the whole usage, the metrics block."""
        return self._chunk_head | {"choices": [], "usage": self.usage(), "metrics": self.metrics()}

    def body(self) -> dict[str, Any]:
        """Return the whole answer for a request that does not stream."""
        pairs = zip(self._writers, self.each, strict=True)
        choices = [writer.whole(answer.joined()) for writer, answer in pairs]
        body = self._head | {"choices": choices, "usage": self.usage(), "metrics": self.metrics()}
        if self.wanted.return_token_ids:
            body["prompt_token_ids"] = list(self._prompt_token_ids)
        return body

    def _chunk(self, choice: dict[str, Any]) -> dict[str, Any]:
        chunk = self._chunk_head | {"choices": [choice]}
        if self.wanted.continuous_usage:
            chunk["usage"] = self.usage()
        return chunk
