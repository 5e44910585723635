"""Two runs side by side, for a terminal: what changed, in sentences first, then the tables they rest on.

Pure view of a `RunComparison`; deterministic and free of colour codes.
"""

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime

from draftproof.judge.compare.comparison import (
    DeliveryChange,
    EffectChange,
    EnvelopeChange,
    FactChange,
    FailureChange,
    ReasonChange,
    RunComparison,
    RunIdentity,
)
from draftproof.judge.results.run import CellStatus, EnvelopeEntry, Figure
from draftproof.plan.load_size import LoadSize
from draftproof.tell.report.change_words import (
    QUANTITY_WORDS,
    describe_changes,
    describe_noise,
    describe_noise_of,
    describe_reading,
    headline,
)
from draftproof.tell.report.quantities import (
    DECISIONS,
    MISSING,
    STATUSES,
    arm_label,
    format_count,
    format_points,
    format_ratio,
    format_share,
    load_label,
    segment_label,
    short_hash,
)
from draftproof.tell.report.view import align, bullets, format_interval, needed_text, printable, section, wrap

_SHOWN_CHARS = 60
_SHOWN_REASONS = 4
_TRIGGER_WORDS = {
    "version": "version",
    "model_hash": "model",
    "drafter_hash": "drafter",
    "flags": "flags",
    "accelerator": "accelerator",
    "driver": "driver",
    "libraries": "libraries",
    "kernels": "kernels",
}


def render_comparison(comparison: RunComparison) -> str:
    """Render the comparison for a terminal; the same comparison gives the same text."""
    sections = (
        _head(comparison),
        section("Configuration", [*_facts(comparison.facts), *bullets(_triggers(comparison))]),
        section(_delivery_title(comparison), _deliveries(comparison)),
        section("Failed requests, the same prompts in A and B", _failures(comparison)),
        section("Effects, candidate / baseline, each run on its own prompts", _effects(comparison.effects)),
        section("Envelope", bullets(map(_describe_envelope, comparison.envelope))),
        section("Reasons of the verdict", bullets(_list_reasons(comparison.reasons))),
        section("Not compared", bullets(_list_left_out(comparison))),
    )
    return "\n\n".join("\n".join(lines) for lines in sections if lines) + "\n"


def _head(comparison: RunComparison) -> list[str]:
    return [
        comparison.conclusion.replace("_", " ").upper() + f"   {printable(comparison.before.name)} (A) and "
        f"{printable(comparison.after.name)} (B)",
        "",
        *wrap(headline(comparison)),
        *bullets(describe_changes(comparison)),
        *align([_identify("A", comparison.before), _identify("B", comparison.after)]),
    ]


def _identify(name: str, run: RunIdentity) -> tuple[str, ...]:
    started = datetime.fromtimestamp(run.started_wall_ns // 10**9, tz=UTC)
    decision = DECISIONS.get(run.decision)
    return (
        name,
        f"{started:%Y-%m-%d %H:%M} UTC",
        decision.label if decision else run.decision,
        f"plan {short_hash(run.plan_sha256)}",
        f"workload {short_hash(run.workload_sha256)}",
        f"draftproof {run.draftproof_version}",
    )


def _facts(facts: Iterable[FactChange]) -> list[str]:
    rows = [
        (
            "Run" if one.arm is None else arm_label(one.arm),
            f"{one.group}: {one.key}",
            _value(one.key, one.before),
            _value(one.key, one.after),
        )
        for one in facts
    ]
    return align([("Of", "What", "A", "B"), *rows]) if rows else wrap("Nothing that was recorded differs.")


def _value(key: str, value: str | float | None) -> str:
    if value is None:
        return MISSING
    text = short_hash(str(value)) if key.endswith("sha256") else str(value)
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}…"


def _triggers(comparison: RunComparison) -> list[str]:
    """Say which triggers fired and which cannot be told; arms of which the same is said share a line."""
    arms_of: dict[str, list[str]] = {}
    for arm in comparison.arms:
        fired = ", ".join(_TRIGGER_WORDS[name] for name in arm.triggers.fired)
        unknown = ", ".join(_TRIGGER_WORDS[name] for name in arm.triggers.unknown)
        said = [f"{fired} changed"] if fired else []
        said += [f"{unknown} not disclosed"] if unknown else []
        if said:
            arms_of.setdefault("; ".join(said), []).append(arm_label(arm.arm))
    return [f"Change triggers, {', '.join(arms)}: {said}." for said, arms in arms_of.items()]


