"""Warnings about order, drift and the null, where they are found and large enough to matter. Pure."""

from collections.abc import Iterator

from draftproof.plan.schema import Thresholds
from draftproof.verdict.effects import read_direction
from draftproof.verdict.order.compute import ALL_ARMS
from draftproof.verdict.order.results import DriftRow, OrderSummary, PlaceRow

WORDS = {
    "tpot_ns": "time per token",
    "ttft_from_schedule_ns": "time to first token",
    "e2e_from_schedule_ns": "end-to-end time",
    "output_tokens": "output length",
}


def warn_about_order(
    order: OrderSummary, thresholds: Thresholds, confidence: float, metric: str
) -> Iterator[str]:
    """Yield what is significant after correction and larger than the smallest gain that counts.

    Of the deciding metric two equal arms that differ are named by the interval of that comparison alone.
    """
    alpha, least = 1 - confidence, 1 + thresholds.minimum_gain
    for place in order.places:
        if (
            place.ratios
            and _is_found(place.adjusted_p, alpha)
            and max(place.ratios) / min(place.ratios) > least
        ):
            yield _describe_place(place)
    for row in order.drifts:
        if row.change and _is_found(row.adjusted_p, alpha) and max(row.change, 1 / row.change) > least:
            yield _describe_drift(row)
    for noise in order.noise:
        shown = noise.null if noise.metric == metric else noise.joint
        if read_direction(shown, 1.0) is not None:
            yield (
                f"Two equal arms differ at load {noise.load}: {WORDS[noise.metric]}, null / baseline, "
                f"is {shown.value:.2f} ({shown.low:.2f} to {shown.high:.2f}) over all "
                f"segments; {100 * ((noise.null_difference or 1) - 1):.0f} % count against gain and harm."
            )


def _describe_place(row: PlaceRow) -> str:
    whose = "every arm" if row.arm == ALL_ARMS else row.arm
    factors = ", ".join(f"{ratio:.2f}" for ratio in row.ratios or ())
    return (
        f"At load {row.load} the place in a block matters to {whose}: {WORDS[row.metric]} by place is "
        f"{factors} of the mean (corrected p = {row.adjusted_p:.2g})."
    )


def _describe_drift(row: DriftRow) -> str:
    if row.versus is None:
        what = f"{WORDS[row.metric]} of {row.arm} drifts"
        so = "the arms take turns, so the effect is not moved by what moves all of them"
    else:
        what = f"the effect itself drifts: {row.arm} / {row.versus} in {WORDS[row.metric]} changes"
        so = "the effect stated is an average over the run and may not be what comes next"
    change, hours = 100 * ((row.change or 1) - 1), row.hours or 0.0
    return (
        f"At load {row.load} {what} by {change:+.0f} % over {_span(hours)} "
        f"(corrected p = {row.adjusted_p:.2g}); {so}."
    )


def _span(hours: float) -> str:
    return f"{hours:.1f} h" if hours >= 1 else f"{60 * hours:.0f} min"


def _is_found(adjusted_p: float | None, alpha: float) -> bool:
    return adjusted_p is not None and adjusted_p <= alpha
