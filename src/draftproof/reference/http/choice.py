"""The OpenAI form of one choice: its text or its forced tool call, log-probabilities, token ids.

Pure. The same writer makes the pieces of a stream, or the whole choice of a body from all rounds as one.
"""

from typing import Any

from draftproof.reference.http.token_text import LogprobsWriter, TokenTexts
from draftproof.reference.http.tools import CallText
from draftproof.reference.http.wire import Wanted
from draftproof.reference.types import RoundOutput


class ChoiceWriter:
    """Writes one choice.

    Args:
        index: which choice of the request it is.
        wanted: what the request asked for.
        chat: chat form or plain completion form.
        texts: what tokens look like.
        call_id: the id of the tool call, where one is forced.
    """

    def __init__(self, index: int, wanted: Wanted, texts: TokenTexts, *, chat: bool, call_id: str) -> None:
        self._index, self._wanted, self._chat, self._call_id = index, wanted, chat, call_id
        self._logprobs = LogprobsWriter(texts, chat=chat)
        self._call = CallText() if wanted.forced_call else None

    def opening(self) -> dict[str, Any]:
        """Return the role of a chat stream; it carries no generated token."""
        delta = {"role": "assistant", "content": ""}
        return {"index": self._index, "delta": delta, "logprobs": None, "finish_reason": None}

    def piece(self, output: RoundOutput) -> dict[str, Any]:
        """Return what a round adds to the choice."""
        return self._choice({"delta": self._delta(output)} if self._chat else {"text": output.text}, output)

    def whole(self, output: RoundOutput) -> dict[str, Any]:
        """Return the complete choice; `output` holds all rounds."""
        if not self._chat:
            return self._choice({"text": output.text}, output)
        message: dict[str, Any] = {"role": "assistant", "content": None} | self._delta(output)
        for call in message.get("tool_calls", ()):
            del call["index"]
        return self._choice({"message": message}, output)

    def _choice(self, shown: dict[str, Any], output: RoundOutput) -> dict[str, Any]:
        asked = self._wanted.sampling.logprobs is not None
        known = () if output.logprobs is None and not output.token_ids else output.logprobs
        choice: dict[str, Any] = {
            "index": self._index,
            **shown,
            "logprobs": None if not asked or known is None else self._logprobs.write(known),
            "finish_reason": self._finish_reason(output),
        }
        if self._wanted.return_token_ids:
            choice["token_ids"] = list(output.token_ids)
        return choice

    def _finish_reason(self, output: RoundOutput) -> str | None:
        called = self._call is not None and self._call.complete
        return "tool_calls" if called and output.finish_reason == "stop" else output.finish_reason

    def _delta(self, output: RoundOutput) -> dict[str, Any]:
        return {"content": output.text} if self._call is None else self._call_delta(self._call, output)

    def _call_delta(self, call: CallText, output: RoundOutput) -> dict[str, Any]:
        """Return the next part of the call; a text that ends without becoming one is shown as it is."""
        began = call.name is None
        arguments = call.push(output.text)
        if call.name is None:
            return {"content": call.flush()} if output.finish_reason is not None else {}
        part: dict[str, Any] = {"index": 0, "function": {"arguments": arguments}}
        if began:
            named = {"name": call.name, "arguments": arguments}
            part |= {"id": self._call_id, "type": "function", "function": named}
        return {"tool_calls": [part]} if began or arguments else {}
