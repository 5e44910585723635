"""Log-probabilities of delivered tokens, as the model gave them. Pure.

They are log-softmax of the raw logits, before masks, biases, penalties and temperature: what vLLM calls
`raw_logprobs`, its default (vLLM documentation, `logprobs_mode`). They say what the model thought, not how
probable the draw was.
"""

from collections.abc import Sequence

import torch

from draftproof.reference.types import TokenLogprobs


def token_logprobs(logits: torch.Tensor, token_ids: Sequence[int], num_top: int) -> tuple[TokenLogprobs, ...]:
    """Return the log-probability of each token and of the likeliest at its place, natural logarithm.

    Args:
        logits: [tokens, vocab] raw; row i decided token i.
        token_ids: [tokens].
        num_top: how many of the likeliest to list, cut to the vocabulary; 0 lists none.
    """
    logprobs = torch.log_softmax(logits.double(), dim=-1)  # [tokens, vocab]
    likeliest = logprobs.topk(min(num_top, logprobs.shape[-1]), dim=-1)
    return tuple(
        TokenLogprobs(
            token_id=token_id,
            logprob=float(row[token_id]),
            top=tuple(zip(top_ids, top_values, strict=True)),
        )
        for token_id, row, top_ids, top_values in zip(
            token_ids, logprobs, likeliest.indices.tolist(), likeliest.values.tolist(), strict=True
        )
    )
