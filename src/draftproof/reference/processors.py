"""What a request asks to be changed in the model's logits before a token is drawn. Pure.

The order is that of vLLM's sampler (vLLM documentation, `vllm.v1.sample.sampler.Sampler`): masks (grammar,
`min_tokens`), `logit_bias`, repetition, frequency and presence penalties; then, in `sampling`, temperature,
`min_p`, top-k and top-p. Greedy decoding takes the largest logit of what comes out here.

Under speculation row j of a round is the distribution after the committed tokens and the first j drafts, so
each row is processed as ordinary decoding would process it after exactly those tokens.
"""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

import torch

from draftproof.reference.types import SamplingParams


def changes_logits(sampling: SamplingParams) -> bool:
    """Return whether `process_logits` could do anything for such a request."""
    return (
        _penalizes(sampling)
        or bool(sampling.logit_bias)
        or sampling.min_tokens > 0
        or sampling.json_schema is not None
    )


def process_logits(
    logits: torch.Tensor,
    sampling: SamplingParams,
    *,
    prompt_ids: Sequence[int],
    output_ids: Sequence[int],
    draft_ids: Sequence[int],
    end_ids: AbstractSet[int],
    allowed: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the logits of one round as the request wants them.

    Args:
        logits: [drafts + 1, vocab] as the model gave them, any floating type; left as they are.
        sampling: what the request asks for.
        prompt_ids: the prompt.
        output_ids: committed tokens after it.
        draft_ids: [drafts].
        end_ids: tokens that `min_tokens` holds back: end of sequence and the request's stop tokens.
        allowed: [drafts + 1, vocab] bool, what the request's grammar allows in each row; None allows all.

    Returns:
        [drafts + 1, vocab] float64; minus infinity marks a token that cannot be drawn.
    """
    processed = logits.to(torch.float64, copy=True)
    add_bias(processed, sampling.logit_bias)
    if _penalizes(sampling):
        penalize(processed, sampling, prompt_ids, output_ids, draft_ids)
    if allowed is not None:
        processed = forbid(processed, ~allowed.to(processed.device))
    held_back = sampling.min_tokens - len(output_ids)  # rows from the first on
    return forbid_ends(processed, end_ids, held_back) if held_back > 0 else processed


def _penalizes(sampling: SamplingParams) -> bool:
    penalties = (sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty)
    return penalties != (1.0, 0.0, 0.0)


def add_bias(logits: torch.Tensor, logit_bias: Sequence[tuple[int, float]]) -> None:
    """Add each bias to its token's logit in every row, in place.

    OpenAI API reference, `logit_bias`: the bias is added to the logits of the model prior to sampling.
    """
    for token_id, bias in logit_bias:
        logits[:, token_id] += bias


def penalize(
    logits: torch.Tensor,
    sampling: SamplingParams,
    prompt_ids: Sequence[int],
    output_ids: Sequence[int],
    draft_ids: Sequence[int],
) -> None:
    """Apply the three penalties to [drafts + 1, vocab] logits in place, each row by the tokens before it.

    OpenAI API reference and vLLM's `SamplingParams`: the logit of a token that stands n times in the output
    falls by n times `frequency_penalty`, and by `presence_penalty` if n is not 0; the prompt counts for
    neither. Only tokens that occur are touched, a small part of the vocabulary.
    """
    in_prompt = set(prompt_ids) if sampling.repetition_penalty != 1.0 else set()
    occurring = sorted(in_prompt.union(output_ids, draft_ids))
    column_of = {token_id: column for column, token_id in enumerate(occurring)}
    columns = _as_ids(occurring, logits)
    part = logits[:, columns]  # [drafts + 1, occurring]
    counts = count_tokens([column_of[one] for one in output_ids], [column_of[one] for one in draft_ids], part)
    seen = counts > 0
    seen[:, _as_ids([column_of[one] for one in in_prompt], logits)] = True
    part = penalize_repetition(part, seen, sampling.repetition_penalty)
    part -= sampling.frequency_penalty * counts + sampling.presence_penalty * counts.clamp_max(1.0)
    logits[:, columns] = part


def count_tokens(output: Sequence[int], drafts: Sequence[int], like: torch.Tensor) -> torch.Tensor:
    """Return how often each column's token stands in the output before each row: [drafts + 1, columns].

    Args:
        output: the column of each committed token of the output.
        drafts: the column of each draft.
        like: a tensor of the shape and type to return.
    """
    counts = torch.zeros_like(like)
    counts += torch.bincount(_as_ids(output, like), minlength=like.shape[-1])
    for depth, column in enumerate(drafts, start=1):
        counts[depth:, column] += 1
    return counts


def penalize_repetition(logits: torch.Tensor, seen: torch.Tensor, penalty: float) -> torch.Tensor:
    """Return logits with those of `seen` tokens divided by the penalty if positive, else multiplied.

    Keskar et al. 2019 (CTRL, section 4.1) in the form of transformers' RepetitionPenaltyLogitsProcessor and
    of vLLM: a token counts as seen if it stands in the prompt or in the output.

    Args:
        logits: [rows, columns].
        seen: [rows, columns] bool.
        penalty: above 1 discourages, below 1 encourages.
    """
    penalized = torch.where(logits > 0, logits / penalty, logits * penalty)
    return torch.where(seen, penalized, logits)


def forbid_ends(logits: torch.Tensor, end_ids: AbstractSet[int], num_rows: int) -> torch.Tensor:
    """Return logits whose first `num_rows` rows cannot draw an end token.

    vLLM documentation, `SamplingParams.min_tokens`: so many tokens come before end of sequence or
    `stop_token_ids` can be drawn. Stop strings are not held back.
    """
    forbidden = torch.zeros_like(logits, dtype=torch.bool)
    forbidden[:num_rows, _as_ids(sorted(end_ids), logits)] = True
    return forbid(logits, forbidden)


def forbid(logits: torch.Tensor, forbidden: torch.Tensor) -> torch.Tensor:
    """Return logits with `forbidden` [rows, vocab] ones at minus infinity.

    A row in which nothing would be left stays as it is: a grammar that is complete allows the end alone, and
    then `min_tokens` yields to it.
    """
    left = logits.masked_fill(forbidden, -torch.inf)
    is_empty = left.amax(dim=-1, keepdim=True) == -torch.inf
    return torch.where(is_empty, logits, left)


def _as_ids(token_ids: Sequence[int], like: torch.Tensor) -> torch.Tensor:
    return torch.tensor([*token_ids], dtype=torch.long, device=like.device)
