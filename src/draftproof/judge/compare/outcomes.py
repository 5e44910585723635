"""What may be compared between two runs (prompts, loads, quantities), and what changed in what was concluded.

Effects are each run's own, over its own prompts: an effect is a ratio inside one run already.
"""

from collections.abc import Callable, Iterable
from typing import Literal

import msgspec

from draftproof.judge.compare.comparison import CommonPrompts, EffectChange, EnvelopeChange, ReasonChange
from draftproof.judge.inform.arm_cells import list_delivered
from draftproof.judge.metrics.delivery import count_arrivals, count_characters, find_burst_bound_ns
from draftproof.judge.metrics.service import percentile
from draftproof.judge.observe.pairs import Pair
from draftproof.judge.observe.run_data import Observation, PreparedRun
from draftproof.judge.results.run import Cell, EnvelopeEntry, Figure, Results
from draftproof.plan.limits import LoadLimit, LoadSize
from draftproof.plan.load import LoadLevel


def compare_effects(before: Results, after: Results) -> tuple[EffectChange, ...]:
    """Return every cell of either run, in A's order, changed or not."""
    old, new = _index_cells(before.cells), _index_cells(after.cells)
    return tuple(_compare_cell(key, old.get(key), new.get(key)) for key in dict.fromkeys((*old, *new)))


def compare_envelopes(before: Results, after: Results) -> tuple[EnvelopeChange, ...]:
    """Return the segments whose envelope differs."""
    old, new = _index_envelope(before.verdict.envelope), _index_envelope(after.verdict.envelope)
    return tuple(
        EnvelopeChange(segment=segment, before=old.get(segment), after=new.get(segment))
        for segment in dict.fromkeys((*old, *new))
        if _limits(old.get(segment)) != _limits(new.get(segment))
    )


def compare_reasons(before: Results, after: Results) -> tuple[ReasonChange, ...]:
    """Return the verdict's reasons that only one run gives; one that both give is the same reason.

    The figures inside a sentence differ from run to run: code and evidence say which reason it is.
    """
    old, new = ({(r.code, r.evidence): r.text for r in one.verdict.reasons} for one in (before, after))
    return tuple(
        ReasonChange(code=key[0], evidence=str(key[1]), before=old.get(key), after=new.get(key))
        for key in dict.fromkeys((*old, *new))
        if (key in old) != (key in new)
    )


def are_apart(before: Figure | None, after: Figure | None) -> bool | None:
    """Return whether two intervals do not overlap, None where one of them is not known."""
    if before is None or after is None:
        return None
    if before.low is None or before.high is None or after.low is None or after.high is None:
        return None
    return before.high < after.low or after.high < before.low


def _compare_cell(key: tuple[str, str], before: Cell | None, after: Cell | None) -> EffectChange:
    old, new = (before.effect if before else None), (after.effect if after else None)
    return EffectChange(
        segment=key[0],
        load=key[1],
        status_before=before.status if before else None,
        status_after=after.status if after else None,
        before=old,
        after=new,
        is_apart=are_apart(old, new),
    )


def _index_cells(cells: Iterable[Cell]) -> dict[tuple[str, str], Cell]:
    return {(cell.segment, cell.load): cell for cell in cells}


def _limits(entry: EnvelopeEntry | None) -> tuple[LoadLimit, int | None] | None:
    """Return what ends an entry: the load, and the context where harm was shown beyond it."""
    if entry is None:
        return None
    return (entry.limit, entry.max_context_tokens if entry.context == "limited" else None)


def _index_envelope(entries: Iterable[EnvelopeEntry]) -> dict[str, EnvelopeEntry]:
    return {entry.segment: entry for entry in entries}


_SAME_LOAD = ("concurrency", "arrivals", "replay", "classes", "think_s")
AnswerKey = tuple[str, int, int]  # item, repeat, turn of the conversation


class Overlap(msgspec.Struct, frozen=True, kw_only=True):
    """The prompts and the loads that two runs share, by name in order, with their sizes in A."""

    items: frozenset[str]
    counts: CommonPrompts
    loads: dict[str, LoadSize]
    other_loads: tuple[str, ...]


def find_overlap(before: PreparedRun, after: PreparedRun) -> Overlap:
    """Return what both runs asked at the same load."""
    old, new = _contents(before), _contents(after)
    shared = old.keys() & new.keys()
    same = frozenset(item_id for item_id in shared if old[item_id] == new[item_id])
    levels = _levels(before), _levels(after)
    return Overlap(
        items=same,
        counts=CommonPrompts(
            common=len(same),
            other_content=len(shared) - len(same),
            only_before=len(old.keys() - shared),
            only_after=len(new.keys() - shared),
        ),
        loads={
            name: before.sizes[name]
            for name, level in levels[0].items()
            if name in levels[1] and _is_same(level, levels[1][name])
        },
        other_loads=_describe_other_loads(before, after),
    )


def pair_runs(
    before: PreparedRun, after: PreparedRun, overlap: Overlap, arm: str, load: str
) -> tuple[Pair, ...]:
    """Return the answers of one arm at one load to the same prompt and repeat: `arm` is B's, `versus` A's."""
    old, new = (_index(run.of_arm(arm, load), overlap) for run in (before, after))
    return tuple(Pair(new[key], old[key]) for key in sorted(old.keys() & new.keys()))


