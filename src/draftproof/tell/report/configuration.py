"""The arms side by side, with differences marked, and the contract of each.

Pure view of the manifest. Without one, the report says so and shows no configuration.

The twelve review questions: for the page, and as plain lines for a terminal. Pure view of the results.
"""

from collections.abc import Callable

import msgspec

from draftproof.core.manifests import ArmManifest, Contract, Manifest
from draftproof.judge.results.decision import Question
from draftproof.judge.results.run import Results
from draftproof.tell.report.quantities import (
    MISSING,
    arm_label,
    format_bytes,
    format_count,
    format_significant,
    format_sizes,
)
from draftproof.tell.report.view import Column, Group, Row, Table, TableCell, bullets, text_cell, wrap

_MEMORY = "Resident memory"
_ARM_FACTS: tuple[tuple[str, Callable[[ArmManifest], str]], ...] = (
    ("Engine", lambda arm: arm.engine),
    ("Engine version", lambda arm: arm.engine_version),
    ("Address", lambda arm: arm.url),
    ("Command", lambda arm: " ".join(arm.command) if arm.command else MISSING),
    ("Load time (s)", lambda arm: format_significant(arm.load_time_s)),
    (_MEMORY, lambda arm: format_bytes(arm.resident_bytes)),
    ("Tokens counted by", lambda arm: arm.counting.text if arm.counting else MISSING),
)
# Runs from before these were noted have no such row.
_LATER_FACTS = frozenset({"Tokens counted by"})
# Addresses, commands and start-up costs differ by nature; only settings, engine and version are compared.
_COMPARED_FACTS = frozenset({"Engine", "Engine version"})

_CONTRACT_FACTS: tuple[tuple[str, Callable[[Contract], str | bool | None]], ...] = (
    ("Target model", lambda c: c.target_model),
    ("Target revision", lambda c: c.target_revision),
    ("Target precision", lambda c: c.target_precision),
    ("Target licence", lambda c: c.target_licence),
    ("Target SHA-256", lambda c: c.target_sha256),
    ("Tokenizer SHA-256", lambda c: c.tokenizer_sha256),
    ("Drafter", lambda c: c.drafter_kind),
    ("Drafter identity", lambda c: c.drafter_identity),
    ("Drafter provenance", lambda c: c.drafter_provenance),
    ("Drafter licence", lambda c: c.drafter_licence),
    ("Drafter SHA-256", lambda c: c.drafter_sha256),
    ("Tokenizers compatible", lambda c: c.tokenizer_compatible),
    ("Tokenizer differences", lambda c: "; ".join(c.tokenizer_differences) or None),
    ("Runtime", lambda c: f"{c.runtime} {c.runtime_version}"),
    ("Algorithm", lambda c: c.algorithm),
    ("Same output as the target", lambda c: c.equivalence),
    ("Draft tokens", lambda c: format_count(c.num_spec_tokens)),
    ("Draft policy", lambda c: c.draft_policy),
    ("Devices", lambda c: c.topology),
    ("Longest context (tokens)", lambda c: format_count(c.max_context_tokens)),
    ("Longest output (tokens)", lambda c: format_count(c.max_output_tokens)),
    ("Not supported", lambda c: "; ".join(c.unsupported_features) or None),
    ("Fallback", lambda c: c.fallback),
    ("Forced by the method, charged to the arm", lambda c: "; ".join(c.forced) or None),
)


class Configuration(msgspec.Struct, frozen=True, kw_only=True):
    """The side-by-side table of the arms, the contracts, and the names of what differs."""

    arms: Table
    contracts: Table
    sentence: str


def build_configuration(manifest: Manifest) -> Configuration:
    """Lay arms and contracts out as columns; a row whose values differ is marked."""
    settings = sorted({key for arm in manifest.arms for key in arm.settings})
    differing = [k for k in settings if len({_setting(arm, k) for arm in manifest.arms}) > 1]
    return Configuration(
        arms=Table(
            caption="Arms side by side",
            columns=_columns(tuple(arm.arm for arm in manifest.arms)),
            groups=_filled(
                _fact_group(manifest.arms),
                _platform_group(manifest.arms),
                _settings_group(manifest.arms, settings),
            ),
        ),
        contracts=Table(
            caption="Contract of each arm",
            columns=_columns(tuple(c.arm for c in manifest.contracts)),
            groups=_filled(Group(title="", rows=_contract_rows(manifest.contracts))),
        ),
        sentence=_sentence(differing),
    )


def _sentence(differing: list[str]) -> str:
    if not differing:
        return "The arms have the same settings."
    return f"The arms differ in {len(differing)} setting{'s' if len(differing) > 1 else ''}, marked ≠ below."


