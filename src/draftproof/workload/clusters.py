"""Which items answer together: copies of a prompt, prompts that the plan groups, near copies. Pure.

A cluster is what intervals resample by: asking one prompt four times says no more of the traffic than asking
it once. Near copies (filled-in templates, questions behind one long document) are found and named, not
joined, for whether they answer alike shows in a run only (`judge/decide/near_copies.py`). Likeness is
Jaccard's index of the sets of runs of eight characters, estimated from the smallest hash of both in each of
128 bins (one permutation hashing, Li, Owen & Zhang 2012); messages that several prompts share word for word
are left out.
"""

import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

import msgspec
import numpy as np
import numpy.typing as npt

from draftproof.workload.items import Item


def name_clusters(items: Iterable[Item], cluster_by: str | None = None) -> dict[str, str]:
    """Return item id -> name of its cluster: the first label, in sorted order, of all that it joins.

    `items`: of the workload; of withheld prompts equal digests are equal messages. `cluster_by`: dimension
    whose label groups items; one without a label is named by its id.
    """
    own = {item.id: _label(item, cluster_by) for item in items}
    same: defaultdict[bytes, set[str]] = defaultdict(set)
    for item in items:
        same[msgspec.json.encode(item.messages)].add(own[item.id])
    joined = _join(same.values())
    return {name: joined.get(label, label) for name, label in own.items()}


def _label(item: Item, cluster_by: str | None) -> str:
    label = item.segments.get(cluster_by) if cluster_by else None
    return f"{cluster_by}={label}" if label else item.id


def _join(groups: Iterable[set[str]]) -> Mapping[str, str]:
    """Return label -> first label of all that are connected to it through groups; single labels are left out.

    Each group hangs its members' roots below the first of them, so a root is always the first of its tree.
    """
    above: dict[str, str] = {}

    def root(label: str) -> str:
        while label in above:
            label = above[label]
        return label

    for group in groups:
        first, *others = sorted({root(label) for label in group})
        above.update(dict.fromkeys(others, first))
    return {label: root(label) for label in above}


RUN_CHARACTERS = 8
BINS = 128
# Two texts are near copies where half of all their runs are in both: a template filled with as much again.
LEAST_LIKENESS = 0.5
TELLING_GROUPS = 3
# More text does not change which half is shared, and a prompt of a whole book is no reason to wait.
MOST_CHARACTERS = 20_000

EMPTY = np.uint64(2**64 - 1)

Hashes = npt.NDArray[np.uint64]


def find_near_copies(items: Iterable[Item]) -> dict[str, str]:
    """Return item id -> id of the first item that it is nearly the same as; items like no other are left out.

    The first of a group names itself. Of withheld prompts the groups were kept.
    """
    items = tuple(items)
    kept = {item.id: item.withheld_like for item in items if item.withheld_like is not None}
    texts = _read_texts(item for item in items if item.withheld_prompt is None)
    found = kept | _group_texts(texts)
    sizes = Counter(found.values())
    return {name: first for name, first in found.items() if sizes[first] > 1}


def _group_texts(texts: Mapping[str, str]) -> dict[str, str]:
    """Return the groups of texts; where all share one beginning, the groups of what follows it.

    From one group or two nothing is known of how prompts of a group go together.
    """
    groups = _group({name: _sketch(text) for name, text in texts.items()})
    if len(set(groups.values())) >= TELLING_GROUPS:
        return groups
    start = len(os.path.commonprefix(list(texts.values())))  # noqa: RUF071 - characters are meant
    behind = _group({name: _sketch(text[start:]) for name, text in texts.items()})
    return behind if TELLING_GROUPS <= len(set(behind.values())) < len(texts) else groups


def _read_texts(items: Iterable[Item]) -> Mapping[str, str]:
    """Return item id -> the messages that no other item has, or all of them if that leaves none."""
    contents = {item.id: [one.text for one in item.messages if one.text] for item in items}
    holders = Counter(text for own in contents.values() for text in set(own))
    return {
        name: "\n".join([text for text in own if holders[text] == 1] or own) for name, own in contents.items()
    }


def _group(sketches: Mapping[str, Hashes]) -> dict[str, str]:
    """Return name -> the likest of the first names of groups if it is like enough, else its own."""
    groups: dict[str, str] = {}
    firsts: list[str] = []
    rows = np.empty((len(sketches), BINS), dtype=np.uint64)
    for name, sketch in sketches.items():
        likeness = _measure_likeness(sketch, rows[: len(firsts)])
        if firsts and likeness.max() >= LEAST_LIKENESS:
            groups[name] = firsts[int(likeness.argmax())]
            continue
        groups[name] = name
        rows[len(firsts)] = sketch
        firsts.append(name)
    return groups


def _sketch(text: str) -> Hashes:
    """Return the smallest hash in each bin of the text's runs of characters, without white space or case."""
    plain = "".join(text.split()).casefold()[:MOST_CHARACTERS].ljust(RUN_CHARACTERS)
    codes = np.frombuffer(plain.encode("utf-32-le", "surrogatepass"), dtype="<u4").astype(np.uint64)
    hashes = np.zeros(len(codes) - RUN_CHARACTERS + 1, dtype=np.uint64)
    for start in range(RUN_CHARACTERS):
        hashes = _mix(hashes ^ codes[start : start + len(hashes)])
    smallest = np.full(BINS, EMPTY)
    np.minimum.at(smallest, (hashes % np.uint64(BINS)).astype(np.intp), hashes)
    return smallest


def _measure_likeness(sketch: Hashes, rows: Hashes) -> npt.NDArray[np.float64]:
    """Return the share of bins that are equal, of all that either fills, for each row; shape (rows,)."""
    filled = (rows != EMPTY) | (sketch != EMPTY)
    likeness: npt.NDArray[np.float64] = ((rows == sketch) & filled).sum(axis=1) / filled.sum(axis=1)
    return likeness


def _mix(values: Hashes) -> Hashes:
    """Return well-spread hashes (the finaliser of splitmix64, arithmetic modulo 2^64)."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
