"""What a plan's load levels will not do as their author may think, found before anything is measured.

Pure: plan, items and what the arms state. A finding is a warning; a load that cannot be made at all is an
error of the block plan.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Literal

import msgspec

from draftproof.core.clock import NS_PER_S
from draftproof.core.manifests import ArmManifest
from draftproof.measure.load.period import Period
from draftproof.measure.run.measure import plan_periods
from draftproof.plan.load import LoadLevel
from draftproof.plan.schema import Plan
from draftproof.services.arms.launch import list_arms
from draftproof.workload.arrivals import OnOff, OpenLoop, Ramp, Steady, Steps, mean_rate_rps
from draftproof.workload.items import Item, Workload
from draftproof.workload.recordings import cap_evidence, has_filler

LoadCode = Literal[
    "shape_cut", "period_long", "replay_of_one", "classes_leave_out", "beyond_service", "prompts_invented",
    "answers_capped", "turns_untimed", "one_over_tls", "lead_asks_counted",
    "null_asks_again", "line_changed",
]  # fmt: skip
_OF_ARMS = ("one_over_tls", "null_asks_again")
# Beyond it the arms of a block lie so far apart that slow drift of the machine is no longer alike for them.
LONG_TURN_S = 900.0
_FEW_KEPT = 0.5
# How engines name the most requests that they compute at once.
_LIMIT_KEYS = (
    "max_num_seqs",
    "max_running_requests",
    "capacity.max_running_requests",
    "max_batch_size",
    "n_slots",
    "parallel",
    "max_concurrent_requests",
)


class LoadFinding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that the plan may not mean, of a load level; of workload or arms where `load` is None."""

    code: LoadCode
    load: str | None
    text: str

    def __str__(self) -> str:
        if self.load:
            return f"load {self.load}: {self.text}"
        return f"{'arms' if self.code in _OF_ARMS else 'workload'}: {self.text}"


class Outlook(msgspec.Struct, frozen=True, kw_only=True):
    """How long a level takes at least, by the times at which its requests are due; None: a closed loop."""

    load: str
    periods: int
    requests_of_a_period: int
    at_least_s: float | None

    def __str__(self) -> str:
        most = f"{self.periods} periods of up to {self.requests_of_a_period} requests"
        if self.at_least_s is None:
            return f"{self.load}: {most}, as long as the service takes"
        return f"{self.load}: {most}, {_duration(self.at_least_s)} at least by their due times"


def list_outlooks(plan: Plan, items: tuple[Item, ...]) -> tuple[Outlook, ...]:
    """Return how long each level takes at least: the due times of its periods, without ramp-ups and tails.

    Raises UsageError: as `plan_periods`.
    """
    periods = sorted(plan_periods(plan, items, list_arms(plan)), key=lambda period: period.load)
    by_load = {load: tuple(own) for load, own in groupby(periods, key=lambda period: period.load)}
    return tuple(
        Outlook(
            load=level.name,
            periods=len(own),
            requests_of_a_period=max(len(period.item_ids) for period in own),
            at_least_s=None
            if level.concurrency is not None
            else sum(period.due_ns[-1] for period in own) / NS_PER_S,
        )
        for level in plan.load
        if (own := by_load.get(level.name))
    )


def list_notes(workload: Workload) -> tuple[LoadFinding, ...]:
    """Return what of the workload's file is not sent as it stands."""
    return tuple(LoadFinding(code="line_changed", load=None, text=text) for text in workload.notes)


def find_load_findings(plan: Plan, items: tuple[Item, ...]) -> tuple[LoadFinding, ...]:
    """Return what is to be known of the levels of a plan before they are run.

    Raises UsageError: as `plan_periods`.
    """
    periods = plan_periods(plan, items, list_arms(plan))
    found = [*_judge_addresses(plan), *_judge_null(plan), *_judge_recording(plan, items)]
    for level in plan.load:
        own = [period for period in periods if period.load == level.name]
        sizes = [len(period.item_ids) for period in own]
        last_s = [period.due_ns[-1] / NS_PER_S for period in own if period.due_ns]
        found += _judge_level(plan, level, items, sizes, last_s)
        found += _find_repeats(level, items, own)
    return tuple(found)


def find_beyond_service(plan: Plan, manifests: Iterable[ArmManifest]) -> tuple[LoadFinding, ...]:
    """Return closed loops that keep more requests in flight than an arm says it computes at once."""
    found = []
    for manifest in manifests:
        for key, limit in _stated_limits(manifest.settings).items():
            found += [
                LoadFinding(
                    code="beyond_service",
                    load=level.name,
                    text=f"{level.concurrency} requests are kept in flight, and {manifest.arm} says {key} = "
                    f"{limit}: the rest waits in its queue, which the first token shows.",
                )
                for level in plan.load
                if level.concurrency is not None and level.concurrency > limit
            ]
    return tuple(found)


def _judge_addresses(plan: Plan) -> Iterator[LoadFinding]:
    """Behind TLS a chunk is stamped when the client reads it, else when it reaches the host."""
    arms = (plan.arms.baseline, plan.arms.candidate, plan.arms.alternative)
    over_tls = [(arm.url or "").startswith("https:") for arm in arms if arm is not None]
    if any(over_tls) and not all(over_tls):
        text = (
            "some are asked over TLS and others are not: TLS costs time, and there a chunk arrives when the "
            "client reads it, elsewhere when the kernel has it; put all arms behind the same kind of address."
        )
        yield LoadFinding(code="one_over_tls", load=None, text=text)


