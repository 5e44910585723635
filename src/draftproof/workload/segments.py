"""Segments of a workload: choosing items by label, naming a segment, counting what is covered.

Pure and seeded. Dimensions and labels are whatever the items carry; no label has a meaning here.
"""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from draftproof.core.errors import WorkloadError
from draftproof.workload.arm_orders import order_by_seed
from draftproof.workload.items import Item, Workload

UNLABELLED = "unlabelled"
_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_SIGNS = re.compile(r'[,="\x00-\x1f\x7f-\x9f\u2028\u2029]')
# What a page does not show: ends and rows of spaces, other white space, controls, characters of no width.
_HIDDEN = re.compile(r"^ | $|  |[^\S ]|[\x00-\x1f\x7f-\x9f\u200b\u2060\ufeff]")
_WORD = r'("(?:[^"\\]|\\.)*"|[^,="]*)'
_PAIR = re.compile(f"{_WORD}={_WORD}")
_KEY = re.compile(f"{_WORD}={_WORD}(?:,{_WORD}={_WORD})*")


class Coverage(msgspec.Struct, frozen=True, kw_only=True):
    """How many items each label and each segment has.

    `by_dimension`: dimension -> label -> items. `by_segment`: segment key -> items. `unchecked` counts items
    whose answers nothing judges; `critical` counts items with at least one critical check.
    """

    items: int
    by_dimension: dict[str, dict[str, int]]
    by_segment: dict[str, int]
    unchecked: int
    critical: int


def segment_key(item: Item, segment_by: Sequence[str]) -> str:
    """Return the segment's name, e.g. "task=rewriting,language=ar", in the order of `segment_by`.

    Names and labels with signs of this form stand in quotes where the key would be another segment's without,
    and control characters always do.
    """
    pairs = tuple((name, item.segments.get(name, UNLABELLED)) for name in segment_by)
    plain = ",".join(f"{name}={label}" for name, label in pairs)
    if split_key(plain) == pairs and not _CONTROLS.search(plain):
        return plain
    return ",".join(f"{_protect(name)}={_protect(label)}" for name, label in pairs)


def split_key(key: str) -> tuple[tuple[str, str], ...]:
    """Return the dimensions of a segment's key with their labels, none for what is no such key."""
    if not _KEY.fullmatch(key):
        name, equals, label = key.partition("=")
        return ((name, label),) if equals else ()
    return tuple((_bare(name), _bare(label)) for name, label in _PAIR.findall(key))


def show_labels(key: str, joiner: str) -> str:
    """Return the labels of a segment's key as a person reads them, joined: "rewriting/ar".

    Labels are shown as given. One that could be taken for another, since it is empty, holds the joiner or
    spaces that a page does not show, or is the name of all segments together, stands in quotes.
    """
    labels = [label for _, label in split_key(key)]
    if not labels:
        return key
    parts = {joiner.strip()} if len(labels) > 1 else set()
    return joiner.join(_quote(label) if _is_unclear(label, parts) else label for label in labels)


def _protect(text: str) -> str:
    return _quote(text) if _SIGNS.search(text) else text


def _bare(text: str) -> str:
    try:
        bare: str = json.loads(text) if text.startswith('"') else text
    except ValueError:
        return text
    return bare


def _quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=bool(_HIDDEN.search(text)))


def _is_unclear(label: str, joiners: Iterable[str]) -> bool:
    is_pooled = label.casefold() in {"all", "all segments", "all tasks"}
    return (
        not label or is_pooled or bool(_HIDDEN.search(label)) or any(one in label for one in ('"', *joiners))
    )


def group_by_segment(items: Iterable[Item], segment_by: Sequence[str]) -> dict[str, list[Item]]:
    """Return segment key -> items in file order; keys in order of first appearance."""
    groups: defaultdict[str, list[Item]] = defaultdict(list)
    for item in items:
        groups[segment_key(item, segment_by)].append(item)
    return dict(groups)


def select(
    workload: Workload,
    where: Mapping[str, Sequence[str]],
    per_segment: int | None,
    segment_by: Sequence[str],
    seed: int,
) -> tuple[Item, ...]:
    """Return the items whose labels are all in `where`, at most `per_segment` of each segment.

    The choice depends on the seed and the item ids alone. The result keeps the file's order. A segment with
    fewer items gives all it has; `compute_coverage` shows it. Raises WorkloadError: a dimension or label that
    no item has, or no item left.
    """
    _check_where(workload, where)
    check_dimensions(workload, segment_by)
    kept = [
        item
        for item in workload.items
        if all(item.segments.get(name, UNLABELLED) in labels for name, labels in where.items())
    ]
    if not kept:
        wanted = " and ".join(f"{name} in [{', '.join(labels)}]" for name, labels in where.items())
        raise WorkloadError(
            f"no item matches {wanted}",
            place=workload.name,
            fix="widen workload.where or add items with these labels.",
        )
    if per_segment is None:
        return tuple(kept)
    chosen = _choose(kept, per_segment, segment_by, seed)
    return tuple(item for item in kept if item.id in chosen)


def compute_coverage(items: Iterable[Item], segment_by: Sequence[str]) -> Coverage:
    """Count items by label of every dimension and by segment, labels in alphabetical order."""
    items = tuple(items)
    return Coverage(
        items=len(items),
        by_dimension=_count_labels(items),
        by_segment=dict(sorted(Counter(segment_key(item, segment_by) for item in items).items())),
        unchecked=sum(not item.checks for item in items),
        critical=sum(any(check.critical for check in item.checks) for item in items),
    )


def _choose(items: Iterable[Item], per_segment: int, segment_by: Sequence[str], seed: int) -> set[str]:
    chosen: set[str] = set()
    for key, group in group_by_segment(items, segment_by).items():
        ids = order_by_seed((item.id for item in group), "select", seed, key)
        chosen.update(ids[:per_segment])
    return chosen


def _count_labels(items: Iterable[Item]) -> dict[str, dict[str, int]]:
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for item in items:
        for name, label in item.segments.items():
            counts[name][label] += 1
    return {name: dict(sorted(counts[name].items())) for name in sorted(counts)}


def _check_where(workload: Workload, where: Mapping[str, Sequence[str]]) -> None:
    check_dimensions(workload, where)
    known = _count_labels(workload.items)
    for name, labels in where.items():
        for label in labels:
            if label not in known[name] and label != UNLABELLED:
                raise WorkloadError(
                    f"no item has the label {label!r} in dimension {name!r}",
                    place=f"{workload.name}, workload.where.{name}",
                    fix=f"use one of: {', '.join(known[name])}.",
                )


def check_dimensions(workload: Workload, names: Iterable[str]) -> None:
    """Refuse a segment dimension that no item has.

    Raises WorkloadError: with the dimensions that there are.
    """
    known = _count_labels(workload.items)
    for name in names:
        if name not in known:
            raise WorkloadError(
                f"no item has the segment dimension {name!r}",
                place=workload.name,
                fix=f"use one of: {', '.join(known)}.",
            )
