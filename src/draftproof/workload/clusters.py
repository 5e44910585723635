"""Which items answer together: copies of a prompt, and prompts that the plan groups. Pure.

A cluster is what intervals resample by. Two items with the same messages are one prompt, whatever they are
called: asking it four times says no more of the traffic than asking it once. A dimension of segments that the
plan names (`comparison.cluster_by`) joins prompts of one label.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping

import msgspec

from draftproof.workload.items import Item


def name_clusters(items: Iterable[Item], cluster_by: str | None = None) -> dict[str, str]:
    """Return item id -> name of its cluster: the first label, in sorted order, of all that it joins.

    Args:
        items: of the workload; of withheld prompts equal digests are equal messages.
        cluster_by: dimension whose label groups items; one without a label is named by its id.
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
