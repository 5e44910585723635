"""What prompts that are nearly the same text count for: said before a run, measured after it.

m prompts of one group whose log ratios correlate by r, the groups' share of their variance, count for m / (1
+ (m − 1) r), the design effect of cluster samples (Kish 1965).
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping

import numpy as np
from msgspec.structs import replace

from draftproof.judge.decide.effects import find_usable
from draftproof.judge.observe.observed import RunData
from draftproof.judge.observe.pairs import Pairs
from draftproof.judge.observe.run_data import PreparedRun
from draftproof.judge.stats.bootstrap import MINIMUM_CLUSTERS
from draftproof.judge.stats.periods import period_spread
from draftproof.workload.clusters import find_near_copies, name_clusters
from draftproof.workload.items import Item

# Fewer than that change no interval that anybody would notice.
LEAST_SHARE = 0.1
MOST_SHARE = 0.5  # of their number: prompts that count for more are taken one by one


def foresee_near_copies(items: Iterable[Item], cluster_by: str | None) -> Iterator[str]:
    """Yield what near copies count for at worst: one prompt for each group."""
    groups = _group_clusters(tuple(items), cluster_by)
    if _are_many(groups):
        fewest = len(set(groups.values()))
        yield f"{_describe(groups)}: if they answer alike, {len(groups)} prompts count for {fewest}. {_FIX}"


def warn_about_near_copies(prepared: PreparedRun, pairs: Pairs) -> Iterator[str]:
    """Yield how many prompts the near copies of a run counted for, by how their ratios go together."""
    cluster_by = prepared.plan.comparison.cluster_by
    groups = _group_clusters(prepared.run.items, cluster_by)
    if not _are_many(groups):
        return
    together = _measure_correlation(prepared, pairs, groups)
    sizes = Counter(groups.values()).values()
    if together is None:
        how = f"whether they answer alike cannot be told here, and then they count for {len(sizes)}"
    else:
        count = round(_count_effective(groups, together))
        how = f"their ratios correlate by {together:.2f}, so {len(groups)} prompts count for about {count}"
    yield f"{_describe(groups)}; {how}. {_FIX}"


def join_near_copies(prepared: PreparedRun, pairs: Pairs) -> RunData | None:
    """Return a run in which near copies answer together, as prompts of one label do.

    None where they count for most of their number, or nothing tells what they count for. A group is then one
    prompt, so the sample floor is that of a bootstrap.
    """
    run = prepared.run
    choice = run.plan.comparison
    groups = _group_clusters(run.items, choice.cluster_by)
    together = _measure_correlation(prepared, pairs, groups) if _are_many(groups) else None
    if together is None or _count_effective(groups, together) > MOST_SHARE * len(groups):
        return None
    names = name_clusters(run.items, choice.cluster_by)
    items = tuple(
        replace(item, segments=item.segments | {_GROUP: groups[names[item.id]]}) for item in run.items
    )
    joined = choice.model_copy(update={"cluster_by": _GROUP, "minimum_prompts": MINIMUM_CLUSTERS})
    return replace(run, items=items, plan=run.plan.model_copy(update={"comparison": joined}))


_GROUP = "near copies"
_FIX = (
    "Intervals take each for itself: label the template or document as a segment dimension and name it in "
    "comparison.cluster_by."
)


def _group_clusters(items: tuple[Item, ...], cluster_by: str | None) -> Mapping[str, str]:
    """Return cluster -> name of the group of near copies that it is in, its own name where it is in none."""
    names, like = name_clusters(items, cluster_by), find_near_copies(items)
    groups: dict[str, str] = {}
    for item in items:
        groups.setdefault(names[item.id], names[like.get(item.id, item.id)])
    return groups


def _count_effective(groups: Mapping[str, str], together: float) -> float:
    return sum(size / (1 + (size - 1) * together) for size in Counter(groups.values()).values())


def _are_many(groups: Mapping[str, str]) -> bool:
    return len(groups) - len(set(groups.values())) >= LEAST_SHARE * len(groups)


def _describe(groups: Mapping[str, str]) -> str:
    members: defaultdict[str, list[str]] = defaultdict(list)
    for cluster, group in groups.items():
        members[group].append(cluster)
    shared = [own for own in members.values() if len(own) > 1]
    first = max(shared, key=len)
    return (
        f"{sum(map(len, shared))} of {len(groups)} prompts are near copies of another (one template, or one "
        f"long beginning; such as {first[0]} and {first[1]})"
    )


def _measure_correlation(prepared: PreparedRun, pairs: Pairs, groups: Mapping[str, str]) -> float | None:
    """Return the share of the prompts' variance that is between groups, None where it is not known."""
    columns, choice = prepared.columns, prepared.plan.comparison
    values = columns.metric(choice.metric)
    usable = find_usable(prepared, pairs, values)
    mine, theirs = usable.mine, usable.theirs
    clusters = columns.clusters(choice.cluster_by)[mine]
    counts = np.bincount(clusters)
    met = np.flatnonzero(counts)
    ratios = np.bincount(clusters, weights=np.log(values[mine] / values[theirs]))[met] / counts[met]
    names = sorted(set(columns.cluster_names(choice.cluster_by).values()))
    labels = [groups[names[index]] for index in met.tolist()]
    segments = np.zeros(len(counts), dtype=np.intp)
    segments[clusters] = columns.segments[mine]
    spread = period_spread(ratios, labels, segments[met])
    if spread is None:
        return None
    means = {kind: ratios[segments[met] == kind].mean() for kind in np.unique(segments[met]).tolist()}
    whole = float(np.var(ratios - np.array([means[kind] for kind in segments[met].tolist()])))
    return min(1.0, spread.variance / whole) if whole > 0 else None
