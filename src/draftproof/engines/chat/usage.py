"""The totals that a stream's `usage` blocks state, and which of them may be believed. Pure.

A usage may come with every chunk, once at the end, or both. The last one holds, unless it is none: 0 tokens
for an answer with content, or one that content followed.
"""

from typing import Any

from draftproof.engines.chat.frames import Usage


class UsageFold:
    """Gathers the usage of one answer; `prompt_tokens` and `unstreamed_tokens` are what it says besides.

    `stated` is the last total as it stands, 0 included.
    """

    def __init__(self) -> None:
        self.prompt_tokens: int | None = None
        self.stated: int | None = None
        self._total: int | None = None
        self._is_followed = False
        self._says_no_prompt = False
        self._details: Any = None

    def add(self, usage: Usage) -> None:
        """Take the usage of a frame; runs for every chunk of a stream that counts."""
        if usage.prompt_tokens:
            self.prompt_tokens = usage.prompt_tokens
        elif usage.prompt_tokens == 0:
            self._says_no_prompt = True
        if usage.completion_tokens is None:
            return
        self.stated, self._details = usage.completion_tokens, usage.completion_tokens_details
        if self.stated:
            self._total, self._is_followed = self.stated, False

    def note_uncounted(self) -> None:
        """Content came without a usage: what was stated before is not the answer's total."""
        self._is_followed = True

    def total(self, *, has_content: bool) -> int | None:
        """Return the answer's tokens, None where no believable total was stated."""
        if not has_content and self._total is None:
            return self.stated
        return None if self._is_followed else self._total

    def unstreamed_tokens(self, *, has_reasoning: bool) -> int:
        """Return the tokens of the total that the service says are in no chunk.

        Hidden reasoning, unless reasoning was streamed as such, and rejected tokens of a prediction.
        """
        names = ["rejected_prediction_tokens", *(() if has_reasoning else ("reasoning_tokens",))]
        details = self._details if isinstance(self._details, dict) else {}
        told = [value for name in names if isinstance(value := details.get(name), int) and value > 0]
        return sum(told)

    def list_faults(self, *, has_content: bool) -> list[str]:
        """Return one sentence for each total that is none."""
        found = []
        if self.stated == 0 and has_content:
            found.append("usage says 0 tokens for an answer with content and is not used")
        if self._says_no_prompt and self.prompt_tokens is None:
            found.append("usage says 0 tokens for the prompt and is not used")
        return found
