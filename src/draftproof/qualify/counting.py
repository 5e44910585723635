"""Counts answers that no service counted, with the target's tokenizer, when no request is in flight.

What is counted goes into the journal, so that a report gives the same numbers where no tokenizer is at hand.
"""

from pathlib import Path

import msgspec

from draftproof.arms.context_fit import load_token_starts
from draftproof.metrics.token_counting import apply_counts, count_tokens, list_uncounted
from draftproof.records import TokenCounts
from draftproof.store import RunContents, RunDirectory


def count_answers(run: RunDirectory, contents: RunContents, tokenizer: Path | None) -> RunContents:
    """Count what can be counted, keep it, and return the contents with it.

    Args:
        run: where the counts go.
        contents: records of the run.
        tokenizer: the target's tokenizer.json, None where it is not at hand.

    Raises:
        StoreError: the counts cannot be written.
    """
    uncounted = list_uncounted(contents.records)
    if tokenizer is None or not uncounted:
        return contents
    starts_of = load_token_starts(tokenizer)
    found = list[TokenCounts]()
    for record in uncounted:
        cumulative = count_tokens(record, starts_of)
        if cumulative is not None:
            counts = TokenCounts(
                request_id=record.request_id, end_ns=record.end_ns, cumulative_tokens=cumulative
            )
            run.append_beside(counts)
            found.append(counts)
    return msgspec.structs.replace(contents, records=apply_counts(contents.records, found))
