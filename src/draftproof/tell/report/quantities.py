"""How a number is written: sensible digits, units, intervals, and a dash for what is not known.

Pure functions from a number to its text. A missing value is always `MISSING`, never 0.

The words the report uses for arms, statuses, decisions, metrics, thresholds and segments.

One place, so that the page, the terminal and the tests say the same. A name without an entry is shown
as it is.

The terms of the report with their formulas, in the words of the metrics page.
"""

import math
from collections.abc import Sequence

import msgspec

from draftproof.plan.load_size import LoadSize
from draftproof.workload.segments import show_labels, split_key

MISSING = "—"
MINUS = "−"
NS_PER_MS = 1e6


def format_significant(value: float | None) -> str:
    """Write about three significant digits, with thousands separators; infinity as ∞."""
    if value is None or math.isnan(value):
        return MISSING
    if math.isinf(value):
        return "∞" if value > 0 else f"{MINUS}∞"
    return _signed(f"{value:,.{_decimals(abs(value))}f}")


def format_ms(value_ns: float | None) -> str:
    """Write nanoseconds as milliseconds, without the unit."""
    return MISSING if value_ns is None else format_significant(value_ns / NS_PER_MS)


def format_ratio(ratio: float | None) -> str:
    """Write a ratio with two decimals, three below 0.1, one from 10 on."""
    if ratio is None or not math.isfinite(ratio):
        return format_significant(ratio)
    return f"{ratio:.{3 if ratio < 0.1 else 1 if ratio >= 10 else 2}f}"


def format_change(ratio: float | None) -> str:
    """Write a ratio as the change from 1 in per cent: 0.62 becomes −38%, 1.004 becomes +0.4%."""
    if ratio is None or not math.isfinite(ratio):
        return format_significant(ratio)
    return format_points(ratio - 1)


def format_points(difference: float | None) -> str:
    """Write a difference of shares in per cent with its sign; one decimal below ten points."""
    if difference is None or not math.isfinite(difference):
        return format_significant(difference)
    percent = difference * 100
    digits = 1 if abs(percent) < 9.95 else 0
    text = f"{percent:+,.{digits}f}%"
    return f"{0:.{digits}f}%" if float(text[:-1].replace(",", "")) == 0 else _signed(text)


def format_share(share: float | None) -> str:
    """Write a share in per cent; what is not exactly 0 or 1 is never rounded to 0% or 100%."""
    if share is None or not math.isfinite(share):
        return format_significant(share)
    if share in (0, 1):
        return f"{share:.0%}"
    if 0 < share < 0.0005:
        return "<0.1%"
    return ">99.9%" if 0.9995 <= share < 1 else _signed(f"{share:.1%}")


def format_count(count: int | None) -> str:
    """Write a count with thousands separators."""
    return MISSING if count is None else f"{count:,}"


def format_bytes(size_bytes: float | None) -> str:
    """Write a size in MiB or GiB."""
    return format_sizes([size_bytes])[0]


def format_sizes(sizes_bytes: Sequence[float | None]) -> list[str]:
    """Write sizes that stand beside each other in one unit, that of the smallest."""
    known = [one for one in sizes_bytes if one is not None]
    is_large = bool(known) and min(known) >= 2**30

    def write(size_bytes: float | None) -> str:
        if size_bytes is None:
            return MISSING
        return f"{size_bytes / 2**30:,.1f} GiB" if is_large else f"{size_bytes / 2**20:,.0f} MiB"

    return [write(one) for one in sizes_bytes]


def short_hash(digest: str | None) -> str:
    """First twelve characters of a hash, enough to compare by eye."""
    return MISSING if not digest else digest.removeprefix("sha256:")[:12]


def _decimals(magnitude: float) -> int:
    if magnitude == 0 or magnitude >= 99.95:
        return 0
    return 1 if magnitude >= 9.995 else 2 if magnitude >= 0.9995 else 3


def _signed(text: str) -> str:
    return text.replace("-", MINUS)


POOLED = "all"


class Word(msgspec.Struct, frozen=True):
    """A status or decision: its label, a glyph that works without colour, and one line of meaning."""

    label: str
    glyph: str
    meaning: str


STATUSES: dict[str, Word] = {
    "gain": Word(
        "Gain",
        "▲",
        "whole interval better than the minimum gain by more than equal arms differ; guardrails hold",
    ),
    "neutral": Word("Neutral", "●", "whole interval inside the margins: no difference that matters"),
    "harm": Word(
        "Harm",
        "▼",
        "whole interval worse than the harm margin by more than equal arms differ, or a guardrail violated",
    ),
    "inconclusive": Word("Inconclusive", "?", "the interval does not settle it, or too few samples"),
    "invalid": Word("Invalid", "✕", "a fault of client, counters or comparability: nothing is concluded"),
}

