"""What to look at when speculation is not the answer, and the whole diagnosis of a run. Pure.

One function a remedy; it returns None where nothing measured speaks for it. The order is by `stake`, the
share of a request's time that the remedy could touch at most; what has none comes after, a cold start last.

What a prefix cache could spare is counted in characters of the messages, because prompts are kept as text;
the share of tokens is about the same. What the chat template puts before every prompt is not seen, so the
share errs to the low side. Of a workload whose prompts are withheld the counts were kept.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise

from draftproof.judge.decide.effects import EffectIndex, null_difference_at
from draftproof.judge.decide.faults import Faults
from draftproof.judge.inform.diagnosis.drafting import (
    Known,
    compute_drafter_costs,
    largest,
    suggest_cheaper_drafter,
    suggest_fewer_drafts,
    suggest_off_at_load,
    suggest_separate_prefill,
)
from draftproof.judge.inform.diagnosis.steps import RoundTable
from draftproof.judge.inform.diagnosis.time_parts import NOT_MEASURED, compute_time_parts
from draftproof.judge.observe.run_data import ALL_SEGMENTS, PreparedRun
from draftproof.judge.results.inform import (
    BreakEven,
    Diagnoses,
    Gauge,
    Remedy,
    ServiceStart,
    ServiceUse,
    Sign,
)
from draftproof.judge.results.run import ArmCell
from draftproof.workload.items import Item

# A part of the time below these shares is not where to look first.
QUEUE_SHARE, PREFILL_SHARE = 0.10, 0.20
WAITING_REQUESTS, CACHE_USAGE, PREEMPTED_SHARE = 1.0, 0.90, 0.01
FIRST_TOKEN_GROWTH = 1.5
COMMON_PREFIX, CACHING_IMPACT = 0.10, 0.02
COLD_FACTOR, LONG_START_S = 3.0, 60.0
# Settings that say whether a prefix cache is on, as engines name them, and the value that means off.
CACHE_SWITCHES: tuple[tuple[str, object], ...] = (
    ("enable_prefix_caching", False),
    ("prefix_caching", False),
    ("disable_radix_cache", True),
)
LAST = "cold_start"


def compute_diagnoses(
    prepared: PreparedRun,
    *,
    faults: Faults,
    effects: EffectIndex,
    arm_cells: Sequence[ArmCell],
    services: Sequence[ServiceUse],
    starts: Sequence[ServiceStart],
    rounds: RoundTable,
    break_evens: tuple[BreakEven, ...],
) -> Diagnoses:
    """Return time by part, remedies in the order to look at them, the drafter's cost and what breaks even."""
    parts = compute_time_parts(prepared, effects, faults)
    pooled = [one for one in parts if one.segment == ALL_SEGMENTS]
    known = Known(
        prepared=prepared,
        baseline={one.load: one for one in pooled if one.arm == "baseline"},
        candidate={one.load: one for one in pooled if one.arm == "candidate"},
        cells={(one.arm, one.load): one for one in arm_cells if one.segment == ALL_SEGMENTS},
        services={(one.arm, one.load): one for one in services},
        starts=starts,
        break_evens={one.load: one for one in break_evens if one.segment == ALL_SEGMENTS},
        effects=effects,
        rounds=rounds,
        nulls={load: null_difference_at(effects, "tpot_ns", load) for load in prepared.loads},
        invalid=frozenset(load for load in prepared.loads if faults.is_invalid(load)),
    )
    return Diagnoses(
        parts=parts,
        remedies=order_remedies(suggest(known) for suggest in _SUGGESTIONS),
        drafter=compute_drafter_costs(prepared, rounds, services),
        break_evens=break_evens,
        not_measured=NOT_MEASURED,
    )


def order_remedies(remedies: Iterable[Remedy | None]) -> tuple[Remedy, ...]:
    """Return those that there are, the largest share of time first, a cold start last."""
    found = [one for one in remedies if one is not None]
    return tuple(sorted(found, key=lambda one: (one.code == LAST, one.stake is None, -(one.stake or 0.0))))


