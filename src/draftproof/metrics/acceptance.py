"""Acceptance of drafts, pooled over verification steps (docs/metrics.md, "Acceptance").

Rounds are the better source: they tell drafted steps from ordinary ones and how long each draft was. Where a
record has none, the server's counters are used. Callers choose which records belong together.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from draftproof.metrics.request import count_output_tokens
from draftproof.records import RequestRecord, Round, SpecCounts


class AcceptanceSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Acceptance of a set of requests.

    `decode_steps` and `tokens_per_decode_step` cover the requests from which they can be told. The histogram
    is empty where a request drafted and gives none; `position_acceptance` rests on rounds alone, because
    counters do not say how long each draft was.
    """

    num_spec_steps: int
    num_draft_tokens: int
    num_accepted_draft_tokens: int
    decode_steps: int | None
    draft_acceptance_rate: float | None
    mean_acceptance_length: float | None
    tokens_per_decode_step: float | None
    acceptance_histogram: tuple[int, ...]
    position_acceptance: tuple[float | None, ...]


class RejectionCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Verification steps by the index of their first rejected draft, and those that rejected none."""

    by_position: tuple[int, ...]
    none_rejected: int


def pool_acceptance(records: Iterable[RequestRecord]) -> AcceptanceSummary | None:
    """Return the acceptance pooled over the records' steps, None where no record discloses any."""
    told = [record for record in records if record.rounds is not None or record.speculation is not None]
    if not told:
        return None
    counts = [count_speculation(record) for record in told]
    steps = sum(count.num_spec_steps for count in counts)
    drafted = sum(count.num_draft_tokens for count in counts)
    accepted = sum(count.num_accepted_draft_tokens for count in counts)
    decode_steps, committed = _pool_decode_steps(told)
    return AcceptanceSummary(
        num_spec_steps=steps,
        num_draft_tokens=drafted,
        num_accepted_draft_tokens=accepted,
        decode_steps=decode_steps,
        draft_acceptance_rate=accepted / drafted if drafted else None,
        mean_acceptance_length=1 + accepted / steps if steps else None,
        tokens_per_decode_step=committed / decode_steps if decode_steps else None,
        acceptance_histogram=_pool_histograms(counts),
        position_acceptance=position_acceptance(_all_rounds(told)),
    )


def count_speculation(record: RequestRecord) -> SpecCounts:
    """Return the record's counters: summed from its rounds, else as the server states them, else zeros."""
    if record.rounds is None:
        return record.speculation or SpecCounts(0, 0, 0)
    checked = [turn for turn in record.rounds if turn.proposed > 0]
    return SpecCounts(
        num_spec_steps=len(checked),
        num_draft_tokens=sum(turn.proposed for turn in checked),
        num_accepted_draft_tokens=sum(turn.accepted for turn in checked),
        acceptance_histogram=_tally(turn.accepted for turn in checked),
    )


def count_decode_steps(record: RequestRecord) -> tuple[int, int] | None:
    """Return (decode steps, tokens they committed) of one request, None where they cannot be told.

    Without rounds: the first token comes from the prefill, every step commits its accepted drafts and one
    token of the target, so (N − 1) − accepted steps committed N − 1 tokens. Where the stop falls inside an
    accepted prefix, counters name drafts that were never delivered; steps are then at least the
    verification steps.
    """
    if record.rounds is not None:
        return len(record.rounds), sum(turn.committed for turn in record.rounds)
    tokens, counts = count_output_tokens(record), record.speculation
    if counts is None or tokens is None or tokens < 1:
        return None
    return max(tokens - 1 - counts.num_accepted_draft_tokens, counts.num_spec_steps), tokens - 1


def position_acceptance(rounds: Iterable[Round]) -> tuple[float | None, ...]:
    """Return, per draft position i, P(draft i accepted | drafts before i accepted and a draft i existed).

    None at a position that no step reached. Drafts of different lengths enter only where they have a draft.
    """
    steps = [turn for turn in rounds if turn.proposed > 0]
    longest = max((turn.proposed for turn in steps), default=0)
    return tuple(_accepted_share_at(steps, index) for index in range(longest))


def count_rejection_positions(rounds: Iterable[Round]) -> RejectionCounts:
    """Count verification steps by `rejection_position`; steps without a rejection are counted apart."""
    steps = [turn for turn in rounds if turn.proposed > 0]
    positions = [turn.rejection_position for turn in steps]
    rejected = [position for position in positions if position is not None]
    return RejectionCounts(by_position=_tally(rejected), none_rejected=len(steps) - len(rejected))


def _accepted_share_at(steps: Sequence[Round], index: int) -> float | None:
    tried = [turn for turn in steps if turn.proposed > index and turn.accepted >= index]
    return sum(turn.accepted > index for turn in tried) / len(tried) if tried else None


def _pool_decode_steps(records: Iterable[RequestRecord]) -> tuple[int | None, int]:
    known = [counts for counts in map(count_decode_steps, records) if counts is not None]
    if not known:
        return None, 0
    return sum(steps for steps, _ in known), sum(committed for _, committed in known)


def _pool_histograms(counts: Sequence[SpecCounts]) -> tuple[int, ...]:
    drafting = [count for count in counts if count.num_spec_steps > 0]
    if not all(count.acceptance_histogram for count in drafting):
        return ()
    total: Counter[int] = Counter()
    for count in drafting:
        total.update(dict(enumerate(count.acceptance_histogram)))
    return _spread(total)


def _all_rounds(records: Iterable[RequestRecord]) -> tuple[Round, ...]:
    return tuple(turn for record in records for turn in record.rounds or ())


def _tally(values: Iterable[int]) -> tuple[int, ...]:
    return _spread(Counter(values))


def _spread(counts: Counter[int]) -> tuple[int, ...]:
    return tuple(counts[index] for index in range(max(counts, default=-1) + 1))
