"""The decision in one plain sentence, and the reasons for it. Pure.

Only representative traffic lets a sentence be more than a pilot's.
"""

from collections.abc import Iterable, Mapping, Sequence

from draftproof.judge.decide.outcome import find_limits
from draftproof.judge.metrics.request import METRIC_WORDS
from draftproof.judge.observe.attempts import HOST_BUSY
from draftproof.judge.observe.observed import ENDED_EARLY
from draftproof.judge.results.decide import Reference
from draftproof.judge.results.run import Cell, Decision, EnvelopeEntry, Reason
from draftproof.plan.limits import LoadLimit, LoadSize
from draftproof.workload.segments import show_labels

# Reasons that keep a run open whatever its cells show, the gravest first.
LEADING_CODES = (ENDED_EARLY, "incomplete", "gain_above_gap", "invalid_client")
LEVELS = ("smoke", "synthetic", "pilot", "representative")
EVIDENCE_WORDS = {
    "representative": "representative traffic",
    "pilot": "pilot: few requests of real traffic",
    "synthetic": "pilot: synthetic traffic",
    "smoke": "pilot: smoke-test traffic",
}
WITHHELD_WORDS = {
    "guardrail_failures": "failed requests",
    "guardrail_checks": "checks of answers",
    "low_agreement": "quality, as equal services seldom answer alike",
    "critical_unjudged": "critical checks that were not judged",
    "guardrail_ttft": "time to first token",
    "guardrail_e2e": "end-to-end time",
    "guardrail_tail_tpot": "time per token in the tail",
    "guardrail_tail_ttft": "time to first token in the tail",
    "equivalence_contradicted": "outputs contradict the guarantee of the contract",
    "output_length": "length of answers",
    "output_length_shift": "length of answers",
    "token_limit": "answers that end at the token limit",
    "token_limit_shift": "answers that end at the token limit",
    "dominated": "the alternative is better",
    "alternative_unmeasured": "the alternative was not measured",
    "rival_open": "whether the alternative is better",
    "gain_by_length": "the length of answers makes the gain",
    "gain_by_counting": "how tokens are counted",
    "contradicted_end_to_end": "end-to-end time contradicts time per token",
    "periods_unmeasured": "too few blocks",
    "late_by_itself": "periods in which the candidate may have made the client late",
    "disturbed_more": "the host disturbed the candidate more often than the other arms",
    "gain_by_attempts": "disturbed periods that are mostly the candidate's",
    "few_processes": "too few processes of an arm",
    "follows_unlike": "what comes just before a period differs between the arms",
    "null_not_exceeded": "equal services differ as much",
    "null_unmeasured": "equal services were not compared",
    "metric_hidden": "times that the candidate hides",
    "no_speculation_here": "the candidate did not draft",
    "context_harm": "harm in the shortest contexts",
}
# What else keeps a cell open, where its effect is no gain; the codes of faults read as words.
_OPEN_WORDS = {
    "effect_inconclusive": "an interval too wide to settle it",
    "no_effect_estimate": "too few prompts for an interval",
    "within_noise": WITHHELD_WORDS["null_not_exceeded"],
    "tail_not_shown": "the tail",
    "token_limit_not_shown": WITHHELD_WORDS["token_limit"],
    "invalid_client": "the load client was late",
}
OPEN_STATUSES = ("inconclusive", "neutral", "no_gain", "invalid")
RULES = {
    "adopt": "Every task at every load gains or stays the same, and at least one gains.",
    "adopt_limited": "Some tasks gain and lose at no lower load; the others stay without speculation.",
    "defer": "No cell gains, none that is open looks like a gain, and most could have shown one.",
    "inconclusive": "Neither a gain nor its absence is shown.",
    "invalid": "Every cell is invalid, so nothing is concluded.",
}


def weakest_evidence(*levels: str) -> str:
    """Return the weakest of the declared evidence levels."""
    return min(levels, key=LEVELS.index)


def name_reason(code: str) -> str:
    """Return what a reason's code is about, in words."""
    return WITHHELD_WORDS.get(code) or _OPEN_WORDS.get(code) or code.replace("_", " ")


def name_segment(segment: str) -> str:
    """Return the labels of a segment key: "task=rewriting,language=ar" is "rewriting/ar"."""
    return show_labels(segment, "/")


LATENCY_ONLY = "Latency only"  # first words of a verdict whose plan does not ask for quality


