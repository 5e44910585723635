"""From token ids to text while they arrive: nothing shown is ever taken back.

Two things are held back: the bytes of an unfinished character, and text that may yet become a stop string.
What is shown in the end equals decoding all tokens at once, cut before the stop string.
"""

from collections.abc import Callable, Sequence

_REPLACEMENT = "\ufffd"  # what decoders write for bytes that are not (yet) a character
_WINDOW_TOKENS = 16  # tokens decoded again for each new one, before the window moves on
_MOST_BYTES = 4  # of a character, each of which may be a token

Decode = Callable[[list[int]], str]


class IncrementalDecoder:
    """Decodes a growing token list at a bounded cost per token."""

    def __init__(self, decode: Decode) -> None:
        self._decode = decode
        self._window: list[int] = []
        self._text = ""  # of the window
        self._complete_end = 0  # tokens of the window before it end in a finished character
        self._shown = 0  # characters of the window given out

    def push(self, token_id: int) -> str:
        """Take one token and return the text that is now certain."""
        text = self._decode([*self._window, token_id])
        unfinished = text.endswith(_REPLACEMENT)
        if text == self._text and not unfinished:  # a token without text adds none later either
            return ""
        self._window.append(token_id)
        self._text = text
        fresh = self._show_up_to(text, len(text) - unfinished)
        if len(self._window) > _WINDOW_TOKENS:
            self._move_window(unfinished=unfinished)
        if not unfinished:
            self._complete_end = len(self._window)
        return fresh

    def flush(self) -> str:
        """Return what was held back; the output ends here."""
        return self._show_up_to(self._text, len(self._text))

    def _show_up_to(self, text: str, end: int) -> str:
        fresh = text[self._shown : end]
        self._shown = max(self._shown, end)
        return fresh

    def _move_window(self, *, unfinished: bool) -> None:
        """Start at the last finished character, with text before the next token for decoders that need it.

        Bytes that never become a character have none: the window then starts before every byte that the last
        character may have begun with, where that cuts no other.
        """
        starts = range(len(self._window) - _MOST_BYTES, 0, -1) if unfinished else (self._complete_end,)
        for start in list(starts)[:_MOST_BYTES]:
            context = self._decode(self._window[start:])
            before = len(self._text) - len(context)
            if context and self._text.endswith(context) and before <= self._shown:
                self._window, self._text = self._window[start:], context
                self._shown -= before
                return


class StopMatcher:
    """Finds the first stop string in text that arrives in pieces."""

    def __init__(self, stop: Sequence[str]) -> None:
        self._stop = tuple(stop)
        self._held = ""
        self.matched = False

    def push(self, text: str) -> str:
        """Take text and return what may be shown; after a match nothing more is."""
        if self.matched:
            return ""
        text = self._held + text
        found = [at for at in (text.find(stop) for stop in self._stop) if at >= 0]
        if found:
            self.matched, self._held = True, ""
            return text[: min(found)]
        keep = self._longest_open_prefix(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        """Return held text that did not become a stop string."""
        held, self._held = self._held, ""
        return held

    def _longest_open_prefix(self, text: str) -> int:
        longest = max((len(stop) for stop in self._stop), default=1) - 1
        for length in range(min(longest, len(text)), 0, -1):
            if any(stop.startswith(text[-length:]) for stop in self._stop):
                return length
        return 0


class TextStream:
    """The text of one output: decoding and stop strings together."""

    def __init__(self, decode: Decode, stop: Sequence[str]) -> None:
        self._decoder = IncrementalDecoder(decode)
        self._matcher = StopMatcher(stop)

    @property
    def stopped(self) -> bool:
        """Whether a stop string is complete."""
        return self._matcher.matched

    def push(self, token_id: int) -> str:
        """Take one token and return the text that may be shown."""
        return self._matcher.push(self._decoder.push(token_id))

    def flush(self) -> str:
        """Return what is still held back at the end of the output."""
        return self._matcher.push(self._decoder.flush()) + self._matcher.flush()
