"""What a drafted step must commit before it pays: break-even tokens, acceptance and drafting time. Pure.

A step that drafts K tokens and takes `ratio` ordinary steps pays once it commits more than `ratio` tokens on
average. If each draft is accepted with probability a, whatever went before, a step commits
(1 − a^(K+1)) / (1 − a) tokens (Leviathan et al. 2023, "Fast inference from transformers via speculative
decoding", equation 1).
"""

_HALVINGS = 60  # a double holds no more digits of a share


def expected_tokens(acceptance: float, draft_length: int) -> float:
    """Return the tokens a step commits on average, from 1 to K + 1: 1 + a + a² + … + a^K.

    Raises:
        ValueError: the acceptance is no share, or the draft length is negative.
    """
    if not 0.0 <= acceptance <= 1.0:
        raise ValueError(f"acceptance is a share from 0 to 1, got {acceptance}")
    if draft_length < 0:
        raise ValueError(f"a draft has at least 0 tokens, got {draft_length}")
    total = 1.0
    for _ in range(draft_length):
        total = 1.0 + acceptance * total
    return total


def break_even_acceptance(ratio: float, draft_length: int) -> float | None:
    """Return the acceptance at which a step of `ratio` ordinary steps commits exactly `ratio` tokens.

    0 where the step costs no more than an ordinary one; None where even a step that accepts every draft
    commits too little, because ratio > K + 1.

    Raises:
        ValueError: the draft length is negative.
    """
    if ratio <= 1.0:
        return 0.0
    if ratio > expected_tokens(1.0, draft_length):
        return None
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if expected_tokens(middle, draft_length) < ratio:
            low = middle
        else:
            high = middle
    return high


def break_even_draft_ns(tokens_per_step: float, ordinary_ns: float, verified_ns: float) -> float | None:
    """Return the longest drafting time with which a step still pays, ns.

    None where no drafting is quick enough: verification alone takes longer than the tokens are worth.

    Args:
        tokens_per_step: tokens that a step commits on average.
        ordinary_ns: time of an ordinary step.
        verified_ns: time of a step that verifies drafts, without the drafting.
    """
    left_ns = tokens_per_step * ordinary_ns - verified_ns
    return left_ns if left_ns >= 0 else None
