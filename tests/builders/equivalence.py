"""Made-up rows of output equivalence that agree with made-up rows of greedy agreement."""

from collections.abc import Iterable

from draftproof.judge.results.decide import (
    ALL_LOADS,
    EquivalenceTest,
    Figure,
    GreedyComparison,
    Margins,
    OutputEquivalence,
)
from draftproof.judge.results.run import Agreement

_CONTRACTS = {"candidate": "assumed", "baseline_null": "guaranteed by method"}


def build_rows(agreements: Iterable[Agreement]) -> tuple[OutputEquivalence, ...]:
    """Return a row for each agreement, and one for each arm over all loads, like its last load."""
    by_arm: dict[str, list[Agreement]] = {}
    for one in agreements:
        by_arm.setdefault(one.arm, []).append(one)
    return tuple(
        _row(one, load)
        for own in by_arm.values()
        for one, load in [*((one, one.load) for one in own), (own[-1], ALL_LOADS)]
    )


def _row(agreement: Agreement, load: str) -> OutputEquivalence:
    n, differing = agreement.compared, agreement.compared - agreement.identical
    limit = 1 - 0.05 ** (1 / n) if n else None
    if limit is None:
        phrase = "unknown: no prompt was answered in both arms"
    elif differing:
        phrase = "differs: batching"
    else:
        phrase = (
            f"tested: no difference larger than {100 * limit:.1f} % of greedy prompts seen at {n} prompts"
        )
    return OutputEquivalence(
        arm=agreement.arm,
        versus=agreement.versus,
        load=load,
        status="unknown" if limit is None else "differs" if differing else "tested",
        cause="batching" if differing else None,
        phrase=phrase,
        why=(f"{differing} of {n} greedy prompts differ.",) if n else (),
        contract=_CONTRACTS.get(agreement.arm),
        is_contradicted=False,
        difference_bound=limit,
        bound_of="differing_prompts" if limit is not None else None,
        n=n,
        greedy=_greedy(n, differing, limit) if n else None,
        sampled_prompts=0,
        sampled_draws=0,
        tests=(_test(n),) if n else (),
    )


def _greedy(n: int, differing: int, limit: float | None) -> GreedyComparison:
    return GreedyComparison(
        pairs=n,
        prompts=n,
        differing_pairs=differing,
        differing_prompts=differing,
        null_prompts=n,
        null_differing_prompts=0,
        beyond_null=Figure(value=differing / n, high=limit, level=0.95, n=n),
        margins=Margins(
            tie_nats=0.25,
            divergences=differing,
            known=0,
            tied=0,
            largest_nats=None,
            null_largest_nats=None,
        ),
    )


def _test(n: int) -> EquivalenceTest:
    return EquivalenceTest(
        scope="length",
        statistic="output_tokens",
        arm_value=96.4,
        versus_value=97.0,
        difference=Figure(value=-0.6, low=-2.1, high=0.9, level=0.95, n=n),
        units=n,
        p=0.41,
        adjusted_p=1.0,
        differs=False,
    )
