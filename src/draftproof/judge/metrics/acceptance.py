"""Acceptance of drafts, committed progress, break-evens, and what the client got (docs/metrics.md).

Acceptance is pooled over verification steps: from rounds, which tell drafted steps from ordinary ones, else
from the server's counters. A step that drafts K tokens and takes `ratio` ordinary steps pays once it commits
more than `ratio` tokens; if each draft is accepted with probability a it commits (1 − a^(K+1)) / (1 − a)
(Leviathan et al. 2023, "Fast inference from transformers via speculative decoding", equation 1).
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter

import msgspec

from draftproof.core.records import RequestRecord, Round, SpecCounts
from draftproof.judge.metrics.request import count_output_tokens

Step = tuple[int, int]  # drafted, accepted


class AcceptanceSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Acceptance of a set of requests.

    `decode_steps` and `tokens_per_decode_step` cover the requests that disclose them. The histogram
    is empty where a request drafted and gives none; `position_acceptance` is based on rounds and lists of
    steps, because counters do not say how long each draft was, and is empty where a request that drafted has
    neither.
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


def pool_acceptance(records: Iterable[RequestRecord]) -> AcceptanceSummary | None:
    """Return the acceptance pooled over the records' steps, None where no record discloses any."""
    disclosing = [
        one
        for one in records
        if one.speculation is not None or one.rounds is not None or one.decode_steps is not None
    ]
    if not disclosing:
        return None
    counts = [count_speculation(record) for record in disclosing]
    steps = sum(count.num_spec_steps for count in counts)
    drafted = sum(count.num_draft_tokens for count in counts)
    accepted = sum(count.num_accepted_draft_tokens for count in counts)
    decode_steps, committed = _pool_decode_steps(disclosing)
    return AcceptanceSummary(
        num_spec_steps=steps,
        num_draft_tokens=drafted,
        num_accepted_draft_tokens=accepted,
        decode_steps=decode_steps,
        draft_acceptance_rate=accepted / drafted if drafted else None,
        mean_acceptance_length=1 + accepted / steps if steps else None,
        tokens_per_decode_step=committed / decode_steps if decode_steps else None,
        acceptance_histogram=_pool_histograms(counts),
        position_acceptance=_pool_positions(disclosing),
    )


def count_speculation(record: RequestRecord) -> SpecCounts:
    """Return the record's counters: summed from its rounds, else as the server states them, else zeros."""
    if record.rounds is None:
        return record.speculation or SpecCounts(0, 0, 0)
    drafted = [period.proposed for period in record.rounds if period.proposed > 0]
    accepted = [period.accepted for period in record.rounds if period.proposed > 0]
    return SpecCounts(
        num_spec_steps=len(drafted),
        num_draft_tokens=sum(drafted),
        num_accepted_draft_tokens=sum(accepted),
        acceptance_histogram=tuple(map(accepted.count, range(max(accepted, default=-1) + 1))),
    )


def count_decode_steps(record: RequestRecord) -> tuple[int, int] | None:
    """Return (decode steps, tokens they committed) of one request, None where they are not known.

    Without rounds the engine's own count of steps holds, where tokens and acceptance allow it. Without that
    the fewest that they allow: (N − 1) − accepted steps committed N − 1 tokens.
    """
    if record.rounds is not None:
        return len(record.rounds), sum([period.committed for period in record.rounds])
    tokens, counts = count_output_tokens(record), record.speculation
    if tokens is None or tokens < 1:
        return None
    bounds = (0, tokens - 1) if counts is None else bound_decode_steps(tokens, counts)
    if (
        record.decode_steps is not None
        and bounds is not None
        and bounds[0] <= record.decode_steps <= bounds[1]
    ):
        return record.decode_steps, tokens - 1
    return None if counts is None or bounds is None else (bounds[0], tokens - 1)


def bound_decode_steps(tokens: int, counts: SpecCounts) -> tuple[int, int] | None:
    """Return the fewest and the most decode steps that an answer of so many tokens and its counters allow.

    The first token comes from the prefill; every step commits its accepted drafts and one token of the
    target. An answer may end inside the last step, behind whose end lie at most that step's drafts. None
    where the counters cannot be this answer's.
    """
    after, steps, accepted = tokens - 1, counts.num_spec_steps, counts.num_accepted_draft_tokens
    behind_end = _most_accepted_last(counts)
    if min(after, steps, accepted) < 0 or steps > after or accepted - behind_end > after - steps:
        return None
    fewest = max(after - accepted, steps)
    return fewest, min(fewest + behind_end, after)


