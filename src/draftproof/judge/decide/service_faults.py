"""Faults that the services' own counters show: foreign requests, restarts, drafters that pause or fail.

Pure. Owns whether speculation happened at each load: the answers' own fields tell it, and where those say
nothing the counters.
"""

from collections.abc import Iterator, Sequence

import msgspec

from draftproof.judge.metrics.acceptance import count_speculation
from draftproof.judge.observe.run_data import PreparedRun
from draftproof.judge.observe.services import ServicePeriod, ServiceReadings
from draftproof.judge.results.decide import Reference
from draftproof.judge.results.run import Reason
from draftproof.services.engines import adapter_for

FOREIGN_SHARE, FOREIGN_REQUESTS = 0.01, 2
# With fewer drafts a working drafter may be out of luck.
ENOUGH_DRAFTS = 50


class SpeculationSeen(msgspec.Struct, frozen=True, kw_only=True):
    """Steps and drafts of an arm at a load, None where nothing tells; `source` says what was read."""

    steps: int
    drafted: int | None
    accepted: int | None
    source: str


def see_speculation(
    prepared: PreparedRun, readings: ServiceReadings, arm: str, load: str
) -> SpeculationSeen | None:
    """Return what an arm drafted at a load: by its answers, else its counters, None where neither tells."""
    answered = [one.record for one in prepared.of_arm(arm, load) if one.is_ok]
    disclosing = [one for one in answered if one.rounds is not None or one.speculation is not None]
    if disclosing:
        counts = [count_speculation(one) for one in disclosing]
        return SpeculationSeen(
            steps=sum(one.num_spec_steps for one in counts),
            drafted=sum(one.num_draft_tokens for one in counts),
            accepted=sum(one.num_accepted_draft_tokens for one in counts),
            source="acceptance",
        )
    return _see_counters(readings, arm, load)


def find_service_faults(prepared: PreparedRun, readings: ServiceReadings) -> dict[str, tuple[Reason, ...]]:
    """Return load -> what makes its cells invalid; loads without a fault are left out."""
    found = {
        load: (
            *_find_foreign(prepared, readings, load),
            *_find_resets(prepared, readings, load),
            *_find_idle(prepared, readings, load),
            *_find_never_accepted(prepared, readings, load),
        )
        for load in prepared.loads
    }
    return {load: reasons for load, reasons in found.items() if reasons}


def list_paused(prepared: PreparedRun, readings: ServiceReadings) -> dict[str, Reason]:
    """Return load -> the reason that ordinary decoding was measured there, by a policy that may pause."""
    policy = _name_policy(prepared)
    if policy is None:
        return {}
    return {
        load: Reason(
            code="speculation_paused",
            text=f"At load {load} the candidate's policy ({policy}) paused drafting altogether, so ordinary "
            "decoding was measured there.",
            evidence=Reference("acceptance", "candidate", at=load),
        )
        for load in _idle_loads(prepared, readings)
    }


def is_foreign(period: ServicePeriod) -> bool:
    """Return whether a service did more in a period than the client asked of it.

    More than 1 % and two requests beyond what was sent, or more than 1 % and two answers' worth of tokens
    beyond what was delivered and what requests without an end may have cost.
    """
    gains, client = period.gains.gains, period.client
    if period.gains.unused is not None:
        return False
    extra = gains.get("finished_requests", 0.0) - client.sent
    if extra > max(FOREIGN_REQUESTS, FOREIGN_SHARE * client.sent):
        return True
    if client.tokens is None or not client.answered or "generation_tokens" not in gains:
        return False
    beyond = gains["generation_tokens"] - client.tokens - client.open_tokens
    allowance = FOREIGN_REQUESTS * client.tokens / client.answered
    return beyond > max(allowance, FOREIGN_SHARE * client.tokens)


def _find_foreign(prepared: PreparedRun, readings: ServiceReadings, load: str) -> Iterator[Reason]:
    periods = _deciding(prepared, readings, load)
    foreign = [one for one in periods if is_foreign(one)]
    if foreign:
        first = foreign[0]
        text = (
            f"At load {load} services did work that this run did not ask for, in {len(foreign)} of "
            f"{len(periods)} periods: {_describe(first)}. Keep other clients away and run again."
        )
        yield Reason(
            code="foreign_traffic",
            text=text,
            evidence=Reference("telemetry", period=first.samples.name, at=load),
        )


