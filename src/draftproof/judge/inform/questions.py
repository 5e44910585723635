"""The twelve questions of a review, each answered from this run or left open with what would answer it. Pure.

An answer holds only what a row of the results, the manifest or the plan says; what nobody measured or stated
is not guessed. The order and the wording of the questions are fixed, so that reviews can be compared.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import msgspec

from draftproof.core.manifests import ArmManifest, Contract, Manifest
from draftproof.judge.decide.effects import index_effects
from draftproof.judge.decide.wording import METRIC_WORDS, name_reason
from draftproof.judge.inform.rollback import CRITICAL, describe_rollback, list_triggers
from draftproof.judge.observe.run_data import ALL_SEGMENTS
from draftproof.judge.results.decision import ALL_LOADS, LabelAcceptance, Question, QuestionStanding
from draftproof.judge.results.figure import describe
from draftproof.judge.results.run import ArmCell, Cell, Diagnosis, Effect, Results
from draftproof.plan.load_size import LoadSize, widest_limit
from draftproof.plan.schema import Plan
from draftproof.plan.tables import PLATFORM_PARTS

UNDISCLOSED = "undisclosed"
GIB = 2**30
ASKED_DIMENSIONS = {
    "language": ("language",),
    "task": ("task",),
    "length": ("prompt_length", "answer_length"),
}


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """One answer: how far it goes, in one or two sentences, the rows it rests on, and what is missing."""

    standing: QuestionStanding
    answer: str
    evidence: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """Everything an answer may rest on."""

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


def answer_delay(source: Source) -> Answer:
    """Say how much of the baseline's time is decoding, the only part that speculation shortens."""
    known = [one for one in source.results.diagnosis if one.decode_share is not None]
    if not known:
        return Answer(
            standing="open",
            answer="The run does not tell how much of a request's time is decoding.",
            missing=("Answered requests of the baseline whose chunks were timed.",),
        )
    parts = [
        f"{write_share(one.decode_share)} of a request's time is decoding at load {one.load}{_others(one)}"
        for one in _ends(source, known)
    ]
    apart = all(one.queue_share is not None for one in known)
    return Answer(
        standing="answered" if apart else "partly",
        answer=f"The time between tokens: {'; '.join(parts)}. Speculation shortens the decoding alone.",
        evidence=tuple(f"diagnosis: load {one.load}" for one in known),
        missing=list_gaps((apart, "A service that tells queueing and prefill apart from decoding.")),
    )


def answer_bound(source: Source) -> Answer:
    """Say what the baseline is bound by at each load and the ceiling of any gain."""
    rows = source.results.diagnosis
    named = [one for one in rows if one.bound != "unknown"]
    parts = [
        f"{one.bound} at load {one.load}"
        + (f" (no more than {one.ceiling_gain:.2f} times as fast end to end)" if one.ceiling_gain else "")
        for one in _ends(source, named)
    ]
    return Answer(
        standing=grade(one.bound != "unknown" for one in rows) if rows else "open",
        answer=f"The baseline is {'; '.join(parts)}." if parts else "No bound could be named at any load.",
        evidence=tuple(f"diagnosis: load {one.load}" for one in named),
        missing=list_gaps(
            (
                rows and len(named) == len(rows),
                "Server timings of the baseline at every load, or an engine that discloses them.",
            )
        ),
    )


def answer_resources(source: Source) -> Answer:
    """Compare resident memory and energy per token of candidate and baseline."""
    memory, memory_rows = _compare_memory(source)
    energy, energy_rows = _compare_energy(source)
    told = [text for text in (memory, energy) if text is not None]
    return Answer(
        standing=grade((memory is not None, energy is not None)),
        answer=" ".join(told) if told else "Neither memory nor energy of the services was measured.",
        evidence=(*memory_rows, *energy_rows),
        missing=list_gaps(
            (memory, "Memory: a launched service, or GPU memory read by the sampler."),
            (energy, "Energy: a machine with readable power counters."),
        ),
    )


