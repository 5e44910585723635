"""Two runs side by side, for a terminal: what changed, in sentences first, then the tables they rest on.

What a change does not mean is said as well. Pure view of a `RunComparison`; free of colour codes.
"""

from collections.abc import Sequence
from datetime import UTC, datetime

import msgspec

from draftproof.judge.compare.compare import list_changes
from draftproof.judge.compare.comparison import (
    DeliveryChange,
    EffectChange,
    EnvelopeChange,
    FactChange,
    FailureChange,
    NoiseSource,
    RunComparison,
    RunIdentity,
    Uncompared,
    find_uncompared,
)
from draftproof.judge.results.run import CellStatus, EnvelopeEntry, Figure
from draftproof.tell.report import words, write
from draftproof.tell.report.write import MISSING, printable

_SHOWN_CHARS = 60
_SHOWN_REASONS = 4
_TRIGGER_WORDS = {"model_hash": "model", "drafter_hash": "drafter"}
_NOISE_WORDS: dict[NoiseSource, str] = {"both": "A, B", "before": "A", "after": "B", "none": ""}
_READINGS = {"changed_noise_unknown": "changed, noise unknown", "known_in_one_run": "known in one run only"}
_NO_PROOF = (
    "The mechanism of {arms} is undisclosed: a change of delivery may come from speculation, and as well "
    "from a buffer, a proxy or a stream interval."
)
_DELIVERY = "the delivery"


class QuantityWords(msgspec.Struct, frozen=True):
    """A quantity's name in a table, what a change of it is a change of, its unit, and how it is written."""

    label: str
    what: str
    unit: str
    write: write.Write


QUANTITY_WORDS: dict[str, QuantityWords] = {
    "tpot_ns": QuantityWords("Time per token (ms)", "the time per token", "ms", write.ms),
    "ttft_from_schedule_ns": QuantityWords("First token (ms)", "the time to first token", "ms", write.ms),
    "icl_p50_ns": QuantityWords("Gap between chunks, p50 (ms)", "the gap between chunks", "ms", write.ms),
    "tokens_per_chunk": QuantityWords("Tokens per chunk", _DELIVERY, "tokens per chunk", write.ratio),
    "characters_per_chunk": QuantityWords(
        "Characters per chunk", _DELIVERY, "characters per chunk", write.ratio
    ),
    "chunks_per_arrival": QuantityWords("Chunks per arrival", _DELIVERY, "chunks per arrival", write.ratio),
    "output_tokens": QuantityWords("Output length (tokens)", "the output length", "tokens", write.number),
    "output_characters": QuantityWords(
        "Output length (characters)", "the output length", "characters", write.number
    ),
}


def render_comparison(comparison: RunComparison, *, full: bool = False) -> str:
    """Render the comparison for a terminal; of runs that are alike three lines, unless `full`."""
    if comparison.conclusion == "unchanged" and not full and not describe_changes(comparison):
        return "\n".join(_alike(comparison)) + "\n"
    effects = "Effects, candidate / baseline, each run on its own prompts"
    return write.join(
        (
            _head(comparison),
            write.section(
                "Configuration", [*_facts(comparison.facts), *write.bullets(_triggers(comparison))]
            ),
            write.section(_delivery_title(comparison), _deliveries(comparison)),
            write.section("Failed requests, the same prompts in A and B", _failures(comparison)),
            write.section(effects, _effects(comparison.effects)),
            write.section("Envelope", write.bullets(map(_describe_envelope, comparison.envelope))),
            write.section("Reasons of the verdict", write.bullets(_list_reasons(comparison))),
            write.section("Not compared", write.bullets(_list_left_out(comparison))),
        )
    )


def _alike(comparison: RunComparison) -> list[str]:
    """Say in three lines that nothing changed, and over how much."""
    counts = (
        f"{len(comparison.deliveries)} figures of delivery and {len(comparison.effects)} effects compared"
    )
    verdict = words.DECISIONS[comparison.after.decision].label.lower()
    return [
        _title(comparison),
        f"  {headline(comparison)}",
        f"  {counts}; both verdicts: {verdict}. Every table: add --full.",
    ]


def _title(comparison: RunComparison) -> str:
    conclusion = comparison.conclusion.replace("_", " ").upper()
    return (
        f"{conclusion}   {printable(comparison.before.name)} (A) and {printable(comparison.after.name)} (B)"
    )


