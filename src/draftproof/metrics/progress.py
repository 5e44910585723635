"""Committed progress: what a committed token cost in rounds (docs/metrics.md, "Committed progress")."""

from collections.abc import Iterable

import msgspec

from draftproof.records import Round


class ProgressSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Time per committed token, ns, and the four parts that add up to it; None if nothing was committed."""

    time_per_committed_token_ns: float | None
    draft_ns: float | None
    verify_ns: float | None
    sample_ns: float | None
    schedule_ns: float | None
    committed_tokens: int
    rounds: int


def committed_progress(rounds: Iterable[Round]) -> ProgressSummary | None:
    """Return Σ round time / Σ committed tokens, pooled over rounds; None for no rounds.

    The choice of tokens is part of verification in the formula and is shown apart. A round's duration is
    that of its whole batch: the result is what one sequence waits, not the throughput of the server.
    """
    turns = tuple(rounds)
    if not turns:
        return None
    committed = sum(turn.committed for turn in turns)
    return ProgressSummary(
        time_per_committed_token_ns=_per_token(sum(turn.round_ns for turn in turns), committed),
        draft_ns=_per_token(sum(turn.draft_ns for turn in turns), committed),
        verify_ns=_per_token(sum(turn.verify_ns for turn in turns), committed),
        sample_ns=_per_token(sum(turn.sample_ns for turn in turns), committed),
        schedule_ns=_per_token(sum(turn.schedule_ns for turn in turns), committed),
        committed_tokens=committed,
        rounds=len(turns),
    )


def _per_token(total_ns: int, committed: int) -> float | None:
    return total_ns / committed if committed > 0 else None