def answer_acceptance(source: Source) -> Answer:
    """Give the span of accepted shares over the labels of every dimension that was asked for."""
    found = source.results.label_acceptance
    drafted = [
        load for load, _ in source.loads if any(one.load == load and one.num_draft_tokens for one in found)
    ]
    if not drafted:
        return _answer_by_counters(source)
    load = drafted[0]
    rows = [one for one in found if one.load == load and one.num_draft_tokens]
    by_kind = {
        kind: [one for one in rows if one.dimension in dimensions]
        for kind, dimensions in ASKED_DIMENSIONS.items()
    }
    told = {kind: found for kind, found in by_kind.items() if len({one.label for one in found}) > 1}
    parts = [f"by {kind} {_span(found)}" for kind, found in told.items()]
    pooled = source.cell_of("candidate", load)
    rate = pooled.acceptance.draft_acceptance_rate if pooled and pooled.acceptance else None
    text = f"{write_share(rate)} of drafted tokens are accepted at load {load}"
    return Answer(
        standing=grade(kind in told for kind in ASKED_DIMENSIONS) if told else "partly",
        answer=f"{text}: {'; '.join(parts)}." if parts else f"{text}.",
        evidence=(
            f"acceptance: candidate, all × {load}",
            *dict.fromkeys(
                f"label_acceptance {one.dimension}: candidate, load {load}"
                for found in told.values()
                for one in found
            ),
        ),
        missing=list_gaps(
            *(
                (kind in told, f"Items with different labels of {' or '.join(dimensions)}.")
                for kind, dimensions in ASKED_DIMENSIONS.items()
            )
        ),
    )


def _answer_by_counters(source: Source) -> Answer:
    """Give the share that the service's own counters tell, where no answer tells it; they know no labels."""
    counted = [one for one in source.results.services if one.arm == "candidate"]
    told = [one for one in counted if one.draft_acceptance_rate is not None]
    missing = ("An engine that counts drafted and accepted tokens per request.",)
    if not told:
        idle = any(one.num_draft_tokens == 0 for one in counted)
        text = "The candidate drafted nothing." if idle else "The candidate discloses no acceptance."
        return Answer(standing="open", answer=text, missing=missing)
    parts = [
        f"{write_share(one.draft_acceptance_rate)} of drafted tokens are accepted at load {one.load}"
        for one in told
    ]
    return Answer(
        standing="partly",
        answer=f"{'; '.join(parts)}, by the service's counters, which know no task, language or length.",
        evidence=tuple(f"counters: candidate, load {one.load}" for one in told),
        missing=missing,
    )


def answer_high_batch(source: Source) -> Answer:
    """Say what became of the effect at the highest measured load against the lowest."""
    axis = source.loads[0][1].axis  # the two axes do not compare: closed loops where there are any
    loads = [level for level in source.loads if level[1].axis == axis]
    (first, low), (last, high) = loads[0], loads[-1]
    cells = [one for one in source.results.cells if one.load == last]
    counts = Counter(one.status for one in cells)
    statuses = ", ".join(f"{n} {status}" for status, n in sorted(counts.items()))
    effects = {load: source.effect_at(load) for load in (first, last)}
    text = f"At {high.label}, the most that was measured, the cells are {statuses}"
    is_valid = any(one.status != "invalid" for one in cells)
    if is_valid and (there := effects[last]) is not None and there.ratio.value is not None:
        text += f", and candidate / baseline over all segments is {describe(there.ratio)}"
        if first != last and (here := effects[first]) is not None and here.ratio.value is not None:
            text += f" against {describe(here.ratio)} at {low.label}"
    text += _describe_null(source, last, high) if is_valid else ""
    still = [one for one in cells if one.status in {"inconclusive", "invalid"}]
    decided = not still
    return Answer(
        standing=grade((bool(cells), first != last, decided)),
        answer=text + ".",
        evidence=(
            *(f"cells: {one.segment} × {last}" for one in cells),
            *(f"effects: candidate / baseline, all × {load}" for load in dict.fromkeys((first, last))),
        ),
        missing=list_gaps(
            (first != last, "A second, higher [[load]] level."),
            (decided, f"What keeps cells open at load {last}: {_list_causes(still)}."),
        ),
    )