def render_sentence(
    decision: Decision,
    evidence: str,
    *,
    cells: Sequence[Cell],
    envelope: Sequence[EnvelopeEntry],
    metric: str,
    reasons: Sequence[Reason],
    missing: str | None = None,
    unseen: int = 0,
) -> str:
    """Return the decision in one sentence with its main figures.

    `missing` is what the open cells lack most, a sentence of its own, see `list_obstacles`;
    `unseen` is in how many cells of a deferral a gain would not have shown.
    """
    words = METRIC_WORDS[metric]
    level = EVIDENCE_WORDS[evidence]
    if decision == "adopt":
        return f"Adopt ({level}): {_render_adopted(cells, words)}."
    if decision == "adopt_limited":
        return f"Adopt in a limited envelope ({level}): {_render_limited(cells, envelope, words)}."
    if decision == "defer":
        return f"Defer ({level}): {_render_deferred(cells, words, reasons, unseen)}."
    if decision == "invalid":
        return f"Invalid run: {_first_text(reasons, 'nothing may be concluded')}."
    return f"Inconclusive ({level}): {_render_inconclusive(cells, words, reasons, missing)}."


def list_reasons(
    decision: Decision, cells: Sequence[Cell], incomplete: Iterable[Reason], why: Iterable[Reason]
) -> tuple[Reason, ...]:
    """Return the reasons: faults first, the rule, gains and harms, what is withheld, then why."""
    faults = _distinct(reason for cell in cells if cell.status == "invalid" for reason in cell.reasons)
    rule = Reason(code=f"rule_{decision}", text=RULES[decision], evidence=Reference("cells"))
    leading = [cell.reasons[0] for cell in cells if cell.status in ("gain", "harm") and cell.reasons]
    gap = [_explain_gap(cells)] if _has_gain_above_gap(cells, decision) else []
    withheld = [reason for cell in cells for reason in list_withheld(cell)]
    explained = () if decision == "invalid" else why
    return _distinct([*faults, *incomplete, *gap, rule, *leading, *withheld, *explained])


def _render_adopted(cells: Sequence[Cell], words: str) -> str:
    gains = [cell for cell in cells if cell.status == "gain"]
    neutral = len(cells) - len(gains)
    text = (
        f"up to {_highest_loads(cells)}, {words} falls by {_render_falls(gains)} for "
        f"{_join(_segment_names(gains))}"
    )
    return text + (f", and {neutral} of {len(cells)} cells stay as they are" if neutral else "")


def _highest_loads(cells: Iterable[Cell]) -> str:
    """Name the largest load on each axis."""
    largest = {size.axis: size for size in sorted((cell.size for cell in cells), key=lambda one: one.order)}
    return _join([size.label for size in largest.values()])


def _render_limited(cells: Sequence[Cell], envelope: Sequence[EnvelopeEntry], words: str) -> str:
    limits = {entry.segment: entry.limit for entry in envelope}
    inside = [
        cell
        for cell in cells
        if cell.status == "gain" and limits.get(cell.segment, LoadLimit()).covers(cell.size)
    ]
    widest_first = sorted(set(limits.values()), key=lambda limit: limit.order, reverse=True)
    groups = [_render_group(limits, limit) for limit in widest_first]
    text = f"{_join(groups)}, where {words} falls by {_render_falls(inside)}"
    return text + _render_outside(cells, limits) + _render_contexts(envelope)


def _render_group(limits: Mapping[str, LoadLimit], own: LoadLimit) -> str:
    names = [name_segment(segment) for segment, limit in limits.items() if limit == own]
    return f"{_join(names)} up to {own.label}"


def _render_outside(cells: Sequence[Cell], limits: Mapping[str, LoadLimit]) -> str:
    """Say which segments and which loads are left out altogether."""
    outside = dict.fromkeys(cell.segment for cell in cells if cell.segment not in limits)
    segments = [name_segment(segment) for segment in outside]
    sizes = {cell.size for cell in cells if not any(limit.covers(cell.size) for limit in limits.values())}
    parts = [f"for {_join(segments, 'or')}"] if segments else []
    parts += [f"at {_list_sizes(sizes)}"] if sizes else []
    return f"; not {', nor '.join(parts)}" if parts else ""


def _list_sizes(sizes: Iterable[LoadSize]) -> str:
    """Return "16 or 32 requests in flight or bursts, 9 requests/s on average"."""
    ordered = sorted(sizes, key=lambda size: size.order)
    closed = [size for size in ordered if size.axis == "concurrency"]
    shorter = [str(size.concurrency) for size in closed[:-1]] if not any(one.shape for one in closed) else []
    names = [*shorter, *(size.label for size in closed[len(shorter) :])]
    return _join([*names, *(size.label for size in ordered[len(closed) :])], "or")


def _render_contexts(envelope: Iterable[EnvelopeEntry]) -> str:
    """Say which long contexts are left out, because they showed harm."""
    by_limit: dict[int, list[str]] = {}
    for entry in envelope:
        if entry.context == "limited" and entry.max_context_tokens is not None:
            by_limit.setdefault(entry.max_context_tokens, []).append(name_segment(entry.segment))
    parts = [f"above {limit} tokens of context for {_join(names)}" for limit, names in by_limit.items()]
    return f"; not {_join(parts, 'or')}" if parts else ""


