"""What a run did not measure, and what happened to host and services from outside, a sentence each. Pure.

Durations are differences of one monotonic clock. Events are reported since a reader would otherwise look for
their cause in the arms.
"""

from collections.abc import Iterable, Iterator, Sequence

from draftproof.core.clock import NS_PER_S
from draftproof.core.records import BlockRecord
from draftproof.judge.decide.forecast import count_compared
from draftproof.judge.observe.run_data import PreparedRun
from draftproof.judge.results.inform import ServiceUse

_LISTED = 3
_CHANGED = "service changed: "


def list_disturbances(periods: Sequence[BlockRecord]) -> Iterator[str]:
    """Yield a warning for a wall clock set, a host asleep or started anew, and a service that was gone."""
    stepped = [period for period in periods if period.wall_step_ns]
    if stepped:
        listed = _list(
            f"by {(period.wall_step_ns or 0) / NS_PER_S:+,.3f} s in {_name(period)}" for period in stepped
        )
        yield (
            f"The client host's wall clock was set while periods ran: {listed}. Durations are of "
            f"another clock; "
            "the arrival of bytes that lay unread at that moment may be off by what the client was late."
        )
    slept = [period for period in periods if period.suspended_ns]
    if slept:
        listed = _list(
            f"{(period.suspended_ns or 0) / NS_PER_S:,.1f} s in {_name(period)}" for period in slept
        )
        yield f"The client's host slept while periods ran: {listed}. Times of these periods are left out."
    boots = {period.boot for period in periods if period.boot is not None}
    if len(boots) > 1:
        yield (
            f"The run was measured in {len(boots)} starts of the client's host, or on as many; periods of "
            "different starts are put in order by the wall clock."
        )
    unreached = [period for period in periods if period.unreached]
    if unreached:
        listed = _list(f"{period.unreached} in {_name(period)}" for period in unreached)
        yield (
            f"Requests found no service to connect to: {listed}. It was down or refused connections; counted "
            "ones are failures of the arm."
        )
    yield from _list_changes(periods)


def note_change(what: str) -> str:
    """Return the note of a period after which its service said that it is another one."""
    return f"{_CHANGED}{what}"


def _list_changes(periods: Sequence[BlockRecord]) -> Iterator[str]:
    for period in periods:
        _, mark, what = (period.note or "").partition(_CHANGED)
        if mark:
            yield (
                f"After {_name(period)} its service said that {what} What was measured since its "
                f"period before "
                "may be of either."
            )


def _name(period: BlockRecord) -> str:
    return f"period {period.load}/{period.block} of {period.arm}"


def _list(texts: Iterable[str]) -> str:
    every = list(texts)
    more = f" and {len(every) - _LISTED} more" if len(every) > _LISTED else ""
    return ", ".join(every[:_LISTED]) + more


NEVER_YET = ("When speech or frames reach the user: text streams only.",)
CLOSED_ONLY = "Open-loop arrivals and bursts: a fixed number of requests was kept in flight."
NO_KNEE = "The capacity knee: the service was measured at stated loads, not at the highest that it bears."
CUT_SHARE = 0.10  # from this share of cut answers on, a longer limit could change what was found
LANGUAGES = {"en": "English", "ar": "Arabic", "zh": "Chinese"}


def list_unmeasured(prepared: PreparedRun) -> tuple[str, ...]:
    """Return one sentence for each thing a reader may expect and this run cannot answer."""
    return (
        *NEVER_YET,
        *_list_loads(prepared),
        *_list_host(prepared),
        *_list_workload(prepared),
        *_list_answers(prepared),
        *_list_engine(prepared),
    )


def without_searched(not_measured: Iterable[str], *, is_open: bool) -> tuple[str, ...]:
    """Return what is still not measured beside a search for the knee, by rates or by requests in flight."""
    measured = (NO_KNEE, CLOSED_ONLY) if is_open else (NO_KNEE,)
    return tuple(text for text in not_measured if text not in measured)