def _contents(prepared: PreparedRun) -> dict[str, bytes]:
    """Return item id -> what the request asks for; labels and checks are not sent to the service."""
    limit = prepared.plan.workload.max_tokens
    return {
        item.id: msgspec.json.encode(
            [
                item.messages,
                item.max_tokens if limit is None else min(item.max_tokens, limit),
                item.sampling,
                item.stop,
                item.tools,
                item.response_schema,
                *([item.tool_choice, item.follow_ups] if item.tool_choice or item.follow_ups else ()),
                *([item.request] if item.request else ()),
            ],
            order="sorted",
        )
        for item in prepared.run.items
    }


def _levels(prepared: PreparedRun) -> dict[str, LoadLevel]:
    return {load: prepared.level(load) for load in prepared.loads}


def _is_same(one: LoadLevel, other: LoadLevel) -> bool:
    """Return whether two levels ask in the same way; how often and in which blocks does not matter."""
    return all(getattr(one, key) == getattr(other, key) for key in _SAME_LOAD)


def _describe_other_loads(before: PreparedRun, after: PreparedRun) -> tuple[str, ...]:
    notes, (old_levels, new_levels) = [], (_levels(before), _levels(after))
    for name in dict.fromkeys((*old_levels, *new_levels)):
        old, new = old_levels.get(name), new_levels.get(name)
        if old is None or new is None:
            notes.append(f"Load {name} was measured in {'B' if old is None else 'A'} only.")
        elif not _is_same(old, new):
            labels = before.sizes[name].short, after.sizes[name].short
            means = f"means {labels[0]} in A and {labels[1]} in B"
            means = means if labels[0] != labels[1] else "asks in another way in A than in B"
            notes.append(f"Load {name} {means}, so it is not compared.")
    return tuple(notes)


def _index(seen: Iterable[Observation], overlap: Overlap) -> dict[AnswerKey, Observation]:
    """Return key -> the attempt that was due first; of several due at once a failure, else the slowest."""
    found: dict[AnswerKey, Observation] = {}
    for one in seen:
        if one.record.item_id in overlap.items:
            key = (one.record.item_id, one.record.repeat, one.record.conversation_turn)
            found[key] = min(found.get(key, one), one, key=_attempt_order)
    return found


def _attempt_order(seen: Observation) -> tuple[int, bool, int, str]:
    record = seen.record
    return (record.scheduled_ns, seen.is_ok, -record.end_ns, record.request_id)


BoundIndex = dict[tuple[str, str], float | None]  # arm, load


class Quantity(msgspec.Struct, frozen=True, kw_only=True):
    """One quantity of an answer.

    `value` gets the answer and its run's burst bound, ns. `kind`: times take the plan's statistic, counts
    the mean. `instead` is compared where this one is not known in both runs.
    """

    name: str
    kind: Literal["time", "count"]
    value: Callable[[Observation, float | None], float | None]
    instead: "Quantity | None" = None


def measure(quantity: Quantity, seen: Observation, bound_ns: float | None) -> float | None:
    """Return the quantity of one answer, None where it is not known or not positive (a ratio needs that)."""
    if not is_trusted(seen):
        return None
    value = quantity.value(seen, bound_ns)
    return value if value is not None and value > 0 else None


def is_trusted(seen: Observation) -> bool:
    """Return whether a request was answered, the client was on time, and no time runs backwards."""
    return seen.is_ok and seen.timed and seen.in_order


def find_bounds(prepared: PreparedRun) -> BoundIndex:
    """Return the burst bound of every arm at every load, ns."""
    return {
        (arm, load): find_burst_bound_ns(list_delivered(prepared.of_arm(arm, load)))
        for arm in prepared.arms
        for load in prepared.loads
    }


def _per_chunk(amount: float | None, seen: Observation) -> float | None:
    chunks = len(seen.record.chunks)
    return amount / chunks if amount is not None and chunks else None


def _chunks_per_arrival(seen: Observation, bound_ns: float | None) -> float | None:
    chunks = len(seen.record.chunks)
    return None if bound_ns is None or not chunks else chunks / count_arrivals(seen.record, bound_ns)


QUANTITIES: tuple[Quantity, ...] = (
    Quantity(name="tpot_ns", kind="time", value=lambda seen, _: seen.metrics.tpot_ns),
    Quantity(
        name="ttft_from_schedule_ns", kind="time", value=lambda seen, _: seen.metrics.ttft_from_schedule_ns
    ),
    Quantity(name="icl_p50_ns", kind="time", value=lambda seen, _: percentile(seen.metrics.icl_ns, 0.50)),
    Quantity(
        name="tokens_per_chunk",
        kind="count",
        value=lambda seen, _: _per_chunk(seen.metrics.output_tokens, seen),
        instead=Quantity(
            name="characters_per_chunk",
            kind="count",
            value=lambda seen, _: _per_chunk(count_characters(seen.record), seen),
        ),
    ),
    Quantity(name="chunks_per_arrival", kind="count", value=_chunks_per_arrival),
    Quantity(
        name="output_tokens",
        kind="count",
        value=lambda seen, _: seen.metrics.output_tokens,
        instead=Quantity(
            name="output_characters", kind="count", value=lambda seen, _: count_characters(seen.record)
        ),
    ),
)
