"""Which requests of two runs may be put side by side: same prompt with the same content, same load. Pure."""

from collections.abc import Iterable, Mapping

import msgspec

from draftproof.verdict.comparing.comparison import CommonPrompts
from draftproof.verdict.pairs import Pair
from draftproof.verdict.run_data import Observation, PreparedRun

AnswerKey = tuple[str, int, int]  # item, repeat, turn of the conversation


class Overlap(msgspec.Struct, frozen=True, kw_only=True):
    """The prompts and the loads that two runs share. `loads` are (name, requests in flight) in order."""

    items: frozenset[str]
    counts: CommonPrompts
    loads: tuple[tuple[str, int], ...]
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
        loads=tuple((name, count) for name, count in levels[0].items() if levels[1].get(name) == count),
        other_loads=_describe_other_loads(*levels),
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
            ],
            order="sorted",
        )
        for item in prepared.run.items
    }


def _levels(prepared: PreparedRun) -> dict[str, int]:
    return {load: prepared.concurrency(load) for load in prepared.loads}


def _describe_other_loads(before: Mapping[str, int], after: Mapping[str, int]) -> tuple[str, ...]:
    told = []
    for name in dict.fromkeys((*before, *after)):
        old, new = before.get(name), after.get(name)
        if old is None or new is None:
            told.append(f"Load {name} was measured in {'B' if old is None else 'A'} only.")
        elif old != new:
            told.append(f"Load {name} means {old} in flight in A and {new} in B, so it is not compared.")
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
