"""The HTML report: one self-contained file, readable without a network and without a script.

Lays the view model out with the templates beside this module. Every string from outside is escaped.

The view model: everything the page shows, in its order, as strings and small numbers.

Pure function of the results and, where given, the manifest. Templates only lay it out.
"""

import re
from datetime import UTC, datetime
from functools import cache

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined

from draftproof.core.manifests import Manifest
from draftproof.judge.results.run import EnvelopeEntry, Results
from draftproof.tell.report.acceptance import (
    ProgressChart,
    acceptance_sentence,
    build_acceptance,
    build_progress,
)
from draftproof.tell.report.behaviour import BehaviourSection, build_behaviour
from draftproof.tell.report.configuration import (
    Configuration,
    QuestionSection,
    build_configuration,
    build_questions,
)
from draftproof.tell.report.delivery import build_delivery, delivery_hints, delivery_sentence
from draftproof.tell.report.drafter import DrafterSection, build_drafter
from draftproof.tell.report.economics import EconomicsSection, build_economics
from draftproof.tell.report.effects import EffectChart, EnvelopeMap, build_effect_charts, build_map
from draftproof.tell.report.equivalence import EquivalenceSection, build_equivalence
from draftproof.tell.report.estimators import RivalChart, build_estimators, build_rivals, rivals_sentences
from draftproof.tell.report.explanation import (
    MOST_REASONS,
    EvidenceSection,
    LinkedReason,
    build_evidence,
    link_reasons,
)
from draftproof.tell.report.knee import KneeSection, build_knee
from draftproof.tell.report.latency import (
    LatencyPart,
    build_latency,
    build_tails,
    tails_sentence,
    tails_title,
)
from draftproof.tell.report.order import OrderSection, build_order
from draftproof.tell.report.outcomes import (
    agreement_sentence,
    build_agreement,
    build_checks,
    build_differences,
    build_outcomes,
    checks_sentence,
)
from draftproof.tell.report.phases import ClientSection, PhaseSection, build_clients, build_phases
from draftproof.tell.report.quantities import (
    ARM_MEANINGS,
    COUNTS,
    DECISIONS,
    GLOSSARY,
    MISSING,
    THRESHOLDS,
    Word,
    format_bytes,
    format_count,
    format_share,
    format_significant,
    metric_label,
    segment_label,
    sentence_case,
    short_hash,
)
from draftproof.tell.report.services import ServiceSection, build_services
from draftproof.tell.report.time_parts import TimeSection, build_diagnosis, build_time_section
from draftproof.tell.report.view import Panel, Table, order_arms

_SHARE_THRESHOLDS_SUFFIXES = ("_margin", "_gain", "_quantile")


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """The top of the page: the verdict, what it rests on, and which run it is of."""

    title: str
    question: str
    decision: str
    word: Word
    sentence: str
    evidence_level: str
    evidence: str
    reasons: tuple[LinkedReason, ...]
    most_reasons: int
    envelope: tuple[str, ...]
    deciding: str
    thresholds: tuple[tuple[str, str], ...]
    thresholds_hash: str
    identity: tuple[tuple[str, str, str], ...]
    host: tuple[tuple[str, str], ...]


class ReportModel(msgspec.Struct, frozen=True, kw_only=True):
    """The whole page."""

    head: Head
    envelope: EnvelopeMap
    questions: QuestionSection
    evidence: EvidenceSection
    effects: tuple[EffectChart, ...]
    compared_arms: tuple[tuple[str, str], ...]
    confidence: str
    latency: tuple[LatencyPart, ...]
    acceptance: tuple[Panel, ...]
    acceptance_sentence: str
    delivery: Table
    delivery_sentence: str
    delivery_hints: tuple[str, ...]
    progress: ProgressChart
    tails: tuple[Panel, ...]
    tails_title: str
    tails_sentence: str
    estimators: RivalChart
    rivals: Table
    rivals_sentences: tuple[str, ...]
    order: OrderSection
    agreement: Table
    agreement_sentence: str
    equivalence: EquivalenceSection
    checks: tuple[Panel, ...]
    checks_sentence: str
    behaviour: BehaviourSection
    differences: Table
    outcomes: Table
    diagnosis: Table
    time_parts: TimeSection | None
    drafter: DrafterSection | None
    economics: EconomicsSection | None
    knee: KneeSection | None
    services: ServiceSection
    phases: PhaseSection
    clients: ClientSection
    not_measured: tuple[str, ...]
    warnings: tuple[str, ...]
    configuration: Configuration | None
    glossary: tuple[tuple[str, str, str], ...]
    version: str


def build_model(results: Results, manifest: Manifest | None) -> ReportModel:
    """Turn results, and the manifest where there is one, into what the page shows."""
    return ReportModel(
        head=build_head(results, manifest),
        envelope=build_map(results),
        questions=build_questions(results),
        evidence=build_evidence(results),
        effects=build_effect_charts(results),
        compared_arms=_compared_arms(results),
        confidence=f"{results.confidence * 100:g}%",
        latency=build_latency(results),
        acceptance=build_acceptance(results),
        acceptance_sentence=acceptance_sentence(results),
        delivery=build_delivery(results),
        delivery_sentence=delivery_sentence(results),
        delivery_hints=delivery_hints(results),
        progress=build_progress(results),
        tails=build_tails(results),
        tails_title=tails_title(results),
        tails_sentence=tails_sentence(results),
        estimators=build_estimators(results),
        rivals=build_rivals(results),
        rivals_sentences=rivals_sentences(results),
        order=build_order(results),
        agreement=build_agreement(results),
        agreement_sentence=agreement_sentence(results),
        equivalence=build_equivalence(results),
        checks=build_checks(results),
        checks_sentence=checks_sentence(results),
        behaviour=build_behaviour(results),
        differences=build_differences(results),
        outcomes=build_outcomes(results),
        diagnosis=build_diagnosis(results),
        time_parts=build_time_section(results),
        drafter=build_drafter(results),
        economics=build_economics(results),
        knee=build_knee(results),
        services=build_services(results),
        phases=build_phases(results),
        clients=build_clients(results),
        not_measured=results.not_measured,
        warnings=results.warnings,
        configuration=build_configuration(manifest) if manifest else None,
        glossary=GLOSSARY,
        version=results.draftproof_version,
    )


