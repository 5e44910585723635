"""Exact verification of drafts: accept, residual, bonus, and the function that composes them.

Leviathan et al. 2023 (Fast Inference from Transformers via Speculative Decoding, algorithm 1) and Chen et al.
2023 (Accelerating Large Language Model Decoding with Speculative Sampling, algorithm 2): what comes out is
distributed exactly as the target alone would have it, whatever the drafter proposes. Pure: no model, no
generator, no clock.

`draft_probs` None says that the drafter was certain: each row is one-hot at its draft, as with n-gram lookup.
"""

from collections.abc import Sequence

import torch

from draftproof.reference.processors import draw


def verify(
    draft_ids: Sequence[int],
    target_probs: torch.Tensor,  # [drafts + 1, vocab]
    draft_probs: torch.Tensor | None,  # [drafts, vocab]
    uniforms: torch.Tensor,  # [drafts + 1]
) -> list[int]:
    """Return the tokens of one round: the accepted drafts and one token of the target's own."""
    num_drafts = len(draft_ids)
    accepted = (uniforms[:num_drafts] < accept(draft_ids, target_probs, draft_probs).cpu()).tolist()
    kept = accepted.index(False) if False in accepted else num_drafts
    if kept == num_drafts:
        next_probs = bonus(target_probs)
    else:
        draft_row = None if draft_probs is None else draft_probs[kept]
        next_probs = residual(target_probs[kept], draft_ids[kept], draft_row)
    return [*draft_ids[:kept], draw(next_probs, float(uniforms[num_drafts]))]


def accept(
    draft_ids: Sequence[int], target_probs: torch.Tensor, draft_probs: torch.Tensor | None
) -> torch.Tensor:
    """Return the probability min(1, target / draft) of keeping each draft after those before it: [drafts]."""
    ids = torch.as_tensor(draft_ids, dtype=torch.long, device=target_probs.device)[:, None]  # [drafts, 1]
    target = target_probs[: len(draft_ids)].gather(1, ids).squeeze(1)  # [drafts]
    if draft_probs is None:
        return target
    draft = draft_probs.gather(1, ids).squeeze(1)  # [drafts]
    return (target / draft.clamp_min(torch.finfo(draft.dtype).tiny)).clamp_max(1.0)


def residual(target_row: torch.Tensor, draft_id: int, draft_row: torch.Tensor | None) -> torch.Tensor:
    """Return what the target still owes after a rejection: max(0, target - draft), renormalised: [vocab].

    An empty residual means that both rows agree, where a rejection has probability zero; the target row is
    then the right limit.
    """
    if draft_row is None:
        owed = target_row.index_fill(0, torch.tensor([draft_id], device=target_row.device), 0.0)
    else:
        owed = (target_row - draft_row).clamp_min(0.0)
    mass = owed.sum()
    return owed / mass if float(mass) > 0.0 else target_row


def bonus(target_probs: torch.Tensor) -> torch.Tensor:
    """Return the distribution of the token after a fully accepted draft: the last target row, [vocab]."""
    return target_probs[-1]


def verify_greedy(draft_ids: Sequence[int], target_ids: Sequence[int]) -> list[int]:
    """Return `verify` for one-hot targets and certain drafts, without building their rows.

    `draft_ids`: [drafts]. `target_ids`: [drafts + 1], the largest logit of each row.
    """
    kept = 0
    while kept < len(draft_ids) and draft_ids[kept] == target_ids[kept]:
        kept += 1
    return [*draft_ids[:kept], target_ids[kept]]
