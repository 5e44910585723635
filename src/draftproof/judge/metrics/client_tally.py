"""What the client itself got from a service over some turns, to be held against the service's counters. Pure.

Requests of every phase but the warm-up count, because a turn's first sample comes after it.
"""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from draftproof.core.records import RequestRecord
from draftproof.judge.metrics.acceptance import bound_decode_steps, count_decode_steps, count_speculation
from draftproof.judge.metrics.request import count_output_tokens


class ClientTally(msgspec.Struct, frozen=True, kw_only=True):
    """Requests and tokens of some turns as the client saw them.

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
    """Return (tokens per decode step, requests it rests on), each chunk after the first being one step.

    (N − tokens of the first chunk) / (chunks − 1), pooled over answers that count tokens at every chunk.
    """
    told = [(one, n) for one in records if (n := _counted(one)) is not None]
    steps = sum(len(one.chunks) - 1 for one, _ in told)
    tokens = sum(n - (one.chunks[0].cumulative_tokens or 0) for one, n in told)
    return (tokens / steps if steps else None), len(told)


def tokens_per_step_from_fields(records: Iterable[RequestRecord]) -> tuple[float | None, float | None]:
    """Return (tokens per decode step, the least it can be) from what the answers say of themselves.

    Counters of accepted drafts may hold some that lie behind an answer's end, at most those of its last step:
    without these there were that many steps more. Both None where one of the records does not tell.
    """
    known = []
    for record in records:
        if (told := _read_steps(record)) is not None:
            known += [told] if _counted(record) is not None else []
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
        told = count_decode_steps(record)
        return None if told is None else (told[1], told[0], told[0])
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
