"""The sentences of a comparison: what changed, how surely, and what a change does not mean. Pure."""

from collections.abc import Callable

import msgspec

from draftproof.judge.compare.compare import list_changes
from draftproof.judge.compare.comparison import (
    DeliveryChange,
    EffectChange,
    FailureChange,
    NoiseSource,
    RunComparison,
)
from draftproof.judge.compare.uncompared import Uncompared, find_uncompared
from draftproof.plan.load_size import LoadSize
from draftproof.tell.report.quantities import (
    arm_label,
    format_ms,
    format_points,
    format_ratio,
    format_share,
    format_significant,
    load_label,
    segment_label,
)
from draftproof.tell.report.view import format_interval

NOISE_WORDS: dict[NoiseSource, str] = {"both": "A, B", "before": "A", "after": "B", "none": ""}
NO_PROOF = (
    "The mechanism of {arms} is undisclosed: a change of delivery may come from speculation, and as well "
    "from a buffer, a proxy or a stream interval."
)


class QuantityWords(msgspec.Struct, frozen=True):
    """A quantity's name in a table, what is said of a change of it, and how its value is written."""

    label: str
    sentence: str
    write: Callable[[float | None], str]


_WAS = "{after} {unit} where it was {before}"
_WERE = "the delivery changed: {after} {unit} where there were {before}"
_MS, _LENGTH = _WAS.replace("{unit}", "ms"), "the output length changed: " + _WAS

QUANTITY_WORDS: dict[str, QuantityWords] = {
    "tpot_ns": QuantityWords("Time per token (ms)", f"the time per token changed: {_MS}", format_ms),
    "ttft_from_schedule_ns": QuantityWords(
        "First token (ms)", f"the time to first token changed: {_MS}", format_ms
    ),
    "icl_p50_ns": QuantityWords(
        "Gap between chunks, p50 (ms)", f"the gap between chunks changed: {_MS}", format_ms
    ),
    "tokens_per_chunk": QuantityWords(
        "Tokens per chunk", _WERE.replace("{unit}", "tokens per chunk"), format_ratio
    ),
    "characters_per_chunk": QuantityWords(
        "Characters per chunk", _WERE.replace("{unit}", "characters per chunk"), format_ratio
    ),
    "chunks_per_arrival": QuantityWords(
        "Chunks per arrival", _WERE.replace("{unit}", "chunks per arrival"), format_ratio
    ),
    "output_tokens": QuantityWords(
        "Output length (tokens)", _LENGTH.replace("{unit}", "tokens"), format_significant
    ),
    "output_characters": QuantityWords(
        "Output length (characters)", _LENGTH.replace("{unit}", "characters"), format_significant
    ),
}


def headline(comparison: RunComparison) -> str:
    """Say in one sentence what the comparison comes to."""
    if comparison.conclusion == "invalid":
        which = [
            name
            for name, run in (("A", comparison.before), ("B", comparison.after))
            if run.decision == "invalid"
        ]
        return f"Run {' and run '.join(which)} is invalid: nothing may be concluded from this comparison."
    if comparison.conclusion == "unchanged":
        if all(one.noise is None for one in comparison.deliveries):
            return (
                "No change was seen. How much two equal arms differ is not known: neither run has a null arm."
            )
        return "Nothing changed beyond what two equal arms show."
    if comparison.conclusion == "not_comparable":
        lacking = map(_name_uncompared, find_uncompared(comparison.deliveries, comparison.effects))
        return f"No change was seen in what could be compared; too little could: {'; '.join(lacking)}."
    parts = [name for name, holds in _list_parts(comparison) if holds]
    return f"Changed from A to B: {', '.join(parts)}."


def describe_changes(comparison: RunComparison) -> tuple[str, ...]:
    """Return one sentence for every change of delivery, failures, effects and decision, and what to doubt."""
    deliveries, failures, effects = list_changes(comparison)
    loads = comparison.sizes
    sentences = [_describe_delivery(one, loads.get(one.load)) for one in deliveries]
    sentences += [_describe_failures(one, loads.get(one.load)) for one in failures]
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