COUNTS: dict[str, str] = {
    "records": "Requests written",
    "not_measured_phase": "Warm-up, fill, interrupted",
    "duplicates": "Duplicate ids",
    "unknown": "Unknown items",
    "superseded": "First attempts that gave way",
    "repeated": "Measured more than once",
    "turns": "Turns that count",
    "turns_lagged": "Of these with a late client",
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

METRICS: dict[str, str] = {
    "tpot_ns": "Time per token",
    "ttft_ns": "Time to first token, from sending",
    "ttft_from_schedule_ns": "Time to first token",
    "e2e_ns": "End-to-end time, from sending",
    "e2e_from_schedule_ns": "End-to-end time",
    "output_tokens": "Output length",
}

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
    "minimum_gain": "Gain: the whole interval of the ratio lies below 1 − this",
    "harm_margin": "Harm: the whole interval of the ratio lies above 1 + this",
    "ttft_margin": "First token may come later by at most this share",
    "e2e_margin": "End-to-end time may grow by at most this share",
    "tail_quantile": "The quantile over requests that stands for the tail",
    "tail_margin": "Time per token and first token at that quantile may grow by at most this share",
    "failure_margin": "The share of failed requests may grow by at most this",
    "quality_margin": "The share of passed checks may fall by at most this",
    "output_length_margin": "The mean output length may shift by at most this share",
    "token_limit_margin": "The share of answers that end at the token limit may shift by at most this",
    "dominated_margin": "The alternative dominates where it beats the candidate by more than this share",
    "critical_errors": "New failures of critical checks allowed per load level",
}


def arm_label(arm: str) -> str:
    """Return the arm's name for a reader."""
    return ARMS.get(arm, arm)


def comparison_label(arm: str, versus: str) -> str:
    """Return the name of a comparison; the baseline as the other side goes without saying."""
    return arm_label(arm) if versus == "baseline" else f"{arm_label(arm)} / {arm_label(versus)}"


def sentence_case(text: str) -> str:
    """Return the text with its first letter as a capital."""
    return text[:1].upper() + text[1:]


def metric_label(metric: str) -> str:
    """Return the metric's name for a reader."""
    return METRICS.get(metric, metric)


def segment_label(segment: str) -> str:
    """Return "code_edit · ar" for "task=code_edit,language=ar"; the pooled row is "All segments"."""
    return "All segments" if segment == POOLED else show_labels(segment, " · ")


def segment_heading(segments: tuple[str, ...]) -> str:
    """Return "Segment (task · language)" where all segments share their dimensions, else "Segment"."""
    named = {_dimensions(segment) for segment in segments if segment != POOLED}
    dimensions = named.pop() if len(named) == 1 else ""
    return f"Segment ({dimensions})" if dimensions else "Segment"


def load_label(load: str, size: LoadSize | None) -> str:
    """Return "low, 4 in flight" or "peak, 12 requests/s"."""
    return load if size is None else f"{load}, {size.short}"


def _dimensions(segment: str) -> str:
    return " · ".join(name for name, _ in split_key(segment))


GLOSSARY: tuple[tuple[str, str, str], ...] = (
    (
        "Time per token",
        "tpot_ns = (last content chunk − first content chunk) / (output tokens − tokens in the first chunk)",
        "The rate of generation of one request; an interval where nobody counts its first chunk.",
    ),
    (
        "Time to first token",
        "ttft_from_schedule_ns = first content chunk − time the request was due",
        "Counts waiting in the client, so an overloaded service cannot hide its queue.",
    ),
    (
        "End-to-end time",
        "e2e_from_schedule_ns = last event − time the request was due",
        "What the user waits for the whole answer.",
    ),
    (
        "Failure-inclusive percentile",
        "nearest rank over all requests, a request that is not OK counts as +∞",
        "A service that drops its slow requests does not look fast.",
    ),
    (
        "Effect",
        "ratio = statistic of the arm / the same statistic of the baseline, paired by prompt and block",
        "Below 1 is faster. Intervals come from resampling prompts, with the same draw for both arms.",
    ),
    (
        "Simultaneous interval",
        "widened so that all cells of the run hold together at the stated confidence",
        "Guards against finding a gain by looking at many segments.",
    ),
    (
        "Draft acceptance rate",
        "accepted draft tokens / draft tokens",
        "Says little on its own about speed, so it is never the headline.",
    ),
    (
        "Mean acceptance length (conditional)",
        "1 + accepted draft tokens / verification steps",
        "Counts only steps that had a draft, and includes the target's own token.",
    ),
    (
        "Tokens per decode step (unconditional)",
        "committed tokens / decode steps",
        "Counts every step, drafted or not. This one bounds the speed-up.",
    ),
    (
        "Acceptance at position i",
        "P(draft i accepted | drafts before i accepted, and a draft i existed)",
        "A steep fall means that shorter drafts would do.",
    ),
    (
        "Committed progress",
        "time per committed token = Σ time of rounds / Σ committed tokens",
        "Ordinary decoding commits one token per round. A diagnosis beside the tails, not instead of them.",
    ),
    (
        "End-to-end bound",
        "gain = 1 / ((1 − f) + f / s), at most 1 / (1 − f)",
        "f is the share of time spent decoding, s the speed-up of decoding.",
    ),
    (
        "Cell",
        "segment × load level",
        "The unit of the verdict. An invalid cell is never averaged in.",
    ),
    (
        "Off-off null",
        "the baseline run a second time as if it were another arm",
        "Shows how much two equal arms differ on this machine.",
    ),
)
