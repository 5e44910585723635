"""What the numbers of `samples` come to, in one or two sentences. Pure."""

from collections.abc import Sequence

from draftproof.verdict.samples.results import Need, SamplePlan

STATISTIC_WORDS = {"mean": "the mean", "p50": "the median", "p95": "p95", "p99": "p99"}
METRIC_WORDS = {"tpot_ns": "time per token", "e2e_from_schedule_ns": "end-to-end time"}


def describe_samples(found: SamplePlan, obstacles: Sequence[str]) -> str:
    """Say whether the workload suffices for the gain, what else is short, and how many requests it takes.

    Of the obstacles, largest first, the first is said that is no need: before the gain if none is larger.
    """
    gains = [need for need in found.needs if need.aim == "gain"]
    others = {*found.disturbed.values(), *(one.text for one in found.shortfalls)}
    said = [text for text in obstacles if text in others][:1]
    gain = [_describe_gain(found, gains)]
    leading = (*said, *gain) if said == list(obstacles[:1]) else (*gain, *said)
    return " ".join((*leading, _describe_rest(found), _describe_requests(found)))


def _describe_gain(found: SamplePlan, gains: Sequence[Need]) -> str:
    question = found.question
    metric = METRIC_WORDS.get(gains[0].quantity, gains[0].quantity) if gains else ""
    aim = (
        f"a gain of {100 * question.gain:g} % in {STATISTIC_WORDS[question.statistic]} of {metric} with a "
        f"chance of {100 * question.power:g} % per cell"
    )
    impossible = [need for need in gains if need.reason is not None]
    short = [need for need in gains if need.more]
    what = "prompts measured" if found.run else "prompts of the workload"
    if impossible:
        return f"{len(impossible)} of {len(gains)} cells cannot show {aim}: {impossible[0].reason}."
    if not short:
        return f"The {what} suffice in every cell for {aim}."
    worst = max(short, key=lambda need: (need.needed[-1], need.segment, need.load))
    span = _span(worst.needed)
    return (
        f"The {what} are too few in {len(short)} of {len(gains)} cells for {aim}: {worst.segment} at load "
        f"{worst.load} takes {span}."
    )


def _describe_rest(found: SamplePlan) -> str:
    names = {
        "tail": "the tail",
        "failures": "failed requests",
        "checks": "passed checks",
        "limit": "ends of answers",
    }
    short = [need for need in found.needs if need.aim != "gain" and (need.more or need.reason)]
    if not short:
        return "Tail, failures, checks and ends of answers are covered."
    listed = ", ".join(dict.fromkeys(names[need.aim] for need in short))
    return f"Too few, too, for {listed}." if any(n.more for n in found.needs) else f"Not shown: {listed}."


def _describe_requests(found: SamplePlan) -> str:
    if found.requests_needed is None:
        return "No number of requests meets every need."
    low, high = found.requests_needed
    if high <= found.requests:
        return f"The plan's {found.requests:,} measured requests are enough."
    span = f"{low:,}" if low == high else f"{low:,} to {high:,}"
    return (
        f"All together take {span} measured requests over {found.arms} arms; the plan has {found.requests:,}."
    )


def _span(needed: Sequence[int]) -> str:
    return (
        f"{needed[0]:,}"
        if needed[0] == needed[-1]
        else f"{needed[0]:,} to {needed[-1]:,}, by how prompts spread"
    )
