"""How many prompts a plan takes: for a gain in every cell, for the tail, for failures and for quality. Pure.

Before a run the spreads are assumed, over a stated range; with an earlier run they are its own. Numbers are
estimates: they hold if the next prompts spread like these.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Literal

import msgspec

from draftproof.core.errors import UsageError
from draftproof.core.rounding import round_figures
from draftproof.judge.decide.forecast import count_compared, final_level, forecast_shortfalls
from draftproof.judge.decide.spreads import (
    DEFAULT_POWER,
    Earlier,
    describe_samples,
    discordant_shares,
    list_obstacles,
    read_earlier,
    spreads_of_ratio,
    spreads_of_values,
)
from draftproof.judge.decide.tails import TAIL_METRICS, compare_tail, explain_tail, tail_share
from draftproof.judge.metrics.request import METRIC_WORDS
from draftproof.judge.observe.pairs import PairTable
from draftproof.judge.observe.run_data import ALL_SEGMENTS, PreparedRun
from draftproof.judge.results.run import Effect, Figure
from draftproof.judge.results.samples import Need, SamplePlan, SampleQuestion
from draftproof.judge.stats.bootstrap import noise_margin
from draftproof.judge.stats.planning import (
    MOST,
    prompts_needed,
    share_pairs_needed,
    tail_prompts_needed,
)
from draftproof.plan.load import LoadLevel
from draftproof.plan.schema import Plan
from draftproof.workload.blocks import check_size, choose_items, choose_over_repeats
from draftproof.workload.items import Item
from draftproof.workload.segments import segment_key

ShareAim = Literal["failures", "checks", "limit"]
SHARES: dict[str, tuple[ShareAim, str]] = {
    "failed_share": ("failures", "failure_margin"),
    "passed_share": ("checks", "quality_margin"),
    "limit_share": ("limit", "token_limit_margin"),
}

Sizer = Callable[[float], int]  # from a spread to a number


# Beyond it an aim is a slip of the pen, and in whole percent it would read as all of the time.
LARGEST_GAIN = 0.95
HOW_TO_KNOW = (
    "where the host was busy measure on a quieter one; where nobody counts tokens let the service report "
    "usage or token ids, or name a tokenizer (target.tokenizer)"
)
DEFAULT_GAIN = 0.10


class _Ask(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """Everything the needs are computed from."""

    plan: Plan
    items: tuple[Item, ...]
    question: SampleQuestion
    earlier: Earlier | None

    @property
    def counts(self) -> Counter[str]:
        """Prompts of the workload by segment."""
        return self._count(self.items)

    @cached_property
    def by_load(self) -> dict[str, tuple[Item, ...]]:
        """Prompts that each load asks: all, or what the shares of its classes leave."""
        seed, dimensions = self.plan.seed, self.plan.workload.segment_by
        return {
            level.name: choose_over_repeats(self.items, level, seed, dimensions) for level in self.plan.load
        }

    @cached_property
    def cells(self) -> dict[tuple[str, str], int]:
        """Prompts of every segment at every load that asks any of it."""
        return {
            (segment, load): count
            for load, items in self.by_load.items()
            for segment, count in self._count(items).items()
        }

    def _count(self, items: Sequence[Item]) -> Counter[str]:
        return Counter(segment_key(item, self.plan.workload.segment_by) for item in items)


def default_question(plan: Plan) -> SampleQuestion:
    """Return what is asked where nobody names a gain: one that an interval can show to beat the least."""
    least = plan.thresholds.minimum_gain
    gain = DEFAULT_GAIN if least < DEFAULT_GAIN else (least + LARGEST_GAIN) / 2
    return SampleQuestion(gain=round(gain, 3), statistic=plan.comparison.statistic, power=DEFAULT_POWER)


def plan_samples(
    plan: Plan, items: Sequence[Item], question: SampleQuestion, earlier: Earlier | None = None
) -> SamplePlan:
    """Return what the plan's verdict takes, and what its workload has; spreads are of a run, else assumed.

    Raises:
        UsageError: the gain is not beyond the plan's minimum, a share is out of range, or the plan too large.
    """
    _check(plan, question)
    arms = 2 + (plan.arms.alternative is not None) + plan.comparison.null_arm
    check_size(len(items), plan.load, arms)
    ask = _Ask(plan=plan, items=tuple(items), question=question, earlier=earlier)
    needs = (*_needs_of_gain(ask), *_needs_of_tail(ask), *_needs_of_shares(ask))
    found = SamplePlan(
        plan=plan.name,
        run=earlier.name if earlier else None,
        question=question,
        confidence=plan.comparison.confidence,
        cells=len(ask.cells),
        arms=arms,
        needs=needs,
        requests=arms * sum(_count_asked(plan, level, items) for level in plan.load),
        requests_needed=_count_requests(ask, needs, arms),
        shortfalls=forecast_shortfalls(plan, items),
        is_representative=plan.evidence == "representative",
        sentence="",
        disturbed=earlier.disturbed if earlier else {},
    )
    obstacles = [one.text for one in list_obstacles(found, ask.cells)]
    return round_figures(msgspec.structs.replace(found, sentence=describe_samples(found, obstacles)))


def plan_from_run(prepared: PreparedRun, pairs: PairTable) -> SamplePlan | None:
    """Return what a run's own question takes by its own spreads, None where no gain could be asked for."""
    plan = prepared.plan
    if plan.thresholds.minimum_gain >= LARGEST_GAIN:
        return None
    return plan_samples(plan, prepared.run.items, default_question(plan), read_earlier(prepared, pairs))


