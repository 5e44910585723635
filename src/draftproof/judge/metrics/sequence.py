"""What one answer looks like as a sequence, for comparing sampled answers whose words may differ. Pure.

Counted in token ids where every answer of a comparison has them, else in words. Of a withheld answer the
figures are those that were taken before its text was replaced.
"""

import re
from collections.abc import Sequence
from itertools import pairwise

import msgspec

from draftproof.core.records import RequestRecord
from draftproof.judge.metrics.request import count_output_tokens

# A Chinese or Japanese character is a word of its own, other letters form words, a sign stands alone.
_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]|[^\W\u3040-\u30ff\u3400-\u9fff]+|[^\w\s]")
REPETITION_LENGTH = 3

Part = int | str


class SequenceFeatures(msgspec.Struct, frozen=True, kw_only=True):
    """One answer as a sequence; None where it is not known or the answer is too short to have it.

    `is_cut`: the limit on tokens ended it. `first`: its first token or word. `distinct_share`: distinct
    tokens / tokens. `repeated_share`: 1 − distinct runs of three tokens / runs of three tokens. `bigrams`:
    its distinct pairs of neighbouring tokens; None where the answer is withheld.
    """

    output_tokens: int | None
    finish_reason: str | None
    is_cut: bool | None
    first: Part | None
    distinct_share: float | None
    repeated_share: float | None
    bigrams: frozenset[tuple[Part, Part]] | frozenset[int] | None


def describe_sequence(record: RequestRecord, *, by_ids: bool) -> SequenceFeatures:
    """Return the features of an answer, from its token ids or from its words."""
    if record.withheld is not None:
        return _describe_withheld(record)
    parts: Sequence[Part] = (record.token_ids or ()) if by_ids else split_words(join_generated(record))
    return SequenceFeatures(
        output_tokens=count_output_tokens(record),
        finish_reason=record.finish_reason,
        is_cut=_is_cut(record),
        first=parts[0] if parts else None,
        distinct_share=share_distinct(parts),
        repeated_share=share_repeated(parts),
        bigrams=frozenset(pairwise(parts)),
    )


def split_words(text: str) -> tuple[str, ...]:
    """Return the words and signs of a text, in any script."""
    return tuple(_WORD.findall(text))


def join_generated(record: RequestRecord) -> str:
    """Return all that an answer generated: reasoning, text, and tool calls with their names."""
    calls = [part for call in record.tool_calls for part in (call.name, call.arguments)]
    return "\n".join((record.reasoning_text, record.text, *calls))


def share_distinct(parts: Sequence[Part]) -> float | None:
    """Return distinct parts / parts, None of an empty answer."""
    return len(set(parts)) / len(parts) if parts else None


def share_repeated(parts: Sequence[Part]) -> float | None:
    """Return the share of runs of three parts that occurred before, None below three parts."""
    runs = [tuple(parts[at : at + REPETITION_LENGTH]) for at in range(len(parts) - REPETITION_LENGTH + 1)]
    return 1 - len(set(runs)) / len(runs) if runs else None


def _is_cut(record: RequestRecord) -> bool | None:
    return None if record.finish_reason is None else record.finish_reason == "length"


def _describe_withheld(record: RequestRecord) -> SequenceFeatures:
    kept = record.withheld.sequence if record.withheld is not None else None
    return SequenceFeatures(
        output_tokens=count_output_tokens(record),
        finish_reason=record.finish_reason,
        is_cut=_is_cut(record),
        first=kept.first if kept else None,
        distinct_share=kept.distinct_share if kept else None,
        repeated_share=kept.repeated_share if kept else None,
        bigrams=frozenset(kept.bigrams) if kept else None,
    )