def suggest_capacity(known: Known) -> Remedy | None:
    """More batching or capacity: requests wait for a slot, or lose theirs."""
    found = [(load, _signs_of_want(known, load)) for load in known.prepared.loads]
    loads = tuple(load for load, signs in found if signs)
    if not loads:
        return None
    return Remedy(
        code="more_capacity",
        title="More batching or capacity",
        text="Requests wait for a place in the running batch, which faster decoding shortens only in part: "
        "a larger batch, a larger cache or another replica comes first.",
        loads=loads,
        stake=largest(known.baseline[load].queue.value for load in loads if load in known.baseline),
        evidence=tuple(sign for _, signs in found for sign in signs),
    )


def suggest_prefill(known: Known) -> Remedy | None:
    """Prefill scheduling, or less of it: reading prompts takes a large part, by the engine's own timings.

    With one request in flight there is nothing to schedule, so there only less prefill helps.
    """
    loads = [load for load, one in known.baseline.items() if _at_least(one.prefill.low, PREFILL_SHARE)]
    if not loads:
        return None
    shares = {load: known.baseline[load].prefill.value or 0.0 for load in loads}
    evidence = [
        Sign(
            text=f"at load {load} prefill takes {100 * share:.0f} % of a request's time",
            row=f"diagnosis: baseline, all × {load}",
        )
        for load, share in shares.items()
    ]
    if all(known.prepared.sizes[load].concurrency == 1 for load in loads):
        return Remedy(
            code="less_prefill",
            title="Less prefill",
            text="Reading prompts takes time that speculation does not shorten. With one request in flight "
            "there is nothing to schedule: shorter prompts, cached beginnings or more compute shorten it.",
            loads=tuple(loads),
            stake=max(shares.values()),
            evidence=tuple(evidence),
        )
    return Remedy(
        code="prefill_scheduling",
        title="Prefill scheduling, chunked prefill",
        text="Reading prompts takes time that speculation does not shorten: chunk size, token budget of a "
        "step and order of prompts decide how long the first token waits.",
        loads=tuple(loads),
        stake=max(shares.values()),
        evidence=(*evidence, *_first_token_growth(known)),
    )


def suggest_prefix_cache(known: Known) -> Remedy | None:
    """Prefix caching: prompts share a beginning, prefill takes time, and nothing shows that it is cached."""
    common = common_prefix_share(known.prepared.run.items)
    shares = {
        load: one.prefill.value for load, one in known.baseline.items() if one.prefill.value is not None
    }
    if common is None or common < COMMON_PREFIX or not shares:
        return None
    impact = common * max(shares.values())
    hits, is_off = _hit_rate(known), _cache_is_off(known)
    if impact < CACHING_IMPACT or is_off is False or (hits is not None and hits >= common / 2):
        return None
    evidence = [
        Sign(
            text=f"{100 * common:.0f} % of the prompts' text is a beginning that another prompt shares",
            row="workload: messages of the items",
        ),
        Sign(
            text=f"prefill takes up to {100 * max(shares.values()):.0f} % of a request's time",
            row="diagnosis: baseline, all",
        ),
    ]
    if hits is not None:
        text = f"of the prompt tokens looked up in the cache {100 * hits:.0f} % were found"
        evidence.append(Sign(text=text, row="services: baseline"))
    if is_off is None and hits is None:
        text = "neither a setting nor a counter of the service says whether they are cached already"
        evidence.append(Sign(text=text, row="manifest: settings of baseline; services: baseline"))
    if is_off:
        evidence.append(Sign(text="the prefix cache is switched off", row="manifest: settings of baseline"))
    return Remedy(
        code="prefix_caching",
        title="Prefix caching",
        text="Prompts begin alike, so their common part could be read once. Whether the service's real "
        "traffic repeats beginnings as these prompts do has to be checked.",
        loads=tuple(shares),
        stake=impact,
        evidence=tuple(evidence),
    )


