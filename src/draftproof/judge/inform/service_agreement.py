"""Whether the client's figures and the service's own agree, quantity by quantity, and why where they do not.

Pure. Periods in which every request was answered come first: of a request that was broken off the service
made tokens that the client never saw. Where no period is such, all periods are compared and the text says so.
"""

import math
from collections.abc import Iterable, Iterator

import msgspec

from draftproof.judge.metrics.acceptance import (
    ClientTally,
    tokens_per_step_from_chunks,
    tokens_per_step_from_fields,
)
from draftproof.judge.observe.run_data import PreparedRun
from draftproof.judge.observe.services import ServicePeriod, ServiceReadings
from draftproof.judge.results.inform import AgreementStanding, ServiceAgreement

CLOSE = 0.01
# (name in results, counter, attribute of the client's tally)
COUNTED = (
    ("finished_requests", "finished_requests", "answered"),
    ("output_tokens", "generation_tokens", "tokens"),
    ("num_spec_steps", "spec_steps", "num_spec_steps"),
    ("num_draft_tokens", "draft_tokens", "num_draft_tokens"),
    ("num_accepted_draft_tokens", "accepted_tokens", "num_accepted_draft_tokens"),
)
STEPS = "tokens_per_decode_step"


class _Ground(msgspec.Struct, frozen=True, kw_only=True):
    """The periods that are compared: how many, of how many, and the requests in them left unanswered."""

    periods: tuple[ServicePeriod, ...]
    of: int
    unanswered: int
    open_tokens: int
    partial_tokens: int

    def allowance(self, quantity: str) -> tuple[float, float]:
        """Return the most that requests broken off may take from the service's figure, and add to it.

        A service that counts a request when it ends leaves out all that it made for one broken off.
        """
        if quantity == "finished_requests":
            return 0, self.unanswered
        if quantity == "output_tokens":
            return self.partial_tokens, self.open_tokens
        return 0, math.inf if self.unanswered else 0

    @property
    def text(self) -> str:
        over = f"over {len(self.periods)} of {self.of} periods"
        if not self.unanswered:
            return f"{over}, in which every request was answered"
        return (
            f"{over}; {self.unanswered} requests in them were broken off, and of those the service made "
            "tokens and drafts that the client does not know"
        )


def compare_sources(prepared: PreparedRun, readings: ServiceReadings) -> tuple[ServiceAgreement, ...]:
    """Return one row for every quantity that the client and the service both may tell."""
    return tuple(
        row
        for load in prepared.loads
        for arm in prepared.arms
        for row in (*_compare_counts(readings, arm, load), *_compare_steps(prepared, readings, arm, load))
    )


def list_disagreements(rows: Iterable[ServiceAgreement]) -> Iterator[str]:
    """Yield a warning for every count of which the service tells less, or more, than the client asked for."""
    for row in rows:
        if row.quantity not in ("output_tokens", "finished_requests") or row.standing != "differs":
            continue
        apart, what = row.difference or 0, row.quantity.replace("_", " ")
        if apart < 0:
            yield (
                f"The service of {row.arm} counts {-apart:g} {what} fewer than the client got at load "
                f"{row.load}: its counters do not cover all its answers, or not all its replicas are read."
            )
        elif apart > 0:
            yield (
                f"The service of {row.arm} counts {apart:g} {what} more than this client asked for at load "
                f"{row.load}, too few to call the load invalid: perhaps another client's."
            )


def _compare_counts(readings: ServiceReadings, arm: str, load: str) -> Iterator[ServiceAgreement]:
    ground = _choose_periods(readings.usable(arm, load), len(readings.of(arm, load)))
    if not ground.periods:
        return
    for quantity, counter, attribute in COUNTED:
        service = readings.gain(arm, ground.periods, counter)
        client = _sum_client([one.client for one in ground.periods], attribute)
        if service is not None or (client is not None and quantity == "output_tokens"):
            allowed = ground.allowance(quantity)
            yield _row((arm, load, quantity), client, service, ground.text, allowed=allowed)


def _choose_periods(usable: list[ServicePeriod], of: int) -> _Ground:
    whole = [one for one in usable if not one.client.unanswered]
    chosen = whole or usable
    return _Ground(
        periods=tuple(chosen),
        of=of,
        unanswered=sum(one.client.unanswered for one in chosen),
        open_tokens=sum(one.client.open_tokens for one in chosen),
        partial_tokens=sum(one.client.partial_tokens for one in chosen),
    )


def _compare_steps(
    prepared: PreparedRun, readings: ServiceReadings, arm: str, load: str
) -> Iterator[ServiceAgreement]:
    """Compare the steps that chunks show with those that the answers' own fields tell."""
    if readings.facts[arm].chunk_holds != "step":
        return
    records = [one.record for one in prepared.of_arm(arm, load)]
    fields, least = tokens_per_step_from_fields(records)
    if fields is None or least is None:
        return
    chunks, requests = tokens_per_step_from_chunks(records)
    if chunks is None:
        return
    text = (
        f"over {requests} answers: the client's figure takes each chunk after the first for one step, the "
        "service's comes from the answers' own counts, which may hold drafts accepted behind an answer's end "
        f"(without them it is at least {least:.3g}); a chunk that holds several steps raises the client's"
    )
    yield _row((arm, load, STEPS), chunks, fields, text, allowed=(0, fields - least))


def _row(
    key: tuple[str, str, str],
    client: float | None,
    service: float | None,
    ground: str,
    *,
    allowed: tuple[float, float] = (0.0, 0.0),
) -> ServiceAgreement:
    standing = _evaluate(client, service, allowed)
    missing = "the service has no such counter" if service is None else "the answers do not tell it"
    return ServiceAgreement(
        arm=key[0],
        load=key[1],
        quantity=key[2],
        client=client,
        service=service,
        difference=None if client is None or service is None else service - client,
        standing=standing,
        text=f"{missing}; {ground}" if standing == "unknown" else ground,
    )


def _evaluate(client: float | None, service: float | None, allowed: tuple[float, float]) -> AgreementStanding:
    if client is None or service is None:
        return "unknown"
    if client == service:
        return "exact"
    if abs(service - client) <= CLOSE * abs(client):
        return "close"
    return "explained" if -allowed[0] <= service - client <= allowed[1] else "differs"


def _sum_client(tallies: list[ClientTally], attribute: str) -> float | None:
    """Return a figure of the client over periods, None where one of them does not have it."""
    values = [getattr(one, attribute) for one in tallies]
    return None if None in values else float(sum(values))