def _most_accepted_last(counts: SpecCounts) -> int:
    """Return the most drafts that the last verification step may have accepted, unlisted the mean draft."""
    if counts.per_step_accepted:
        return counts.per_step_accepted[-1]
    if counts.acceptance_histogram:
        return max((index for index, count in enumerate(counts.acceptance_histogram) if count), default=0)
    return math.ceil(counts.num_draft_tokens / counts.num_spec_steps) if counts.num_spec_steps > 0 else 0


def position_acceptance(steps: Iterable[Step]) -> tuple[float | None, ...]:
    """Return, per draft position i, P(draft i accepted | drafts before i accepted and a draft i existed).

    `steps` are (drafted, accepted); those that drafted nothing do not count. One share for each position up
    to the longest draft, None where no step reached it.
    """
    drafting = [step for step in steps if step[0] > 0]
    longest = max((drafted for drafted, _ in drafting), default=0)
    return tuple(_accepted_share_at(drafting, index) for index in range(longest))


def list_steps(record: RequestRecord) -> tuple[Step, ...] | None:
    """Return (drafted, accepted) of a request's verification steps, None where they are not listed."""
    if record.rounds is not None:
        return tuple((period.proposed, period.accepted) for period in record.rounds if period.proposed > 0)
    counts = record.speculation
    if counts is None or len(counts.per_step_drafted) != len(counts.per_step_accepted):
        return None
    if len(counts.per_step_drafted) < counts.num_spec_steps:
        return None
    pairs = zip(counts.per_step_drafted, counts.per_step_accepted, strict=True)
    return tuple((drafted, accepted) for drafted, accepted in pairs if drafted > 0)


def _accepted_share_at(steps: Sequence[Step], index: int) -> float | None:
    tried = [accepted for drafted, accepted in steps if drafted > index and accepted >= index]
    return sum(accepted > index for accepted in tried) / len(tried) if tried else None


def _pool_positions(records: Sequence[RequestRecord]) -> tuple[float | None, ...]:
    """A request that drafted in steps nobody lists would be missing from the pool: then there is none."""
    listed = [list_steps(record) for record in records if count_speculation(record).num_spec_steps > 0]
    if any(steps is None for steps in listed):
        return ()
    return position_acceptance(step for steps in listed if steps is not None for step in steps)


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
    # Short answers have few histograms: each is added once, as often as it occurs.
    for histogram, requests in Counter(count.acceptance_histogram for count in drafting).items():
        total.update({accepted: steps * requests for accepted, steps in enumerate(histogram)})
    return tuple(total[index] for index in range(max(total, default=-1) + 1))


class ProgressSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Time per committed token, ns, and the four parts that add up to it; None if nothing was committed."""

    time_per_committed_token_ns: float | None
    draft_ns: float | None
    verify_ns: float | None
    sample_ns: float | None
    schedule_ns: float | None
    committed_tokens: int
    rounds: int


_SUMMED = attrgetter("committed", "draft_ns", "verify_ns", "sample_ns", "schedule_ns")


def committed_progress(rounds: Iterable[Round]) -> ProgressSummary | None:
    """Return Σ round time / Σ committed tokens, pooled over rounds; None for no rounds.

    The choice of tokens is part of verification in the formula and is shown apart. A round's duration is
    that of its whole batch: the result is what one sequence waits, not the throughput of the server.
    """
    periods = tuple(rounds)
    if not periods:
        return None
    committed, draft_ns, verify_ns, sample_ns, schedule_ns = map(
        sum, zip(*map(_SUMMED, periods), strict=True)
    )
    return ProgressSummary(
        time_per_committed_token_ns=_per_token(draft_ns + verify_ns + sample_ns + schedule_ns, committed),
        draft_ns=_per_token(draft_ns, committed),
        verify_ns=_per_token(verify_ns, committed),
        sample_ns=_per_token(sample_ns, committed),
        schedule_ns=_per_token(schedule_ns, committed),
        committed_tokens=committed,
        rounds=len(periods),
    )


def _per_token(total_ns: int, committed: int) -> float | None:
    return total_ns / committed if committed > 0 else None


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

    0 where the step costs no more than an ordinary one; None where ratio > K + 1, beyond what it can commit.

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
    """Return the longest drafting time with which a step still pays, ns; None where none is quick enough.

    `verified_ns` is the time of a step that verifies drafts, without the drafting.
    """
    left_ns = tokens_per_step * ordinary_ns - verified_ns
    return left_ns if left_ns >= 0 else None


class ClientTally(msgspec.Struct, frozen=True, kw_only=True):
    """Requests and tokens of some periods as the client saw them.

    `tokens` are those of answers and of what is known of unanswered requests, None where an answer has no
    count; `partial_tokens` are the latter alone. `open_tokens` is the most that the service may have made for
    requests whose end the client did not see. The counts of drafts are None unless every answer has them and
    none is open.
    """

    sent: int
    answered: int
    tokens: int | None
    partial_tokens: int
    open_tokens: int
    num_spec_steps: int | None
    num_draft_tokens: int | None
    num_accepted_draft_tokens: int | None

    @property
    def unanswered(self) -> int:
        """Requests that were sent and not answered to the end."""
        return self.sent - self.answered


def tally_client(records: Iterable[RequestRecord], most_tokens: Mapping[str, int]) -> ClientTally:
    """Count what the client asked and got; `most_tokens`: item id -> most tokens its answer may have."""
    sent = [one for one in records if one.phase != "warmup" and one.sent_ns is not None]
    answered = [one for one in sent if one.outcome == "ok"]
    unanswered = [one for one in sent if one.outcome not in {"ok", "rejected"}]
    counts = [count_output_tokens(one) for one in answered]
    seen = [count_output_tokens(one) or 0 for one in unanswered]
    open_tokens = sum(
        max(most_tokens.get(one.item_id, 0) - had, 0) for one, had in zip(unanswered, seen, strict=True)
    )
    steps, drafted, accepted = _count_drafts(answered)
    return ClientTally(
        sent=len(sent),
        answered=len(answered),
        tokens=None if None in counts else sum(count or 0 for count in counts) + sum(seen),
        partial_tokens=sum(seen),
        open_tokens=open_tokens,
        num_spec_steps=steps,
        num_draft_tokens=drafted,
        num_accepted_draft_tokens=accepted,
    )


def tokens_per_step_from_chunks(records: Iterable[RequestRecord]) -> tuple[float | None, int]:
    """Return (tokens per decode step, requests it is based on), each chunk after the first being one step.

    (N − tokens of the first chunk) / (chunks − 1), pooled over answers that count tokens at every chunk.
    """
    counted = [(one, n) for one in records if (n := _counted(one)) is not None]
    steps = sum(len(one.chunks) - 1 for one, _ in counted)
    tokens = sum(n - (one.chunks[0].cumulative_tokens or 0) for one, n in counted)
    return (tokens / steps if steps else None), len(counted)


def tokens_per_step_from_fields(records: Iterable[RequestRecord]) -> tuple[float | None, float | None]:
    """Return (tokens per decode step, the least it can be) from what the answers say of themselves.

    Counters of accepted drafts may hold some that lie behind an answer's end, at most those of its last step:
    without these there were that many steps more. Both None where one of the records does not tell.
    """
    known = []
    for record in records:
        if (read := _read_steps(record)) is not None:
            known += [read] if _counted(record) is not None else []
        elif _counted(record) is not None:  # most arms tell nothing, and the first answer says so
            return None, None
    if not known:
        return None, None
    tokens = sum(count for count, _, _ in known)
    fewest, most = sum(steps for _, steps, _ in known), sum(steps for _, _, steps in known)
    return (tokens / fewest, tokens / most) if fewest else (None, None)


def _read_steps(record: RequestRecord) -> tuple[int, int, int] | None:
    """Return (tokens after the first, fewest steps, most steps), by the counts of drafts if there are any."""
    tokens, counts = count_output_tokens(record), record.speculation
    if record.rounds is not None or counts is None or tokens is None:
        counted = count_decode_steps(record)
        return None if counted is None else (counted[1], counted[0], counted[0])
    bounds = bound_decode_steps(tokens, counts)
    return None if bounds is None else (tokens - 1, *bounds)


def _counted(record: RequestRecord) -> int | None:
    """Return an answer's tokens if every chunk has its count and there are two or more, else None."""
    chunks = record.chunks
    if record.outcome != "ok" or len(chunks) < 2 or None in [one.cumulative_tokens for one in chunks]:
        return None
    return count_output_tokens(record)


def _count_drafts(answered: Sequence[RequestRecord]) -> tuple[int | None, int | None, int | None]:
    if not answered or any(one.rounds is None and one.speculation is None for one in answered):
        return None, None, None
    counts = [count_speculation(one) for one in answered]
    return (
        sum(one.num_spec_steps for one in counts),
        sum(one.num_draft_tokens for one in counts),
        sum(one.num_accepted_draft_tokens for one in counts),
    )
