"""The series that Prometheus computes for each arm, and for the pair where both arms have traffic. Pure.

PromQL in text: selectors, sums over windows, quotients, quantiles, of an engine's signals.
"""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import msgspec

from draftproof.plan.limits import TAIL_SHARES, floor_of_tail, tail_of
from draftproof.plan.schema import Plan
from draftproof.services.engines.facts import Sample, Samples, Signals

_SPECIAL = re.compile(r"[\\^$.|?*+()\[\]{}]")
ArmRole = Literal["candidate", "holdout"]


class Recording(msgspec.Struct, frozen=True, kw_only=True):
    """A series that Prometheus computes and keeps.

    `comment` says what it is; `arm` is None for a series of both arms. `by_instance`: one value a replica.
    """

    name: str
    arm: ArmRole | None
    expr: str
    comment: str
    by_instance: bool = False


def quote(text: str) -> str:
    """Return a double-quoted string that PromQL, YAML and JSON all read alike.

    Characters beyond the basic plane stand as they are: JSON's pairs of surrogates are not YAML.
    """
    return "".join(_escape(character) for character in json.dumps(text, ensure_ascii=False))


def _escape(character: str) -> str:
    return character if character.isprintable() else f"\\u{ord(character):04x}"


def select_jobs(jobs: Sequence[str]) -> str:
    """Return the matcher of the scrape jobs of an arm: equal to one, or to any of several."""
    if len(jobs) == 1:
        return f"job={quote(jobs[0])}"
    return "job=~" + quote("|".join(_SPECIAL.sub(r"\\\g<0>", job) for job in jobs))


def select(sample: Sample, jobs: Sequence[str]) -> str:
    """Return the selector of a sample in the jobs of an arm."""
    return f"{sample.name}{{{','.join(filter(None, (select_jobs(jobs), sample.matchers)))}}}"


def once(sample: Sample, expression: str) -> str:
    """Return an expression over a sample's series with replicas of one fact taken once."""
    labels = ", ".join(sample.replica_labels)
    return f"max without ({labels}) ({expression})" if labels else expression


def indent(text: str, by: str) -> str:
    """Return a text with every line moved to the right."""
    return "\n".join(by + line for line in text.splitlines())


_ARM = "arm:draftproof_"
_PAIR = "pair:draftproof_"
SLOWDOWN = f"{_PAIR}slowdown_ratio"
FAILED_EXCESS = f"{_PAIR}failed_share_excess"
# The hold-out has no drafter.
_CANDIDATE_ONLY = ("drafting", "acceptance_length", "restarts")
# A comparison, what it compares, what must have happened often enough in both arms, how, and what it is.
_PAIRS = (
    (
        SLOWDOWN,
        "time_per_token_seconds",
        "finished_requests",
        "/",
        "time per token, candidate over hold-out",
    ),
    (FAILED_EXCESS, "failed_share", "attempted_requests", "-", "failed share, candidate less hold-out"),
)


class _Reader(msgspec.Struct, frozen=True):
    """An arm's series as PromQL over the window and all replicas; None for what its engine lacks."""

    signals: Signals
    jobs: Sequence[str]
    plan: Plan

    @property
    def over(self) -> str:
        return f"[{self.plan.rollback.window_s}s]"

    def increase(self, samples: Samples) -> str | None:
        """By how much counters rose; resets are allowed for."""
        if not samples:
            return None
        parts = [self._one_increase(sample) for sample in samples]
        return parts[0] if len(parts) == 1 else "(\n  " + "\n  + ".join(parts) + "\n)"

    def _one_increase(self, sample: Sample) -> str:
        total = f"sum({once(sample, f'increase({select(sample, self.jobs)}{self.over})')})"
        return f"({total} or vector(0))" if sample.is_optional else total

    def share(self, part: Samples, whole: Samples) -> str | None:
        """The part of one set of counters in another."""
        return f"{self.increase(part)}\n/\n{self.increase(whole)}" if part and whole else None

    def time_per_token(self) -> str | None:
        """Seconds of decoding over the tokens they brought."""
        decode = self.signals.decode_time
        if decode is None:
            return None
        tokens = self.increase((decode.tokens,))
        if decode.first_tokens is not None:
            tokens = f"({tokens} - {self.increase((decode.first_tokens,))})"
        return f"{self.increase((decode.seconds,))}\n/\n{tokens}"

    def tail(self, bucket: str | None) -> str | None:
        """The plan's quantile over the requests that ended."""
        if bucket is None:
            return None
        rate = f"sum by (le) (rate({select(Sample(bucket), self.jobs)}{self.over}))"
        return f"histogram_quantile({TAIL_SHARES[tail_of(self.plan)]:g}, {rate})"

    def acceptance(self) -> str | None:
        """Tokens that a verification step brings."""
        signals, gauge = self.signals, self.signals.acceptance_gauge
        if gauge is not None and signals.drafting is not None:
            drafts = self.increase((signals.drafting,))
            return f"avg(avg_over_time({select(gauge, self.jobs)}{self.over}))\nand on() ({drafts} > 0)"
        if signals.accepted is None or signals.steps is None:
            return None
        return f"1 +\n{self.share((signals.accepted,), (signals.steps,))}"

    def in_flight(self, read: str) -> str | None:
        """Requests running or waiting of each replica, read at a moment or averaged over the window."""
        signals = self.signals
        if signals.running is None or signals.waiting is None:
            return None
        parts = (
            f"sum by (instance) ({once(sample, read.format(f'{select(sample, self.jobs)}'))})"
            for sample in (signals.running, signals.waiting)
        )
        return "\n+ ".join(parts)

    def request_rate(self) -> str | None:
        """The rate of each replica; a counter that an engine may lack counts as standing still."""
        counted = self.signals.attempted or self.signals.finished
        if not counted:
            return None
        rates = [f"sum by (instance) (rate({select(one, self.jobs)}{self.over}))" for one in counted]
        parts = [
            f"({rate} or 0 * {rates[0]})" if one.is_optional else rate
            for one, rate in zip(counted, rates, strict=True)
        ]
        return "\n+ ".join(parts)

    def cache(self) -> str | None:
        """The share of the cache in use of each replica."""
        usage = self.signals.cache_usage
        return None if usage is None else f"max by (instance) ({select(usage, self.jobs)})"

    def restarts(self) -> str | None:
        """How often counters began again."""
        tokens = self.signals.tokens
        return f"sum(resets({select(tokens[0], self.jobs)}{self.over}))" if tokens else None


