"""The words of the report for arms, statuses, decisions, metrics, thresholds and segments.

One place, so that the page, the terminal and the tests say the same. A name without an entry is shown as it
is. Pure.
"""

import msgspec

from draftproof.judge.metrics.request import METRIC_WORDS
from draftproof.plan.limits import LoadSize
from draftproof.workload.segments import show_labels, split_key

POOLED = "all"


class Word(msgspec.Struct, frozen=True):
    """A status or decision: its label, a glyph that works without colour, and one line of meaning.

    `adjective` is how a status counts cells: "3 not settled".
    """

    label: str
    glyph: str
    meaning: str
    adjective: str = ""


STATUSES: dict[str, Word] = {
    "gain": Word(
        "Gain",
        "▲",
        "even the pessimistic end of the interval is faster than the minimum gain, and nothing got worse",
        "gain",
    ),
    "neutral": Word(
        "Neutral", "●", "the whole interval is within the margins: no difference that matters", "unchanged"
    ),
    "no_gain": Word(
        "No gain",
        "▬",
        "even the optimistic end of the interval is no minimum gain: speculation does not pay there",
        "without a gain",
    ),
    "harm": Word(
        "Harm",
        "▼",
        "even the optimistic end of the interval is slower than the margin, or a guardrail is broken",
        "harmful",
    ),
    "inconclusive": Word(
        "Not settled", "?", "the interval is too wide, or a guardrail is not shown to hold", "not settled"
    ),
    "invalid": Word(
        "Invalid", "✕", "the client, the counters or the comparison failed: nothing is concluded", "invalid"
    ),
}

COUNTS: dict[str, str] = {
    "records": "Requests written",
    "not_measured_phase": "Warm-up, fill, interrupted",
    "duplicates": "Duplicate ids",
    "unknown": "Unknown items",
    "superseded": "First attempts that gave way",
    "repeated": "Measured more than once",
    "periods": "Periods that count",
    "periods_lagged": "Of these with a late client",
    "pairs_ok": "Pairs answered",
}

DECISIONS: dict[str, Word] = {
    "adopt": Word("Adopt", "▲", "speculation pays in some cells and does no harm in any that was measured"),
    "adopt_limited": Word(
        "Adopt in a limited envelope", "◐", "speculation pays only inside the envelope below"
    ),
    "defer": Word("Defer", "▼", "speculation does not pay here; look elsewhere first"),
    "inconclusive": Word("Inconclusive", "?", "the data do not settle it"),
    "invalid": Word("Invalid run", "✕", "nothing may be concluded from this run"),
}

# What the list of what blocks an adoption is called; of an open run it is "Why not yet".
BLOCKS: dict[str, str] = {
    "defer": "Why not",
    "invalid": "Why",
    "adopt_limited": "What limits it",
    "adopt": "To note",
}

ARMS: dict[str, str] = {
    "baseline": "Baseline",
    "candidate": "Candidate",
    "alternative": "Alternative",
    "baseline_null": "Null (baseline again)",
}

ARM_MEANINGS: dict[str, str] = {
    "candidate": "Candidate: speculation",
    "alternative": "Alternative: the same budget spent otherwise",
    "baseline_null": "Null: the baseline against itself",
}

METRICS = {name: text[0].upper() + text[1:] for name, text in METRIC_WORDS.items()}

QUANTITIES: dict[str, str] = {
    "failed_share": "Failed requests",
    "passed_share": "Answers that pass their checks",
    "limit_share": "Answers that end at the token limit",
}

OUTCOMES: tuple[str, ...] = ("ok", "rejected", "http_error", "timeout", "cut", "malformed", "cancelled")

OUTCOME_LABELS: dict[str, str] = {
    "ok": "OK",
    "rejected": "Rejected (429, 503)",
    "http_error": "HTTP error",
    "timeout": "Timeout",
    "cut": "Stream cut",
    "malformed": "Malformed",
    "cancelled": "Cancelled",
    "empty": "Empty answer",
}

THRESHOLDS: dict[str, str] = {
    "minimum_gain": "Gain: the whole interval of the ratio is below 1 − this",
    "harm_margin": "Harm: the whole interval of the ratio is above 1 + this",
    "ttft_margin": "First token may come later by at most this share",
    "e2e_margin": "End-to-end time may grow by at most this share",
    "tail_quantile": "The quantile over requests that defines the tail",
    "tail_margin": "Time per token and first token at that quantile may grow by at most this share",
    "failure_margin": "The share of failed requests may grow by at most this",
    "quality_margin": "The share of passed checks may fall by at most this",
    "output_length_margin": "The mean output length may shift by at most this share",
    "token_limit_margin": "The share of answers that end at the token limit may shift by at most this",
    "dominated_margin": "The alternative dominates where it beats the candidate by more than this share",
    "critical_errors": "New failures of critical checks allowed per load level",
}


def arm(name: str) -> str:
    """Return the arm's name for a reader."""
    return ARMS.get(name, name)


def comparison(name: str, versus: str) -> str:
    """Return the name of a comparison; the baseline as the other side goes without saying."""
    return arm(name) if versus == "baseline" else f"{arm(name)} / {arm(versus)}"


def sentence_case(text: str) -> str:
    """Return the text with its first letter as a capital."""
    return text[:1].upper() + text[1:]


def metric(name: str) -> str:
    """Return the metric's name for a reader."""
    return METRICS.get(name, name)


def segment(key: str) -> str:
    """Return "code_edit · ar" for "task=code_edit,language=ar"; the pooled row is "All tasks"."""
    return "All tasks" if key == POOLED else show_labels(key, " · ")


def segment_heading(segments: tuple[str, ...]) -> str:
    """Return "Task" where that forms all cells, else "Segment (task · language)", or "Segment"."""
    named = {" · ".join(name for name, _ in split_key(key)) for key in segments if key != POOLED}
    dimensions = named.pop() if len(named) == 1 else ""
    if dimensions == "task":
        return "Task"
    return f"Segment ({dimensions})" if dimensions else "Segment"


def load(name: str, size: LoadSize | None) -> str:
    """Return "low, 4 in flight" or "peak, 12 requests/s"."""
    return name if size is None else f"{name}, {size.short}"
