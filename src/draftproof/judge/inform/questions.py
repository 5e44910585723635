"""The twelve questions of a review, each answered from this run or left open with what would answer it. Pure.

Here are the answers that measurements give. The order and the wording of the questions are fixed, so that
reviews can be compared.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import msgspec

from draftproof.core.manifests import Manifest
from draftproof.judge.decide.wording import name_reason
from draftproof.judge.inform.answers import (
    Answer,
    Source,
    answer_compatible,
    answer_disable,
    answer_equivalence,
    answer_lifecycle,
    answer_method,
    answer_thresholds,
    grade,
    list_gaps,
    write_share,
)
from draftproof.judge.observe.run_data import ALL_SEGMENTS
from draftproof.judge.results.decide import ALL_LOADS, LabelAcceptance, Question, Reference, describe, refer
from draftproof.judge.results.run import Cell, Diagnosis, Results
from draftproof.plan.limits import LoadSize
from draftproof.plan.schema import Plan

GIB = 2**30
ASKED_DIMENSIONS = {
    "language": ("language",),
    "task": ("task",),
    "length": ("prompt_length", "answer_length"),
}


def answer_delay(source: Source) -> Answer:
    """Say how much of the baseline's time is decoding, the only part that speculation shortens."""
    known = [one for one in source.results.diagnosis if one.decode_share is not None]
    if not known:
        return Answer(
            standing="open",
            answer="The run does not show how much of a request's time is decoding.",
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
        evidence=tuple(Reference("diagnosis", at=one.load) for one in known),
        missing=list_gaps((apart, "A service that reports queueing, prefill and decoding separately.")),
    )


def answer_bound(source: Source) -> Answer:
    """Say what the baseline is bound by at each load and the ceiling of any gain."""
    rows = source.results.diagnosis
    named = [one for one in rows if one.bound != "unknown"]
    parts = [
        f"{one.bound} at load {one.load}"
        + (f" (at most {one.ceiling_gain:.2f} times as fast end to end)" if one.ceiling_gain else "")
        for one in _ends(source, named)
    ]
    return Answer(
        standing=grade(one.bound != "unknown" for one in rows) if rows else "open",
        answer=f"The baseline is {'; '.join(parts)}." if parts else "No bound could be named at any load.",
        evidence=tuple(Reference("diagnosis", at=one.load) for one in named),
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
    known = [text for text in (memory, energy) if text is not None]
    return Answer(
        standing=grade((memory is not None, energy is not None)),
        answer=" ".join(known) if known else "Neither memory nor energy of the services was measured.",
        evidence=(*memory_rows, *energy_rows),
        missing=list_gaps(
            (memory, "Memory: services that the run starts, or GPU memory that it can read."),
            (energy, "Energy: a machine whose power counters can be read."),
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
    varied = {kind: found for kind, found in by_kind.items() if len({one.label for one in found}) > 1}
    parts = [f"by {kind} {_span(found)}" for kind, found in varied.items()]
    pooled = source.cell_of("candidate", load)
    rate = pooled.acceptance.draft_acceptance_rate if pooled and pooled.acceptance else None
    text = f"{write_share(rate)} of drafted tokens are accepted at load {load}"
    return Answer(
        standing=grade(kind in varied for kind in ASKED_DIMENSIONS) if varied else "partly",
        answer=f"{text}: {'; '.join(parts)}." if parts else f"{text}.",
        evidence=(
            Reference("acceptance", "candidate", at=(ALL_SEGMENTS, load)),
            *dict.fromkeys(
                Reference("label_acceptance", "candidate", quantity=one.dimension, at=load)
                for found in varied.values()
                for one in found
            ),
        ),
        missing=list_gaps(
            *(
                (kind in varied, f"Items with different labels of {' or '.join(dimensions)}.")
                for kind, dimensions in ASKED_DIMENSIONS.items()
            )
        ),
    )


def _answer_by_counters(source: Source) -> Answer:
    """Give the share that the service's own counters tell, where no answer tells it; they know no labels."""
    counted = [one for one in source.results.services if one.arm == "candidate"]
    disclosed = [one for one in counted if one.draft_acceptance_rate is not None]
    missing = ("An engine that counts drafted and accepted tokens per request.",)
    if not disclosed:
        idle = any(one.num_draft_tokens == 0 for one in counted)
        text = "The candidate drafted nothing." if idle else "The candidate discloses no acceptance."
        return Answer(standing="open", answer=text, missing=missing)
    parts = [
        f"{write_share(one.draft_acceptance_rate)} of drafted tokens are accepted at load {one.load}"
        for one in disclosed
    ]
    return Answer(
        standing="partly",
        answer=f"{'; '.join(parts)}, by the service's counters, which know no task, language or length.",
        evidence=tuple(Reference("counters", "candidate", at=one.load) for one in disclosed),
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
    text = f"At {high.label}, the highest measured load, the cells are {statuses}"
    is_valid = any(one.status != "invalid" for one in cells)
    if is_valid and (there := effects[last]) is not None and there.ratio.value is not None:
        text += f", and candidate / baseline over all tasks is {describe(there.ratio)}"
        if first != last and (here := effects[first]) is not None and here.ratio.value is not None:
            text += f" against {describe(here.ratio)} at {low.label}"
    text += _describe_null(source, last, high) if is_valid else ""
    still = [one for one in cells if one.status in {"inconclusive", "invalid"}]
    decided = not still
    return Answer(
        standing=grade((bool(cells), first != last, decided)),
        answer=text + ".",
        evidence=(
            *(Reference("cells", at=(one.segment, last)) for one in cells),
            *(refer("effects", (ALL_SEGMENTS, load)) for load in dict.fromkeys((first, last))),
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
    return f"; baseline_null / baseline, two equal services, is {describe(null.ratio)} at {size.label}"


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


def _compare_memory(source: Source) -> tuple[str | None, tuple[Reference, ...]]:
    stated = {name: source.arm(name) for name in ("baseline", "candidate")}
    gpu = {name: most for name in stated if (most := _most_gpu_memory(source, name)) is not None}
    resident: dict[str, float] = {
        name: one.resident_bytes for name, one in stated.items() if one and one.resident_bytes
    }
    kinds = [
        ("GPU memory at most", gpu, [Reference("services", arm, at=ALL_LOADS) for arm in stated]),
        ("resident memory when loaded", resident, [Reference("manifest", arm) for arm in stated]),
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
    return text, tuple(rows)


def _most_gpu_memory(source: Source, arm: str) -> float | None:
    found = [one.gpu_memory_max_bytes for one in source.results.services if one.arm == arm]
    return max((one for one in found if one is not None), default=None)


def _compare_energy(source: Source) -> tuple[str | None, tuple[Reference, ...]]:
    parts, rows = [], []
    for load, size in source.loads:
        used = {
            one.arm: one.energy_per_output_token_joules for one in source.results.services if one.load == load
        }
        mine, theirs, again = (used.get(arm) for arm in ("candidate", "baseline", "baseline_null"))
        if mine is not None and theirs is not None and not source.is_invalid(load):
            beside = "" if again is None else f" ({again:.3g} J of the baseline once more)"
            parts.append(f"{mine:.3g} J against {theirs:.3g} J{beside} at {size.label}")
            rows += [Reference("services", arm, at=load) for arm in ("candidate", "baseline")]
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