def _if_any(sample: Sample | None) -> Samples:
    return () if sample is None else (sample,)


# Series: how it is computed, and what it is.
_SERIES: dict[str, tuple[Callable[[_Reader], str | None], str]] = {
    "generated_tokens": (lambda arm: arm.increase(arm.signals.tokens), "tokens generated in the window"),
    "finished_requests": (
        lambda arm: arm.increase(arm.signals.finished or arm.signals.tokens),
        "requests that ended in the window: the floor of every judgement",
    ),
    "attempted_requests": (
        lambda arm: arm.increase(arm.signals.attempted),
        "requests that ended or were refused in the window",
    ),
    "time_per_token_seconds": (_Reader.time_per_token, "seconds of decoding over the tokens they brought"),
    "tail_time_per_token_seconds": (
        lambda arm: arm.tail(arm.signals.tpot_bucket),
        "{tail} of the requests' time per output token",
    ),
    "tail_ttft_seconds": (
        lambda arm: arm.tail(arm.signals.ttft_bucket),
        "{tail} of the time to first token, from the engine's receipt",
    ),
    "failed_share": (
        lambda arm: arm.share(arm.signals.failed, arm.signals.attempted),
        "share of requests that failed",
    ),
    "drafting": (
        lambda arm: arm.increase(_if_any(arm.signals.drafting)),
        "what the drafter did in the window; 0 while it is idle",
    ),
    "acceptance_length": (
        _Reader.acceptance,
        "tokens a verification step brings, the target's own included",
    ),
    "requests_in_flight": (
        lambda arm: arm.in_flight("{}"),
        "requests running or waiting, of each replica",
    ),
    "mean_requests_in_flight": (
        # Bursts count by how long they last, whatever a single scrape catches.
        lambda arm: arm.in_flight(f"avg_over_time({{}}{arm.over})"),
        "mean over the window of the requests running or waiting, of each replica",
    ),
    "request_rate": (
        _Reader.request_rate,
        "requests a second that ended or were refused in the window, of each replica",
    ),
    "cache_usage": (_Reader.cache, "share of the key-value cache in use, of each replica"),
    "preemptions_per_request": (
        lambda arm: arm.share(_if_any(arm.signals.preemptions), arm.signals.finished),
        "preemptions over requests that ended",
    ),
    "restarts": (_Reader.restarts, "counters that began again: a replica restarted"),
}
CANDIDATE_SERIES = tuple(_SERIES)


def arm_series(what: str, arm: ArmRole, run: str) -> str:
    """Return the selector of a recorded series of an arm."""
    return f"{_ARM}{what}{{arm={quote(arm)},run={quote(run)}}}"


def pair_series(name: str, run: str) -> str:
    """Return the selector of a recorded series of both arms."""
    return f"{name}{{run={quote(run)}}}"


def record_arm(arm: ArmRole, signals: Signals, jobs: Sequence[str], plan: Plan) -> Iterator[Recording]:
    """Yield the recorded series of an arm, those only that its engine can tell."""
    reader = _Reader(signals, jobs, plan)
    for what, (build, comment) in _SERIES.items():
        expr = None if arm == "holdout" and what in _CANDIDATE_ONLY else build(reader)
        if expr is not None:
            caveat = signals.caveats.get(what, "")
            yield Recording(
                name=_ARM + what,
                arm=arm,
                expr=expr,
                comment="; ".join(filter(None, (comment.format(tail=tail_of(plan)), caveat))),
                by_instance=comment.endswith("of each replica"),
            )


def record_pair(run: str, plan: Plan, known: set[str]) -> Iterator[Recording]:
    """Yield the comparisons of candidate and hold-out, which exist only while both have enough traffic."""
    for name, what, floor_of, sign, comment in _PAIRS:
        if _ARM + what in known:
            one, other = (arm_series(what, arm, run) for arm in ("candidate", "holdout"))
            enough = " and ".join(
                f"ignoring(arm) ({arm_series(floor_of, arm, run)} >= {plan.rollback.minimum_requests})"
                for arm in ("candidate", "holdout")
            )
            expr = f"({one}\n  {sign} ignoring(arm) {other})\nand {enough}"
            yield Recording(name=name, arm=None, expr=expr, comment=comment)


def floor(run: str, plan: Plan, *, what: str = "finished_requests", tail: bool = False) -> str:
    """Return the condition that the candidate had enough requests in the window to be judged."""
    least = floor_of_tail(plan) if tail else plan.rollback.minimum_requests
    return f"{arm_series(what, 'candidate', run)} >= {least}"