def build_head(results: Results, manifest: Manifest | None) -> Head:
    """The verdict with its identity."""
    verdict = results.verdict
    return Head(
        title=results.run_name,
        question=results.question,
        decision=verdict.decision,
        word=DECISIONS.get(verdict.decision, Word(verdict.decision, "", "")),
        sentence=verdict.sentence,
        evidence_level=verdict.evidence_level,
        evidence=results.evidence,
        reasons=link_reasons(results, verdict.reasons),
        most_reasons=MOST_REASONS,
        envelope=tuple(sentence_case(line) for line in describe_envelope(verdict.envelope)),
        deciding=f"{metric_label(results.metric).lower()}, {statistic_label(results.statistic)}",
        thresholds=describe_thresholds(results.thresholds),
        thresholds_hash=short_hash(results.thresholds_sha256),
        identity=_identity(results, manifest),
        host=_host(manifest),
    )


def _compared_arms(results: Results) -> tuple[tuple[str, str], ...]:
    """(arm, what it is) for every arm that is compared with the baseline."""
    arms = order_arms(results, {effect.arm for effect in results.effects})
    return tuple((arm, ARM_MEANINGS.get(arm, arm)) for arm in arms)


def statistic_label(statistic: str) -> str:
    """Return "mean" or "median" for a reader."""
    return {"p50": "median"}.get(statistic, statistic)


def describe_envelope(entries: tuple[EnvelopeEntry, ...]) -> tuple[str, ...]:
    """One line per limit, e.g. "up to 4 requests in flight, context up to 1,024 tokens: rewriting, chat"."""
    by_limit: dict[str, list[str]] = {}
    for entry in sorted(entries, key=lambda e: e.limit.order, reverse=True):
        by_limit.setdefault(_limit(entry), []).append(segment_label(entry.segment))
    return tuple(f"{limit}: {', '.join(segments)}" for limit, segments in by_limit.items())


def _limit(entry: EnvelopeEntry) -> str:
    context = entry.max_context_tokens
    tail = "" if context is None else f", context up to {context:,} tokens"
    tail += " (longer ones show harm)" if entry.context == "limited" else ""
    return f"up to {entry.limit.label}{tail}"


def describe_thresholds(thresholds: dict[str, float | int]) -> tuple[tuple[str, str], ...]:
    """Return (meaning, value) in the plan's order; shares in per cent."""
    return tuple(
        (
            THRESHOLDS.get(name, name),
            format_share(value) if name.endswith(_SHARE_THRESHOLDS_SUFFIXES) else format_significant(value),
        )
        for name, value in thresholds.items()
    )


def _identity(results: Results, manifest: Manifest | None) -> tuple[tuple[str, str, str], ...]:
    """(label, short text, full text for a tooltip)."""
    workload = f"{manifest.workload_name} {manifest.workload_version}" if manifest else results.evidence
    facts = [
        ("Plan", short_hash(results.plan_sha256), results.plan_sha256),
        ("Thresholds", short_hash(results.thresholds_sha256), results.thresholds_sha256),
        ("Workload", f"{workload} · {short_hash(results.workload_sha256)}", results.workload_sha256),
    ]
    if manifest:
        started = datetime.fromtimestamp(manifest.created_wall_ns // 10**9, tz=UTC)
        facts.append(("Started", f"{started:%Y-%m-%d %H:%M} UTC", ""))
        facts.append(("Seed", str(manifest.seed), ""))
    facts.append(("draftproof", results.draftproof_version, ""))
    return (
        *facts,
        *((COUNTS.get(name, name.capitalize()), format_count(n), "") for name, n in results.counts.items()),
    )


def _host(manifest: Manifest | None) -> tuple[tuple[str, str], ...]:
    if manifest is None:
        return ()
    return tuple(_host_fact(key, value) for key, value in manifest.host.items())


def _host_fact(key: str, value: str | float | None) -> tuple[str, str]:
    if key.endswith("_bytes") and isinstance(value, int | float):
        return key.removesuffix("_bytes").replace("_", " "), format_bytes(int(value))
    return key.replace("_", " "), MISSING if value is None else str(value)


# What no HTML document may hold, what moves a terminal's cursor, and what turns the reading direction around.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_STAND_IN = "\N{REPLACEMENT CHARACTER}"


def render_html(results: Results, manifest: Manifest | None = None) -> str:
    """Render the whole report as one HTML document; the same input gives the same bytes.

    Args:
        results: what `results.json` holds.
        manifest: facts of the run; adds the host, the arms side by side, and their contracts.
    """
    model = build_model(results, manifest)
    page = _environment().get_template("report.html.j2").render(model=model) + "\n"
    return _CONTROL.sub(_STAND_IN, page)


@cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("draftproof.tell.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
