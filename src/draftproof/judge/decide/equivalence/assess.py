"""Whether an arm gives the outputs that the baseline gives: tests, their correction, what follows from them.

A contract that calls outputs guaranteed describes another method than the one that ran, if the outputs differ
by more than rounding and equal arms explain: no gain is claimed there.
"""

import math
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from draftproof.core.manifests import Contract
from draftproof.judge.decide.effects import CellKey, derive_seed
from draftproof.judge.decide.equivalence.greedy import (
    NULL_ARM,
    assess_beyond_null,
    choose_tie_nats,
    compare_greedy,
)
from draftproof.judge.decide.equivalence.sampled import (
    STATISTICS,
    assess_lengths,
    assess_sequences,
    bound_equal_draws,
    collect_draws,
)
from draftproof.judge.decide.equivalence.wording import (
    Judgement,
    OutputComparison,
    describe_row,
    evaluate_load,
    evaluate_overall,
)
from draftproof.judge.decide.guardrails import GuardrailFinding
from draftproof.judge.observe.pairs import Pairs, PairTable
from draftproof.judge.observe.run_data import ALL_SEGMENTS, PreparedRun
from draftproof.judge.results.decide import (
    ALL_LOADS,
    EquivalenceTest,
    OutputEquivalence,
    Reference,
    name_load,
)
from draftproof.judge.results.run import Reason
from draftproof.judge.stats.permutation import holm_adjusted

_FEWEST_PATTERNS = 1999


def compute_equivalence(prepared: PreparedRun, pairs: PairTable) -> tuple[OutputEquivalence, ...]:
    """Return one row for every arm and load, and one over all loads, each against the baseline."""
    by_ids = _have_ids(prepared)
    evidence = {
        arm: _gather(prepared, arm, pairs, by_ids=by_ids) for arm, versus in pairs if versus == "baseline"
    }
    return tuple(row for arm in evidence for row in _evaluate_arm(prepared, arm, evidence))


def _have_ids(prepared: PreparedRun) -> bool:
    """Return whether every sampled answer of the run discloses its token ids, so that all are read alike."""
    return all(
        seen.record.token_ids is not None
        for seen in prepared.observations
        if seen.is_ok and seen.item.sampling.temperature != 0
    )


def _gather(
    prepared: PreparedRun, arm: str, pairs: PairTable, *, by_ids: bool
) -> dict[str, OutputComparison]:
    """Return load -> evidence, its tests corrected; of a run with one load, all loads are that load."""
    own, null = pairs[arm, "baseline"], pairs.get((NULL_ARM, "baseline"))
    several = len(prepared.loads) > 1
    loads = (*prepared.loads, ALL_LOADS) if several else prepared.loads
    found = {
        load: _compare(
            prepared,
            arm,
            load,
            _at(own, load),
            None if null is None or arm == NULL_ARM else _at(null, load),
            by_ids=by_ids,
        )
        for load in loads
    }
    corrected = _correct(found, 1 - prepared.plan.comparison.confidence)
    if several or not corrected:
        return corrected
    (single,) = corrected.values()
    return corrected | {ALL_LOADS: msgspec.structs.replace(single, load=ALL_LOADS)}


def _at(pairs: Pairs, load: str) -> Pairs:
    return pairs if load == ALL_LOADS else pairs.cell(ALL_SEGMENTS, load)


def _compare(
    prepared: PreparedRun,
    arm: str,
    load: str,
    pairs: Pairs,
    null: Pairs | None,
    *,
    by_ids: bool,
) -> OutputComparison:
    level = prepared.plan.comparison.confidence
    patterns = _count_patterns(len(prepared.loads), 1 - level)
    seed = derive_seed(prepared.plan.seed, "equivalence", arm, load)
    drawn = collect_draws(pairs, by_ids=by_ids)
    beyond = None if arm == NULL_ARM else assess_beyond_null(pairs, null, level)
    return OutputComparison(
        load=load,
        concurrency=None if load == ALL_LOADS else prepared.sizes[load].concurrency,
        greedy=compare_greedy(pairs, null, level=level, tie_nats=_tie_nats(prepared, arm)),
        tests=(
            *((beyond,) if beyond else ()),
            *assess_sequences(drawn, patterns=patterns, seed=seed, level=level),
            *assess_lengths(pairs, patterns=patterns, seed=seed, level=level),
        ),
        sampled_prompts=drawn.prompts,
        sampled_draws=len(drawn.draws),
        sampled_bound=bound_equal_draws(drawn, level),
    )


def _count_patterns(loads: int, alpha: float) -> int:
    """Return how many swaps to draw: twice as many as the smallest p-value that Holm asks for needs."""
    family = 3 * len(STATISTICS) * (loads + 1)
    return max(_FEWEST_PATTERNS, math.ceil(2 * family / alpha))


def _tie_nats(prepared: PreparedRun, arm: str) -> float:
    stated = {one.arm: one.target_precision for one in prepared.run.manifest.contracts}
    return choose_tie_nats((stated.get("baseline"), stated.get(arm)))