def _describe_null(source: Source, load: str, size: LoadSize) -> str:
    """Return how far two equal arms are apart at a load, which the ratio beside it has to beat."""
    null = source.effect_at(load, arm="baseline_null")
    if null is None or null.ratio.value is None:
        return ""
    return f"; baseline_null / baseline, two equal arms, is {describe(null.ratio)} at {size.label}"


def _list_causes(cells: Iterable[Cell]) -> str:
    """Return what keeps cells open in words, each once."""
    codes = dict.fromkeys(reason.code for cell in cells for reason in cell.reasons)
    causes = dict.fromkeys(name_reason(code) for code in codes if not code.startswith("step_"))
    return ", ".join(causes) or "no reason is given"


def answer_media(source: Source) -> Answer:
    """Leave open what no run measures: the clock from the user's turn to speech or picture."""
    waits = (
        "" if source.results.metric == "tpot_ns" else " The deciding metric is the end-to-end time of text."
    )
    return Answer(
        standing="open",
        answer=f"Not measured: only streams of text were timed, none of speech or frames.{waits}",
        missing=("The time from the end of the user's turn to the first speech, over the real media path.",),
    )


def _ends(source: Source, rows: Sequence[Diagnosis]) -> list[Diagnosis]:
    """Return the rows of the lowest and the highest load: a sentence holds no more."""
    order = [load for load, _ in source.loads]
    found = sorted(rows, key=lambda one: order.index(one.load))
    return found if len(found) <= 2 else [found[0], found[-1]]


def _others(row: Diagnosis) -> str:
    parts = {"queueing": row.queue_share, "prefill": row.prefill_share}
    known = [f"{name} {write_share(share)}" for name, share in parts.items() if share is not None]
    return f" ({', '.join(known)})" if known else ""


def _compare_memory(source: Source) -> tuple[str | None, tuple[str, ...]]:
    stated = {name: source.arm(name) for name in ("baseline", "candidate")}
    gpu = {name: most for name in stated if (most := _most_gpu_memory(source, name)) is not None}
    resident: dict[str, float] = {
        name: one.resident_bytes for name, one in stated.items() if one and one.resident_bytes
    }
    kinds = [
        ("GPU memory at most", gpu, ("services: baseline, all loads", "services: candidate, all loads")),
        ("resident memory when loaded", resident, ("manifest: baseline", "manifest: candidate")),
    ]
    if source.plan.placement == "together":
        kinds.reverse()  # a device that all arms share tells nothing of one of them
    known = [one for one in kinds if len(one[1]) == len(stated)]
    if not known:
        return None, ()
    kind, held, rows = known[0]
    more = held["candidate"] - held["baseline"]
    text = (
        f"The candidate's {kind} is {held['candidate'] / GIB:.2f} GiB, {abs(more) / GIB:.2f} GiB "
        f"{'more' if more >= 0 else 'less'} than the baseline's."
    )
    return text, rows


def _most_gpu_memory(source: Source, arm: str) -> float | None:
    found = [one.gpu_memory_max_bytes for one in source.results.services if one.arm == arm]
    return max((one for one in found if one is not None), default=None)