def _judge_null(plan: Plan) -> Iterator[LoadFinding]:
    if plan.last_arms:
        yield LoadFinding(
            code="null_asks_again",
            load=None,
            text="the null arm asks the baseline's own service, in the last period of each block, what the "
            "baseline asked: a service that keeps prompts knows them, and the null arm's first tokens come "
            "early; switch prompt caching off in every arm, or set comparison.null_arm = false.",
        )


def _judge_recording(plan: Plan, items: Sequence[Item]) -> Iterator[LoadFinding]:
    if has_filler(items):
        counted = cap_evidence(plan.evidence, items)
        claim = (
            f' The plan calls its traffic "{plan.evidence}"; it counts as {counted}.'
            if counted != plan.evidence
            else ""
        )
        yield LoadFinding(
            code="prompts_invented",
            load=None,
            text="the prompts are invented words of the recorded lengths: arrivals and lengths are those of "
            "the trace; how often drafts are accepted, what answers say and where they end are not." + claim,
        )
    cap = plan.workload.max_tokens
    recorded = [item for item in items if item.due_ns is not None]
    capped = sum(cap is not None and item.max_tokens > cap for item in recorded)
    if capped:
        yield LoadFinding(
            code="answers_capped",
            load=None,
            text=f"workload.max_tokens = {cap} cuts {capped} of {len(recorded)} recorded answers short: the "
            "load is lighter than the recorded one.",
        )


def _judge_level(
    plan: Plan, level: LoadLevel, items: Sequence[Item], sizes: Sequence[int], last_s: Sequence[float]
) -> Iterator[LoadFinding]:
    if level.open_loop is not None and sizes:
        yield from _judge_shape(level, level.open_loop, min(sizes))
    longest_s = max(last_s, default=0.0)
    if longest_s > LONG_TURN_S:
        text = (
            f"a period lasts {_duration(longest_s)}, so the arms of a block lie that far apart and drift of "
            "the machine meets them unlike; a smaller block_size brings them together."
        )
        yield LoadFinding(code="period_long", load=level.name, text=text)
    if level.replay is not None and max(sizes, default=0) == 1:
        text = (
            "each period is one request: nothing of the recorded arrivals is left; set block_size to the "
            "requests of some minutes."
        )
        yield LoadFinding(code="replay_of_one", load=level.name, text=text)
    yield from _judge_classes(plan, level, items, sizes)
    if level.replay is not None and any(item.follow_ups for item in items):
        text = (
            "later turns of conversations come after their answers and think_s, not when they were recorded."
        )
        yield LoadFinding(code="turns_untimed", load=level.name, text=text)


def _find_repeats(
    level: LoadLevel, items: Sequence[Item], periods: Sequence[Period]
) -> Iterator[LoadFinding]:
    """Before counted requests others are asked, of which a service must not know the counted ones."""
    led = [period for period in periods if period.ramp_up is not None or (period.concurrency or 0) > 1]
    if any(len(period.item_ids) >= len(items) for period in led):
        text = (
            "a period asks every item, so what leads up to the counted requests asks counted ones: a service "
            "that caches prompts answers them too fast; lower block_size or add items."
        )
        yield LoadFinding(code="lead_asks_counted", load=level.name, text=text)


def _judge_shape(level: LoadLevel, process: OpenLoop, arrivals: int) -> Iterator[LoadFinding]:
    """A period goes through the shape from its start: with few arrivals it sees the beginning only."""
    match process.profile:
        case Steady():
            return
        case Ramp() as ramp:
            duration_s, name = ramp.ramp_s, "the ramp"
        case Steps() as steps:
            duration_s, name = steps.step_s * len(steps.rps), f"its {len(steps.rps)} steps"
        case OnOff() as bursts:
            duration_s, name = bursts.on_s + bursts.off_s, "a burst and the pause after it"
    needed = round(mean_rate_rps(process.profile, duration_s) * duration_s)
    if arrivals >= needed:
        return
    yield LoadFinding(
        code="shape_cut",
        load=level.name,
        text=f"{name} of {_duration(duration_s)} take {needed} arrivals on average, and a period has "
        f"{arrivals}: it ends before the shape does; it takes block_size = {needed} and a multiple of so "
        "many items, since the periods of a level are equally long.",
    )


def _judge_classes(
    plan: Plan, level: LoadLevel, items: Sequence[Item], sizes: Sequence[int]
) -> Iterator[LoadFinding]:
    if not level.classes:
        return
    arms = len(list_arms(plan))
    kept = sum(sizes) // (arms * level.repeats)
    if kept < _FEW_KEPT * len(items):
        dimension = plan.workload.segment_by[0]
        counts = {name: sum(item.segments.get(dimension) == name for item in items) for name in level.classes}
        scarce = min(counts, key=lambda name: counts[name] / level.classes[name])
        text = (
            f"the shares of its classes leave {kept} of {len(items)} items: {counts[scarce]} have "
            f"{dimension} = {scarce!r}, the scarcest for its share."
        )
        yield LoadFinding(code="classes_leave_out", load=level.name, text=text)


def _stated_limits(settings: Mapping[str, object]) -> dict[str, int]:
    """Return the first limit on requests at once that an arm's settings state, under its own name."""
    for key in _LIMIT_KEYS:
        value = settings.get(key)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return {key: value}
    return {}


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.3g} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"
