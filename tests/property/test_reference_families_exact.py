"""Every family of drafters leaves the output's distribution as it was: enumerated, and by seeded G-tests.

The enumeration runs whole requests through the engine in float64 with every branch its random numbers could
take: drafts, acceptances, residuals, bonus tokens, over several rounds. The G-tests leave chance alone.
"""

from collections import Counter, defaultdict
from typing import Any

import pytest
import torch
from exact_oracle import (
    Walker,
    assert_g_test_passes,
    assert_same_joint,
    given_first,
    last_tokens,
    run_branches,
    target_joint,
)
from tiny_drafters import (
    METHODS,
    NETWORK_FAMILIES,
    family_request,
    make_proposers,
    small_target,
)
from tiny_engine import make_engine

from draftproof.reference import verify as verify_module
from draftproof.reference.drafters import lockstep as lockstep_module
from draftproof.reference.drafters.lockstep import LockstepProposer
from draftproof.reference.processors import compute_probs
from draftproof.reference.types import SamplingParams

VOCAB = 5
PROMPT = (1, 3, 2, 1, 3)
LENGTH = 4  # tokens: one of the prefill, then a round of two drafts
DRAFTS = 2
ENOUGH_REQUESTS = 1_000  # for the G-test to find a broken verifier
DRAWN_FAMILIES = [  # so many draws take seconds: one family in the fast suite
    family if family == "attached" else pytest.param(family, marks=pytest.mark.slow)
    for family in ("ngram", "draft_model", "attached", "early_exit_reduced", "skipping")
]
SAMPLINGS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "temperature": {"temperature": 0.9},
    "top_k": {"temperature": 1.1, "top_k": 3},
    "top_p": {"temperature": 0.9, "top_p": 0.8},
    "min_p": {"temperature": 1.2, "min_p": 0.15},
    "penalties": {
        "temperature": 0.8,
        "repetition_penalty": 1.3,
        "presence_penalty": 0.4,
        "frequency_penalty": 0.3,
        "logit_bias": ((0, 0.7), (3, -0.5)),
    },
    "greedy_penalties": {"repetition_penalty": 1.5, "frequency_penalty": 0.8},
    "all": {"temperature": 1.1, "top_k": 4, "top_p": 0.9, "min_p": 0.05, "presence_penalty": 0.5},
}
# In the fast suite two families are asked in each way, and each family in two ways beside that of two drafts.
FAMILIES_AND_SAMPLINGS = [
    pytest.param(family, sampling, marks=() if (number + other) % 8 in (0, 3) else pytest.mark.slow)
    for number, family in enumerate(METHODS)
    for other, sampling in enumerate(SAMPLINGS)
]


@pytest.fixture(scope="module")
def precise():
    """Return a target in float64, whose numbers depend on the batch by 1e-15 only."""
    return small_target(4, sharpness=0.5, dtype=torch.float64)


@pytest.fixture(scope="module")
def target():
    return small_target(VOCAB, sharpness=0.5)


def engine_for(target, family):
    return make_engine(
        target,
        proposers=make_proposers(family, target),
        max_num_seqs=512,
        max_num_batched_tokens=4096,
        max_queue=1_000_000,
        max_model_len=32,
    )


def assert_family_exact(target, family, sampling, monkeypatch, *, drafts=DRAFTS, length=LENGTH):
    """Assert that all branches of all rounds add up to ordinary decoding's joint distribution."""
    found: dict[tuple[int, ...], float] = defaultdict(float)
    with monkeypatch.context() as patch:
        walker, engine = Walker(patch), engine_for(target, family)
        for seeds in walker.generations():
            requests = [
                family_request(
                    family, f"s{seed}", PROMPT, drafts=drafts, max_tokens=length, seed=seed, **sampling
                )
                for seed in seeds
            ]
            for seed, tokens in zip(seeds, run_branches(engine, requests), strict=True):
                found[tokens] += walker.weight(seed)
    params = SamplingParams(max_tokens=length, **sampling)
    stats = engine.stats()
    assert stats.draft_tokens > 0
    assert stats.fallbacks == 0
    assert_same_joint(found, given_first(target_joint(target, params, PROMPT)))


@pytest.mark.parametrize(("family", "sampling"), FAMILIES_AND_SAMPLINGS)
def test_all_branches_add_up_to_the_targets_distribution(family, sampling, precise, monkeypatch) -> None:
    """Joint probabilities of the tokens of a round and of one after a rejection are ordinary decoding's."""
    assert_family_exact(precise, family, SAMPLINGS[sampling], monkeypatch, drafts=1, length=3)


