"""The HTML report: one self-contained file, readable without a network and without a script.

Pure function of the results and, where given, the manifest: each section is built from the results, and the
templates beside this module lay them out. Every string from outside is escaped.
"""

import re
import shlex
from collections.abc import Callable
from datetime import UTC, datetime
from functools import cache
from types import SimpleNamespace
from typing import Any

import msgspec
from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

from draftproof.core.manifests import Manifest
from draftproof.judge.results.run import Figure, Results
from draftproof.tell.report import (
    answers,
    diagnosis,
    kit,
    knee,
    latency,
    order,
    services,
    tokens,
    words,
    write,
)
from draftproof.tell.report.charts import whisker
from draftproof.tell.report.configuration import STANDINGS, build_configuration, count_questions
from draftproof.tell.report.economics import STANDINGS as WORTH_STANDINGS
from draftproof.tell.report.economics import build_economics, write_span, write_volume
from draftproof.tell.report.effects import build_chart, build_figures, build_map, build_ratios
from draftproof.tell.report.explanation import MOST_REASONS, LinkedReason, build_evidence, link_reasons
from draftproof.tell.report.summary import summarise

_SHARE_THRESHOLDS_SUFFIXES = ("_margin", "_gain", "_quantile")
# What stands on the page, in its order: the name in the templates, and what builds it.
SECTIONS: dict[str, Callable[[Results], Any]] = {
    "chart": build_chart,
    "figures": build_figures,
    "envelope": build_map,
    "ratios": build_ratios,
    "means": latency.build_means,
    "latency": latency.build_latency,
    "tails": latency.build_tails,
    "tails_title": latency.tails_title,
    "tails_sentence": latency.tails_sentence,
    "acceptance": tokens.build_acceptance,
    "acceptance_sentence": tokens.acceptance_sentence,
    "delivery": tokens.build_delivery,
    "delivery_sentence": tokens.delivery_sentence,
    "delivery_hints": tokens.delivery_hints,
    "progress": tokens.build_progress,
    "estimators": tokens.build_estimators,
    "order": order.build_order,
    "equivalence": answers.build_equivalence,
    "agreement": answers.build_agreement,
    "agreement_sentence": answers.agreement_sentence,
    "checks": answers.build_checks,
    "checks_sentence": answers.checks_sentence,
    "behaviour": answers.build_behaviour,
    "outcomes": answers.build_outcomes,
    "differences": answers.build_differences,
    "diagnosis": diagnosis.build_diagnosis,
    "time_parts": diagnosis.build_time_section,
    "drafter": diagnosis.build_drafter,
    "knee": knee.build_knee,
    "economics": build_economics,
    "services": services.build_services,
    "phases": services.build_phases,
    "clients": services.build_clients,
    "questions_sentence": count_questions,
    "evidence": build_evidence,
}
_FILTERS: dict[str, Callable[..., str]] = {
    "ratio": write.ratio,
    "times": write.times,
    "ms": write.ms,
    "share": write.share,
    "change": write.change,
    "number": write.number,
    "count": write.count,
    "interval": write.interval,
    "effect_interval": lambda one: write.interval(one, write.ratio) or write.needed(one) or write.MISSING,
    "arm": words.arm,
    "segment": words.segment,
    "comparison": words.comparison,
    "span": write_span,
}


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """What stands around the answer: mark, rule, all reasons with their rows, limits, which run it is of."""

    word: words.Word
    blocks_title: str
    rule: str
    reasons: tuple[LinkedReason, ...]
    most_reasons: int
    thresholds: tuple[tuple[str, str], ...]
    thresholds_hash: str
    identity: tuple[tuple[str, str, str], ...]
    host: tuple[tuple[str, str], ...]


def build_model(results: Results, manifest: Manifest | None) -> SimpleNamespace:
    """Period results, and the manifest where there is one, into what the page shows: `SECTIONS` by name."""
    run = (manifest and manifest.folder) or "RUN"
    return SimpleNamespace(
        results=results,
        run=shlex.quote(run),
        summary=summarise(results, run),
        head=build_head(results, manifest),
        compared_arms=kit.order_arms(results, {effect.arm for effect in results.effects}),
        confidence=f"{results.confidence * 100:g}%",
        configuration=build_configuration(manifest) if manifest else None,
        **{name: build(results) for name, build in SECTIONS.items()},
    )


