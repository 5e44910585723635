"""Answers to the review questions that rest on the contract and on the plan. Pure."""

from collections.abc import Iterable

from draftproof.manifests import ArmManifest, Contract
from draftproof.plan.approval import PLATFORM_PARTS
from draftproof.verdict.equivalence.results import ALL_LOADS
from draftproof.verdict.load_size import widest_limit
from draftproof.verdict.questions.answers import UNDISCLOSED, Answer, Source, grade, write_share
from draftproof.verdict.questions.rollback_words import CRITICAL, describe_rollback, list_triggers

NO_CONTRACT = Answer(
    standing="open",
    answer="The run holds no contract of the candidate.",
    missing=("A run of this version of draftproof, which writes one.",),
)
# What a drafter of these kinds is made of needs no licence of its own.
WITHOUT_WEIGHTS = frozenset({"none", "ngram", "suffix", "prompt_lookup"})
METRICS = {"tpot_ns": "time per token", "e2e_from_schedule_ns": "end-to-end time"}
BLOCKING = {
    "harm_margin": "{metric} wholly beyond +{share}",
    "e2e_margin": "end-to-end time +{share}",
    "ttft_margin": "first token +{share}",
    "tail_margin": "time per token or first token at the tail +{share}",
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
    told = not contract.algorithm.startswith(UNDISCLOSED)
    policy = f" ({contract.draft_policy})" if contract.draft_policy else ""
    versioned = contract.runtime_version not in {"", "unknown"}
    return Answer(
        standing=grade((told, versioned)),
        answer=f"{contract.algorithm}{policy}, on {contract.runtime} {contract.runtime_version}.",
        evidence=("contracts: candidate", "manifest: candidate"),
        missing=()
        if told
        else ("A service that discloses its method: through this one only delivery is seen.",),
    )


def answer_compatible(source: Source) -> Answer:
    """Say whether tokenizers agree and under which licences target and drafter stand."""
    contract = source.contract
    if contract is None:
        return NO_CONTRACT
    weightless = contract.drafter_kind in WITHOUT_WEIGHTS
    licence = contract.drafter_licence or ("none needed" if weightless else None)
    fits = contract.tokenizer_compatible
    words = {
        True: "Draft and target share their token ids",
        False: f"Draft and target differ in their tokens ({_first(contract)})",
        None: "Whether draft and target share their tokens was not checked",
    }
    return Answer(
        standing=grade((fits is not None, contract.target_licence is not None, licence is not None)),
        answer=f"{words[fits]}. Licence of the target: {contract.target_licence or 'not stated'}; "
        f"of the drafter: {licence or 'not stated'}.",
        evidence=("contracts: candidate",),
        missing=(
            *(
                ()
                if fits is not None
                else ("The files of both tokenizers within reach of `draftproof check`.",)
            ),
            *(() if contract.target_licence else ("target.licence in the plan.",)),
            *(() if licence else ("arms.candidate.drafter.licence in the plan.",)),
        ),
    )


def answer_equivalence(source: Source) -> Answer:
    """Say what the method guarantees and what the outputs of this run show."""
    contract = source.contract
    stated = contract.equivalence if contract else None
    shown, rows = _show_outputs(source)
    text = {
        "guaranteed by method": "By its method the candidate keeps the target's output distribution",
        "assumed": "That the engine keeps the target's output distribution is an assumption",
        "tested": "The engine's outputs were tested",
        "approximate": "Its settings change the output: not equivalent",
        None: "Nothing is stated of the method's equivalence",
    }[stated]
    return Answer(
        standing=grade((stated in {"guaranteed by method", "approximate"}, bool(shown)))
        if stated != "approximate"
        else "answered",
        answer=f"{text}. {shown}".strip(),
        evidence=(*(("contracts: candidate",) if contract else ()), *rows),
        missing=(
            *(() if shown else ("Greedy items answered by candidate, baseline and null arm.",)),
            *(("An engine whose verifier is exact by construction.",) if stated in {"assumed", None} else ()),
        ),
    )


def answer_disable(source: Source) -> Answer:
    """Say whether the service was seen without speculation, and what happens when a drafter fails."""
    contract = source.contract
    seen = [cell for load, _ in source.loads if (cell := source.cell_of("baseline", load)) is not None]
    asked = sum(cell.attempted for cell in seen)
    answered = sum(cell.outcomes.get("ok", 0) for cell in seen)
    told = contract is not None and contract.fallback != "unknown"
    fallback = f" When a drafter fails: {contract.fallback}." if contract and told else ""
    is_off = source.drafts("baseline") is False
    text = _describe_plain_service(answered, asked, is_off=is_off)
    return Answer(
        standing=grade((is_off and answered > 0, told, False)),  # no run rehearses the switch itself
        answer=text + fallback,
        evidence=(
            *(f"outcomes: baseline, all × {load}" for load, _ in source.loads),
            *(("contracts: candidate",) if contract else ()),
        ),
        missing=(
            *(() if is_off else ("A baseline that is known not to draft.",)),
            *(() if told else ("What the engine does when its drafter fails: it states nothing.",)),
            "A rehearsal of switching: requests lost and time to recover were not measured.",
        ),
    )


def _describe_plain_service(answered: int, asked: int, *, is_off: bool) -> str:
    if not asked:
        return "No service without speculation was measured."
    if not is_off:
        return (
            f"The baseline answered {answered} of {asked} requests; whether it speculates, it does not say."
        )
    return f"With speculation off the same service, the baseline, answered {answered} of {asked} requests."


def answer_lifecycle(source: Source) -> Answer:
    """Name who answers for the pair, what is put back, and how the drafter is retired."""
    approval = source.plan.approval
    stated: dict[str, object] = {
        name: getattr(approval, name)
        for name in ("owner", "approver", "rollback_artefact", "drafter_retirement")
    }
    words = {
        "owner": "owner {}",
        "approver": "approver {}",
        "rollback_artefact": "to roll back, deploy {}",
        "drafter_retirement": "retirement of the drafter: {}",
    }
    told = [words[name].format(value) for name, value in stated.items() if value]
    triggers = approval.change_triggers if told else ()
    untold = _list_untold(source.contract, source.arm("candidate"))
    blind = [name for name in triggers if name in untold]
    if triggers:
        unknown = f" (not known of this run: {_name(blind)})" if blind else ""
        told.append(f"a change of {_name(triggers)} voids the approval{unknown}")
    return Answer(
        standing=grade(bool(value) for value in stated.values()),
        answer=_sentence("; ".join(told))
        if told
        else "The plan names no owner, no way back and no retirement.",
        evidence=("plan: approval",) if told else (),
        missing=(
            *(f"approval.{name} in the plan." for name, value in stated.items() if not value),
            *((f"A service or files that tell {_name(blind)}.",) if blind else ()),
        ),
    )


def _list_untold(contract: Contract | None, arm: ArmManifest | None) -> tuple[str, ...]:
    """Return the change triggers that this run has no value of, so that no later change of them shows."""
    known = arm.platform if arm else {}
    parts = [part for part, names in PLATFORM_PARTS.items() if not any(name in known for name in names)]
    if contract is None:
        return ("version", "model_hash", "drafter_hash", "tokenizer", *parts)
    has_weights = contract.drafter_kind not in WITHOUT_WEIGHTS
    told = {
        "version": contract.runtime_version not in {"", "unknown"},
        "model_hash": contract.target_sha256 is not None,
        "drafter_hash": contract.drafter_sha256 is not None or not has_weights,
        "tokenizer": contract.tokenizer_sha256 is not None,
    }
    return (*(name for name, is_told in told.items() if not is_told), *parts)


def _name(triggers: Iterable[str]) -> str:
    return ", ".join(triggers).replace("_", " ")


def answer_thresholds(source: Source) -> Answer:
    """List the frozen thresholds that block, and the limits at which operation goes back."""
    values = source.results.thresholds
    blocks = [
        words.format(
            metric=METRICS.get(source.results.metric, source.results.metric),
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
        f" Outside the envelope, above {highest.label} at the latest, ordinary decoding." if highest else ""
    )
    return Answer(
        standing=grade((bool(blocks), is_stated and not any(one.limit != CRITICAL for one in blind))),
        answer=f"Blocks: {', '.join(blocks)}.{limits}{edge}",
        evidence=("thresholds", *(("plan: rollback",) if is_stated else ())),
        missing=(
            *(
                ()
                if is_stated
                else ("The plan's [rollback] table: what is watched and when it is switched off.",)
            ),
            *(("A watch of your own over what no rule watches.",) if blind else ()),
        ),
    )


def _show_outputs(source: Source) -> tuple[str, tuple[str, ...]]:
    """Return what comparing outputs has shown, by the strictest comparison that the run holds."""
    tested = [
        one for one in source.results.equivalence if one.arm == "candidate" and one.versus == "baseline"
    ]
    if tested:
        overall = [one for one in tested if one.load == ALL_LOADS]
        phrases = [f"load {one.load}: {one.phrase}" for one in tested]
        told = "; ".join(phrases)
        if overall:
            told = " ".join((f"over all loads: {overall[0].phrase}.", *overall[0].why[:2]))
        return _sentence(told), ("equivalence: candidate / baseline, all loads",)
    compared = [one for one in source.results.agreements if one.arm == "candidate" and one.compared]
    parts = [
        f"{one.identical} of {one.compared} greedy outputs are the same at load {one.load}"
        for one in compared
    ]
    rows = tuple(f"agreements: candidate / baseline, load {one.load}" for one in compared)
    return _sentence("; ".join(parts)) if parts else "", rows


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")


def _first(contract: Contract) -> str:
    return contract.tokenizer_differences[0] if contract.tokenizer_differences else "no example"