def _head(comparison: RunComparison) -> list[str]:
    before, after = comparison.before, comparison.after
    return [
        _title(comparison),
        "",
        *write.wrap(headline(comparison)),
        *write.bullets(describe_changes(comparison)),
        *write.align([_identify("A", before), _identify("B", after)]),
    ]


def _identify(name: str, run: RunIdentity) -> tuple[str, ...]:
    started = datetime.fromtimestamp(run.started_wall_ns // 10**9, tz=UTC)
    return (
        name,
        f"{started:%Y-%m-%d %H:%M} UTC",
        words.DECISIONS[run.decision].label,
        f"plan {write.digest(run.plan_sha256)}",
        f"workload {write.digest(run.workload_sha256)}",
        f"draftproof {run.draftproof_version}",
    )


def headline(comparison: RunComparison) -> str:
    """Say in one sentence what the comparison comes to."""
    if comparison.conclusion == "invalid":
        runs = (("A", comparison.before), ("B", comparison.after))
        which = [name for name, run in runs if run.decision == "invalid"]
        return f"Run {' and run '.join(which)} is invalid: nothing may be concluded from this comparison."
    if comparison.conclusion == "unchanged":
        if all(one.noise is None for one in comparison.deliveries):
            return "No change was seen. How much two equal services differ is unknown: no run has a null arm."
        return "Nothing changed beyond what two equal services show."
    if comparison.conclusion == "not_comparable":
        lacking = map(_name_uncompared, find_uncompared(comparison.deliveries, comparison.effects))
        return f"No change was seen in what could be compared; too little could: {'; '.join(lacking)}."
    deliveries, failures, effects = list_changes(comparison)
    parts = {
        "configuration": comparison.facts,
        "delivery": deliveries,
        "failures": failures,
        "effects": effects,
        "envelope": comparison.envelope,
        "decision": comparison.decision_changed,
    }
    return f"Changed from A to B: {', '.join(name for name, holds in parts.items() if holds)}."


def _name_uncompared(one: Uncompared) -> str:
    if one.kind == "effects":
        return "no cell has an effect in both runs"
    if one.kind == "invalid":
        return f"{words.segment(one.name)} at {one.load} is invalid in one of them"
    return f"no delivery of {words.arm(one.name)} at {one.load} has prompts enough"


def describe_changes(comparison: RunComparison) -> tuple[str, ...]:
    """Return one sentence for every change of delivery, failures, effects and decision, and what to doubt."""
    deliveries, failures, effects = list_changes(comparison)
    sentences = [_describe_delivery(comparison, one) for one in deliveries]
    sentences += [_describe_failures(comparison, one) for one in failures]
    sentences += [_describe_effect(one) for one in effects]
    if comparison.decision_changed:
        sentences.append(
            f"The decision changed from {comparison.before.decision} to {comparison.after.decision}."
        )
    if comparison.before.workload_sha256 != comparison.after.workload_sha256:
        sentences.append(
            f"The workloads differ: delivery is compared on the {comparison.prompts.common:,} prompts that "
            "both have with the same content."
        )
    return (*sentences, *_list_doubts(comparison, deliveries))


def _name_place(comparison: RunComparison, change: DeliveryChange | FailureChange) -> str:
    return f"{words.arm(change.arm)} at {words.load(change.load, comparison.sizes.get(change.load))}"


def _describe_delivery(comparison: RunComparison, change: DeliveryChange) -> str:
    quantity, place = QUANTITY_WORDS[change.quantity], _name_place(comparison, change)
    if change.reading == "known_in_one_run":
        return (
            f"{place}: {quantity.label} is known for {change.known_before} of {change.answered_before} "
            f"answers in A and for {change.known_after} of {change.answered_after} in B."
        )
    was = "there were" if quantity.what == _DELIVERY else "it was"
    return (
        f"{place}: {quantity.what} changed: {quantity.write(change.after)} {quantity.unit} where {was} "
        f"{quantity.write(change.before)} (B / A {write.ratio(change.ratio.value)} "
        f"{write.interval(change.simultaneous, write.ratio)}; {_describe_yardstick(change)})."
    )


def _describe_yardstick(change: DeliveryChange) -> str:
    if change.noise is None:
        return "noise unknown: no null arm"
    up_to = "" if change.noise == 1 else "by up to "
    return f"equal services differ {up_to}{_describe_noise_of(change)}"


def _describe_failures(comparison: RunComparison, change: FailureChange) -> str:
    interval = write.interval(change.difference, write.points)
    return (
        f"{_name_place(comparison, change)}: {write.share(change.after)} of "
        f"requests failed where {write.share(change.before)} did "
        f"(B − A {write.points(change.difference.value)} {interval})."
    )


def _describe_effect(change: EffectChange) -> str:
    old, new = (write.ratio(one.value) if one else "" for one in (change.before, change.after))
    return (
        f"{words.segment(change.segment)} at {change.load}: candidate / baseline changed from {old} to "
        f"{new}; the intervals do not overlap."
    )


def _list_doubts(comparison: RunComparison, deliveries: Sequence[DeliveryChange]) -> list[str]:
    """Return what limits the comparison: hidden mechanisms, no yardstick, rows that could not be compared."""
    doubts = []
    hidden = [words.arm(one.arm) for one in comparison.arms if one.undisclosed]
    if hidden and deliveries:
        doubts.append(_NO_PROOF.format(arms=", ".join(hidden)))
    if any(one.noise is None for one in deliveries):
        doubts.append("Where no run has a null arm, the noise is unknown: the change may be no larger.")
    missing = [one for one in comparison.deliveries if one.reading == "not_compared"]
    if missing:
        reasons = sorted({one.ratio.reason or "unknown" for one in missing})
        doubts.append(f"{len(missing)} rows could not be compared: {'; '.join(reasons)}.")
    return doubts


def describe_noise(noise: float | None, source: NoiseSource) -> str:
    """Return "2.1% (A, B)": by how much equal arms may differ and whose null arms say so, or "unknown"."""
    return "unknown" if noise is None else f"{write.share(noise - 1)} ({_NOISE_WORDS[source]})"


def _describe_noise_of(change: DeliveryChange) -> str:
    """Return the same for a row of delivery, whose noise is what the null arms show beyond chance."""
    if change.noise == 1:
        return f"by chance only ({_NOISE_WORDS[change.noise_from]})"
    return describe_noise(change.noise, change.noise_from)


def _describe_reading(change: DeliveryChange | FailureChange) -> str:
    if change.reading == "within_noise" and change.noise is None:
        return "no change seen"
    return _READINGS.get(change.reading, change.reading.replace("_", " "))


def _facts(facts: Sequence[FactChange]) -> list[str]:
    rows = [
        (
            "Run" if one.arm is None else words.arm(one.arm),
            f"{one.group}: {one.key}",
            _value(one.key, one.before),
            _value(one.key, one.after),
        )
        for one in facts
    ]
    return write.table(("Of", "What", "A", "B"), rows) or write.wrap("Nothing that was recorded differs.")


def _value(key: str, value: str | float | None) -> str:
    if value is None:
        return MISSING
    text = write.digest(str(value)) if key.endswith("sha256") else str(value)
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}…"


