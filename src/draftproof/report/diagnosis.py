"""What the baseline's time is spent on at each load, and the most that faster decoding could give.

Pure view of `Results.diagnosis`.
"""

from draftproof.report.grouping import label_column, title_of_load
from draftproof.report.quantities import MISSING, format_ratio, format_share
from draftproof.report.view import Column, Group, Row, Table, text_cell
from draftproof.verdict.results import Diagnosis, Results

_SHARES = "Share of the baseline's time"
_GAIN = "End-to-end gain (baseline / candidate)"


def build_diagnosis(results: Results) -> Table:
    """One row per load level."""
    return Table(
        caption="Where the baseline's time goes, and what faster decoding can give",
        columns=(
            label_column("Load"),
            label_column("Bound by"),
            *(Column(label=label, over=_SHARES) for label in ("queue", "prefill", "decode", "other")),
            Column(label="Decode speed-up"),
            *(Column(label=label, over=_GAIN) for label in ("ceiling", "predicted", "measured")),
            label_column("Reading"),
        ),
        groups=(Group(title="", rows=tuple(_row(results, d) for d in results.diagnosis)),)
        if results.diagnosis
        else (),
    )


def _row(results: Results, diagnosis: Diagnosis) -> Row:
    shares = (
        diagnosis.queue_share,
        diagnosis.prefill_share,
        diagnosis.decode_share,
        diagnosis.other_share,
    )
    gains = (diagnosis.ceiling_gain, diagnosis.predicted_gain, diagnosis.measured_gain)
    return Row(
        cells=(
            text_cell(title_of_load(results, diagnosis.load), head=True),
            text_cell(diagnosis.bound),
            *(text_cell(format_share(share)) for share in shares),
            text_cell(_times(diagnosis.decode_speedup)),
            *(text_cell(_times(gain)) for gain in gains),
            text_cell(diagnosis.text, tone="prose"),
        )
    )


def _times(ratio: float | None) -> str:
    return MISSING if ratio is None else f"{format_ratio(ratio)}×"