def describe_noise(noise: float | None, source: NoiseSource, write: Callable[[float | None], str]) -> str:
    """Return "2.1% (A, B)": by how much equal arms may differ and whose null arms say so, or "unknown"."""
    return "unknown" if noise is None else f"{write(noise - 1)} ({NOISE_WORDS[source]})"


def _name_uncompared(one: Uncompared) -> str:
    if one.kind == "effects":
        return "no cell has an effect in both runs"
    if one.kind == "invalid":
        return f"{segment_label(one.name)} at {one.load} is invalid in one of them"
    return f"no delivery of {arm_label(one.name)} at {one.load} has prompts enough"


def describe_noise_of(change: DeliveryChange) -> str:
    """Return the same for a row of delivery, whose noise is what the null arms show beyond chance."""
    if change.noise == 1:
        return f"by chance only ({NOISE_WORDS[change.noise_from]})"
    return describe_noise(change.noise, change.noise_from, format_share)


def describe_reading(change: DeliveryChange | FailureChange) -> str:
    """Return the reading of a row in a few words."""
    words = {
        "changed": "changed",
        "changed_noise_unknown": "changed, noise unknown",
        "within_noise": "within noise",
        "known_in_one_run": "known in one run only",
        "not_compared": "not compared",
    }
    if change.reading == "within_noise" and change.noise is None:
        return "no change seen"
    return words[change.reading]


def _list_parts(comparison: RunComparison) -> tuple[tuple[str, bool], ...]:
    deliveries, failures, effects = list_changes(comparison)
    return (
        ("configuration", bool(comparison.facts)),
        ("delivery", bool(deliveries)),
        ("failures", bool(failures)),
        ("effects", bool(effects)),
        ("envelope", bool(comparison.envelope)),
        ("decision", comparison.decision_changed),
    )


def _describe_delivery(change: DeliveryChange, size: LoadSize | None) -> str:
    words = QUANTITY_WORDS[change.quantity]
    place = f"{arm_label(change.arm)} at {load_label(change.load, size)}"
    if change.reading == "known_in_one_run":
        return (
            f"{place}: {words.label} is known for {change.known_before} of {change.answered_before} answers "
            f"in A and for {change.known_after} of {change.answered_after} in B."
        )
    said = words.sentence.format(before=words.write(change.before), after=words.write(change.after))
    interval = format_interval(change.simultaneous, format_ratio)
    ratio = f"B / A {format_ratio(change.ratio.value)} {interval}"
    return f"{place}: {said} ({ratio}; {_describe_yardstick(change)})."


def _describe_yardstick(change: DeliveryChange) -> str:
    if change.noise is None:
        return "noise unknown: no null arm"
    if change.noise == 1:
        return f"equal arms differ {describe_noise_of(change)}"
    return f"equal arms differ by up to {describe_noise_of(change)}"


def _describe_failures(change: FailureChange, size: LoadSize | None) -> str:
    interval = format_interval(change.difference, format_points)
    return (
        f"{arm_label(change.arm)} at {load_label(change.load, size)}: {format_share(change.after)} of "
        f"requests failed where {format_share(change.before)} did "
        f"(B − A {format_points(change.difference.value)} {interval})."
    )


def _describe_effect(change: EffectChange) -> str:
    old, new = (format_ratio(one.value) if one else "" for one in (change.before, change.after))
    return (
        f"{segment_label(change.segment)} at {change.load}: candidate / baseline changed from {old} to "
        f"{new}; the intervals do not overlap."
    )


def _list_doubts(comparison: RunComparison, deliveries: tuple[DeliveryChange, ...]) -> list[str]:
    """Return what limits the comparison: hidden mechanisms, no yardstick, rows that could not be compared."""
    doubts = []
    hidden = [arm_label(one.arm) for one in comparison.arms if one.undisclosed]
    if hidden and deliveries:
        doubts.append(NO_PROOF.format(arms=", ".join(hidden)))
    if any(one.noise is None for one in deliveries):
        doubts.append("Where no run has a null arm, the noise is unknown: the change may be no larger.")
    missing = [one for one in comparison.deliveries if one.reading == "not_compared"]
    if missing:
        reasons = sorted({one.ratio.reason or "unknown" for one in missing})
        doubts.append(f"{len(missing)} rows could not be compared: {'; '.join(reasons)}.")
    return doubts
