"""The terminal page of `draftproof samples`: what is needed and what there is, in columns."""

from draftproof.judge.results.samples import Need, SamplePlan
from draftproof.tell.report import words, write
from draftproof.tell.report.write import MISSING

_TITLES = {
    "gain": "A gain in every cell ({level} simultaneous)",
    "tail": "The tail is no worse than its margin, over each load ({level})",
    "share": "Failures, checks and ends of answers are no worse than their margins, over each load ({level})",
}


def render_samples(found: SamplePlan) -> str:
    """Render what a plan takes; the same answer gives the same text."""
    gains = [need for need in found.needs if need.aim == "gain"]
    tails = [need for need in found.needs if need.aim == "tail"]
    shares = [need for need in found.needs if need.aim in ("failures", "checks", "limit")]
    return write.join(
        (
            write.wrap(found.sentence),
            _table("gain", gains, found),
            _table("tail", tails, found),
            _table("share", shares, found),
            write.bullets(_explain(found)),
        )
    )


def _table(kind: str, needs: list[Need], found: SamplePlan) -> list[str]:
    has = ("Workload", "Measured") if found.run else ("Workload",)
    header = ("What", "Load", "Spread", "Needed", *has, "More", "Unit")
    rows = [_row(need, measured=bool(found.run)) for need in needs]
    title = _TITLES[kind].format(level=f"{100 * needs[0].level:.4g}%") if needs else ""
    return write.section(title, [*write.table(header, rows), *write.bullets(_list_reasons(needs))])


def _list_reasons(needs: list[Need]) -> list[str]:
    """Return why no number helps, each reason once with the rows that it holds for."""
    rows: dict[str, list[str]] = {}
    for need in needs:
        if need.reason is not None:
            rows.setdefault(need.reason, []).append(f"{_name(need)} at {need.load}")
    return [f"{', '.join(names)}: {reason}." for reason, names in rows.items()]


def _row(need: Need, *, measured: bool) -> tuple[str, ...]:
    counted = (f"{need.have:,}", "" if need.measured is None else f"{need.measured:,}")
    return (
        _name(need),
        need.load,
        _spreads(need),
        _needed(need),
        *(counted if measured else counted[:1]),
        MISSING if need.more is None else f"{need.more:,}",
        need.unit,
    )


def _name(need: Need) -> str:
    if need.aim == "gain":
        return words.segment(need.segment)
    if need.aim == "tail":
        return f"{need.statistic} of {words.METRICS.get(need.quantity, need.quantity).lower()}"
    return words.QUANTITIES.get(need.quantity, need.quantity)


def _spreads(need: Need) -> str:
    form = write.share if need.statistic == "share" else write.number
    ends = list(dict.fromkeys((form(need.spreads[0]), form(need.spreads[-1]))))
    return "–".join(ends) + ("" if need.source == "run" else " assumed")


def _needed(need: Need) -> str:
    ends = list(dict.fromkeys(f"{count:,}" for count in (*need.needed[:1], *need.needed[-1:])))
    return "–".join(ends)


def _explain(found: SamplePlan) -> list[str]:
    source = (
        f"Spreads are those of {found.run} with the upper end of their 80 % interval; More is beyond what "
        "that run measured, at the larger spread."
        if found.run
        else "Spreads are assumed; name an earlier run with --run for its own. More is beyond the workload, "
        "at the larger spread."
    )
    meaning = (
        "Spread: standard deviation of logarithms, for a mean that of the ratio between prompts, for a "
        "quantile that of the values between requests; for shares the part of pairs that do not agree."
    )
    return [
        source,
        meaning,
        "Needed prompts are distinct ones; repeats of a prompt make its own figure steadier and add none.",
    ]
