"""The bytes of single tokens, and the two OpenAI forms of log-probabilities.

Pure but for a cache. A token of a byte-level vocabulary may be part of a character: its bytes are then read
from the vocabulary, since decoding it alone yields only a replacement character.
"""

import codecs
from collections.abc import Sequence
from typing import Any, Protocol

from draftproof.reference.types import TokenLogprobs

LOWEST_LOGPROB = -9999.0  # OpenAI's stand-in for minus infinity, which JSON cannot hold
_REPLACEMENT = "\ufffd"
_BYTE_PIECE_CHARS = len("<0x00>")


class ChatTokenizer(Protocol):
    """What is used of a tokenizer of `transformers`."""

    chat_template: Any

    def encode(self, text: str, *, add_special_tokens: bool = ...) -> list[int]:
        """Return the token ids of a text."""
        ...

    def decode(self, token_ids: list[int], **kwargs: Any) -> str:
        """Return the text of token ids."""
        ...

    def convert_ids_to_tokens(self, ids: int) -> str:
        """Return the piece of the vocabulary at an id."""
        ...

    def apply_chat_template(self, conversation: Any, **kwargs: Any) -> Any:
        """Return a conversation rendered by the model's own template."""
        ...

    def __len__(self) -> int: ...


class TokenTexts:
    """Bytes and text of single tokens, each computed once."""

    def __init__(self, vocabulary: ChatTokenizer) -> None:
        self._vocabulary = vocabulary
        # Some decoders drop the space before a text's first token, so each is decoded behind another.
        self._before = vocabulary.encode("a", add_special_tokens=False)[-1:]
        self._skip = len(self._decode(self._before))
        self._known: dict[int, bytes] = {}

    def raw(self, token_id: int) -> bytes:
        """Return the UTF-8 bytes a token adds to a text; special tokens add their name."""
        if token_id not in self._known:
            self._known[token_id] = self._read(token_id)
        return self._known[token_id]

    def text(self, token_id: int) -> str:
        r"""Return the text of a token, or `bytes:\xNN...` for one that is not whole characters."""
        raw = self.raw(token_id)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)

    def _read(self, token_id: int) -> bytes:
        text = self._decode([*self._before, token_id])[self._skip :]
        if _REPLACEMENT not in text:
            return text.encode()
        piece = self._vocabulary.convert_ids_to_tokens(token_id)
        if len(piece) == _BYTE_PIECE_CHARS and piece.startswith("<0x"):
            return bytes.fromhex(piece[3:-1])
        if set(piece) <= _BYTE_OF_CHAR.keys():
            return bytes(_BYTE_OF_CHAR[char] for char in piece)
        return text.encode()

    def _decode(self, token_ids: list[int]) -> str:
        return self._vocabulary.decode(
            token_ids, skip_special_tokens=False, clean_up_tokenization_spaces=False
        )


class LogprobsWriter:
    """Writes the log-probabilities of one choice, all at once or round by round.

    `chat`: chat form, one entry a token; or plain completion form, parallel lists.
    """

    def __init__(self, texts: TokenTexts, *, chat: bool) -> None:
        self._texts, self._chat = texts, chat
        self._characters = codecs.getincrementaldecoder("utf-8")("replace")
        self._offset = 0

    def write(self, tokens: Sequence[TokenLogprobs]) -> dict[str, Any]:
        """Return the `logprobs` of the next tokens; offsets count characters from the choice's first."""
        if self._chat:
            return {"content": [self._entry(token) for token in tokens]}
        return {
            "tokens": [self._texts.text(token.token_id) for token in tokens],
            "token_logprobs": [_finite(token.logprob) for token in tokens],
            "top_logprobs": [self._alternatives(token) for token in tokens],
            "text_offset": [self._next_offset(token.token_id) for token in tokens],
        }

    def _entry(self, token: TokenLogprobs) -> dict[str, Any]:
        top = [self._shown(token_id, logprob) for token_id, logprob in token.top]
        return self._shown(token.token_id, token.logprob) | {"top_logprobs": top}

    def _shown(self, token_id: int, logprob: float) -> dict[str, Any]:
        raw = self._texts.raw(token_id)
        return {"token": self._texts.text(token_id), "logprob": _finite(logprob), "bytes": list(raw)}

    def _alternatives(self, token: TokenLogprobs) -> dict[str, float]:
        """Return log-probabilities by text, the token's own among them; of equal texts the likelier stays."""
        found: dict[str, float] = {}
        for token_id, logprob in (*token.top, (token.token_id, token.logprob)):
            found.setdefault(self._texts.text(token_id), _finite(logprob))
        return found

    def _next_offset(self, token_id: int) -> int:
        offset = self._offset
        self._offset += len(self._characters.decode(self._texts.raw(token_id)))
        return offset


def _finite(logprob: float) -> float:
    return max(logprob, LOWEST_LOGPROB)


def _byte_of_char() -> dict[str, int]:
    """Return the byte that each character of a byte-level vocabulary stands for.

    Printable bytes stand for themselves, the others follow in order from U+0100 on (GPT-2, `encoder.py`).
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + at): byte for at, byte in enumerate(others)}


_BYTE_OF_CHAR = _byte_of_char()
