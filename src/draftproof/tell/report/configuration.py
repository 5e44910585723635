"""The arms side by side, with differences marked, the contract of each, and the twelve review questions.

Pure view of manifest and results. Without a manifest the report shows no configuration.
"""

from collections.abc import Callable, Sequence

import msgspec

from draftproof.core.manifests import ArmManifest, Contract, Manifest
from draftproof.judge.results.run import Results
from draftproof.tell.report import kit, write
from draftproof.tell.report.kit import Fact, Table
from draftproof.tell.report.write import MISSING

_MEMORY = "Resident memory"
_ARM_FACTS: tuple[tuple[str, Callable[[ArmManifest], str]], ...] = (
    ("Engine", lambda arm: arm.engine),
    ("Engine version", lambda arm: arm.engine_version),
    ("Address", lambda arm: arm.url),
    ("Command", lambda arm: " ".join(arm.command) if arm.command else MISSING),
    ("Load time (s)", lambda arm: write.number(arm.load_time_s)),
    (_MEMORY, lambda arm: write.size(arm.resident_bytes)),
    ("Tokens counted by", lambda arm: arm.counting.text if arm.counting else MISSING),
)
# Runs from before these were noted have no such row.
_LATER_FACTS = frozenset({"Tokens counted by"})
# Addresses, commands and start-up costs differ by nature; only settings, engine and version are compared.
_COMPARED_FACTS = frozenset({"Engine", "Engine version"})
_DIFFERS = " ≠"
_SAME = "\u00a0"  # the style sheet puts a sign there

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
    ("Draft tokens", lambda c: write.count(c.num_spec_tokens)),
    ("Draft policy", lambda c: c.draft_policy),
    ("Devices", lambda c: c.topology),
    ("Longest context (tokens)", lambda c: write.count(c.max_context_tokens)),
    ("Longest output (tokens)", lambda c: write.count(c.max_output_tokens)),
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
    arms, contracts = manifest.arms, manifest.contracts
    keys = sorted({key for arm in arms for key in arm.settings})
    settings = [_mark(key, [_fact_text(arm.settings.get(key)) for arm in arms]) for key in keys]
    names = sorted({name for arm in arms for name in arm.platform})
    platform = [_mark(name, [arm.platform.get(name, MISSING) for arm in arms]) for name in names]
    stated = [_mark(label, [_fact_text(fact(one)) for one in contracts]) for label, fact in _CONTRACT_FACTS]
    stated = [fact for fact in stated if set(fact[1]) - {MISSING, _SAME}]
    groups = [("Service", _list_facts(arms)), ("Platform", platform), ("Settings", settings)]
    return Configuration(
        arms=_side_by_side("Arms side by side", [arm.arm for arm in arms], groups),
        contracts=_side_by_side("Contract of each arm", [one.arm for one in contracts], [("", stated)]),
        sentence=_sentence(sum(map(_differs, settings))),
    )


def _sentence(differing: int) -> str:
    if not differing:
        return "The arms have the same settings."
    return f"The arms differ in {differing} setting{'s' if differing > 1 else ''}, marked ≠ below."


def _side_by_side(caption: str, arms: Sequence[str], groups: Sequence[tuple[str, Sequence[Fact]]]) -> Table:
    def cell(value: str) -> kit.TableCell:
        return kit.TableCell(text=value, tone={MISSING: "missing", _SAME: "same"}.get(value, "value"))

    def tone(fact: Fact) -> str:
        return "differs" if _differs(fact) else ""

    return kit.side_by_side(caption, "Fact", arms, groups, cell, numeric=False, tone=tone)


def _mark(label: str, values: Sequence[str]) -> Fact:
    """Return a fact whose label tells whether the arms differ in it; what all share is written once."""
    if len(set(values)) > 1:
        return f"{label}{_DIFFERS}", values
    return label, [*values[:1], *(_SAME for _ in values[1:])]


def _differs(fact: Fact) -> bool:
    return fact[0].endswith(_DIFFERS)


def _list_facts(arms: Sequence[ArmManifest]) -> list[Fact]:
    sizes = write.sizes([arm.resident_bytes for arm in arms])
    facts = [
        (label, sizes if label == _MEMORY else [fact(arm) for arm in arms]) for label, fact in _ARM_FACTS
    ]
    return [
        _mark(label, values) if label in _COMPARED_FACTS else (label, values)
        for label, values in facts
        if label not in _LATER_FACTS or set(values) != {MISSING}
    ]


def _fact_text(value: str | float | None) -> str:
    if value is None or value == "":
        return MISSING
    return {"True": "yes", "False": "no"}.get(str(value), str(value))


STANDINGS = {"answered": ("Answered", "✓"), "partly": ("Partly", "◐"), "open": ("Open", "○")}
OLD = "These results are older than the questions; `draftproof report` computes them anew."


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
    told = write.wrap(count_questions(results))
    for one in results.questions:
        label, _ = STANDINGS[one.standing]
        told += ["", f"{one.number}. {one.question}  [{label.lower()}]", *write.wrap(one.answer)]
        told += write.bullets(f"would answer it: {text}" for text in one.missing)
        told += write.bullets([f"based on: {'; '.join(one.evidence)}"] if one.evidence else [])
    return "\n".join(told)