def _columns(arms: tuple[str, ...]) -> tuple[Column, ...]:
    return (
        Column(label="Fact", numeric=False),
        *(Column(label=arm_label(arm), numeric=False) for arm in arms),
    )


def _filled(*groups: Group) -> tuple[Group, ...]:
    return tuple(group for group in groups if group.rows and len(group.rows[0].cells) > 1)


def _fact_group(arms: tuple[ArmManifest, ...]) -> Group:
    sizes = format_sizes([arm.resident_bytes for arm in arms])
    facts = [
        (label, sizes if label == _MEMORY else [fact(arm) for arm in arms]) for label, fact in _ARM_FACTS
    ]
    rows = tuple(
        _side_by_side(label, values, compare=label in _COMPARED_FACTS)
        for label, values in facts
        if label not in _LATER_FACTS or set(values) != {MISSING}
    )
    return Group(title="Service", rows=rows)


def _platform_group(arms: tuple[ArmManifest, ...]) -> Group:
    names = sorted({name for arm in arms for name in arm.platform})
    rows = tuple(
        _side_by_side(name, [arm.platform.get(name, MISSING) for arm in arms], compare=True) for name in names
    )
    return Group(title="Platform", rows=rows)


def _settings_group(arms: tuple[ArmManifest, ...], keys: list[str]) -> Group:
    rows = tuple(_side_by_side(key, [_setting(arm, key) for arm in arms], compare=True) for key in keys)
    return Group(title="Settings", rows=rows)


def _contract_rows(contracts: tuple[Contract, ...]) -> tuple[Row, ...]:
    return tuple(
        _side_by_side(label, [_fact_text(fact(c)) for c in contracts], compare=True)
        for label, fact in _CONTRACT_FACTS
    )


def _side_by_side(label: str, values: list[str], *, compare: bool) -> Row:
    differs = compare and len(set(values)) > 1
    head = text_cell(f"{label} ≠" if differs else label, head=True)
    return Row(cells=(head, *(_value_cell(value) for value in values)), tone="differs" if differs else "")


def _value_cell(value: str) -> TableCell:
    return TableCell(text=value, tone="missing" if value == MISSING else "value")


def _setting(arm: ArmManifest, key: str) -> str:
    return _fact_text(arm.settings[key]) if key in arm.settings else MISSING


def _fact_text(value: str | float | None) -> str:
    if value is None or value == "":
        return MISSING
    return {"True": "yes", "False": "no"}.get(str(value), str(value))


STANDINGS = {"answered": ("Answered", "✓"), "partly": ("Partly", "◐"), "open": ("Open", "○")}
OLD = "These results are older than the questions; `draftproof report` computes them anew."


class QuestionView(msgspec.Struct, frozen=True, kw_only=True):
    """One question as the page shows it, with the references that its answer rests on."""

    number: int
    question: str
    standing: str
    label: str
    glyph: str
    answer: str
    missing: tuple[str, ...]
    evidence: tuple[str, ...]


class QuestionSection(msgspec.Struct, frozen=True, kw_only=True):
    """All questions and how many are answered."""

    sentence: str
    questions: tuple[QuestionView, ...]


def build_questions(results: Results) -> QuestionSection:
    """Return the section; a run judged before there were questions has none and says so."""
    return QuestionSection(
        sentence=count_questions(results), questions=tuple(_view(one) for one in results.questions)
    )


def count_questions(results: Results) -> str:
    """Return "Of twelve questions 7 are answered, 3 partly, 2 are open."."""
    if not results.questions:
        return OLD
    counts = {name: sum(one.standing == name for one in results.questions) for name in STANDINGS}
    return (
        f"Of {len(results.questions)} questions that a review asks, this run answers {counts['answered']}, "
        f"answers {counts['partly']} in part and leaves {counts['open']} open."
    )


def render_questions(results: Results) -> str:
    """Render the questions for a terminal; the same results give the same text."""
    lines = wrap(count_questions(results))
    for one in results.questions:
        label, _ = STANDINGS[one.standing]
        lines += ["", f"{one.number}. {one.question}  [{label.lower()}]", *wrap(one.answer)]
        lines += bullets(f"would answer it: {text}" for text in one.missing)
        lines += bullets([f"rests on: {'; '.join(one.evidence)}"] if one.evidence else [])
    return "\n".join(lines)


def _view(question: Question) -> QuestionView:
    label, glyph = STANDINGS[question.standing]
    return QuestionView(
        number=question.number,
        question=question.question,
        standing=question.standing,
        label=label,
        glyph=glyph,
        answer=question.answer,
        missing=question.missing,
        evidence=question.evidence,
    )