def _compare_energy(source: Source) -> tuple[str | None, tuple[str, ...]]:
    parts, rows = [], []
    for load, size in source.loads:
        used = {
            one.arm: one.energy_per_output_token_joules for one in source.results.services if one.load == load
        }
        mine, theirs, again = (used.get(arm) for arm in ("candidate", "baseline", "baseline_null"))
        if mine is not None and theirs is not None and not source.is_invalid(load):
            beside = "" if again is None else f" ({again:.3g} J of the baseline once more)"
            parts.append(f"{mine:.3g} J against {theirs:.3g} J{beside} at {size.label}")
            rows += [f"services: {arm}, load {load}" for arm in ("candidate", "baseline")]
    if not parts:
        return None, ()
    ends = parts if len(parts) <= 2 else [parts[0], parts[-1]]
    return f"Energy of the machine per output token: {', '.join(ends)}.", tuple(rows)


def _span(rows: Iterable[LabelAcceptance]) -> str:
    ordered = sorted(rows, key=lambda one: (one.draft_acceptance_rate or 0.0, one.dimension, one.label))
    lowest, highest = ordered[0], ordered[-1]
    return (
        f"from {write_share(lowest.draft_acceptance_rate)} ({lowest.label}) to "
        f"{write_share(highest.draft_acceptance_rate)} ({highest.label})"
    )


NO_CONTRACT = Answer(
    standing="open",
    answer="The run holds no contract of the candidate.",
    missing=("A run of this version of draftproof, which writes one.",),
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
        missing=list_gaps(
            (told, "A service that discloses its method: through this one only delivery is seen.")
        ),
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
        missing=list_gaps(
            (fits is not None, "The files of both tokenizers within reach of `draftproof check`."),
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
        missing=list_gaps(
            (is_off, "A baseline that is known not to draft."),
            (told, "What the engine does when its drafter fails: it states nothing."),
            (False, "A rehearsal of switching: requests lost and time to recover were not measured."),
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
    stated: dict[str, object] = {name: getattr(approval, name) for name in _APPROVAL_WORDS}
    told = [_APPROVAL_WORDS[name].format(value) for name, value in stated.items() if value]
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
        missing=list_gaps(
            *((value, f"approval.{name} in the plan.") for name, value in stated.items()),
            (not blind, f"A service or files that tell {_name(blind)}."),
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
        f" Outside the envelope, above {highest.label} at the latest, ordinary decoding." if highest else ""
    )
    return Answer(
        standing=grade((bool(blocks), is_stated and not any(one.limit != CRITICAL for one in blind))),
        answer=f"Blocks: {', '.join(blocks)}.{limits}{edge}",
        evidence=("thresholds", *(("plan: rollback",) if is_stated else ())),
        missing=list_gaps(
            (is_stated, "The plan's [rollback] table: what is watched and when it is switched off."),
            (not blind, "A watch of your own over what no rule watches."),
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


QUESTIONS: tuple[tuple[str, str, Callable[[Source], Answer]], ...] = (
    ("delay", "Which delay is speculation to remove?", answer_delay),
    ("bound", "Which bound applies, and what is the most that speculation can give?", answer_bound),
    ("method", "Which method and which runtime?", answer_method),
    ("compatible", "Are target and drafter compatible and licensed?", answer_compatible),
    ("resources", "What does it cost in memory and power?", answer_resources),
    ("acceptance", "What is accepted, by language, task and length?", answer_acceptance),
    ("high_batch", "How does it behave at a high batch?", answer_high_batch),
    ("media", "Does speech or picture arrive sooner?", answer_media),
    ("equivalence", "Is the output equivalent by guarantee, or is that assumed?", answer_equivalence),
    ("disable", "Can it be switched off?", answer_disable),
    ("lifecycle", "How is it patched and retired?", answer_lifecycle),
    ("thresholds", "Which threshold blocks it or rolls it back?", answer_thresholds),
)


def answer_questions(results: Results, plan: Plan, manifest: Manifest) -> tuple[Question, ...]:
    """Return the twelve questions in their order with what this run says to each."""
    source = Source(results=results, plan=plan, manifest=manifest)
    return tuple(
        Question(number=number, key=key, question=text, **msgspec.structs.asdict(answer(source)))
        for number, (key, text, answer) in enumerate(QUESTIONS, start=1)
    )
