"""The series that Prometheus computes for each arm, and for the pair where both arms have traffic. Pure.

PromQL in text: selectors, sums over windows, quotients, quantiles. Pure; knows no engine and no plan.
"""

import json
import re
from collections.abc import Callable, Iterator, Sequence

from draftproof.plan.limits import TAIL_SHARES, floor_of_tail, tail_of
from draftproof.plan.schema import Plan
from draftproof.services.engines.signals import DecodeTime, Sample, Samples, Signals
from draftproof.tell.monitoring.watch import ArmRole, Recording

_SPECIAL = re.compile(r"[\\^$.|?*+()\[\]{}]")


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


def increase(samples: Samples, jobs: Sequence[str], window_s: int) -> str:
    """Return by how much counters rose in the window, over all replicas; resets are allowed for."""
    parts = [_one_increase(sample, jobs, window_s) for sample in samples]
    return parts[0] if len(parts) == 1 else "(\n  " + "\n  + ".join(parts) + "\n)"


def _one_increase(sample: Sample, jobs: Sequence[str], window_s: int) -> str:
    total = f"sum({once(sample, f'increase({select(sample, jobs)}[{window_s}s])')})"
    return f"({total} or vector(0))" if sample.is_optional else total


def time_per_token(decode: DecodeTime, jobs: Sequence[str], window_s: int) -> str:
    """Return seconds of decoding over the tokens they brought, in the window, over all replicas."""
    tokens = increase((decode.tokens,), jobs, window_s)
    if decode.first_tokens is not None:
        tokens = f"({tokens} - {increase((decode.first_tokens,), jobs, window_s)})"
    return f"{increase((decode.seconds,), jobs, window_s)}\n/\n{tokens}"


def quantile(bucket: str, jobs: Sequence[str], window_s: int, share: float) -> str:
    """Return a quantile over the requests that ended in the window, over all replicas."""
    rate = f"sum by (le) (rate({select(Sample(bucket), jobs)}[{window_s}s]))"
    return f"histogram_quantile({share:g}, {rate})"


def share_of(part: Samples, whole: Samples, jobs: Sequence[str], window_s: int) -> str:
    """Return the part of one set of counters in another, in the window."""
    return f"{increase(part, jobs, window_s)}\n/\n{increase(whole, jobs, window_s)}"


def indent(text: str, by: str) -> str:
    """Return a text with every line moved to the right."""
    return "\n".join(by + line for line in text.splitlines())


_ARM = "arm:draftproof_"
_PAIR = "pair:draftproof_"
SLOWDOWN = f"{_PAIR}slowdown_ratio"
FAILED_EXCESS = f"{_PAIR}failed_share_excess"
# The hold-out has no drafter.
_CANDIDATE_ONLY = ("drafting", "acceptance_length", "restarts")
Expression = Callable[[Signals, Sequence[str], Plan], str | None]
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


def arm_series(what: str, arm: ArmRole, run: str) -> str:
    """Return the selector of a recorded series of an arm."""
    return f"{_ARM}{what}{{arm={quote(arm)},run={quote(run)}}}"


def pair_series(name: str, run: str) -> str:
    """Return the selector of a recorded series of both arms."""
    return f"{name}{{run={quote(run)}}}"


