"""Behaviour beside speed: the probes of the arms against each other, checks by kind, judges, conversations.

What the baseline does and the candidate does not is a regression that no speed makes good: it violates every
cell. What an arm's probe could not show, or both arms fail, is a warning.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import msgspec
import numpy as np

from draftproof.core.records import Judgement, ProbeStatus
from draftproof.judge.decide.effects import CellKey
from draftproof.judge.decide.guardrails import GuardrailFinding
from draftproof.judge.observe.pairs import all_of, group_conversations
from draftproof.judge.observe.run_data import ARM_ORDER, Observation, PreparedRun
from draftproof.judge.results.decide import (
    CheckKind,
    ConversationSummary,
    JudgeAgreement,
    ProbeResult,
    Reference,
    share_figure,
)
from draftproof.judge.results.run import Reason
from draftproof.judge.stats.resampling import Floats, Ints


def summarise_conversations(prepared: PreparedRun) -> tuple[ConversationSummary, ...]:
    """Return every arm at every load."""
    return tuple(_summarise(prepared, arm, load) for load in prepared.loads for arm in prepared.arms)


def _summarise(prepared: PreparedRun, arm: str, load: str) -> ConversationSummary:
    columns, indices = prepared.columns, prepared.indices_of(arm, load)
    found = group_conversations(columns, indices)
    judged = found.all_of(_evaluate(prepared, indices))
    states = np.where(found.is_completed, judged, 0.0)
    known, good = int((~np.isnan(states)).sum()), int((states == 1).sum())
    completed, level = int(found.is_completed.sum()), prepared.plan.comparison.confidence
    return ConversationSummary(
        arm=arm,
        load=load,
        conversations=found.size,
        multi_turn=int((columns.turns_of_item[found.first] > 1).sum()),
        requests=len(indices),
        completed=completed,
        completed_share=share_figure(completed, found.size, level, NO_CONVERSATION),
        good=good,
        unjudged=found.size - known,
        good_share=share_figure(good, known, level, NO_CONVERSATION),
    )


def _evaluate(prepared: PreparedRun, indices: Ints) -> Floats:
    """Return 1 where a request is on time and passes, 0 for one certain fault, NaN where one is not known."""
    columns = prepared.columns
    on_time = np.where(columns.timed, columns.on_time(prepared.plan.objectives), np.nan)[indices]
    passed = np.where(columns.has_checks, columns.passed, 1.0)[indices]
    return all_of(on_time, passed)


NO_CONVERSATION = "no conversation could be judged"
PROBES: Mapping[str, str] = {
    "streaming_shape": "the shape of the stream",
    "max_tokens": "the token limit",
    "stop_string": "a stop string",
    "tool_call": "a tool call with valid arguments",
    "json_schema": "an answer valid under a JSON schema",
    "seed_repeats": "the same answer for the same seed",
    "unicode": "characters of several bytes",
    "cancel_stops_work": "the end of work on a cancelled request",
    "cancel_frees_slots": "the freed place of a cancelled request",
}
LOST: frozenset[ProbeStatus] = frozenset({"failed", "unsupported"})
NOT_PROBED = "Stop strings, limits, tool calls, streaming and cancellation of the arms were not probed."
# Of several answers to one probe the worst counts.
_WORST_FIRST: tuple[ProbeStatus, ...] = ("failed", "unsupported", "unknown", "passed")


class Behaviour(NamedTuple):
    """What results say of behaviour, and what that leaves open, in words."""

    probes: tuple[ProbeResult, ...]
    check_kinds: tuple[CheckKind, ...]
    judges: tuple[JudgeAgreement, ...]
    conversations: tuple[ConversationSummary, ...]
    warnings: tuple[str, ...]
    not_measured: tuple[str, ...]


def describe_behaviour(prepared: PreparedRun) -> Behaviour:
    """Return probes, checks by kind and conversations, with warnings of what they leave open."""
    probes, kinds = list_probes(prepared), tuple(_count_kinds(prepared))
    judges = tuple(_compare_passes(prepared.run.judgements))
    return Behaviour(
        probes=probes,
        check_kinds=kinds,
        judges=judges,
        conversations=summarise_conversations(prepared),
        warnings=(*_warn_about_probes(probes), *_warn_about_unjudged(kinds), *_warn_about_judges(judges)),
        not_measured=() if probes else (NOT_PROBED,),
    )


def list_probes(prepared: PreparedRun) -> tuple[ProbeResult, ...]:
    """Return one result for each arm and probe, in the order of `PROBES` and of the arms."""
    worst: dict[tuple[str, str], ProbeResult] = {}
    for one in sorted(prepared.run.behaviours, key=lambda one: (_WORST_FIRST.index(one.status), one.at_ns)):
        if one.arm in ARM_ORDER and one.probe in PROBES:
            found = ProbeResult(
                arm=one.arm,
                probe=one.probe,
                status=one.status,
                detail=one.detail,
                http_status=one.http_status,
            )
            worst.setdefault((one.probe, one.arm), found)
    return tuple(worst[probe, arm] for probe in PROBES for arm in ARM_ORDER if (probe, arm) in worst)


def evaluate_probes(prepared: PreparedRun) -> tuple[GuardrailFinding, ...]:
    """Return a violation for each probe that the baseline passes and the candidate does not."""
    by_arm = _by_arm(list_probes(prepared))
    baseline, candidate = by_arm.get("baseline", {}), by_arm.get("candidate", {})
    found = []
    for probe, one in candidate.items():
        if one.status in LOST and probe in baseline and baseline[probe].status == "passed":
            what = "refuses" if one.status == "unsupported" else "fails"
            why = f"{PROBES[probe]}, which the baseline passes: {one.detail.rstrip('.')}."
            row = Reference("behaviour", "candidate", quantity=probe)
            reason = Reason(code="behaviour_regression", text=f"The candidate {what} {why}", evidence=row)
            found.append(GuardrailFinding(standing="violated", reason=reason))
    return tuple(found)


def find_unjudged(prepared: PreparedRun) -> dict[CellKey, tuple[GuardrailFinding, ...]]:
    """Return an open finding for each cell in which a critical check of the candidate was not judged."""
    counts: Counter[CellKey] = Counter()
    unjudged = prepared.columns.checks[:, 3]
    indices = prepared.indices_of("candidate")
    for index in indices[unjudged[indices] > 0].tolist():
        one = prepared.observations[index]
        counts[one.segment, one.record.load] += sum(
            check.critical and check.passed is None for check in one.checks
        )
    found: dict[CellKey, tuple[GuardrailFinding, ...]] = {}
    for cell, n in counts.items():
        if n:
            text = f"{n} critical checks of the candidate's answers were not judged."
            evidence = Reference("checks", "candidate", at=cell)
            reason = Reason(code="critical_unjudged", text=text, evidence=evidence)
            found[cell] = (GuardrailFinding(standing="open", reason=reason),)
    return found


def _by_arm(probes: tuple[ProbeResult, ...]) -> dict[str, dict[str, ProbeResult]]:
    found: defaultdict[str, dict[str, ProbeResult]] = defaultdict(dict)
    for one in probes:
        found[one.arm][one.probe] = one
    return found


def _warn_about_probes(probes: tuple[ProbeResult, ...]) -> Iterator[str]:
    by_arm = _by_arm(probes)
    baseline = by_arm.get("baseline", {})
    for arm in ("candidate", "alternative"):
        for probe, one in by_arm.get(arm, {}).items():
            before = baseline.get(probe)
            if one.status == "failed" and before is not None and before.status == "failed":
                yield f"Baseline and {arm} both fail {PROBES[probe]}: {one.detail}."
            elif one.status in LOST and (arm != "candidate" or before is None or before.status == "unknown"):
                yield f"The {arm} does not pass {PROBES[probe]} ({one.status}): {one.detail}."
            elif one.status == "unknown" and before is not None and before.status == "passed":
                yield f"The baseline passes {PROBES[probe]}, of the {arm} it is not known: {one.detail}."


def _warn_about_unjudged(kinds: tuple[CheckKind, ...]) -> Iterator[str]:
    counts: Counter[str] = Counter()
    for one in kinds:
        if one.kind in ("python", "judge"):
            counts[one.kind] += one.unjudged
    for kind, n in sorted(counts.items()):
        if n:
            yield f"{n} checks of type {kind} were not judged; draftproof judge asks what is missing."


def _warn_about_judges(judges: tuple[JudgeAgreement, ...]) -> Iterator[str]:
    for one in judges:
        if one.agreed < one.answers:
            yield (
                f"The judge {one.by} said the same of {one.agreed} of {one.answers} answers when asked "
                "twice; the others count as not judged."
            )


def _count_kinds(prepared: PreparedRun) -> Iterator[CheckKind]:
    for load in prepared.loads:
        for arm in prepared.arms:
            counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
            for one, requests in _group_checked(prepared.of_arm(arm, load)):
                _count_checks(one, requests, counts)
            for kind in sorted(counts):
                found = counts[kind]
                yield CheckKind(
                    arm=arm,
                    load=load,
                    kind=kind,
                    judged=found["judged"],
                    passed=found["passed"],
                    critical_failed=found["critical"],
                    unjudged=found["unjudged"],
                )


def _group_checked(seen: Iterable[Observation]) -> Iterator[tuple[Observation, int]]:
    """Yield one of the requests that share the results of their checks, and how many these are."""
    by_results: dict[tuple[object, ...], tuple[Observation, int]] = {}
    for one in seen:
        # Equal answers share their results, which live as long as the observations.
        key = (id(one.checks),) if one.is_ok else (one.record.item_id, one.record.conversation_turn)
        first, requests = by_results.get(key, (one, 0))
        by_results[key] = (first, requests + 1)
    yield from by_results.values()


def _count_checks(seen: Observation, requests: int, counts: Mapping[str, Counter[str]]) -> None:
    """Add the checks of `requests` requests that are alike."""
    if not seen.is_ok:
        for check in seen.wanted_checks:
            counts[str(check.__struct_config__.tag)]["judged"] += requests
        return
    for result in seen.checks:
        found = counts[result.kind]
        found["judged" if result.passed is not None else "unjudged"] += requests
        found["passed"] += requests * (result.passed is True)
        found["critical"] += requests * (result.critical and result.passed is False)


def _compare_passes(judgements: tuple[Judgement, ...]) -> Iterator[JudgeAgreement]:
    said: defaultdict[str, defaultdict[tuple[str, int, str], dict[int, bool | None]]] = defaultdict(
        lambda: defaultdict(dict)
    )
    for one in sorted(judgements, key=lambda one: (one.attempt, msgspec.json.encode(one))):
        if one.kind == "judge":
            said[one.by][one.request_id, one.check, one.answer_sha256].setdefault(one.attempt, one.passed)
    for by in sorted(said):
        twice = [set(passes.values()) for passes in said[by].values() if len(passes) > 1]
        if twice:
            yield JudgeAgreement(by=by, answers=len(twice), agreed=sum(len(one) == 1 for one in twice))