def _count_asked(plan: Plan, level: LoadLevel, items: Sequence[Item]) -> int:
    chosen = (
        choose_items(items, level, repeat, plan.seed, plan.workload.segment_by)
        for repeat in range(level.repeats)
    )
    return sum(len(own) for own in chosen)


def _check(plan: Plan, question: SampleQuestion) -> None:
    least = plan.thresholds.minimum_gain
    if question.gain > LARGEST_GAIN:
        raise UsageError(
            f"is {question.gain:.10g}, allowed are shares up to {LARGEST_GAIN:g}: hardly any would be left",
            place="--gain",
            fix="such as 0.1 for 10 % less time",
        )
    if not least < question.gain:
        raise UsageError(
            f"is {question.gain:.10g}; the plan credits a gain where the whole interval beats {least:g}, "
            "which no number of prompts shows for a true gain that is not larger",
            place="--gain",
            fix=f"ask for more than {least:g}, up to {LARGEST_GAIN:g}, or lower thresholds.minimum_gain",
        )
    if not 0.5 <= question.power < 1:
        raise UsageError(
            f"is {question.power:g}, allowed are shares from 0.5 to below 1",
            place="--power",
            fix="such as 0.8",
        )


def _needs_of_gain(ask: _Ask) -> Iterator[Need]:
    """Yield what the gain takes in every cell, each segment being one claim on each axis of load."""
    axes = {level.name: level.concurrency is None for level in ask.plan.load}
    claims = {(segment, axes[load]) for segment, load in ask.cells}
    level = final_level(ask.plan.comparison.confidence, ask.plan.sequential, len(claims))
    for cell, have in ask.cells.items():
        yield _need_of_gain(ask, cell, have, level)


