"""Which requests of two runs may be put side by side: same prompt with the same content, same load. Pure."""

from collections.abc import Iterable

import msgspec

from draftproof.plan.load import LoadLevel
from draftproof.verdict.comparing.comparison import CommonPrompts
from draftproof.verdict.load_size import LoadSize
from draftproof.verdict.pairs import Pair
from draftproof.verdict.run_data import Observation, PreparedRun

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
    told, (old_levels, new_levels) = [], (_levels(before), _levels(after))
    for name in dict.fromkeys((*old_levels, *new_levels)):
        old, new = old_levels.get(name), new_levels.get(name)
        if old is None or new is None:
            told.append(f"Load {name} was measured in {'B' if old is None else 'A'} only.")
        elif not _is_same(old, new):
            labels = before.sizes[name].short, after.sizes[name].short
            means = f"means {labels[0]} in A and {labels[1]} in B"
            means = means if labels[0] != labels[1] else "asks in another way in A than in B"
            told.append(f"Load {name} {means}, so it is not compared.")
    return tuple(told)


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