def build_head(results: Results, manifest: Manifest | None) -> Head:
    """The verdict with its identity."""
    verdict = results.verdict
    return Head(
        word=words.DECISIONS[verdict.decision],
        blocks_title=words.BLOCKS.get(verdict.decision, "Why not yet"),
        rule=describe_rule(results),
        reasons=link_reasons(results, verdict.reasons),
        most_reasons=MOST_REASONS,
        thresholds=describe_thresholds(results.thresholds),
        thresholds_hash=write.digest(results.thresholds_sha256),
        identity=_identity(results, manifest),
        host=tuple(_host_fact(*fact) for fact in manifest.host.items()) if manifest else (),
    )


def describe_rule(results: Results) -> str:
    """Say what counts as a gain and what as harm."""
    what = f"{statistic_label(results.statistic)} {words.metric(results.metric).lower()}"
    gain, harm = (results.thresholds.get(name) for name in ("minimum_gain", "harm_margin"))
    together = (
        f"; the intervals hold for all {len(results.cells):,} cells together, gains load by load"
        if results.cells
        else ""
    )
    return (
        f"The {what}. Gain: even the pessimistic end of the {results.confidence * 100:g}% interval is at "
        f"least {write.share(gain)} faster. Harm: even its optimistic end is more than {write.share(harm)} "
        f"slower{together}. Neither may be explained by what equal services differ by."
    )


def statistic_label(statistic: str) -> str:
    """Return "mean" or "median" for a reader."""
    return {"p50": "median"}.get(statistic, statistic)


def describe_thresholds(thresholds: dict[str, float | int]) -> tuple[tuple[str, str], ...]:
    """Return (meaning, value) in the plan's order; shares in per cent."""
    return tuple(
        (
            words.THRESHOLDS.get(name, name),
            write.share(value) if name.endswith(_SHARE_THRESHOLDS_SUFFIXES) else write.number(value),
        )
        for name, value in thresholds.items()
    )


def _identity(results: Results, manifest: Manifest | None) -> tuple[tuple[str, str, str], ...]:
    """(label, short text, full text for a tooltip)."""
    workload = f"{manifest.workload_name} {manifest.workload_version}" if manifest else results.evidence
    facts = [
        ("Plan", write.digest(results.plan_sha256), results.plan_sha256),
        ("Thresholds", write.digest(results.thresholds_sha256), results.thresholds_sha256),
        ("Workload", f"{workload} · {write.digest(results.workload_sha256)}", results.workload_sha256),
    ]
    if manifest:
        started = datetime.fromtimestamp(manifest.created_wall_ns // 10**9, tz=UTC)
        facts.append(("Started", f"{started:%Y-%m-%d %H:%M} UTC", ""))
        facts.append(("Seed", str(manifest.seed), ""))
    facts.append(("draftproof", results.draftproof_version, ""))
    counts = results.counts.items()
    return (
        *facts,
        *((words.COUNTS.get(name, name.capitalize()), write.count(n), "") for name, n in counts),
    )


def _host_fact(key: str, value: str | float | None) -> tuple[str, str]:
    if key.endswith("_bytes") and isinstance(value, int | float):
        return key.removesuffix("_bytes").replace("_", " "), write.size(int(value))
    return key.replace("_", " "), write.MISSING if value is None else str(value)


def render_html(results: Results, manifest: Manifest | None = None) -> str:
    """Render the whole report as one HTML document; the same input gives the same bytes.

    The manifest adds the host, the arms side by side, and their contracts.
    """
    return render_page("report.html.j2", model=build_model(results, manifest))


# What no HTML document may hold, what moves a terminal's cursor, and what turns the reading direction around.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def render_page(template: str, package: str = "draftproof.tell.report", **shown: Any) -> str:
    """Render a page in the report's style from a template of a package; control characters are replaced."""
    page = _environment(package).get_template(template).render(**shown) + "\n"
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", page)


@cache
def _environment(package: str) -> Environment:
    environment = Environment(
        loader=ChoiceLoader([PackageLoader(package), PackageLoader("draftproof.tell.report")]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(_FILTERS)
    environment.globals.update(
        whisker=whisker,
        describe_basis=tokens.describe_basis,
        is_ours=tokens.is_ours,
        write_end=knee.write_end,
        write_volume=write_volume,
        arm_meanings=words.ARM_MEANINGS,
        statuses=words.STATUSES,
        standings=STANDINGS,
        worth_standings=WORTH_STANDINGS,
        missing=write.MISSING,
        point=lambda axis, value, arm: whisker(axis, Figure(value=value), arm),
        ratio=write.ratio,
        change=write.change,
        number=write.number,
    )
    return environment