def _describe(period: ServicePeriod) -> str:
    gains, client = period.gains.gains, period.client
    parts = []
    if "finished_requests" in gains:
        parts.append(f"{gains['finished_requests']:g} requests finished and {client.sent} sent")
    if "generation_tokens" in gains and client.tokens is not None:
        parts.append(f"{gains['generation_tokens']:g} tokens generated and {client.tokens} delivered")
    return f"{period.samples.arm} in period {period.samples.name}: {', '.join(parts)}"


def _find_resets(prepared: PreparedRun, readings: ServiceReadings, load: str) -> Iterator[Reason]:
    periods = _deciding(prepared, readings, load)
    fallen = [one for one in periods if one.gains.resets]
    if fallen:
        first = fallen[0]
        text = (
            f"At load {load} counters of services fell in {len(fallen)} of {len(periods)} periods "
            f"({first.samples.arm}, period {first.samples.name}: {first.gains.resets[0]}): a service was "
            "restarted while it was measured, or several replicas answer at one metrics address."
        )
        yield Reason(
            code="counter_reset",
            text=text,
            evidence=Reference("telemetry", period=first.samples.name, at=load),
        )


def _find_idle(prepared: PreparedRun, readings: ServiceReadings, load: str) -> Iterator[Reason]:
    if load in _idle_loads(prepared, readings) and _name_policy(prepared) is None:
        drafting = [one for one in prepared.loads if one != load and _drafts(prepared, readings, one)]
        text = (
            f"The candidate drafts at load {', '.join(drafting)} and not once at load {load}, and no setting "
            "declares that it may pause: what was measured there is not the declared candidate."
        )
        yield Reason(
            code="speculation_idle", text=text, evidence=Reference("acceptance", "candidate", at=load)
        )


def _find_never_accepted(prepared: PreparedRun, readings: ServiceReadings, load: str) -> Iterator[Reason]:
    seen = see_speculation(prepared, readings, "candidate", load)
    if seen is not None and seen.accepted == 0 and (seen.drafted or 0) >= ENOUGH_DRAFTS:
        text = (
            f"At load {load} not one of the candidate's {seen.drafted} drafted tokens was accepted: its "
            "acceptance length is exactly 1, so the drafter does not fit the target or its drafts are lost."
        )
        yield Reason(code="never_accepted", text=text, evidence=Reference(seen.source, "candidate", at=load))


def _idle_loads(prepared: PreparedRun, readings: ServiceReadings) -> list[str]:
    """Return the loads at which the candidate is known not to have drafted, though it did at another."""
    seen = {load: see_speculation(prepared, readings, "candidate", load) for load in prepared.loads}
    if not any(one.steps for one in seen.values() if one is not None):
        return []
    return [load for load, one in seen.items() if one is not None and not one.steps]


def _drafts(prepared: PreparedRun, readings: ServiceReadings, load: str) -> bool:
    seen = see_speculation(prepared, readings, "candidate", load)
    return seen is not None and seen.steps > 0


def _see_counters(readings: ServiceReadings, arm: str, load: str) -> SpeculationSeen | None:
    """Read the counters, of drafts where steps are not counted; 0 in a part of the periods tells nothing."""
    periods = readings.usable(arm, load)
    gains = {
        name: readings.gain(arm, periods, name) for name in ("spec_steps", "draft_tokens", "accepted_tokens")
    }
    steps = gains["spec_steps"] if gains["spec_steps"] is not None else gains["draft_tokens"]
    if steps is None and gains["accepted_tokens"]:
        # A service that counts accepted drafts alone shows that it drafts, in at least one step.
        return SpeculationSeen(
            steps=1, drafted=None, accepted=_whole(gains["accepted_tokens"]), source="telemetry"
        )
    if steps is None or (steps == 0 and len(periods) < len(readings.of(arm, load))):
        return None
    return SpeculationSeen(
        steps=round(steps),
        drafted=_whole(gains["draft_tokens"]),
        accepted=_whole(gains["accepted_tokens"]),
        source="telemetry",
    )


def _deciding(prepared: PreparedRun, readings: ServiceReadings, load: str) -> Sequence[ServicePeriod]:
    """Return the periods of the arms that decide: all but the second baseline."""
    arms = [arm for arm in prepared.arms if arm != "baseline_null"]
    return [one for arm in arms for one in readings.of(arm, load)]


def _name_policy(prepared: PreparedRun) -> str | None:
    """Return the candidate's setting that lets it pause drafting, None without one."""
    found = (one.settings for one in prepared.run.manifest.arms if one.arm == "candidate")
    facts = adapter_for(prepared.plan.arms.candidate.engine).facts
    return facts.name_pausing_policy(next(found, {}))


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)
