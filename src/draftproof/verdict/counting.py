"""Whether two arms count tokens alike: a text has one number of tokens, whoever sends it. Pure.

Greedy answers with the same text must have the same count; where they have not, one service counts tokens
that the other does not, and a time per token compares nothing. Other answers show it in the mean: a token
holds as much text in one arm as in the other.
"""

from collections.abc import Iterable, Iterator

import msgspec
import numpy as np

from draftproof.metrics.delivery import count_characters
from draftproof.metrics.request import count_output_tokens, is_empty
from draftproof.records import RequestRecord
from draftproof.stats.resampling import Floats
from draftproof.verdict.columns import Columns
from draftproof.verdict.guardrails import SUSPECT_PROMPTS
from draftproof.verdict.pairs import NO_PAIRS, Pairs, PairTable, is_same_text
from draftproof.verdict.results import Reason
from draftproof.verdict.run_data import ALL_SEGMENTS, PreparedRun

CODE = "counts_differ"
# As of the client's lag: less than a fifth of the smallest effect that is credited may stand.
TOLERATED_PART = 0.2
REMEDY = (
    "find out which service counts wrong; where it states no tokens at its chunks, the model's tokenizer "
    "(target.tokenizer) counts the texts of both"
)


class Miscount(msgspec.Struct, frozen=True, kw_only=True):
    """Equal greedy texts of an arm and the baseline at one load that are counted otherwise.

    `unequal` of `equal` pairs with equal texts; `off` is what their counts differ by, as a share of the
    tokens of all of these.
    """

    arm: str
    load: str
    unequal: int
    equal: int
    off: float

    @property
    def text(self) -> str:
        """The fault in words."""
        return (
            f"The arm {self.arm} and the baseline count equal texts differently at load {self.load}: "
            f"{self.unequal} of {self.equal} pairs of equal greedy answers, "
            f"{100 * self.off:.1f} % of their tokens"
        )


def list_miscounts(prepared: PreparedRun, pairs: PairTable) -> tuple[Miscount, ...]:
    """Return where equal texts are counted otherwise in more than one prompt."""
    tokens = prepared.columns.read(lambda seen: _count_text(seen.record) if seen.is_ok else None)
    found = (
        _find_miscount(pairs.get((arm, "baseline"), NO_PAIRS).cell(ALL_SEGMENTS, load), tokens, arm, load)
        for load in prepared.loads
        for arm in ("candidate", "alternative")
    )
    return tuple(one for one in found if one is not None)


def find_miscounted(found: Iterable[Miscount], prepared: PreparedRun) -> dict[str, tuple[Reason, ...]]:
    """Return, by load, the faults of counts that are off by more than may stand beside the smallest gain."""
    wrong = [one for one in found if not _is_tolerated(one, prepared)]
    return {
        load: tuple(
            Reason(
                code=CODE,
                text=f"{one.text}; times per token compare nothing there: {REMEDY}.",
                evidence=f"effects output_tokens: {one.arm} / baseline, all × {load}",
            )
            for one in wrong
            if one.load == load
        )
        for load in dict.fromkeys(one.load for one in wrong)
    }


def warn_about_miscounts(found: Iterable[Miscount], prepared: PreparedRun) -> Iterator[str]:
    """Yield a sentence for each difference of counts that is too small to matter."""
    yield from (f"{one.text}." for one in found if _is_tolerated(one, prepared))


def count_sent_tokens(record: RequestRecord) -> int | None:
    """Return the tokens by which an answer's time is divided: those of its chunks, else its total.

    None of a total of which some were never streamed: it is not that of the text.
    """
    last = record.chunks[-1].cumulative_tokens if record.chunks else None
    if last is not None:
        return last
    return None if record.unstreamed_tokens else count_output_tokens(record)


def read_tokens_per_character(columns: Columns) -> Floats:
    """Return the tokens for each character of an answer's text, shape (observations,), NaN if unknown."""
    return columns.read(lambda seen: _divide_by_text(seen.record) if seen.is_ok else None)


def _divide_by_text(record: RequestRecord) -> float | None:
    tokens, characters = count_sent_tokens(record), count_characters(record)
    return tokens / characters if tokens is not None and characters else None


def _count_text(record: RequestRecord) -> int | None:
    return None if is_empty(record) else count_sent_tokens(record)


def _find_miscount(pairs: Pairs, tokens: Floats, arm: str, load: str) -> Miscount | None:
    """Return what equal greedy texts are off by; texts are compared only where counts differ."""
    greedy = pairs.greedy
    mine, theirs = tokens[greedy.mine], tokens[greedy.theirs]
    differs = ~np.isnan(mine) & ~np.isnan(theirs) & (mine != theirs)
    records = pairs.columns.records
    unequal = [
        place
        for place in np.flatnonzero(differs).tolist()
        if is_same_text(records[greedy.mine[place]], records[greedy.theirs[place]])
    ]
    if len(np.unique(pairs.columns.prompts[greedy.mine[unequal]])) < SUSPECT_PROMPTS:
        return None
    alike = greedy.is_same & (mine == theirs)
    off = float(np.abs(mine - theirs)[unequal].sum())
    whole = float(theirs[unequal].sum() + theirs[alike].sum())
    return Miscount(
        arm=arm, load=load, unequal=len(unequal), equal=len(unequal) + int(alike.sum()), off=off / whole
    )


def _is_tolerated(one: Miscount, prepared: PreparedRun) -> bool:
    return one.off <= TOLERATED_PART * prepared.plan.thresholds.minimum_gain
