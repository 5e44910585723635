"""What must hold inside one record whatever was measured: each breach is one sentence.

A record with a fault is never averaged in; the cell says which identity broke. Checks only what the record
states: a value it does not have breaks nothing.
"""

from collections.abc import Iterator

from draftproof.core.records import RequestRecord, Round, SpecCounts
from draftproof.judge.metrics.acceptance import count_speculation
from draftproof.judge.metrics.request import count_output_tokens


def acceptance_faults(record: RequestRecord) -> tuple[str, ...]:
    """Return the broken identities of the record's counters and rounds, empty where all hold."""
    faults: list[str] = []
    if record.speculation is not None:
        faults += _counter_faults(record.speculation)
    if record.rounds is not None:
        faults += _round_faults(record.rounds)
        faults += _committed_faults(record, record.rounds)
    if record.speculation is not None and record.rounds is not None:
        faults += _disagreements(record.speculation, count_speculation(record))
    return tuple(faults)


def timeline_faults(record: RequestRecord) -> tuple[str, ...]:
    """Return where times or token counts of the stream run backwards, or the last count is not the total."""
    faults: list[str] = []
    times = [
        *([] if record.sent_ns is None else [record.sent_ns]),
        *[chunk.arrival_ns for chunk in record.chunks],
        record.end_ns,
    ]
    counts = [count for chunk in record.chunks if (count := chunk.cumulative_tokens) is not None]
    # Sorting what is in order already is one pass: every record of a run is looked at.
    if times != sorted(times):
        faults.append("an event is earlier than the one before it")
    if counts != sorted(counts):
        faults.append("cumulative_tokens falls")
    total = count_output_tokens(record)
    if record.outcome == "ok" and counts and total is not None and counts[-1] > total:
        faults.append(f"the stream counts {counts[-1]} tokens, the final usage {total}")
    return tuple(faults)


def _counter_faults(counts: SpecCounts) -> Iterator[str]:
    steps, drafted, accepted = (
        counts.num_spec_steps,
        counts.num_draft_tokens,
        counts.num_accepted_draft_tokens,
    )
    if min(steps, drafted, accepted, *counts.acceptance_histogram, 0) < 0:
        yield "a counter is negative"
    if accepted > drafted:
        yield f"accepted {accepted} drafts of {drafted}"
    if steps > drafted:
        yield f"{steps} verification steps checked {drafted} drafts: each checks at least one"
    if steps == 0 and drafted > 0:
        yield f"{drafted} drafts without a verification step"
    if counts.acceptance_histogram:
        yield from _histogram_faults(counts)


def _histogram_faults(counts: SpecCounts) -> Iterator[str]:
    histogram = counts.acceptance_histogram
    if sum(histogram) != counts.num_spec_steps:
        yield f"the histogram holds {sum(histogram)} steps of {counts.num_spec_steps}"
    weighted = sum(index * count for index, count in enumerate(histogram))
    if weighted != counts.num_accepted_draft_tokens:
        yield f"the histogram holds {weighted} accepted drafts of {counts.num_accepted_draft_tokens}"


def _round_faults(rounds: tuple[Round, ...]) -> Iterator[str]:
    for index, period in enumerate(rounds):
        if not 0 <= period.accepted <= period.proposed:
            yield f"round {index} accepted {period.accepted} drafts of {period.proposed}"
        if not 0 <= period.committed <= period.accepted + 1:
            yield f"round {index} committed {period.committed} tokens after {period.accepted} accepted drafts"
        if min(period.draft_ns, period.verify_ns, period.sample_ns, period.schedule_ns) < 0:
            yield f"round {index} has a negative duration"


def _committed_faults(record: RequestRecord, rounds: tuple[Round, ...]) -> Iterator[str]:
    committed, total = sum(period.committed for period in rounds), count_output_tokens(record)
    if record.outcome == "ok" and total is not None and committed > total:
        yield f"rounds committed {committed} tokens, the answer has {total}"


def _disagreements(stated: SpecCounts, summed: SpecCounts) -> Iterator[str]:
    for name in ("num_spec_steps", "num_draft_tokens", "num_accepted_draft_tokens"):
        said, found = getattr(stated, name), getattr(summed, name)
        if said != found:
            yield f"{name}: the server states {said}, its rounds sum to {found}"