def _render_deferred(cells: Sequence[Cell], words: str, reasons: Sequence[Reason], unseen: int) -> str:
    harms = [cell for cell in cells if cell.status == "harm"]
    text = f"{words} falls enough in no task at any measured load"
    if unseen:
        text += f", though {unseen} of {len(cells)} cells could not have shown it"
    if harms:
        text += f", and {len(harms)} of {len(cells)} cells show harm"
    if any(reason.code == "dominated" for cell in cells for reason in cell.reasons):
        text += "; where it does fall, the alternative does better"
    codes = [reason.code for reason in reasons]
    if "low_acceptance" in codes:
        text += "; too few drafts are accepted to pay for a step"
    if "dear_verification" in codes:
        text += "; verifying drafts takes longer than the tokens it saves"
    return text


def _render_inconclusive(
    cells: Sequence[Cell], words: str, reasons: Sequence[Reason], missing: str | None
) -> str:
    leading = find_leading(reasons)
    if leading is not None:
        busy = [reason for reason in reasons if reason.code == HOST_BUSY and leading.code != ENDED_EARLY]
        return " ".join(reason.text for reason in (leading, *busy)).rstrip(".")
    undecided = list_open(cells)
    text = f"in {len(undecided)} of {len(cells)} cells it is open whether speculation lowers {words} safely"
    return text + _render_withheld(undecided) + (f". {missing.rstrip('.')}" if missing else "")


def find_leading(reasons: Iterable[Reason]) -> Reason | None:
    """Return what keeps a run open whatever its cells show, None where nothing does."""
    found = {reason.code: reason for reason in reversed(list(reasons))}
    return next((found[code] for code in LEADING_CODES if code in found), None)


def list_open(cells: Iterable[Cell]) -> list[Cell]:
    """Return the cells that leave a run open; neutral ones where no other does, or else invalid ones."""
    cells = list(cells)
    by_status = ([one for one in cells if one.status == status] for status in OPEN_STATUSES)
    return next(filter(None, by_status), [])


def _render_withheld(undecided: Iterable[Cell]) -> str:
    """Say how many cells would gain if something else were not open, and what that is."""
    held, names = name_withheld(undecided)
    return f"; {held} are fast enough and lack: {', '.join(names)}" if held else ""


def name_withheld(cells: Iterable[Cell]) -> tuple[int, list[str]]:
    """Return how many cells are fast enough and no gain all the same, and what they lack, in words."""
    held = list(filter(None, map(list_withheld, cells)))
    return len(held), list(dict.fromkeys(WITHHELD_WORDS[reason.code] for own in held for reason in own))


def list_withheld(cell: Cell) -> list[Reason]:
    """Return what keeps a cell whose effect is a gain from being one."""
    if cell.status != "inconclusive" or cell.reasons[0].code != "effect_gain":
        return []
    return [reason for reason in cell.reasons if reason.code in WITHHELD_WORDS]


def _has_gain_above_gap(cells: Sequence[Cell], decision: Decision) -> bool:
    gains = any(cell.status == "gain" for cell in cells)
    return decision == "inconclusive" and gains and not find_limits(cells)


def _explain_gap(cells: Sequence[Cell]) -> Reason:
    names = _join(_segment_names(cell for cell in cells if cell.status == "gain"))
    text = (
        f"{names} gains at a higher load, but speculation is not shown to be harmless at a lower one, so it "
        "may run nowhere yet."
    )
    if len({cell.size.axis for cell in cells}) > 1:
        text = (
            f"{names} gains, but not from the lowest load up, both by requests in flight and by requests per "
            "second, so it may run nowhere yet."
        )
    return Reason(code="gain_above_gap", text=text, evidence=Reference("cells"))


def _render_falls(cells: Iterable[Cell]) -> str:
    """Return "38–52 %" over the cells' values, or "45 % (38 to 52 %)" for a single cell."""
    effects = [cell.effect for cell in cells if cell.effect.value is not None]
    falls = sorted(round(100 * (1 - (effect.value or 0))) for effect in effects)
    if len(effects) == 1 and effects[0].low is not None and effects[0].high is not None:
        return f"{falls[0]} % ({100 * (1 - effects[0].high):.0f} to {100 * (1 - effects[0].low):.0f} %)"
    return f"{falls[0]} %" if falls[0] == falls[-1] else f"{falls[0]}–{falls[-1]} %"


def _segment_names(cells: Iterable[Cell]) -> list[str]:
    return [name_segment(segment) for segment in dict.fromkeys(cell.segment for cell in cells)]


def _join(names: Iterable[str], word: str = "and") -> str:
    names = list(names)
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} {word} {names[-1]}"


def _first_text(reasons: Sequence[Reason], default: str) -> str:
    text = reasons[0].text if reasons else default
    return text.rstrip(".")


def _distinct(reasons: Iterable[Reason]) -> tuple[Reason, ...]:
    return tuple({(reason.code, reason.text, reason.evidence): reason for reason in reasons}.values())
