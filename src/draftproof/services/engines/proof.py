"""Whether a service really speculates, judged from a test request. Pure.

The order of trust is that of the metrics page: the answer's own record, then the gain of the service's
counters over the test request. What discloses nothing is undisclosed and never taken for off; `is_off` says
that something else shows it to be, such as its command or its log.
"""

import math
from collections.abc import Sequence
from typing import Literal

import msgspec

from draftproof.services.engines.adapter import EngineAdapter, ProbeObservation
from draftproof.services.engines.facts import Series
from draftproof.services.engines.values import first_sum, sum_series

# With fewer drafts a good drafter may have none accepted by bad luck.
ENOUGH_DRAFTS = 12


class Proof(msgspec.Struct, frozen=True, kw_only=True):
    """What the test request shows.

    `idle` is a service that could have drafted and did not; `never_accepted` one of whose drafts not a single
    one was taken. Counts are None where nothing discloses them. `cause` names why, where the engine's adapter
    knows or guesses; `source` says what was read. `is_off`: not counted, and shown all the same not to draft.
    """

    state: Literal["drafting", "never_accepted", "idle", "undisclosed"]
    source: str
    num_spec_steps: int | None = None
    num_draft_tokens: int | None = None
    num_accepted_draft_tokens: int | None = None
    cause: str | None = None
    is_off: bool = False


def prove_speculation(adapter: EngineAdapter, evidence: ProbeObservation) -> Proof:
    """Return what the evidence shows of a service's speculation."""
    proof = _read_answer(evidence) or _read_counters(adapter.facts.series, evidence)
    if proof is None:
        off = adapter.explain_off(evidence)
        return Proof(
            state="undisclosed",
            source=_describe_silence(adapter, evidence),
            cause=off or adapter.explain_idle(evidence),
            is_off=off is not None,
        )
    if proof.state == "drafting":
        return proof
    return msgspec.structs.replace(
        proof, cause=adapter.explain_off(evidence) or adapter.explain_idle(evidence)
    )


def _describe_silence(adapter: EngineAdapter, evidence: ProbeObservation) -> str:
    """Say what counts no drafts: metrics that were read, by their address, or none at all."""
    if evidence.after is None:
        return "neither the answer nor the service's metrics count drafts"
    where = f" at {', '.join(evidence.metrics_urls)}" if evidence.metrics_urls else ""
    lacks = "no counters of drafts"
    fields = msgspec.structs.asdict(adapter.facts.series).values()
    if all(sum_series(evidence.after, name) is None for field in fields for name in field or ()):
        lacks += f" and no other series of {adapter.facts.title}"
    return f"the answer counts no drafts, and the metrics{where} have {lacks}"


def _read_answer(evidence: ProbeObservation) -> Proof | None:
    answer = evidence.answer
    if answer is None:
        return None
    if answer.rounds is not None:
        drafted = [one for one in answer.rounds if one.proposed]
        counts = (len(drafted), sum(one.proposed for one in drafted), sum(one.accepted for one in drafted))
        return _judge(counts, "the answer's record of its rounds")
    if answer.speculation is not None:
        found = answer.speculation
        counts = (found.num_spec_steps, found.num_draft_tokens, found.num_accepted_draft_tokens)
        return _judge(counts, "the answer's counters")
    return None


def _read_counters(series: Series, evidence: ProbeObservation) -> Proof | None:
    if evidence.before is None or evidence.after is None:
        return None
    steps = _gain(evidence, series.spec_steps)
    drafted = _gain(evidence, series.draft_tokens)
    accepted = _gain(evidence, series.accepted_tokens)
    if steps is None and drafted is None and not accepted:
        return None
    return _judge((steps, drafted, accepted), "the service's counters over the test request")


def _gain(evidence: ProbeObservation, names: Sequence[str]) -> int | None:
    """Return what a counter gained, one that appears from zero; None where it is absent, fell or is NaN."""
    after = first_sum(evidence.after or {}, names)
    before = first_sum(evidence.before or {}, names) or 0.0
    if after is None or after < before or not math.isfinite(after - before):
        return None
    return round(after - before)


def _judge(counts: tuple[int | None, int | None, int | None], source: str) -> Proof:
    steps, drafted, accepted = counts
    # An engine that counts accepted drafts alone shows that it drafts, and never that it does not.
    is_idle = not (steps or drafted or accepted)
    rejects_all = accepted == 0 and drafted is not None and drafted >= ENOUGH_DRAFTS
    return Proof(
        state="idle" if is_idle else "never_accepted" if rejects_all else "drafting",
        source=source,
        num_spec_steps=steps,
        num_draft_tokens=drafted,
        num_accepted_draft_tokens=accepted,
    )