def _delivery_title(comparison: RunComparison) -> str:
    return (
        f"Delivery, {comparison.prompts.common:,} prompts of both runs "
        f"(B / A with intervals that hold together at {comparison.confidence * 100:g}%)"
    )


def _deliveries(comparison: RunComparison) -> list[str]:
    """One table in which a line names arm and load before their rows."""
    header = ("Quantity", "A", "B", "B / A", "Interval", "Equal arms", "Prompts", "Reading")
    head, *rows = align([header, *map(_delivery_row, comparison.deliveries)])
    loads, lines, place = comparison.sizes, [head], None
    for change, row in zip(comparison.deliveries, rows, strict=True):
        if place != (change.arm, change.load):
            place = (change.arm, change.load)
            title = f"{arm_label(change.arm)} at {load_label(change.load, loads.get(change.load))}"
            lines += wrap(title)
        lines.append(row)
    return lines


def _delivery_row(change: DeliveryChange) -> tuple[str, ...]:
    words = QUANTITY_WORDS[change.quantity]
    return (
        f"  {words.label}",
        words.write(change.before),
        words.write(change.after),
        format_ratio(change.ratio.value),
        # Where one run does not tell the quantity at all, more prompts would not help.
        "" if change.reading == "known_in_one_run" else _interval(change.simultaneous, format_ratio),
        describe_noise_of(change),
        format_count(change.prompts),
        describe_reading(change),
    )


def _interval(figure: Figure, write: Callable[[float | None], str]) -> str:
    return format_interval(figure, write) or needed_text(figure) or figure.reason or ""


def _failures(comparison: RunComparison) -> list[str]:
    loads = comparison.sizes
    rows = [_failure_row(one, loads.get(one.load)) for one in comparison.failures]
    header = ("Load", "Arm", "A", "B", "B − A", "Interval", "Equal arms", "Pairs", "Reading")
    return align([header, *rows]) if rows else []


def _failure_row(change: FailureChange, size: LoadSize | None) -> tuple[str, ...]:
    noise = None if change.noise is None else 1 + change.noise
    return (
        load_label(change.load, size),
        arm_label(change.arm),
        format_share(change.before),
        format_share(change.after),
        format_points(change.difference.value),
        _interval(change.difference, format_points),
        describe_noise(noise, change.noise_from, format_share),
        format_count(change.difference.n),
        describe_reading(change),
    )


def _effects(effects: Iterable[EffectChange]) -> list[str]:
    rows = [
        (
            segment_label(one.segment),
            one.load,
            _status(one.status_before),
            _effect(one.before),
            _status(one.status_after),
            _effect(one.after),
            {True: "changed", False: "intervals overlap", None: "not comparable"}[one.is_apart],
        )
        for one in effects
    ]
    header = ("Segment", "Load", "A", "Ratio", "B", "Ratio", "Reading")
    return align([header, *rows]) if rows else []


def _status(status: CellStatus | None) -> str:
    return MISSING if status is None else STATUSES[status].label


def _effect(figure: Figure | None) -> str:
    if figure is None:
        return MISSING
    return f"{format_ratio(figure.value)} {format_interval(figure, format_ratio)}".rstrip()


def _describe_envelope(change: EnvelopeChange) -> str:
    both = f"{_limit(change.before)} in A, {_limit(change.after)} in B"
    return f"{segment_label(change.segment)}: {_direction(change)}; {both}."


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


def _list_reasons(changes: Sequence[ReasonChange]) -> list[str]:
    """Name the first reasons of each run; a run with many segments may have as many reasons."""
    told = []
    for name, texts in (
        ("A", [one.before for one in changes if one.before is not None]),
        ("B", [one.after for one in changes if one.after is not None]),
    ):
        told += [f"in {name} only: {text}" for text in texts[:_SHOWN_REASONS]]
        if len(texts) > _SHOWN_REASONS:
            told.append(f"in {name} only: {len(texts) - _SHOWN_REASONS} more, see --json")
    return told


def _limit(entry: EnvelopeEntry | None) -> str:
    if entry is None:
        return "not allowed"
    context = entry.max_context_tokens
    tail = "" if context is None else f" and {context:,} tokens of context"
    return f"up to {entry.limit.short}{tail}"


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
