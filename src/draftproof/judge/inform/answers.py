"""What an answer to a review question is, and those that contract, plan and outputs give. Pure.

An answer holds only what a row of the results, the manifest or the plan says; what nobody measured or stated
is not guessed.
"""

from collections.abc import Iterable

import msgspec

from draftproof.core.manifests import ArmManifest, Contract, Manifest
from draftproof.judge.decide.effects import index_effects
from draftproof.judge.inform.rollback import CRITICAL, describe_rollback, list_triggers
from draftproof.judge.metrics.request import METRIC_WORDS
from draftproof.judge.observe.run_data import ALL_SEGMENTS
from draftproof.judge.results.decide import ALL_LOADS, QuestionStanding, Reference
from draftproof.judge.results.run import ArmCell, Effect, Results
from draftproof.plan.limits import LoadSize, widest_limit
from draftproof.plan.schema import Plan
from draftproof.plan.tables import PLATFORM_PARTS

UNDISCLOSED = "undisclosed"


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """One answer: how far it goes, in one or two sentences, the rows it is based on, and what is missing."""

    standing: QuestionStanding
    answer: str
    evidence: tuple[Reference, ...] = ()
    missing: tuple[str, ...] = ()


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """Everything an answer may be based on."""

    results: Results
    plan: Plan
    manifest: Manifest

    @property
    def contract(self) -> Contract | None:
        """The candidate's contract."""
        return next((one for one in self.manifest.contracts if one.arm == "candidate"), None)

    @property
    def loads(self) -> tuple[tuple[str, LoadSize], ...]:
        """The loads and their sizes, closed loops by requests in flight, then open ones by rate."""
        return tuple(sorted(self.results.sizes.items(), key=lambda level: level[1].order))

    def drafts(self, arm: str) -> bool | None:
        """Return whether an arm's contract says that it drafts, None where it does not tell."""
        kind = next((one.drafter_kind for one in self.manifest.contracts if one.arm == arm), UNDISCLOSED)
        return None if kind == UNDISCLOSED else kind != "none"

    def arm(self, name: str) -> ArmManifest | None:
        """Return what the run wrote down of an arm."""
        return next((one for one in self.manifest.arms if one.arm == name), None)

    def cell_of(self, arm: str, load: str) -> ArmCell | None:
        """Return an arm's figures at a load over all segments."""
        wanted, cells = (arm, ALL_SEGMENTS, load), self.results.arm_cells
        return next((one for one in cells if (one.arm, one.segment, one.load) == wanted), None)

    def is_invalid(self, load: str) -> bool:
        """Return whether every cell of a load is invalid, so that nothing there compares arms."""
        found = [cell.status for cell in self.results.cells if cell.load == load]
        return bool(found) and set(found) == {"invalid"}

    def effect_at(self, load: str, arm: str = "candidate") -> Effect | None:
        """Return the deciding effect of an arm at a load over all segments."""
        return index_effects(self.results.effects).get(
            (self.results.metric, arm, "baseline", ALL_SEGMENTS, load)
        )


def grade(known: Iterable[bool]) -> QuestionStanding:
    """Return "answered" if all parts are known, "open" if none is, else "partly"."""
    parts = list(known)
    if all(parts):
        return "answered"
    return "partly" if any(parts) else "open"


def list_gaps(*wanted: tuple[object, str]) -> tuple[str, ...]:
    """Return what would answer the rest: the texts whose condition does not hold."""
    return tuple(text for holds, text in wanted if not holds)


def write_share(share: float | None) -> str:
    """Return "62 %", or "an unknown share"."""
    return "an unknown share" if share is None else f"{100 * share:.0f} %"


CONTRACT = Reference("contracts", "candidate")
NO_CONTRACT = Answer(
    standing="open",
    answer="The run holds no contract of the candidate.",
    missing=("A run by this version of draftproof, which writes one.",),
)
# What a drafter of these kinds is made of needs no licence of its own.
WITHOUT_WEIGHTS = frozenset({"none", "ngram", "suffix", "prompt_lookup"})
_APPROVAL_WORDS = {
    "owner": "owner {}",
    "approver": "approver {}",
    "rollback_artefact": "to roll back, deploy {}",
    "drafter_retirement": "retirement of the drafter: {}",
}
BLOCKING = {
    "harm_margin": "{metric}: the whole interval above +{share}",
    "e2e_margin": "end-to-end time +{share}",
    "ttft_margin": "time to first token +{share}",
    "tail_margin": "time per token or time to first token in the tail +{share}",
    "output_length_margin": "mean answer length ±{share}",
    "token_limit_margin": "answers that end at the token limit ±{points} points",
    "failure_margin": "failed requests +{points} points",
    "quality_margin": "passed checks −{points} points",
    "critical_errors": "more than {count} new critical errors",
}