def list_unreported(services: Iterable[ServiceUse]) -> Iterator[str]:
    """Yield what neither the services' metrics nor their machine reported."""
    services = list(services)
    if all(one.energy_per_output_token_joules is None for one in services):
        yield "Power and energy per token."
    if all(one.waiting is None and one.running is None for one in services):
        yield "Queue and running requests inside the services."
    if all(one.cache_usage is None for one in services):
        yield "Use of the key-value caches."


def _list_host(prepared: PreparedRun) -> Iterator[str]:
    manifests = prepared.run.manifest.arms
    if all(arm.resident_bytes is None for arm in manifests):
        yield "Memory of the services."
    if all(arm.load_time_s is None for arm in manifests):
        yield "Time to load the models."
    if all(arm.cold is None for arm in manifests):
        yield "Cold start: every service was warmed up first."


def _list_loads(prepared: PreparedRun) -> Iterator[str]:
    levels = prepared.plan.load
    thoughtful = [level.name for level in levels if level.concurrency is not None and level.think_s]
    if thoughtful:
        yield (
            f"A steady number of requests in flight at load {', '.join(thoughtful)}: users think in "
            "between, so fewer than stated were in flight on average."
        )
    if prepared.plan.knee is None:
        yield NO_KNEE
    if all(level.concurrency is not None for level in levels):
        yield CLOSED_ONLY
    elif not any(level.replay or (level.arrivals and level.arrivals.bursts) for level in levels):
        yield "Bursts: no load level has bursts or replays a trace."


def _list_workload(prepared: PreparedRun) -> Iterator[str]:
    items = prepared.run.items
    spoken = {item.segments["language"] for item in items if "language" in item.segments}
    absent = [name for code, name in LANGUAGES.items() if code not in spoken]
    if not spoken:
        yield "Languages apart: no item says which one it is in."
    elif absent:
        yield f"Languages without an item in this run: {', '.join(absent)}."
    if all(item.sampling.temperature == 0 for item in items):
        yield "Sampled outputs: every item is greedy."
    is_drawn_again = any(level.repeats > 1 for level in prepared.plan.load)
    if any(item.sampling.temperature > 0 for item in items) and not is_drawn_again:
        yield "Whether sampled outputs follow the same distribution: that needs repeated draws."
    if not any(item.tools for item in items):
        yield "Tool calls: no item offers tools."
    if len(prepared.loads) == 1:
        yield "Any load but one: the verdict says nothing about other levels."


def _list_answers(prepared: PreparedRun) -> Iterator[str]:
    items, quality = prepared.run.items, prepared.plan.comparison.quality
    without = len(items) - count_compared(items, quality)
    if quality == "latency_only":
        yield "Quality: the plan asks of latency alone."
    elif without:
        yield f"Quality of {without} items that have no check."
    ended = [one.record.finish_reason for one in prepared.of_arm("baseline") if one.is_ok]
    cut = ended.count("length") / len(ended) if ended else 0.0
    if cut >= CUT_SHARE:
        yield f"Answers at their full length: the token limit cut {100 * cut:.0f} % of the baseline's."
    if prepared.plan.arms.alternative is None:
        yield "Whether the same budget spent otherwise does better: the plan has no alternative arm."
    if not prepared.plan.comparison.null_arm:
        yield "How much two equal services differ on this machine: the plan has no null arm."


def _list_engine(prepared: PreparedRun) -> Iterator[str]:
    records = [one.record for one in prepared.observations]
    if all(record.rounds is None for record in records):
        yield "Drafting time apart from verification time: the engine gives no record of rounds."
    if all(record.server.decode_ns is None for record in records):
        yield "Queue, prefill and decode time inside the server: the engine does not disclose them."
    if all(record.token_ids is None for record in records):
        yield "Agreement token by token: the engine gives no token ids, so texts were compared."