def _triggers(comparison: RunComparison) -> list[str]:
    """Say which triggers fired and which cannot be told; arms of which the same is said share a line."""
    arms_of: dict[str, list[str]] = {}
    for arm in comparison.arms:
        fired, unknown = (
            ", ".join(_TRIGGER_WORDS.get(name, name) for name in names)
            for names in (arm.triggers.fired, arm.triggers.unknown)
        )
        said = [f"{fired} changed"] if fired else []
        said += [f"{unknown} not disclosed"] if unknown else []
        if said:
            arms_of.setdefault("; ".join(said), []).append(words.arm(arm.arm))
    return [f"Change triggers, {', '.join(arms)}: {said}." for said, arms in arms_of.items()]


def _delivery_title(comparison: RunComparison) -> str:
    return (
        f"Delivery, {comparison.prompts.common:,} prompts of both runs "
        f"(B / A with intervals that hold together at {comparison.confidence * 100:g}%)"
    )


def _deliveries(comparison: RunComparison) -> list[str]:
    """One table in which a line names arm and load before their rows."""
    header = ("Quantity", "A", "B", "B / A", "Interval", "Equal arms", "Prompts", "Reading")
    head, *rows = write.align([header, *map(_delivery_row, comparison.deliveries)])
    told, place = [head], None
    for change, row in zip(comparison.deliveries, rows, strict=True):
        if place != (change.arm, change.load):
            place = (change.arm, change.load)
            told += write.wrap(_name_place(comparison, change))
        told.append(row)
    return told