def answer_method(source: Source) -> Answer:
    """Name the algorithm, its draft length and the runtime with its version."""
    contract = source.contract
    if contract is None:
        return NO_CONTRACT
    is_disclosed = not contract.algorithm.startswith(UNDISCLOSED)
    policy = f" ({contract.draft_policy})" if contract.draft_policy else ""
    versioned = contract.runtime_version not in {"", "unknown"}
    return Answer(
        standing=grade((is_disclosed, versioned)),
        answer=f"{contract.algorithm}{policy}, on {contract.runtime} {contract.runtime_version}.",
        evidence=(CONTRACT, Reference("manifest", "candidate")),
        missing=list_gaps(
            (is_disclosed, "A service that discloses its method: of this one only delivery is known.")
        ),
    )


def answer_compatible(source: Source) -> Answer:
    """Say whether tokenizers agree and which licences target and drafter have."""
    contract = source.contract
    if contract is None:
        return NO_CONTRACT
    weightless = contract.drafter_kind in WITHOUT_WEIGHTS
    licence = contract.drafter_licence or ("none needed" if weightless else None)
    fits, differences = contract.tokenizer_compatible, (*contract.tokenizer_differences, "no example")
    words = {
        True: "Drafter and target use the same token ids",
        False: f"Drafter and target use different tokens ({differences[0]})",
        None: "Whether drafter and target use the same tokens was not checked",
    }
    return Answer(
        standing=grade((fits is not None, contract.target_licence is not None, licence is not None)),
        answer=f"{words[fits]}. Licence of the target: {contract.target_licence or 'not stated'}; "
        f"of the drafter: {licence or 'not stated'}.",
        evidence=(CONTRACT,),
        missing=list_gaps(
            (fits is not None, "Both tokenizer files where `draftproof check` can read them."),
            (contract.target_licence, "target.licence in the plan."),
            (licence, "arms.candidate.drafter.licence in the plan."),
        ),
    )


def answer_equivalence(source: Source) -> Answer:
    """Say what the method guarantees and what the outputs of this run show."""
    contract = source.contract
    stated = contract.equivalence if contract else None
    shown, rows = _show_outputs(source)
    text = {
        "guaranteed by method": "The candidate's method keeps the target's output distribution",
        "assumed": "That the engine keeps the target's output distribution is an assumption",
        "tested": "The engine's outputs were tested",
        "approximate": "Its settings change the output: not equivalent",
        None: "Whether the method keeps the target's output distribution is not stated",
    }[stated]
    return Answer(
        standing=grade((stated in {"guaranteed by method", "approximate"}, bool(shown)))
        if stated != "approximate"
        else "answered",
        answer=f"{text}. {shown}".strip(),
        evidence=(*((CONTRACT,) if contract else ()), *rows),
        missing=list_gaps(
            (shown, "Greedy items answered by candidate, baseline and null arm."),
            (stated not in {"assumed", None}, "An engine whose verifier is exact by construction."),
        ),
    )


def answer_disable(source: Source) -> Answer:
    """Say whether the service was seen without speculation, and what happens when a drafter fails."""
    contract = source.contract
    seen = [cell for load, _ in source.loads if (cell := source.cell_of("baseline", load)) is not None]
    asked = sum(cell.attempted for cell in seen)
    answered = sum(cell.outcomes.get("ok", 0) for cell in seen)
    is_stated = contract is not None and contract.fallback != "unknown"
    fallback = f" When a drafter fails: {contract.fallback}." if contract and is_stated else ""
    is_off = source.drafts("baseline") is False
    text = _describe_plain_service(answered, asked, is_off=is_off)
    return Answer(
        standing=grade((is_off and answered > 0, is_stated, False)),  # no run rehearses the switch itself
        answer=text + fallback,
        evidence=(
            *(Reference("outcomes", "baseline", at=(ALL_SEGMENTS, load)) for load, _ in source.loads),
            *((CONTRACT,) if contract else ()),
        ),
        missing=list_gaps(
            (is_off, "A baseline that is known not to draft."),
            (is_stated, "What the engine does when its drafter fails; it does not say."),
            (False, "A test of switching it off: lost requests and recovery time were not measured."),
        ),
    )


def _describe_plain_service(answered: int, asked: int, *, is_off: bool) -> str:
    if not asked:
        return "No service without speculation was measured."
    if not is_off:
        return f"The baseline answered {answered} of {asked} requests; it does not say whether it speculates."
    return f"With speculation off, the same service (the baseline) answered {answered} of {asked} requests."