@pytest.mark.parametrize("family", METHODS)
def test_all_branches_of_two_drafts_add_up(family, precise, monkeypatch) -> None:
    """The same of rounds of two drafts, the rounds after a rejection included: three tokens to 1e-9."""
    assert_family_exact(precise, family, SAMPLINGS["top_p"], monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("family", METHODS)
def test_all_branches_of_two_drafts_add_up_for_all_samplings(family, sampling, precise, monkeypatch) -> None:
    """The same for every way of sampling."""
    assert_family_exact(precise, family, SAMPLINGS[sampling], monkeypatch)


@torch.inference_mode()
def engine_counts(target, family, sampling, num_requests):
    """Return how often each joint outcome of the last three tokens came from whole seeded requests."""
    engine = engine_for(target, family)
    requests = [
        family_request(
            family, f"s{seed}", PROMPT, drafts=DRAFTS, max_tokens=LENGTH, seed=seed, **SAMPLINGS[sampling]
        )
        for seed in range(num_requests)
    ]
    counts = Counter(tokens[1:] for tokens in run_branches(engine, requests))
    stats = engine.stats()
    assert 0.05 < stats.accepted_tokens / stats.draft_tokens < 0.95
    return counts


def expected_counts(target, sampling):
    params = SamplingParams(max_tokens=LENGTH, **SAMPLINGS[sampling])
    return last_tokens(target_joint(target, params, PROMPT), 3)


@pytest.mark.parametrize("family", DRAWN_FAMILIES)
def test_outputs_do_not_differ_from_the_target(family, target) -> None:
    """Some 4,000 draws through the engine agree with the target's joint distribution of three tokens."""
    counts = engine_counts(target, family, "temperature", ENOUGH_REQUESTS)
    assert_g_test_passes(counts, expected_counts(target, "temperature"))


@pytest.mark.slow
@pytest.mark.parametrize("sampling", [name for name in SAMPLINGS if not name.startswith("greedy")])
@pytest.mark.parametrize("family", METHODS)
def test_100_000_draws_do_not_differ_from_the_target(family, sampling, target) -> None:
    """Over 100,000 draws through the engine, for every way of sampling."""
    assert_g_test_passes(engine_counts(target, family, sampling, 25_500), expected_counts(target, sampling))


def accept_without_ratio(draft_ids, target_probs, _draft_probs):
    """Keep a draft with the target's probability alone, as if every drafter were certain."""
    return target_probs[: len(draft_ids)].gather(1, torch.tensor(draft_ids)[:, None]).squeeze(1)


def accept_too_often(draft_ids, target_probs, draft_probs):
    return (ORIGINAL_ACCEPT(draft_ids, target_probs, draft_probs) * 1.3).clamp_max(1.0)


def residual_not_renormalised(target_row, _draft_id, draft_row):
    """Leave the residual with less than all mass."""
    return (target_row - draft_row).clamp_min(0.0)


def bonus_skipped(draft_ids, target_probs, draft_probs, uniforms):
    """Return only the drafts when all of them are accepted."""
    tokens = ORIGINAL_VERIFY(draft_ids, target_probs, draft_probs, uniforms)
    return tokens[: len(draft_ids) or None] if tokens[:-1] == list(draft_ids) else tokens


def told_before_truncation(proposer, draft, logits):
    """Draw from what truncation left and tell the distribution before it."""
    cut, sampling = compute_probs(logits, draft.context.sampling)[0], draft.context.sampling
    whole = compute_probs(logits, SamplingParams(max_tokens=1, temperature=sampling.temperature))[0]
    names = vars(lockstep_module)  # what the walk replaces
    uniform = float(names["draw_uniforms"](draft.context.generator, 1))
    draft.token_ids.append(names["draw"](proposer._widen(cut), uniform))
    draft.drawn_from.append(proposer._widen(whole))


ORIGINAL_ACCEPT = verify_module.accept
ORIGINAL_VERIFY = verify_module.verify
MUTANTS = {
    "accept_without_ratio": (verify_module, "accept", accept_without_ratio),
    "residual_not_renormalised": (verify_module, "residual", residual_not_renormalised),
    "bonus_skipped": (verify_module, "verify", bonus_skipped),
}


@pytest.mark.parametrize("mutant", MUTANTS)
@pytest.mark.parametrize("family", NETWORK_FAMILIES)
def test_enumeration_catches_a_broken_verifier(family, mutant, precise, monkeypatch) -> None:
    """Each classic mistake of verification fails the assertion of the tests above, whoever drafts."""
    monkeypatch.setattr(*MUTANTS[mutant])
    with pytest.raises(AssertionError, match=r"off by|tokens committed"):
        assert_family_exact(precise, family, SAMPLINGS["top_p"], monkeypatch, drafts=1, length=3)


@pytest.mark.parametrize("family", NETWORK_FAMILIES)
def test_enumeration_catches_a_distribution_told_before_truncation(family, precise, monkeypatch) -> None:
    """A drafter that draws after truncation and tells what was before it fails the same assertion."""
    sampling = {"temperature": 1.0, "top_k": 2}  # cuts a reduced vocabulary too
    assert_family_exact(precise, family, sampling, monkeypatch, drafts=1, length=3)
    monkeypatch.setattr(LockstepProposer, "_draw", told_before_truncation)
    with pytest.raises(AssertionError, match="off by"):
        assert_family_exact(precise, family, sampling, monkeypatch, drafts=1, length=3)


@pytest.mark.parametrize("family", DRAWN_FAMILIES)
def test_the_g_test_has_power(family, target, monkeypatch) -> None:
    """A verifier without the ratio (for a drafter that is certain: one that accepts too often) fails it."""
    wrong = accept_too_often if family == "ngram" else accept_without_ratio
    monkeypatch.setattr(verify_module, "accept", wrong)
    counts = engine_counts(target, family, "temperature", ENOUGH_REQUESTS)
    with pytest.raises(AssertionError, match="G = "):
        assert_g_test_passes(counts, expected_counts(target, "temperature"))
