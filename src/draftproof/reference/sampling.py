"""From logits to probabilities to a token: pure tensor functions, no hidden random source.

Probabilities are float64, so that acceptance ratios and residuals carry no rounding that matters. Random
numbers come in as arguments, from a generator that belongs to one sequence. Log-probabilities of delivered
tokens are log-softmax of the raw logits, vLLM's `raw_logprobs` (vLLM documentation, `logprobs_mode`): what
the model thought, not how probable the draw was.
"""

import math
from collections.abc import Sequence

import torch

from draftproof.reference.types import SamplingParams, TokenLogprobs

_TOP_P_FIRST_LOOK = 256  # most truncations end within the likeliest few hundred tokens


def compute_probs(logits: torch.Tensor, sampling: SamplingParams) -> torch.Tensor:
    """Return the distribution each row of logits stands for under a request's sampling.

    Temperature first, then min-p, then top-k, then top-p on what these left, renormalised: the order of
    vLLM's sampler. A tie at the edge of a truncation is kept whole, so the result never depends on the order
    of the vocabulary.

    Args:
        logits: [rows, vocab], any floating type; a token at minus infinity gets no mass.
        sampling: temperature 0 gives the one-hot row of the first largest logit.

    Returns:
        [rows, vocab] float64, each row sums to 1.
    """
    if sampling.temperature == 0.0:
        return one_hot(logits.argmax(dim=-1), logits.shape[-1])
    shifted = logits.double()
    shifted = shifted - shifted.amax(dim=-1, keepdim=True)  # so that no temperature, however small, overflows
    scaled = shifted / sampling.temperature
    likely = truncate_min_p(scaled, sampling.min_p)
    probs = torch.softmax(truncate_top_k(likely, sampling.top_k), dim=-1)
    return truncate_top_p(probs, sampling.top_p)


def one_hot(token_ids: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """Return [rows, vocab] float64 with all mass on `token_ids` [rows]."""
    rows = torch.zeros(len(token_ids), vocab_size, dtype=torch.float64, device=token_ids.device)
    return rows.scatter_(1, token_ids[:, None], 1.0)


def truncate_min_p(logits: torch.Tensor, min_p: float) -> torch.Tensor:
    """Drop every token less probable than `min_p` times its row's likeliest; 0 keeps all.

    Nguyen et al. 2024 (Turning Up the Heat: Min-p Sampling for Creative and Coherent LLM Outputs, section 3).
    `logits`: [rows, vocab], temperature applied. `min_p`: within 0 and 1.
    """
    if min_p == 0.0:
        return logits
    threshold = logits.amax(dim=-1, keepdim=True) + math.log(min_p)  # [rows, 1]
    return logits.masked_fill(logits < threshold, -torch.inf)


def truncate_top_k(logits: torch.Tensor, top_k: int) -> torch.Tensor:
    """Set every logit below the k-th largest of its row to minus infinity; `top_k` 0 keeps all."""
    if top_k == 0 or top_k >= logits.shape[-1]:
        return logits
    threshold = logits.topk(top_k, dim=-1).values[:, -1:]  # [rows, 1]
    return logits.masked_fill(logits < threshold, -torch.inf)


def truncate_top_p(probs: torch.Tensor, top_p: float) -> torch.Tensor:
    """Keep the fewest likeliest tokens whose mass reaches `top_p`, and renormalise; 1 keeps all."""
    if top_p >= 1.0:
        return probs
    first_look = probs.topk(min(_TOP_P_FIRST_LOOK, probs.shape[-1]), dim=-1).values
    if bool((first_look.sum(-1) < top_p).any()):
        first_look = probs.sort(dim=-1, descending=True).values
    mass_before = first_look.cumsum(-1) - first_look  # [rows, looked at]
    kept = (mass_before < top_p).sum(-1, keepdim=True).clamp_min(1)
    threshold = first_look.gather(-1, kept - 1)
    left = probs.masked_fill(probs < threshold, 0.0)
    return left / left.sum(-1, keepdim=True)


def draw_uniforms(generator: torch.Generator, count: int) -> torch.Tensor:
    """Return `count` float64 numbers in [0, 1) from one sequence's own generator."""
    return torch.rand(count, dtype=torch.float64, generator=generator)


def draw(probs: torch.Tensor, uniform: float) -> int:
    """Return the token at which the cumulative mass of `probs` [vocab], a distribution, passes `uniform`.

    A token of probability zero is never returned.
    """
    mass = probs.double().cumsum(-1)
    token_id = int(torch.searchsorted(mass, uniform, right=True))
    last_possible = int(torch.searchsorted(mass, mass[-1]))  # rounding may end the mass just below 1
    return min(token_id, last_possible)


def token_logprobs(logits: torch.Tensor, token_ids: Sequence[int], num_top: int) -> tuple[TokenLogprobs, ...]:
    """Return the log-probability of each token and of the likeliest at its place, natural logarithm.

    `logits`: [tokens, vocab] raw; row i decided token i. `token_ids`: [tokens]. `num_top`: how many of the
    likeliest to list, cut to the vocabulary; 0 lists none.
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
