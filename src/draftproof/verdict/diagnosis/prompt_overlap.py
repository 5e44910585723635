"""How much of the prompts is a beginning that they share: what a prefix cache could spare. Pure.

Counted in characters of the messages, because prompts are kept as text; the share of tokens is about the
same. What the chat template puts before every prompt is not seen, so the share errs to the low side. Of a
workload whose prompts are withheld the counts were kept.
"""

from collections.abc import Iterable
from itertools import pairwise

from draftproof.workload.items import Item

_END = "\x1e"  # between messages, so that a short message is no beginning of a longer one


def measure_overlaps(items: Iterable[Item]) -> dict[str, tuple[int, int]]:
    """Return item id -> (characters of its prompt, of its longest prefix shared with another prompt).

    In sorted order the nearest relative of a text is one of its two neighbours.
    """
    by_id = {item.id: item for item in items}
    kept = {name: item.withheld_prompt for name, item in by_id.items() if item.withheld_prompt is not None}
    texts = sorted((render_prompt(item), name) for name, item in by_id.items() if name not in kept)
    shared = [_common_length(before, after) for (before, _), (after, _) in pairwise(texts)]
    sides = zip([0, *shared], [*shared, 0], strict=True)
    counted = {name: (len(text), max(side)) for (text, name), side in zip(texts, sides, strict=False)}
    return kept | counted


def render_prompt(item: Item) -> str:
    """Return the messages of an item as one text; a role is one letter, so that it counts next to nothing."""
    return "".join(f"{one.role[0]}{one.text}{_END}" for one in item.messages)


def common_prefix_share(items: Iterable[Item]) -> float | None:
    """Return Σ shared prefix / Σ length over distinct items, None below two prompts."""
    overlaps = measure_overlaps(items).values()
    total = sum(length for length, _ in overlaps)
    if len(overlaps) < 2 or not total:
        return None
    return sum(shared for _, shared in overlaps) / total


def _common_length(one: str, other: str) -> int:
    """Return the length of the longest common beginning, by halving."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one[:middle] == other[:middle] else (low, middle - 1)
    return low