def _correct(found: Mapping[str, OutputComparison], alpha: float) -> dict[str, OutputComparison]:
    """Correct an arm's p-values so that equal outputs are called different with at most `alpha`.

    Holm's method over the statistics and loads of each scope, times the number of scopes that were tested.
    """
    keys = [(load, index) for load, one in found.items() for index in range(len(one.tests))]
    tests = {key: found[key[0]].tests[key[1]] for key in keys}
    families = {
        scope: [key for key in keys if tests[key].scope == scope and tests[key].p is not None]
        for scope in ("greedy", "sampled", "length")
    }
    scopes = sum(bool(family) for family in families.values())
    corrected = dict(tests)
    for family in families.values():
        for key, p in zip(family, holm_adjusted([tests[key].p for key in family]), strict=True):
            corrected[key] = _decide(tests[key], min(1.0, (p or 0.0) * scopes), alpha, scopes * len(family))
    return {
        load: msgspec.structs.replace(
            one, tests=tuple(corrected[load, index] for index in range(len(one.tests)))
        )
        for load, one in found.items()
    }


def _decide(test: EquivalenceTest, adjusted: float, alpha: float, family: int) -> EquivalenceTest:
    """Say whether a test shows a difference; where its units cannot, say how many more are needed."""
    needed = units_needed(alpha / family, two_sided=test.scope != "greedy") - test.units
    if adjusted > alpha and needed > 0:
        why = f"{test.units} cannot show a difference among {family} tests"
        figure = msgspec.structs.replace(test.difference, needed=needed, reason=test.difference.reason or why)
        return msgspec.structs.replace(test, adjusted_p=adjusted, difference=figure)
    return msgspec.structs.replace(test, adjusted_p=adjusted, differs=adjusted <= alpha)


def units_needed(alpha: float, *, two_sided: bool) -> int:
    """Return the least number of units of which some outcome has a p-value of at most `alpha`."""
    return math.ceil(math.log2(1 / alpha)) + two_sided


def _evaluate_arm(
    prepared: PreparedRun, arm: str, evidence: Mapping[str, Mapping[str, OutputComparison]]
) -> list[OutputEquivalence]:
    own, null = evidence[arm], evidence.get(NULL_ARM, {}) if arm != NULL_ARM else {}
    contract = next((one for one in prepared.run.manifest.contracts if one.arm == arm), None)
    stated, drafts = (contract.equivalence if contract else None), _drafts(arm, contract)
    alone = next((one for one in own.values() if one.concurrency == 1), None)
    single: dict[str, Judgement] = {
        load: evaluate_load(
            one,
            alone=alone,
            null=null.get(load),
            contract=stated,
            drafts=drafts,
            is_null=arm == NULL_ARM,
        )
        for load, one in own.items()
        if load != ALL_LOADS
    }
    overall = evaluate_overall(
        own[ALL_LOADS],
        single.values(),
        null=null.get(ALL_LOADS),
        contract=stated,
        drafts=drafts,
        is_null=arm == NULL_ARM,
    )
    judged = single | {ALL_LOADS: overall}
    return [
        describe_row(arm, own[load], judged[load], null=null.get(load), alone=alone, contract=stated)
        for load in (*single, ALL_LOADS)
    ]


def _drafts(arm: str, contract: Contract | None) -> bool:
    """Return whether an arm speculates: as its contract says, else the candidate alone."""
    return arm == "candidate" if contract is None else contract.drafter_kind != "none"


CODE = "equivalence_contradicted"


def evaluate_equivalence(cell: CellKey, rows: Iterable[OutputEquivalence]) -> tuple[GuardrailFinding, ...]:
    """Return the finding that withholds a gain in a cell whose candidate contradicts its contract, if so.

    A contradiction that shows in the pooled outputs only concerns every load.
    """
    found = [row for row in rows if row.arm == "candidate" and row.is_contradicted]
    single = [row for row in found if row.load != ALL_LOADS]
    here = [row for row in single if row.load == cell[1]] or (found if not single else [])
    return tuple(
        GuardrailFinding(
            standing="open",
            reason=Reason(
                code=CODE,
                text=f"the contract calls the outputs guaranteed by method, but the candidate {row.phrase}; "
                "a gain is not claimed.",
                evidence=Reference("equivalence", "candidate", "baseline", at=row.load),
            ),
        )
        for row in here
    )


def warn_about_equivalence(rows: Iterable[OutputEquivalence]) -> Iterator[str]:
    """Yield one warning for each arm whose outputs contradict its contract."""
    found: dict[str, list[OutputEquivalence]] = {}
    for row in rows:
        if row.is_contradicted:
            found.setdefault(row.arm, []).append(row)
    for arm, own in found.items():
        loads = [name_load(row.load) for row in own if row.load != ALL_LOADS] or [ALL_LOADS]
        yield (
            f"The contract calls the outputs of the {arm} guaranteed by method, but they contradict it "
            f"at {', '.join(loads)}: {own[-1].phrase}. {' '.join(own[0].why)}"
        )