def _need_of_gain(ask: _Ask, cell: tuple[str, str], have: int, level: float) -> Need:
    question, metric = ask.question, ask.plan.comparison.metric
    margin = ask.plan.thresholds.minimum_gain
    null = ask.earlier.null_differences.get(cell[1], 1.0) if ask.earlier else 1.0
    ratio = (1 - question.gain) * noise_margin(null, ask.plan.comparison.statistic)
    if question.statistic == "mean":
        spreads, source = spreads_of_ratio(ask.plan, ask.earlier, cell, metric)

        def size(spread: float) -> int:
            return prompts_needed(
                log_spread=spread, ratio=ratio, margin=margin, level=level, power=question.power
            )
    else:
        spreads, source = spreads_of_values(ask.earlier, cell, metric)

        def size(spread: float) -> int:
            return tail_prompts_needed(
                q=int(question.statistic.removeprefix("p")) / 100,
                ratio=ratio,
                margin=margin,
                level=level,
                power=question.power,
                log_spread=spread,
            )

    reason = None
    if ask.earlier and ask.earlier.is_unknown(cell, metric):
        reason = f"no request of the run shows {METRIC_WORDS[metric]} that counts: {HOW_TO_KNOW}"
    elif ratio >= 1 - margin:
        reason = (
            f"equal services differ by {100 * (null - 1):.1f} % there, as much as such a gain; use a "
            "quieter host or more blocks"
        )
    elif (
        ask.earlier and ratio * math.exp(min(700.0, ask.earlier.reach_of_luck(cell[1], level))) >= 1 - margin
    ):
        reason = (
            "the processes of an arm differ by as much as such a gain; use more processes (limits.restarts) "
            "or more and smaller blocks"
        )
    return _to_need(
        Need(
            aim="gain",
            quantity=metric,
            statistic=question.statistic,
            segment=cell[0],
            load=cell[1],
            level=level,
            have=have,
            measured=_count_prompts(ask, cell, metric),
            spreads=spreads,
            source=source,
            reason=reason,
            null_difference=null,
        ),
        size,
        floor=ask.plan.comparison.minimum_prompts,
    )


def _needs_of_tail(ask: _Ask) -> Iterator[Need]:
    """Yield what it takes to show, over a load, that the tail did not grow beyond its margin."""
    q, thresholds = tail_share(ask.plan.thresholds), ask.plan.thresholds
    level = final_level(ask.plan.comparison.confidence, ask.plan.sequential)
    power = ask.question.power

    def size(spread: float) -> int:
        return tail_prompts_needed(
            q=q, ratio=1.0, margin=thresholds.tail_margin, level=level, power=power, log_spread=spread
        )

    for load in ask.plan.load:
        for metric in TAIL_METRICS:
            cell = (ALL_SEGMENTS, load.name)
            spreads, source = spreads_of_values(ask.earlier, cell, metric)
            found = _compare_tail(ask, metric, cell)
            need = _to_need(
                Need(
                    aim="tail",
                    quantity=metric,
                    statistic=thresholds.tail_quantile,
                    segment=ALL_SEGMENTS,
                    load=load.name,
                    level=level,
                    have=len(ask.by_load[load.name]),
                    measured=_count_prompts(ask, cell, metric),
                    spreads=spreads,
                    source=source,
                    reason=f"no request of the run shows one that counts: {HOW_TO_KNOW}"
                    if ask.earlier and ask.earlier.is_unknown(cell, metric)
                    else explain_tail(found, thresholds),
                ),
                size,
            )
            yield need if found is None or need.reason else _as_compared(need, found.ratio, power)


def _needs_of_shares(ask: _Ask) -> Iterator[Need]:
    """Yield what it takes to show, over a load, that no share of answers moved beyond its margin."""
    for load in ask.plan.load:
        asked = ask.by_load[load.name]
        quality = ask.plan.comparison.quality
        checked = count_compared(asked, quality)
        for quantity, (aim, key) in SHARES.items():
            if quantity == "passed_share" and quality == "latency_only":
                continue
            prompts = checked if quantity == "passed_share" else len(asked)
            margin: float = getattr(ask.plan.thresholds, key)
            yield _need_of_share(ask, load, quantity, aim=aim, margin=margin, prompts=prompts)


