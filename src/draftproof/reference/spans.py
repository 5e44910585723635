"""One sequence's part of a forward pass, and the tokens its logits decide.

Pure but for a sequence's generator.

Keeps logits that are no numbers away from everything that draws tokens. Pure.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from draftproof.reference.processors import compute_probs, draw_uniforms, process_logits, token_logprobs
from draftproof.reference.proposer import Draft
from draftproof.reference.scheduler import LiveSequence
from draftproof.reference.types import TokenLogprobs
from draftproof.reference.verify import verify, verify_greedy

NO_DRAFT = Draft(token_ids=[])


@dataclass(frozen=True, slots=True)
class Span:
    """New tokens of one sequence: a prompt chunk, or its last token and a draft.

    `logit_rows` is how many of the last rows decide tokens: none inside a prompt, one at its end, one more
    than drafts in a decode round.
    """

    sequence: LiveSequence
    token_ids: Sequence[int]
    logit_rows: int
    draft: Draft = NO_DRAFT
    is_prefill: bool = False


def decode_span(sequence: LiveSequence, draft: Draft) -> Span:
    """Return the span that feeds a sequence's last token and its draft."""
    token_ids = [sequence.token_ids[-1], *draft.token_ids]
    return Span(sequence=sequence, token_ids=token_ids, logit_rows=len(token_ids), draft=draft)


def prefill_span(sequence: LiveSequence, num_tokens: int) -> Span:
    """Return the span that feeds the next `num_tokens` of a prompt."""
    start = sequence.cache.length
    return Span(
        sequence=sequence,
        token_ids=sequence.token_ids[start : start + num_tokens],
        logit_rows=int(num_tokens == sequence.prefill_left),
        is_prefill=True,
    )


def wanted_rows(spans: Sequence[Span]) -> list[int]:
    """Return the positions of the packed row whose logits decide tokens, in span order."""
    rows: list[int] = []
    end = 0
    for span in spans:
        end += len(span.token_ids)
        rows.extend(range(end - span.logit_rows, end))
    return rows


def choose_tokens(spans: Sequence[Span], logits: torch.Tensor) -> list[list[int]]:
    """Return for each span the tokens its round commits: accepted drafts and one of the target's own.

    `logits`: [wanted rows, vocab], in span order.
    """
    is_plain_greedy = [_is_greedy(span) and not span.sequence.changes_logits for span in spans]
    greedy_ids = logits.argmax(dim=-1).tolist() if any(is_plain_greedy) else []
    chosen: list[list[int]] = []
    start = 0
    for span, plain_greedy in zip(spans, is_plain_greedy, strict=True):
        stop = start + span.logit_rows
        if start == stop:
            chosen.append([])
        elif plain_greedy:
            chosen.append(verify_greedy(span.draft.token_ids, greedy_ids[start:stop]))
        else:
            chosen.append(_verify_one(span, logits[start:stop]))
        start = stop
    return chosen


def describe_tokens(
    spans: Sequence[Span], logits: torch.Tensor, chosen: Sequence[Sequence[int]]
) -> list[tuple[TokenLogprobs, ...] | None]:
    """Return for each span the log-probabilities of its chosen tokens, None where none were asked for.

    `logits`: [wanted rows, vocab], in span order, as the model gave them. `chosen`: what `choose_tokens`
    returned.
    """
    described: list[tuple[TokenLogprobs, ...] | None] = []
    start = 0
    for span, tokens in zip(spans, chosen, strict=True):
        num_top = span.sequence.request.sampling.logprobs
        rows = logits[start : start + len(tokens)]
        described.append(None if num_top is None else token_logprobs(rows, tokens, num_top))
        start += span.logit_rows
    return described


def _verify_one(span: Span, logits: torch.Tensor) -> list[int]:
    if span.sequence.changes_logits:
        logits = _process(span, logits)
    if _is_greedy(span):
        return verify_greedy(span.draft.token_ids, logits.argmax(dim=-1).tolist())
    target_probs = compute_probs(logits, span.sequence.request.sampling)  # [drafts + 1, vocab]
    uniforms = draw_uniforms(span.sequence.generator, span.logit_rows)
    return verify(span.draft.token_ids, target_probs, span.draft.draft_probs, uniforms)


def _process(span: Span, logits: torch.Tensor) -> torch.Tensor:
    sequence, draft_ids = span.sequence, span.draft.token_ids
    prompt_ids = sequence.request.prompt_token_ids
    return process_logits(
        logits,
        sequence.request.sampling,
        prompt_ids=prompt_ids,
        output_ids=sequence.token_ids[len(prompt_ids) :],
        draft_ids=draft_ids,
        end_ids=sequence.end_ids,
        allowed=None if sequence.constraint is None else sequence.constraint.allowed(draft_ids),
    )


def _is_greedy(span: Span) -> bool:
    return span.sequence.request.sampling.temperature == 0.0


BROKEN_LOGITS = "the model's logits are not finite"


def repair_logits(spans: Sequence[Span], logits: torch.Tensor) -> tuple[torch.Tensor, list[bool]]:
    """Return logits from which tokens can be drawn, and per span whether some of its own were not finite.

    A largest logit that is no number or infinite says so of its row, and so does a row of nothing but minus
    infinity. Such rows become zeros, which nobody may read; every other row stays as it is. `logits`: [wanted
    rows, vocab], in span order.
    """
    largest = logits.amax(dim=-1)  # [wanted rows]
    if math.isfinite(float(largest.sum())):
        return logits, [False] * len(spans)
    usable = largest.isfinite()
    parts = torch.split(usable, [span.logit_rows for span in spans])
    return logits.masked_fill(~usable[:, None], 0.0), [not bool(part.all()) for part in parts]
