"""How sure the target was of each token: the margin of the two likeliest, from a stream's log-probabilities.

Reads `choices[].logprobs.content[]` of the OpenAI protocol, which a plan asks for with `logprobs = true` and
`top_logprobs = 2`. A margin is kept only where it surely belongs to a token id; what cannot be read is None.
"""

import math
from collections.abc import Sequence
from typing import Any

# A log-probability so low is none: it stands for minus infinity or for a masked token (OpenAI and vLLM write
# -9999.0, llama.cpp float32's lowest value), while a model's logits lie within some hundred nats.
_LOWEST = -1000.0
# Both of two tokens cannot be likelier than one together; half precision rounds a sum of one by as much.
_MOST_PROBABILITY = 1.01
# Four decimals of a nat are finer than any rounding of a model, and keep a record small.
_DECIMALS = 4


class MarginFold:
    """Gathers the margins of one answer, aligned with its token ids."""

    def __init__(self) -> None:
        self._margins: list[float | None] = []

    def add(self, logprobs: Any, token_ids: Sequence[int] | None, ids_so_far: int) -> None:
        """Take the `logprobs` of one chunk of a choice.

        Args:
            logprobs: as decoded, of any shape.
            token_ids: those of this chunk; without them its margins belong to no token.
            ids_so_far: token ids of the answer, this chunk's included.
        """
        content = logprobs.get("content") if isinstance(logprobs, dict) else None
        if not token_ids or not isinstance(content, list) or len(content) != len(token_ids):
            return
        self._pad(ids_so_far - len(token_ids))
        self._margins.extend(_read_margin(entry) for entry in content)

    def finish(self, token_count: int) -> tuple[float | None, ...] | None:
        """Return one margin for each of `token_count` token ids in nats; None where none could be read."""
        if all(margin is None for margin in self._margins):
            return None
        self._pad(token_count)
        return tuple(self._margins[:token_count])

    def _pad(self, length: int) -> None:
        self._margins.extend([None] * (length - len(self._margins)))


def _read_margin(entry: Any) -> float | None:
    """Return the log-probability of the likeliest token less that of the next."""
    top = entry.get("top_logprobs") if isinstance(entry, dict) else None
    if not isinstance(top, list):
        return None
    values = sorted((value for one in top if (value := _read_logprob(one)) is not None), reverse=True)
    if len(values) < 2 or not _may_be_measured(*values[:2]):
        return None
    return round(values[0] - values[1], _DECIMALS)


def _may_be_measured(first: float, second: float) -> bool:
    """Tell whether two log-probabilities, the greater first, can be of two tokens of one distribution."""
    return first <= 0 and second > _LOWEST and math.exp(first) + math.exp(second) <= _MOST_PROBABILITY


def _read_logprob(entry: Any) -> float | None:
    value = entry.get("logprob") if isinstance(entry, dict) else None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)