def record_arm(arm: ArmRole, signals: Signals, jobs: Sequence[str], plan: Plan) -> Iterator[Recording]:
    """Yield the recorded series of an arm, those only that its engine can tell."""
    for what, (build, comment, by_instance) in _SERIES.items():
        expr = None if arm == "holdout" and what in _CANDIDATE_ONLY else build(signals, jobs, plan)
        if expr is not None:
            caveat = signals.caveats.get(what, "")
            yield Recording(
                name=_ARM + what,
                arm=arm,
                expr=expr,
                comment="; ".join(filter(None, (comment.format(tail=tail_of(plan)), caveat))),
                by_instance=by_instance,
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


def _tokens(signals: Signals, jobs: Sequence[str], plan: Plan) -> str | None:
    return increase(signals.tokens, jobs, plan.rollback.window_s) if signals.tokens else None


def _finished(signals: Signals, jobs: Sequence[str], plan: Plan) -> str | None:
    counted = signals.finished or signals.tokens
    return increase(counted, jobs, plan.rollback.window_s) if counted else None


def _attempted(signals: Signals, jobs: Sequence[str], plan: Plan) -> str | None:
    return increase(signals.attempted, jobs, plan.rollback.window_s) if signals.attempted else None


def _time_per_token(signals: Signals, jobs: Sequence[str], plan: Plan) -> str | None:
    decode = signals.decode_time
    return None if decode is None else time_per_token(decode, jobs, plan.rollback.window_s)


def _tail_tpot(signals: Signals, jobs: Sequence[str], plan: Plan) -> str | None:
    return _tail(signals.tpot_bucket, jobs, plan)


def _tail_ttft(signals: Signals, jobs: Sequence[str], plan: Plan) -> str | None:
    return _tail(signals.ttft_bucket, jobs, plan)


def _tail(bucket: str | None, jobs: Sequence[str], plan: Plan) -> str | None:
    share = TAIL_SHARES[tail_of(plan)]
    return None if bucket is None else quantile(bucket, jobs, plan.rollback.window_s, share)


def _failed(signals: Signals, jobs: Sequence[str], plan: Plan) -> str | None:
    if not signals.attempted:
        return None
    return share_of(signals.failed, signals.attempted, jobs, plan.rollback.window_s)


def _drafting(signals: Signals, jobs: Sequence[str], plan: Plan) -> str | None:
    moves = signals.drafting
    return None if moves is None else increase((moves,), jobs, plan.rollback.window_s)


def _acceptance(signals: Signals, jobs: Sequence[str], plan: Plan) -> str | None:
    window_s, gauge = plan.rollback.window_s, signals.acceptance_gauge
    if gauge is not None and signals.drafting is not None:
        drafts = increase((signals.drafting,), jobs, window_s)
        return f"avg(avg_over_time({select(gauge, jobs)}[{window_s}s]))\nand on() ({drafts} > 0)"
    if signals.accepted is None or signals.steps is None:
        return None
    return f"1 +\n{share_of((signals.accepted,), (signals.steps,), jobs, window_s)}"


def _cache(signals: Signals, jobs: Sequence[str], _plan: Plan) -> str | None:
    usage = signals.cache_usage
    return None if usage is None else f"max by (instance) ({select(usage, jobs)})"


def _preemptions(signals: Signals, jobs: Sequence[str], plan: Plan) -> str | None:
    if signals.preemptions is None or not signals.finished:
        return None
    return share_of((signals.preemptions,), signals.finished, jobs, plan.rollback.window_s)


def _in_flight(signals: Signals, jobs: Sequence[str], _plan: Plan) -> str | None:
    if signals.running is None or signals.waiting is None:
        return None
    return f"{_sum_by_replica(signals.running, jobs)}\n+ {_sum_by_replica(signals.waiting, jobs)}"


def _mean_in_flight(signals: Signals, jobs: Sequence[str], plan: Plan) -> str | None:
    """The mean over the window: bursts count by how long they last, whatever a single scrape catches."""
    if signals.running is None or signals.waiting is None:
        return None
    window_s = plan.rollback.window_s
    parts = (
        f"sum by (instance) ({once(sample, f'avg_over_time({select(sample, jobs)}[{window_s}s])')})"
        for sample in (signals.running, signals.waiting)
    )
    return "\n+ ".join(parts)


def _request_rate(signals: Signals, jobs: Sequence[str], plan: Plan) -> str | None:
    """The rate of each replica; a counter that an engine may lack counts as standing still."""
    counted = signals.attempted or signals.finished
    if not counted:
        return None
    rates = [f"sum by (instance) (rate({select(one, jobs)}[{plan.rollback.window_s}s]))" for one in counted]
    parts = [
        f"({rate} or 0 * {rates[0]})" if one.is_optional else rate
        for one, rate in zip(counted, rates, strict=True)
    ]
    return "\n+ ".join(parts)


def _sum_by_replica(sample: Sample, jobs: Sequence[str]) -> str:
    return f"sum by (instance) ({once(sample, select(sample, jobs))})"


def _restarts(signals: Signals, jobs: Sequence[str], plan: Plan) -> str | None:
    if not signals.tokens:
        return None
    return f"sum(resets({select(signals.tokens[0], jobs)}[{plan.rollback.window_s}s]))"


# Series: how it is computed, what it is, and whether it has one value a replica.
_SERIES: dict[str, tuple[Expression, str, bool]] = {
    "generated_tokens": (_tokens, "tokens generated in the window", False),
    "finished_requests": (
        _finished,
        "requests that ended in the window: the floor of every judgement",
        False,
    ),
    "attempted_requests": (_attempted, "requests that ended or were refused in the window", False),
    "time_per_token_seconds": (_time_per_token, "seconds of decoding over the tokens they brought", False),
    "tail_time_per_token_seconds": (_tail_tpot, "{tail} of the requests' time per output token", False),
    "tail_ttft_seconds": (_tail_ttft, "{tail} of the time to first token, from the engine's receipt", False),
    "failed_share": (_failed, "share of requests that failed", False),
    "drafting": (_drafting, "what the drafter did in the window; 0 while it is idle", False),
    "acceptance_length": (_acceptance, "tokens a verification step brings, the target's own included", False),
    "requests_in_flight": (_in_flight, "requests running or waiting, of each replica", True),
    "mean_requests_in_flight": (
        _mean_in_flight,
        "mean over the window of the requests running or waiting, of each replica",
        True,
    ),
    "request_rate": (
        _request_rate,
        "requests a second that ended or were refused in the window, of each replica",
        True,
    ),
    "cache_usage": (_cache, "share of the key-value cache in use, of each replica", True),
    "preemptions_per_request": (_preemptions, "preemptions over requests that ended", False),
    "restarts": (_restarts, "counters that began again: a replica restarted", False),
}
