"""Faults that make a cell or the whole run invalid, and oddities worth a warning.

The client beyond its own limits, speculation that is configured and does not happen, missing measurements,
and the identities that every record must obey. A faulty cell is never averaged in.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec
import numpy as np

from draftproof.core.records import RequestRecord
from draftproof.judge.decide.counting import (
    find_cold_spells,
    find_miscounted,
    list_miscounts,
    warn_about_cold,
    warn_about_miscounts,
    withhold_for_cold,
)
from draftproof.judge.decide.effects import CellKey
from draftproof.judge.decide.guardrails import list_hidden_failures
from draftproof.judge.decide.service_faults import find_service_faults, list_paused, see_speculation
from draftproof.judge.metrics.acceptance import count_speculation
from draftproof.judge.metrics.identities import acceptance_faults, timeline_faults
from draftproof.judge.metrics.request import is_empty, name_outcome
from draftproof.judge.observe.client_limits import (
    CORE_SHARE,
    LAG_PART,
    LAGGED_PERIODS_LIMIT,
    RATE_SHORTFALL,
    ClientFault,
    FaultKind,
)
from draftproof.judge.observe.pairs import NO_PAIRS, PairTable
from draftproof.judge.observe.run_data import ALL_SEGMENTS, PreparedRun
from draftproof.judge.observe.services import ServiceReadings
from draftproof.judge.results.decide import ALL_LOADS, Reference
from draftproof.judge.results.run import Reason
from draftproof.plan.limits import LoadSize, write_rate
from draftproof.plan.load import LoadLevel

_QUIET = "Stop other work on this machine and run again."
_SHARED = "Raise limits.workers, or lower the load, and run again."
_AWAKE = "Keep this machine from sleeping and run again."
_ROOM = "Raise max_in_flight of this level, or lower its rate where the service cannot keep up with it."
# The same in a few words, for periods that are left out of a load that is judged.
FAULT_WORDS: dict[FaultKind, str] = {
    "lag": "the client itself was late",
    "lag_share": "the client's delay is a large part of times so short",
    "gc_pause": "garbage collection paused the client",
    "send_lag": "the client sent requests late",
    "held_back": "requests waited in the client",
    "rate": "the client sent fewer requests than were due",
    "core": "a load process used its whole core",
}
# What happened, in how many periods comes after it, and what to do about it.
_SENTENCES: dict[FaultKind, tuple[str, str]] = {
    "lag": ("the load client itself was late by more than {limit:g} ms", _QUIET),
    "lag_share": (
        (
            "the load client's delay (p99) was up to {most_share:.1f} % of the measured times (limit "
            "{share_limit:.2g} %, a fifth of thresholds.minimum_gain)"
        ),
        "Stop other work on this machine, ask for longer answers, or reach the service without TLS.",
    ),
    "gc_pause": (
        "garbage collection paused the load client for up to {most:,.0f} ms (limit {limit:g} ms)",
        _SHARED,
    ),
    "send_lag": (
        "1 % of the requests were sent {most:,.0f} ms or more after they were due (limit {limit:g} ms)",
        _SHARED,
    ),
    "held_back": (
        (
            "up to {most:,.0f} requests waited in the load client, because max_in_flight = {room:,} were in "
            "flight,"
        ),
        _ROOM,
    ),
    "rate": (
        (
            "the load client sent only {share:.1f} % of the {offered} that were due (at most {missing:g} % "
            "and one request may be missing)"
        ),
        _SHARED,
    ),
    "core": ("a load process used up to {core:.0f} % of a core (limit {most_core:.0f} %)", _SHARED),
    "slept": ("the load client's machine slept for up to {most:,.1f} s", _AWAKE),
}


def describe_client_faults(
    level: LoadLevel,
    size: LoadSize,
    periods: Sequence[Sequence[ClientFault]],
    *,
    lag_limit_ms: float,
    lag_share: float,
    unknown: int,
) -> Iterator[str]:
    """Yield a sentence for each limit that the client broke; where it broke none, one on what is not known.

    `periods`: what the client did in each period of baseline and candidate, of which in `unknown` its
    lateness is not known; `lag_share`: the limit as a share of what is measured.
    """
    amounts: defaultdict[FaultKind, list[float]] = defaultdict(list)
    for fault in (fault for faults in periods for fault in faults):
        amounts[fault.kind].append(fault.amount)
    if not amounts:
        what = f"it is unknown whether the load client kept within {lag_limit_ms:g} ms"
        yield _render(level.name, what, unknown, len(periods), _QUIET)
    for kind, found in amounts.items():
        words, fix = _SENTENCES[kind]
        what = words.format(
            limit=lag_limit_ms,
            most=max(found),
            most_share=100 * max(found),
            share_limit=100 * lag_share,
            room=level.max_in_flight,
            share=100 * min(found),
            offered="requests" if size.offered_rps is None else write_rate(size.offered_rps),
            missing=100 * RATE_SHORTFALL,
            core=100 * max(found),
            most_core=100 * CORE_SHARE,
        )
        yield _render(level.name, what, len(found), len(periods), fix)


def _render(load: str, what: str, count: int, periods: int, fix: str) -> str:
    return (
        f"At load {load} {what} in {count} of {periods} periods of baseline and candidate; times measured "
        f"there say nothing about the service. {fix}"
    )


_TURNS_NAMED = 3
LISTED = 10
CLIENT_LATE = "invalid_client"


class Faults(msgspec.Struct, frozen=True, kw_only=True):
    """What makes results invalid: reasons for the whole run and by load; and which cells are incomplete.

    `paused` are loads at which the candidate's own policy kept it from drafting: no fault, and to be said.
    """

    run: tuple[Reason, ...]
    by_load: dict[str, tuple[Reason, ...]]
    incomplete: dict[CellKey, Reason]
    warnings: tuple[str, ...]
    paused: dict[str, Reason] = {}

    def is_invalid(self, load: str) -> bool:
        """Whether the cells of a load are invalid, so that nothing there compares arms."""
        return bool(self.run or self.by_load.get(load))

    def is_client_late(self, load: str) -> bool:
        """Whether the load client itself was too late at a load."""
        return any(reason.code == CLIENT_LATE for reason in self.by_load.get(load, ()))


def find_faults(prepared: PreparedRun, pairs: PairTable, readings: ServiceReadings) -> Faults:
    """Return every fault of a run. Pure, in a fixed order."""
    by_services = find_service_faults(prepared, readings)
    spells = find_cold_spells(prepared)
    cold = withhold_for_cold(spells, prepared.plan.thresholds)
    miscounts = list_miscounts(prepared, pairs)
    miscounted = find_miscounted(miscounts, prepared)
    by_load = {
        load: (
            *_find_unfit_client(prepared, load),
            *by_services.get(load, ()),
            *cold.get(load, ()),
            *miscounted.get(load, ()),
        )
        for load in prepared.loads
    }
    return Faults(
        run=tuple(_find_run_faults(prepared, readings)),
        by_load={load: reasons for load, reasons in by_load.items() if reasons},
        incomplete=dict(_find_incomplete(prepared)),
        warnings=(
            *_warn(prepared, pairs, readings),
            *warn_about_cold([one for one in spells if one.load not in cold]),
            *warn_about_miscounts(miscounts, prepared),
        ),
        paused=list_paused(prepared, readings),
    )


def count_verification_steps(records: Iterable[RequestRecord]) -> int | None:
    """Return the verification steps of records, from rounds or else counters; None where none tells."""
    disclosing = [one for one in records if one.rounds is not None or one.speculation is not None]
    return sum(count_speculation(one).num_spec_steps for one in disclosing) if disclosing else None


def _find_run_faults(prepared: PreparedRun, readings: ServiceReadings) -> Iterator[Reason]:
    yield from _find_missing_arms(prepared)
    steps = {arm: _steps_of_arm(prepared, readings, arm) for arm in prepared.arms}
    if steps["candidate"] == 0:
        text = "Speculation is configured but not happening: the candidate shows no verification step at all."
        yield Reason(
            code="no_speculation", text=text, evidence=Reference("acceptance", "candidate", at=ALL_LOADS)
        )
    for arm in ("baseline", "baseline_null"):
        if steps.get(arm):
            text = f"The arm {arm} must not speculate but shows {steps[arm]} verification steps."
            yield Reason(
                code="baseline_speculates", text=text, evidence=Reference("acceptance", arm, at=ALL_LOADS)
            )
    asked = prepared.of_arm("baseline")
    if asked and not any(seen.is_ok for seen in asked):
        text = "The baseline answered no request, so there is nothing to compare with."
        yield Reason(code="no_baseline", text=text, evidence=Reference("outcomes", "baseline", at=ALL_LOADS))


def _find_missing_arms(prepared: PreparedRun) -> Iterator[Reason]:
    """Find a baseline or candidate of which no measured request was kept: there is nothing to compare."""
    for arm in ("baseline", "candidate"):
        if not prepared.of_arm(arm):
            periods = [period for period in prepared.periods.values() if period.arm == arm]
            ended = sum(period.completed for period in periods)
            what = f"of its {len(periods)} periods {ended} ended" if periods else "none of its periods began"
            text = (
                f"The arm {arm} left no measured request, so there is nothing to compare: {what}. "
                "Continue the run or measure again."
            )
            yield Reason(code="arm_missing", text=text, evidence=Reference("periods", arm, at=ALL_LOADS))


def _steps_of_arm(prepared: PreparedRun, readings: ServiceReadings, arm: str) -> int | None:
    """Return the verification steps of an arm over all loads, None where nothing tells of any."""
    seen = [see_speculation(prepared, readings, arm, load) for load in prepared.loads]
    counted = [one.steps for one in seen if one is not None]
    return sum(counted) if counted else None


def _find_unfit_client(prepared: PreparedRun, load: str) -> Iterator[Reason]:
    """Find a client that was beyond its limits, or of which nobody can tell: neither may judge a service."""
    periods = [
        period
        for period in prepared.periods.values()
        if period.load == load and period.arm in ("baseline", "candidate")
    ]
    # A period that was broken off has no lag to its end: the run is incomplete there, and says so.
    periods = [period for period in periods if period.completed or period.lag_max_ns is not None] or periods
    unfit = sum(period.lagged or period.lag_max_ns is None for period in periods)
    asked = any(prepared.of_arm(arm, load) for arm in ("baseline", "candidate"))
    if (not periods and asked) or (periods and unfit / len(periods) > LAGGED_PERIODS_LIMIT):
        yield from (
            Reason(code=CLIENT_LATE, text=text, evidence=Reference("periods", at=load))
            for text in describe_client_faults(
                prepared.level(load),
                prepared.sizes[load],
                [period.faults for period in periods],
                lag_limit_ms=prepared.plan.limits.client_lag_ms,
                lag_share=LAG_PART * prepared.plan.thresholds.minimum_gain,
                unknown=sum(period.lag_max_ns is None for period in periods),
            )
        )


def _find_incomplete(prepared: PreparedRun) -> Iterator[tuple[CellKey, Reason]]:
    for load in prepared.loads:
        for segment in prepared.segments:
            expected = prepared.planned.get((load, segment), 0)
            arms = tuple(arm for arm in prepared.arms if arm != "baseline_null")
            got = {arm: _count_asked(prepared, arm, load, segment, ended=True) for arm in arms}
            if min(got.values()) < expected:
                made = ", ".join(f"{count} ({arm})" for arm, count in got.items())
                asked = {arm: _count_asked(prepared, arm, load, segment) for arm in arms}
                where = "" if asked == got else " in periods that ended"
                text = f"{segment} at load {load} lacks requests: of {expected}, {made} were made{where}."
                yield (
                    (segment, load),
                    Reason(code="incomplete", text=text, evidence=Reference("arm_cells", at=(segment, load))),
                )


def summarise_incomplete(incomplete: Mapping[CellKey, Reason], cells: int) -> tuple[Reason, ...]:
    """Return one reason for all the cells whose requests were not all made; each cell keeps its own."""
    if not incomplete:
        return ()
    loads = ", ".join(dict.fromkeys(load for _, load in incomplete))
    text = f"The run is incomplete: {len(incomplete)} of {cells} cells lack requests (load {loads})."
    return (Reason(code="incomplete", text=text, evidence=Reference("arm_cells")),)


def _count_asked(prepared: PreparedRun, arm: str, load: str, segment: str, *, ended: bool = False) -> int:
    """Count the requests that were made; `ended`: of periods whose own record says that they ended.

    A period without such a record is not measured: what it would say of the client, and so whether its times
    are the service's, is known to nobody, and whoever takes records away could choose which periods decide.
    """
    indices = prepared.indices_of(arm, load, segment)
    if ended:
        indices = indices[prepared.ended[indices]]
    return len(np.unique(prepared.columns.requests[indices]))


def _warn(prepared: PreparedRun, pairs: PairTable, readings: ServiceReadings) -> Iterator[str]:
    yield from _warn_about_periods(prepared)
    yield from (f"{text}." for text in prepared.disturbed_more.values())
    yield from _warn_about_missing(prepared)
    yield from _warn_about_hidden_failures(prepared, pairs)
    yield from _warn_about_speculation(prepared, readings)
    yield from _warn_about_records(prepared)


def _warn_about_periods(prepared: PreparedRun) -> Iterator[str]:
    periods = prepared.periods.values()
    seen = prepared.asked_turns
    counts = {
        "{n} periods were not finished.": sum(not period.completed for period in periods),
        "{n} periods have requests but no record of the period itself.": len(seen - set(prepared.periods)),
        "The client's lag is unknown in {n} periods.": sum(period.lag_max_ns is None for period in periods),
        "{n} requests were sent later than limits.client_lag_ms after they were due.": _count_late(prepared),
    }
    yield from (text.format(n=n) for text, n in counts.items() if n)
    for kind, words in FAULT_WORDS.items():
        found = [period for period in periods if any(fault.kind == kind for fault in period.faults)]
        if found:
            shown = ", ".join(
                f"{period.load}/{period.block} of {period.arm}" for period in found[:_TURNS_NAMED]
            )
            more = f" and {len(found) - _TURNS_NAMED} more" if len(found) > _TURNS_NAMED else ""
            yield f"Times of period {shown}{more} are left out, because {words}."


def _warn_about_missing(prepared: PreparedRun) -> Iterator[str]:
    for arm in prepared.arms:
        for load in prepared.loads:
            asked = _count_asked(prepared, arm, load, ALL_SEGMENTS)
            planned = prepared.planned.get((load, ALL_SEGMENTS), 0)
            if asked < planned:
                yield f"The arm {arm} was asked {asked} of {planned} planned requests at load {load}."


def _count_late(prepared: PreparedRun) -> int:
    limit_ns = prepared.plan.limits.client_lag_ms * 1e6
    return int((prepared.columns.lateness_ns > limit_ns).sum())


def _warn_about_hidden_failures(prepared: PreparedRun, pairs: PairTable) -> Iterator[str]:
    for arm in ("candidate", "alternative"):
        hidden = list_hidden_failures(pairs.get((arm, "baseline"), NO_PAIRS))
        for pair in hidden[:LISTED]:
            record = pair.arm.record
            yield (
                f"The {arm} failed ({name_outcome(record)}) where the baseline answered: "
                f"item {record.item_id}, load {record.load}, block {record.block}."
            )
        if len(hidden) > LISTED:
            yield f"The {arm} failed where the baseline answered in {len(hidden) - LISTED} more pairs."
    is_ok = prepared.columns.is_ok
    lost = {arm: int((~is_ok[prepared.indices_of(arm)]).sum()) for arm in prepared.arms}
    yield from (f"The arm {arm} failed {n} requests." for arm, n in lost.items() if n)


def _warn_about_speculation(prepared: PreparedRun, readings: ServiceReadings) -> Iterator[str]:
    if _steps_of_arm(prepared, readings, "candidate") is None and prepared.of_arm("candidate"):
        yield (
            f"The candidate discloses no speculation counters, {_name_silent(prepared)}: whether it "
            "speculates was not verified."
        )
    for arm in prepared.arms:
        count = sum(one.record.fallbacks or 0 for one in prepared.of_arm(arm))
        if count:
            yield f"The arm {arm} fell back to ordinary decoding {count} times."


def _name_silent(prepared: PreparedRun) -> str:
    """Say where no drafts are counted."""
    urls = prepared.plan.arms.candidate.metrics_urls
    where = (
        f"the metrics at {', '.join(urls)}" if urls else "its metrics (metrics_urls names other addresses)"
    )
    return f"neither in its answers nor in {where}"


def _warn_about_records(prepared: PreparedRun) -> Iterator[str]:
    broken = [
        (seen.record, found)
        for seen, sound in zip(prepared.observations, prepared.columns.is_sound.tolist(), strict=True)
        if not (seen.in_order and sound and _is_plain(seen.record))
        and (found := name_broken_identities(seen.record))
    ]
    for record, found in broken[:LISTED]:
        yield f"The record {record.request_id} contradicts itself: {'; '.join(found)}."
    if len(broken) > LISTED:
        yield f"{len(broken) - LISTED} more records contradict themselves."


def _is_plain(record: RequestRecord) -> bool:
    """Tell whether an answer has content and nothing that could be at odds beside its times and counters."""
    return not is_empty(record) and record.token_ids is None and not record.warnings


def name_broken_identities(record: RequestRecord) -> tuple[str, ...]:
    """Return, in words, the identities a record breaks; none for a record that agrees with itself."""
    found = [*timeline_faults(record), *acceptance_faults(record), *record.warnings]
    if name_outcome(record) == "empty":
        found.append("an answer marked ok has no content")
    ids, reported = record.token_ids, record.output_tokens
    if record.outcome == "ok" and ids is not None and reported is not None and len(ids) != reported:
        found.append(f"{len(ids)} token ids, but the final usage says {reported}")
    return tuple(found)