def _delivery_row(change: DeliveryChange) -> tuple[str, ...]:
    quantity, one_run = QUANTITY_WORDS[change.quantity], change.reading == "known_in_one_run"
    return (
        f"  {quantity.label}",
        quantity.write(change.before),
        quantity.write(change.after),
        write.ratio(change.ratio.value),
        # Where one run does not tell the quantity at all, more prompts would not help.
        "" if one_run else write.interval_or_why(change.simultaneous, write.ratio),
        _describe_noise_of(change),
        write.count(change.prompts),
        _describe_reading(change),
    )


def _failures(comparison: RunComparison) -> list[str]:
    rows = [
        (
            words.load(one.load, comparison.sizes.get(one.load)),
            words.arm(one.arm),
            write.share(one.before),
            write.share(one.after),
            write.points(one.difference.value),
            write.interval_or_why(one.difference, write.points),
            describe_noise(None if one.noise is None else 1 + one.noise, one.noise_from),
            write.count(one.difference.n),
            _describe_reading(one),
        )
        for one in comparison.failures
    ]
    return write.table(("Load", "Arm", "A", "B", "B − A", "Interval", "Equal arms", "Pairs", "Reading"), rows)


def _effects(effects: Sequence[EffectChange]) -> list[str]:
    rows = [
        (
            words.segment(one.segment),
            one.load,
            _status(one.status_before),
            _effect(one.before),
            _status(one.status_after),
            _effect(one.after),
            {True: "changed", False: "intervals overlap", None: "not comparable"}[one.is_apart],
        )
        for one in effects
    ]
    return write.table(("Task", "Load", "A", "Ratio", "B", "Ratio", "Reading"), rows)


def _status(status: CellStatus | None) -> str:
    return MISSING if status is None else words.STATUSES[status].label


def _effect(figure: Figure | None) -> str:
    if figure is None:
        return MISSING
    return f"{write.ratio(figure.value)} {write.interval(figure, write.ratio)}".rstrip()


def _describe_envelope(change: EnvelopeChange) -> str:
    both = f"{_limit(change.before)} in A, {_limit(change.after)} in B"
    return f"{words.segment(change.segment)}: {_direction(change)}; {both}."


def _direction(change: EnvelopeChange) -> str:
    if change.before is None or change.after is None:
        return "opened" if change.before is None else "closed"
    old, new = change.before.limit, change.after.limit
    if old == new:
        return "another context limit"
    if (old.concurrency is None, old.rps is None) != (new.concurrency is None, new.rps is None):
        return "limited otherwise"
    wider = [one > other for one, other in zip(new.order, old.order, strict=True) if one != other]
    return "wider" if all(wider) else "limited otherwise" if any(wider) else "narrower"


def _limit(entry: EnvelopeEntry | None) -> str:
    if entry is None:
        return "not allowed"
    context = entry.max_context_tokens
    tail = "" if context is None else f" and {context:,} tokens of context"
    return f"up to {entry.limit.short}{tail}"


def _list_reasons(comparison: RunComparison) -> list[str]:
    """Name the first reasons of each run; a run with many segments may have as many reasons."""
    told = []
    for name, texts in (
        ("A", [one.before for one in comparison.reasons if one.before is not None]),
        ("B", [one.after for one in comparison.reasons if one.after is not None]),
    ):
        told += [f"in {name} only: {text}" for text in texts[:_SHOWN_REASONS]]
        if len(texts) > _SHOWN_REASONS:
            told.append(f"in {name} only: {len(texts) - _SHOWN_REASONS} more, see --json")
    return told


def _list_left_out(comparison: RunComparison) -> list[str]:
    prompts = comparison.prompts
    told = {
        "{n} prompts have the same id and another content.": prompts.other_content,
        "{n} prompts were asked in A only.": prompts.only_before,
        "{n} prompts were asked in B only.": prompts.only_after,
    }
    return [
        *comparison.not_compared,
        *(text.format(n=f"{count:,}") for text, count in told.items() if count),
    ]