def suggest_cold_start(known: Known) -> Remedy | None:
    """Cold-start work: a start takes long, or the first request after it waits far longer than later ones."""
    start = next((one for one in known.starts if one.arm == "baseline"), None)
    if start is None:
        return None
    evidence = []
    if start.load_time_s is not None and start.load_time_s >= LONG_START_S:
        text = f"the baseline took {start.load_time_s:.0f} s to load"
        evidence.append(Sign(text=text, row="service_starts: baseline"))
    warm = _typical_first_token(known, next(iter(known.prepared.loads), ""))
    if warm and start.cold_ttft_ns is not None and start.cold_ttft_ns >= COLD_FACTOR * warm:
        text = (
            f"the first request after a start waited {start.cold_ttft_ns / 1e6:.0f} ms for its first token, "
            f"later ones {warm / 1e6:.0f} ms"
        )
        evidence.append(Sign(text=text, row="service_starts: baseline; arm_cells: ttft"))
    if not evidence:
        return None
    return Remedy(
        code=LAST,
        title="Cold-start work",
        text="Counts only where services start while users wait, as with scaling to zero; no measured "
        "request contains it.",
        loads=(),
        stake=None,
        evidence=tuple(evidence),
    )


def _signs_of_want(known: Known, load: str) -> list[Sign]:
    """Return every sign at a load that the baseline had no slot for its requests."""
    signs, use = [], known.services.get(("baseline", load))
    parts = known.baseline.get(load)
    if parts is not None and _at_least(parts.queue.low, QUEUE_SHARE):
        text = f"at load {load} queueing takes {100 * (parts.queue.value or 0.0):.0f} % of a request's time"
        signs.append(Sign(text=text, row=f"diagnosis: baseline, all × {load}"))
    if use is None:
        return signs
    row = f"services: baseline, {load}"
    if _at_least(_mean_of(use.waiting), WAITING_REQUESTS):
        text = f"at load {load} {_mean_of(use.waiting):.1f} requests wait on average"
        signs.append(Sign(text=text, row=row))
    if use.preemptions and use.finished_requests:
        share = use.preemptions / use.finished_requests
        if share >= PREEMPTED_SHARE:
            text = (
                f"at load {load} there were {use.preemptions:.0f} preemptions in "
                f"{use.finished_requests:.0f} requests"
            )
            signs.append(Sign(text=text, row=row))
    if use.cache_usage is not None and use.cache_usage.maximum >= CACHE_USAGE:
        text = f"at load {load} up to {100 * use.cache_usage.maximum:.0f} % of the key-value cache was in use"
        signs.append(Sign(text=text, row=row))
    return signs


def _first_token_growth(known: Known) -> list[Sign]:
    loads = known.prepared.loads
    lowest, highest = (_typical_first_token(known, load) for load in (loads[0], loads[-1]))
    if len(loads) < 2 or not lowest or not highest or highest / lowest < FIRST_TOKEN_GROWTH:
        return []
    factor = f"{highest / lowest:.1f} times as long"
    text = f"the median first token takes {factor} at load {loads[-1]} as at {loads[0]}"
    return [Sign(text=text, row="arm_cells: ttft of baseline, all")]


def _typical_first_token(known: Known, load: str) -> float | None:
    cell = known.cells.get(("baseline", load))
    return cell.ttft.ok_p50.value if cell else None


def _hit_rate(known: Known) -> float | None:
    """Return cached / looked-up prompt tokens over the baseline's periods, None where nothing counts them."""
    uses = [one for (arm, _), one in known.services.items() if arm == "baseline"]
    counted = [
        (one.prefix_hits, one.prefix_queries)
        for one in uses
        if one.prefix_hits is not None and one.prefix_queries is not None
    ]
    looked_up = sum(queries for _, queries in counted)
    return sum(hits for hits, _ in counted) / looked_up if looked_up else None


def _cache_is_off(known: Known) -> bool | None:
    """Return whether the baseline's prefix cache is off; None where no setting says it."""
    settings = next((one.settings for one in known.prepared.run.manifest.arms if one.arm == "baseline"), {})
    stated = [settings[key] == off for key, off in CACHE_SWITCHES if settings.get(key) is not None]
    return stated[0] if stated else None


def _mean_of(gauge: Gauge | None) -> float:
    return (gauge.mean or 0.0) if gauge else 0.0


def _at_least(value: float | None, floor: float) -> bool:
    return value is not None and value >= floor


_SUGGESTIONS = (
    suggest_capacity,
    suggest_prefill,
    suggest_prefix_cache,
    suggest_separate_prefill,
    suggest_off_at_load,
    suggest_cheaper_drafter,
    suggest_fewer_drafts,
    suggest_cold_start,
)


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
