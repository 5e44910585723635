"""Keeps logits that are no numbers away from everything that draws tokens. Pure."""

import math
from collections.abc import Sequence

import torch

from draftproof.reference.spans import Span

BROKEN_LOGITS = "the model's logits are not finite"


def repair_logits(spans: Sequence[Span], logits: torch.Tensor) -> tuple[torch.Tensor, list[bool]]:
    """Return logits from which tokens can be drawn, and per span whether some of its own were not finite.

    A largest logit that is no number or infinite says so of its row, and so does a row of nothing but minus
    infinity. Such rows become zeros, which nobody may read; every other row stays as it is.

    Args:
        spans: those of the pass.
        logits: [wanted rows, vocab], in span order.
    """
    largest = logits.amax(dim=-1)  # [wanted rows]
    if math.isfinite(float(largest.sum())):
        return logits, [False] * len(spans)
    usable = largest.isfinite()
    parts = torch.split(usable, [span.logit_rows for span in spans])
    return logits.masked_fill(~usable[:, None], 0.0), [not bool(part.all()) for part in parts]