def _need_of_share(
    ask: _Ask,
    load: LoadLevel,
    quantity: str,
    *,
    aim: ShareAim,
    margin: float,
    prompts: int,
) -> Need:
    level = final_level(ask.plan.comparison.confidence, ask.plan.sequential)
    power = ask.question.power
    spreads, measured = discordant_shares(ask.earlier, load.name, quantity, margin)

    def size(discordant: float) -> int:
        if margin >= 1:  # allows every growth
            return 0
        return share_pairs_needed(margin=margin, level=level, power=power, discordant=discordant)

    reason = None
    if margin <= 0:
        reason = "a margin of 0 cannot be shown by any number of pairs"
    elif prompts == 0:
        reason = "no item has a check"
    return _to_need(
        Need(
            aim=aim,
            quantity=quantity,
            statistic="share",
            segment=ALL_SEGMENTS,
            load=load.name,
            level=level,
            have=prompts,
            measured=measured,
            spreads=spreads,
            source="assumed" if measured is None else "run",
            reason=reason,
        ),
        size,
    )


def _to_need(need: Need, size: Sizer, floor: int = 0) -> Need:
    """Fill in the numbers; a need that carries a reason has none."""
    if need.reason is not None:
        return need
    needed = tuple(max(floor, size(spread)) for spread in need.spreads)
    if needed[-1] >= MOST:
        return msgspec.structs.replace(need, reason=f"at this spread it takes {MOST:,} or more")
    have = need.have if need.measured is None else need.measured
    return msgspec.structs.replace(need, needed=needed, more=max(0, needed[-1] - have))


def _compare_tail(ask: _Ask, metric: str, cell: tuple[str, str]) -> Effect | None:
    if ask.earlier is None:
        return None
    return compare_tail(ask.earlier.prepared, ask.earlier.pairs, metric, cell)


def _as_compared(need: Need, ratio: Figure, power: float) -> Need:
    """Return the need of a tail with what its comparison in the run lacks, as the verdict says it.

    The verdict asks with one power: of a tail without an interval another power asks for another number.
    """
    if ratio.value is None and power != DEFAULT_POWER:
        return need
    more = ratio.needed or 0
    wanted = (need.measured or 0) + more
    needed = (*(min(one, wanted) for one in need.needed[:-1]), wanted)
    return msgspec.structs.replace(need, needed=needed, more=more)


def _count_prompts(ask: _Ask, cell: tuple[str, str], metric: str) -> int | None:
    return ask.earlier.count_prompts(cell, metric) if ask.earlier else None


def _count_requests(ask: _Ask, needs: Sequence[Need], arms: int) -> tuple[int, int] | None:
    """Return the measured requests that meet every need, at the smallest and at the largest spreads.

    A load without classes asks every item, so a segment needs as many prompts as its most demanding load. One
    with classes asks as many times what it asks now as its most demanding need wants.
    """
    if any(need.reason is not None for need in needs):
        return None
    return _requests_at(ask, needs, arms, 0), _requests_at(ask, needs, arms, -1)


def _requests_at(ask: _Ask, needs: Sequence[Need], arms: int, index: int) -> int:
    most: dict[str, int] = dict(ask.counts)
    for need in needs:
        if need.aim == "gain":
            most[need.segment] = max(most[need.segment], need.needed[index])
    prompts = sum(most.values())
    of_all = [
        need
        for need in needs
        if need.aim != "gain" and not any(level.classes for level in ask.plan.load if level.name == need.load)
    ]
    prompts = max([prompts, *(need.needed[index] for need in of_all)])
    return arms * sum(
        level.repeats * (_grow_mix(ask, level, needs, index) if level.classes else prompts)
        for level in ask.plan.load
    )


def _grow_mix(ask: _Ask, level: LoadLevel, needs: Sequence[Need], index: int) -> int:
    """Return the requests of one repeat of a mix that has enough of the segment that is most wanting."""
    once = len(choose_items(ask.items, level, 0, ask.plan.seed, ask.plan.workload.segment_by))
    factors = [need.needed[index] / max(need.have, 1) for need in needs if need.load == level.name]
    return math.ceil(once * max([1.0, *factors]))
