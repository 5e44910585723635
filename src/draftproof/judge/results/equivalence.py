"""What `results.json` says of the equivalence of outputs: a row for each arm and load, and one for all loads.

Pure data, made by `equivalence.compute_equivalence` (docs/equivalence.md).
"""

from typing import Literal

import msgspec

from draftproof.judge.results.figure import Figure

ALL_LOADS = "all loads"  # no load can be called that: a plan's names have no space

# How far apart rounding alone can bring two logits that another order of sums leaves equal, nats. Logits of
# 16 to 32 lie 0.125 apart in bfloat16, and each of the two may be off by one step; in float32 such logits are
# exact to about 1e-4.
TIE_NATS = 0.25
TIE_NATS_FLOAT32 = 0.001

Status = Literal["guaranteed", "tested", "differs", "unknown"]
Cause = Literal["numerics", "batching", "algorithm", "undetermined"]
Scope = Literal["greedy", "sampled", "length"]
BoundOf = Literal["differing_prompts", "mean_length"]


class Margins(msgspec.Struct, frozen=True, kw_only=True):
    """How close the two likeliest tokens were where greedy outputs part, nats.

    `known` of `divergences` have a margin, `tied` of them one of at most `tie_nats` or of at most
    `null_largest_nats`, the largest at which two equal arms part.
    """

    tie_nats: float
    divergences: int
    known: int
    tied: int
    largest_nats: float | None
    null_largest_nats: float | None


class GreedyComparison(msgspec.Struct, frozen=True, kw_only=True):
    """Greedy outputs of an arm against the baseline's, a prompt differing if any of its repeats does.

    `null_prompts` of the prompts were compared in the null as well, `null_differing_prompts` of them differ
    there. `beyond_null` is the share of prompts that differ in the arm and not in the null (of those that
    differ, without a null); its `high` is the exact one-sided upper limit.
    """

    pairs: int
    prompts: int
    differing_pairs: int
    differing_prompts: int
    null_prompts: int | None
    null_differing_prompts: int | None
    beyond_null: Figure
    margins: Margins


class EquivalenceTest(msgspec.Struct, frozen=True, kw_only=True):
    """One statistic of the outputs in two arms.

    `difference` is arm − baseline where the statistic is a number, its interval over prompts. `units` are
    what the p-value rests on: prompts, or paired draws. `p` and `adjusted_p` (Holm over the tests of the
    scope at all loads, times the number of scopes) are None where the reason of `difference` says why.
    `differs` is None where no outcome could have shown a difference.
    """

    scope: Scope
    statistic: str
    arm_value: float | None
    versus_value: float | None
    difference: Figure
    units: int
    p: float | None
    adjusted_p: float | None = None
    differs: bool | None = None


class OutputEquivalence(msgspec.Struct, frozen=True, kw_only=True):
    """Whether an arm's outputs are the baseline's, at one load or at all of them ("all loads").

    `phrase` is the whole statement, `why` the sentences it rests on. `difference_bound` is the d of "no
    difference larger than d": a share of prompts, or of the mean length (`bound_of`), at `n` prompts.
    `contract` is what the compatibility contract says of the method; `is_contradicted` that the outputs say
    otherwise.
    """

    arm: str
    versus: str
    load: str
    status: Status
    cause: Cause | None
    phrase: str
    why: tuple[str, ...]
    contract: str | None
    is_contradicted: bool
    difference_bound: float | None
    bound_of: BoundOf | None
    n: int
    greedy: GreedyComparison | None
    sampled_prompts: int
    sampled_draws: int
    tests: tuple[EquivalenceTest, ...]