def answer_lifecycle(source: Source) -> Answer:
    """Name who answers for the pair, what is put back, and how the drafter is retired."""
    approval = source.plan.approval
    stated: dict[str, object] = {name: getattr(approval, name) for name in _APPROVAL_WORDS}
    parts = [_APPROVAL_WORDS[name].format(value) for name, value in stated.items() if value]
    triggers = approval.change_triggers if parts else ()
    unknown_triggers = _list_unknown_triggers(source.contract, source.arm("candidate"))
    blind = [name for name in triggers if name in unknown_triggers]
    if triggers:
        unknown = f" (their values in this run are unknown: {_name(blind)})" if blind else ""
        parts.append(f"a change of {_name(triggers)} voids the approval{unknown}")
    return Answer(
        standing=grade(bool(value) for value in stated.values()),
        answer=_sentence("; ".join(parts))
        if parts
        else "The plan names no owner, no rollback and no retirement of the drafter.",
        evidence=(Reference("plan", name="approval"),) if parts else (),
        missing=list_gaps(
            *((value, f"approval.{name} in the plan.") for name, value in stated.items()),
            (not blind, f"A service or files that state {_name(blind)}."),
        ),
    )


def _list_unknown_triggers(contract: Contract | None, arm: ArmManifest | None) -> tuple[str, ...]:
    """Return the change triggers that this run has no value of, so that no later change of them shows."""
    known = arm.platform if arm else {}
    parts = [part for part, names in PLATFORM_PARTS.items() if not any(name in known for name in names)]
    if contract is None:
        return ("version", "model_hash", "drafter_hash", "tokenizer", *parts)
    has_weights = contract.drafter_kind not in WITHOUT_WEIGHTS
    known_by_trigger = {
        "version": contract.runtime_version not in {"", "unknown"},
        "model_hash": contract.target_sha256 is not None,
        "drafter_hash": contract.drafter_sha256 is not None or not has_weights,
        "tokenizer": contract.tokenizer_sha256 is not None,
    }
    return (*(name for name, is_known in known_by_trigger.items() if not is_known), *parts)


def _name(triggers: Iterable[str]) -> str:
    return ", ".join(triggers).replace("_", " ")


def answer_thresholds(source: Source) -> Answer:
    """List the frozen thresholds that block, and the limits at which operation goes back."""
    values = source.results.thresholds
    blocks = [
        words.format(
            metric=METRIC_WORDS[source.results.metric],
            share=write_share(values[name]),
            points=f"{100 * values[name]:g}",
            count=f"{values[name]:g}",
        )
        for name, words in BLOCKING.items()
        if name in values and not (name == "e2e_margin" and source.results.metric != "tpot_ns")
    ]
    is_stated = "rollback" in source.plan.model_fields_set
    blind = [one for one in list_triggers(source.plan) if one.unwatched] if is_stated else []
    limits = describe_rollback(source.plan) if is_stated else ""
    highest = widest_limit(one.limit for one in source.results.verdict.envelope)
    edge = (
        f" Outside the envelope, at the latest above {highest.label}: ordinary decoding." if highest else ""
    )
    return Answer(
        standing=grade((bool(blocks), is_stated and not any(one.limit != CRITICAL for one in blind))),
        answer=f"Blocks: {', '.join(blocks)}.{limits}{edge}",
        evidence=(Reference("thresholds"), *((Reference("plan", name="rollback"),) if is_stated else ())),
        missing=list_gaps(
            (
                is_stated,
                "The plan's [rollback] table: what is watched, and when speculation is switched off.",
            ),
            (not blind, "Your own monitoring of what no rule watches."),
        ),
    )


def _show_outputs(source: Source) -> tuple[str, tuple[Reference, ...]]:
    """Return what comparing outputs has shown, by the strictest comparison that the run holds."""
    tested = [
        one for one in source.results.equivalence if one.arm == "candidate" and one.versus == "baseline"
    ]
    if tested:
        overall = [one for one in tested if one.load == ALL_LOADS]
        phrases = [f"load {one.load}: {one.phrase}" for one in tested]
        shown = "; ".join(phrases)
        if overall:
            shown = " ".join((f"over all loads: {overall[0].phrase}.", *overall[0].why[:2]))
        return _sentence(shown), (Reference("equivalence", "candidate", "baseline", at=ALL_LOADS),)
    compared = [one for one in source.results.agreements if one.arm == "candidate" and one.compared]
    parts = [
        f"{one.identical} of {one.compared} greedy outputs are the same at load {one.load}"
        for one in compared
    ]
    rows = tuple(Reference("agreements", "candidate", "baseline", at=one.load) for one in compared)
    return _sentence("; ".join(parts)) if parts else "", rows


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")
