"""Where speculation may run: segment × load × context, as rows of the results and as a document by itself.

Pure. An entry never reaches beyond a load or a context that was measured, and covers every measured load
below its own. The document is what a router, a guard or another team reads (docs/envelope.md).
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import msgspec
import numpy as np

from draftproof.core.manifests import Manifest
from draftproof.judge.decide.contexts import limit_context
from draftproof.judge.decide.outcome import find_limits
from draftproof.judge.observe.run_data import ALL_SEGMENTS, PreparedRun
from draftproof.judge.results.decide import ContextBand, refer
from draftproof.judge.results.run import Cell, Decision, EnvelopeEntry, Reason, Results
from draftproof.plan.limits import LoadLimit
from draftproof.workload.segments import UNLABELLED, segment_key

ENVELOPE_VERSION = 1
# A reader that knows no rates would take an entry with one for wider than it is.
RATE_VERSION = 2


class EnvelopeLoad(msgspec.Struct, frozen=True, kw_only=True):
    """One measured load inside an entry: what was shown there, candidate / baseline with its interval.

    `concurrency` is that of a closed loop, `offered_rps` the mean rate of an open one, whose `load_shape`
    names what is not steady.
    """

    load: str
    concurrency: int | None
    status: Literal["gain", "neutral"]
    ratio: float | None
    low: float | None
    high: float | None
    offered_rps: float | None = None
    load_shape: str = ""


class EnvelopeArea(msgspec.Struct, frozen=True, kw_only=True):
    """Requests of one segment for which speculation may run.

    A request is inside if it has every label of `labels` ("unlabelled": none in that dimension) and each
    limit that is stated holds: no more than `max_concurrency` requests are in flight, itself included, no
    more than `max_rps` come per second, and its prompt and answer together have at most `max_context_tokens`
    tokens. `max_concurrency` is None where no closed loop was measured, `max_rps` where no open one was; one
    of them is stated. `min_context_tokens` is the shortest context measured. `context` is "limited"
    where longer contexts showed harm, "resolved" where bands of contexts were judged apart and none did,
    "not_resolved" where the prompts are too few or too alike for that, "unknown" where the service does not
    tell its tokens; the limit is then None and nothing about context was shown.
    """

    segment: str
    labels: dict[str, str]
    max_concurrency: int | None
    min_context_tokens: int | None
    max_context_tokens: int | None
    context: Literal["resolved", "limited", "not_resolved", "unknown"]
    loads: tuple[EnvelopeLoad, ...]
    max_rps: float | None = None


class EnvelopeConditions(msgspec.Struct, frozen=True, kw_only=True):
    """What must be the same for the envelope to hold: any change here voids it.

    `settings` are the candidate's, as read from the running service. None is a fact that nobody stated.
    """

    engine: str
    engine_version: str
    target_model: str | None
    target_sha256: str | None
    target_precision: str | None
    tokenizer_sha256: str | None
    drafter: str | None
    drafter_sha256: str | None
    algorithm: str | None
    num_spec_tokens: int | None
    settings: dict[str, str | int | float | bool | None]
    host: dict[str, str | int | float | None]


class Envelope(msgspec.Struct, frozen=True, kw_only=True):
    """The content of `envelope.json`. No entry: speculation may run nowhere.

    `schema_version` is 2 where an entry states `max_rps`, which a reader of version 1 does not know, else 1.
    `standing` is "decision" only with representative traffic. `results_sha256` is the hash of the bytes of
    the `results.json` it was taken from. `outside` is what holds for every request in no entry;
    `not_measured` what the run says nothing about even inside one (languages, sampled outputs, long answers).
    """

    schema_version: int
    draftproof_version: str
    run_name: str
    decision: Decision
    standing: Literal["decision", "pilot hypothesis"]
    evidence: str
    metric: str
    statistic: str
    confidence: float
    plan_sha256: str
    thresholds_sha256: str
    workload_sha256: str
    results_sha256: str
    conditions: EnvelopeConditions | None
    entries: tuple[EnvelopeArea, ...]
    not_measured: tuple[str, ...]
    outside: Literal["ordinary decoding"] = "ordinary decoding"


def list_envelope(
    prepared: PreparedRun,
    cells: Sequence[Cell],
    decision: Decision,
    bands: Sequence[ContextBand] = (),
) -> tuple[EnvelopeEntry, ...]:
    """Return where speculation may run: empty unless the decision is to adopt.

    To adopt means every segment up to the highest load that was measured for that segment, on each axis; in
    a limited envelope each ends at its own highest gain (see `decide.find_limits`).
    """
    if decision == "adopt":
        limits = find_limits(cells, _find_highest)
    else:
        limits = find_limits(cells) if decision == "adopt_limited" else {}
    return tuple(_make_entry(prepared, cells, segment, limit, bands) for segment, limit in limits.items())


def narrow_decision(decision: Decision, envelope: Iterable[EnvelopeEntry]) -> Decision:
    """Return the decision once contexts are judged: an envelope that leaves some out is a limited one."""
    limited = any(entry.context == "limited" for entry in envelope)
    return "adopt_limited" if decision == "adopt" and limited else decision


def explain_contexts(envelope: Iterable[EnvelopeEntry], bands: Sequence[ContextBand]) -> tuple[Reason, ...]:
    """Return a reason for every entry whose context was cut short, with the band that showed harm."""
    return tuple(
        _explain_cut(entry, _find_cut(entry, bands)) for entry in envelope if entry.context == "limited"
    )


def list_unresolved(prepared: PreparedRun, bands: Iterable[ContextBand]) -> tuple[str, ...]:
    """Return in words which segments could not be judged apart by the length of their contexts."""
    judged = {one.segment for one in bands}
    names = [segment for segment in prepared.segments if segment not in judged]
    if not names:
        return ()
    floor = 2 * prepared.plan.comparison.minimum_prompts
    which = "any segment" if len(names) == len(prepared.segments) else ", ".join(names)
    needs = f"{floor} prompts of differing lengths in a segment, and a service that reports its tokens"
    return (f"Whether long contexts fare like short ones in {which}: that needs {needs}.",)


def find_contexts(
    prepared: PreparedRun, segment: str = ALL_SEGMENTS, limit: LoadLimit | None = None
) -> list[int]:
    """Return the contexts that the candidate answered, in tokens, up to a load if one is given."""
    lengths: list[int] = []
    for load in prepared.loads:
        if limit is None or limit.covers(prepared.sizes[load]):
            known = prepared.columns.context_tokens[prepared.indices_of("candidate", load, segment)]
            lengths += known[~np.isnan(known)].astype(np.int64).tolist()
    return lengths


def build_envelope(results: Results, manifest: Manifest | None) -> Envelope:
    """Return the document of `envelope.json`: a pure function of results and manifest."""
    rated = any(entry.max_rps is not None for entry in results.verdict.envelope)
    return Envelope(
        schema_version=RATE_VERSION if rated else ENVELOPE_VERSION,
        draftproof_version=results.draftproof_version,
        run_name=results.run_name,
        decision=results.verdict.decision,
        standing="decision" if results.evidence == "representative" else "pilot hypothesis",
        evidence=results.evidence,
        metric=results.metric,
        statistic=results.statistic,
        confidence=results.confidence,
        plan_sha256=results.plan_sha256,
        thresholds_sha256=results.thresholds_sha256,
        workload_sha256=results.workload_sha256,
        results_sha256=hash_results(results),
        conditions=_state_conditions(manifest) if manifest else None,
        entries=tuple(_make_area(results.cells, entry) for entry in results.verdict.envelope),
        not_measured=results.not_measured,
    )


def hash_results(results: Results) -> str:
    """Return the SHA-256 of results as `results.json` holds them: sorted keys, indented by one."""
    text = msgspec.json.format(msgspec.json.encode(results, order="sorted", enc_hook=str), indent=1) + b"\n"
    return hashlib.sha256(text).hexdigest()


def is_inside(
    envelope: Envelope,
    labels: Mapping[str, str],
    concurrency: int | None,
    context_tokens: int | None,
    rps: float | None = None,
) -> bool:
    """Return whether a request is inside the envelope. What is unknown is outside wherever it has a limit.

    `labels`: dimension -> label; one that is lacking counts as "unlabelled". `concurrency`: requests in
    flight, this one included. `context_tokens`: prompt and longest answer. `rps`: requests per second of all
    classes.
    """
    return any(
        all(labels.get(name, UNLABELLED) == label for name, label in area.labels.items())
        and _is_within(concurrency, area.max_concurrency)
        and _is_within(rps, area.max_rps)
        and _is_within(context_tokens, area.max_context_tokens)
        for area in envelope.entries
    )


def _is_within(value: float | None, limit: float | None) -> bool:
    return limit is None or (value is not None and value <= limit)


def _find_cut(entry: EnvelopeEntry, bands: Iterable[ContextBand]) -> ContextBand:
    loads = (*entry.gain_loads, *entry.neutral_loads)
    harmed = [
        one for one in bands if one.segment == entry.segment and one.load in loads and one.reading == "harm"
    ]
    return min(harmed, key=lambda one: one.band)


def _explain_cut(entry: EnvelopeEntry, band: ContextBand) -> Reason:
    text = (
        f"Contexts of {band.min_context_tokens} to {band.max_context_tokens} tokens show harm in "
        f"{entry.segment} at load {band.load}: candidate / baseline is {band.ratio:.2f} ({band.low:.2f} to "
        f"{band.high:.2f}). The envelope ends at {entry.max_context_tokens} tokens."
    )
    evidence = refer("context_bands", (band.segment, band.load))
    return Reason(code="context_limited", text=text, evidence=evidence)


def _find_highest(cells: Sequence[Cell]) -> float | None:
    """Return the largest load of one axis, None where the size of one is not known."""
    values = [cell.size.value for cell in cells]
    return None if None in values else max(value for value in values if value is not None)


def _make_entry(
    prepared: PreparedRun,
    cells: Iterable[Cell],
    segment: str,
    limit: LoadLimit,
    bands: Sequence[ContextBand],
) -> EnvelopeEntry:
    inside = _inside(cells, segment, limit)
    measured = find_contexts(prepared, segment, limit)
    cap = limit_context(bands, segment, (cell.load for cell in inside))
    longest = max(measured, default=None)
    return EnvelopeEntry(
        segment=segment,
        max_concurrency=limit.concurrency,
        max_rps=limit.rps,
        max_context_tokens=longest if cap is None or longest is None else min(cap, longest),
        min_context_tokens=min(measured, default=None),
        labels=_find_labels(prepared, segment),
        gain_loads=tuple(cell.load for cell in inside if cell.status == "gain"),
        neutral_loads=tuple(cell.load for cell in inside if cell.status == "neutral"),
        context=_name_context(segment, bands, is_known=bool(measured), is_limited=cap is not None),
    )


def _find_labels(prepared: PreparedRun, segment: str) -> dict[str, str]:
    dimensions = prepared.plan.workload.segment_by
    item = next(one for one in prepared.run.items if segment_key(one, dimensions) == segment)
    return {name: item.segments.get(name, UNLABELLED) for name in dimensions}


def _name_context(
    segment: str, bands: Iterable[ContextBand], *, is_known: bool, is_limited: bool
) -> Literal["resolved", "limited", "not_resolved", "unknown"]:
    if not is_known:
        return "unknown"
    if is_limited:
        return "limited"
    return "resolved" if any(one.segment == segment for one in bands) else "not_resolved"


def _inside(cells: Iterable[Cell], segment: str, limit: LoadLimit) -> list[Cell]:
    own = [cell for cell in cells if cell.segment == segment and limit.covers(cell.size)]
    return sorted(own, key=lambda cell: cell.size.order)


def _make_area(cells: Iterable[Cell], entry: EnvelopeEntry) -> EnvelopeArea:
    return EnvelopeArea(
        **{name: getattr(entry, name) for name in EnvelopeArea.__struct_fields__ if name != "loads"},
        loads=tuple(
            EnvelopeLoad(
                load=cell.load,
                concurrency=cell.concurrency,
                offered_rps=cell.offered_rps,
                load_shape=cell.load_shape,
                status="gain" if cell.status == "gain" else "neutral",
                ratio=cell.effect.value,
                low=cell.effect.low,
                high=cell.effect.high,
            )
            for cell in _inside(cells, entry.segment, entry.limit)
        ),
    )


def _state_conditions(manifest: Manifest) -> EnvelopeConditions | None:
    arm = next((one for one in manifest.arms if one.arm == "candidate"), None)
    if arm is None:
        return None
    contract = next((one for one in manifest.contracts if one.arm == "candidate"), None)
    stated = ("target_model", "target_sha256", "target_precision", "tokenizer_sha256", "drafter_sha256")
    return EnvelopeConditions(
        engine=arm.engine,
        engine_version=arm.engine_version,
        drafter=contract.drafter_identity or contract.drafter_kind if contract else None,
        settings=arm.settings,
        host=manifest.host,
        **{name: getattr(contract, name, None) for name in (*stated, "algorithm", "num_spec_tokens")},
    )
