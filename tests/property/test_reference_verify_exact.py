"""The round of speculative decoding is exact: every outcome enumerated, nothing sampled."""

import itertools
from collections.abc import Callable

import numpy as np
import pytest
import torch

from draftproof.reference import processors as sampling_module
from draftproof.reference import verify as verify_module
from draftproof.reference.types import SamplingParams

VOCAB = 4
TOLERANCE = 1e-9

SAMPLINGS = {
    "plain": SamplingParams(max_tokens=1, temperature=1.0),
    "hot": SamplingParams(max_tokens=1, temperature=1.7),
    "cold": SamplingParams(max_tokens=1, temperature=0.4),
    "top_k": SamplingParams(max_tokens=1, temperature=1.0, top_k=2),
    "top_p": SamplingParams(max_tokens=1, temperature=0.9, top_p=0.7),
    "top_k_top_p": SamplingParams(max_tokens=1, temperature=1.2, top_k=3, top_p=0.8),
    "greedy": SamplingParams(max_tokens=1, temperature=0.0),
}

Prefix = tuple[int, ...]


def logits_after(prefix: Prefix, salt: int) -> np.ndarray:
    """Return the logits a made-up model gives after a prefix; `salt` tells models apart."""
    return np.random.default_rng([salt, *prefix]).normal(scale=1.5, size=VOCAB)


def reference_probs(logits: np.ndarray, params: SamplingParams) -> np.ndarray:
    """Return what `compute_probs` must, by sorting, one row, in numpy."""
    order = np.argsort(-logits)
    if params.temperature == 0.0:
        return np.asarray(np.eye(VOCAB)[order[0]])
    kept = order[: params.top_k or VOCAB]
    weights = np.zeros(VOCAB)
    weights[kept] = np.exp((logits[kept] - logits.max()) / params.temperature)
    weights /= weights.sum()
    before = np.cumsum(weights[order]) - weights[order]
    weights[order[before >= params.top_p]] = 0.0
    return np.asarray(weights / weights.sum())


def target_joint(params: SamplingParams, length: int, prefix: Prefix = ()) -> dict[Prefix, float]:
    """Return the probability of every continuation by ordinary decoding."""
    if len(prefix) == length:
        return {prefix: 1.0}
    probs = reference_probs(logits_after(prefix, salt=1), params)
    joint: dict[Prefix, float] = {}
    for token_id in np.flatnonzero(probs):
        for path, mass in target_joint(params, length, (*prefix, int(token_id))).items():
            joint[path] = joint.get(path, 0.0) + float(probs[token_id]) * mass
    return joint


def draft_paths(params: SamplingParams, num_drafts: int, *, certain: bool) -> dict[Prefix, float]:
    """Return every draft the drafter may make and how probable it is."""
    if certain:
        path: Prefix = ()
        for _ in range(num_drafts):
            path = (*path, int(logits_after(path, salt=2).argmax()))
        return {path: 1.0}
    paths: dict[Prefix, float] = {(): 1.0}
    for _ in range(num_drafts):
        paths = {
            (*path, token_id): mass * float(prob)
            for path, mass in paths.items()
            for token_id, prob in enumerate(reference_probs(logits_after(path, salt=2), params))
            if prob > 0.0
        }
    return paths


def model_rows(path: Prefix, params: SamplingParams, salt: int, rows: int) -> torch.Tensor:
    """Return [rows, vocab] probabilities of a made-up model along a path, by the code under test."""
    logits = np.stack([logits_after(path[:depth], salt) for depth in range(rows)])
    return sampling_module.compute_probs(torch.from_numpy(logits), params)


def round_outcomes(
    path: Prefix, target_probs: torch.Tensor, draft_probs: torch.Tensor | None
) -> list[tuple[list[int], float]]:
    """Return every result of `verify` for one draft with its probability, over all random numbers.

    `verify` is constant between the thresholds of its random numbers: one call inside each region suffices.
    """
    kept_probs = verify_module.accept(path, target_probs, draft_probs).tolist()
    outcomes = []
    for kept in range(len(path) + 1):
        mass = float(np.prod(kept_probs[:kept])) * (1.0 - kept_probs[kept] if kept < len(path) else 1.0)
        if mass <= 0.0:
            continue
        uniforms = [prob / 2 for prob in kept_probs[:kept]]
        uniforms += [(1.0 + prob) / 2 for prob in kept_probs[kept : kept + 1]]
        uniforms += [0.5] * (len(path) - len(uniforms))
        if kept == len(path):
            row = verify_module.bonus(target_probs)
        else:
            draft_row = None if draft_probs is None else draft_probs[kept]
            row = verify_module.residual(target_probs[kept], path[kept], draft_row)
        edges = [0.0, *np.minimum(np.cumsum(row.numpy()), 1.0)[:-1], 1.0]
        for low, high in itertools.pairwise(edges):
            if high > low:
                drawn = torch.tensor([*uniforms, (low + high) / 2], dtype=torch.float64)
                tokens = verify_module.verify(path, target_probs, draft_probs, drawn)
                assert len(tokens) == kept + 1, f"{kept} drafts accepted, {len(tokens)} tokens committed"
                outcomes.append((tokens, mass * (high - low)))
    return outcomes


def assert_round_exact(params: SamplingParams, num_drafts: int, *, certain: bool) -> None:
    """Assert that a round followed by ordinary decoding has ordinary decoding's distribution.

    Every draft, every acceptance, every drawn token; shorter results are completed by the target itself.
    """
    length = num_drafts + 1
    joint = dict.fromkeys(itertools.product(range(VOCAB), repeat=length), 0.0)
    for path, path_mass in draft_paths(params, num_drafts, certain=certain).items():
        target_probs = model_rows(path, params, salt=1, rows=length)
        draft_probs = None if certain else model_rows(path, params, salt=2, rows=num_drafts)
        for tokens, mass in round_outcomes(path, target_probs, draft_probs):
            for whole, rest_mass in target_joint(params, length, tuple(tokens)).items():
                joint[whole] += path_mass * mass * rest_mass
    expected = target_joint(params, length)
    worst = max(abs(mass - expected.get(path, 0.0)) for path, mass in joint.items())
    assert worst <= TOLERANCE, f"off by {worst}"


@pytest.mark.parametrize("certain", [True, False], ids=["one_hot_drafter", "general_drafter"])
@pytest.mark.parametrize("num_drafts", [1, 2, 3])
@pytest.mark.parametrize("name", SAMPLINGS)
def test_round_has_the_targets_distribution(name: str, num_drafts: int, certain: bool) -> None:  # noqa: FBT001
    """Summed over all outcomes, a round gives the target's joint distribution to 1e-9."""
    assert_round_exact(SAMPLINGS[name], num_drafts, certain=certain)


def accept_without_ratio(draft_ids, target_probs, _draft_probs):
    """Keep a draft with the target's probability alone, as if every drafter were certain."""
    ids = torch.tensor(draft_ids)[:, None]
    return target_probs[: len(draft_ids)].gather(1, ids).squeeze(1)


def residual_not_renormalised(target_row, _draft_id, draft_row):
    """Leave the residual with less than all mass."""
    return (target_row - draft_row).clamp_min(0.0)


def bonus_skipped(draft_ids, target_probs, draft_probs, uniforms):
    """Return only the drafts when all of them are accepted."""
    tokens = ORIGINAL_VERIFY(draft_ids, target_probs, draft_probs, uniforms)
    return tokens[: len(draft_ids)] if tokens[:-1] == list(draft_ids) else tokens


def top_p_not_renormalised(probs, top_p):
    """Cut the tail and leave the rest as it was."""
    kept = ORIGINAL_TOP_P(probs, top_p) > 0
    return probs * kept


ORIGINAL_VERIFY = verify_module.verify
ORIGINAL_TOP_P = sampling_module.truncate_top_p
MUTANTS: dict[str, tuple[object, str, Callable[..., object]]] = {
    "accept_without_ratio": (verify_module, "accept", accept_without_ratio),
    "residual_not_renormalised": (verify_module, "residual", residual_not_renormalised),
    "bonus_skipped": (verify_module, "verify", bonus_skipped),
    "distribution_after_wrong_truncation": (sampling_module, "truncate_top_p", top_p_not_renormalised),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_enumeration_catches_a_broken_round(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each classic mistake of speculative sampling fails the very assertion the exactness test uses."""
    owner, attribute, mutant = MUTANTS[name]
    monkeypatch.setattr(owner, attribute, mutant)
    with pytest.raises(AssertionError, match=r"off by|tokens committed"):
        assert_round_exact(SAMPLINGS["top_p" if attribute == "truncate_top_p" else "plain"], 2, certain=False)


@pytest.mark.parametrize("num_drafts", [1, 2, 3])
def test_greedy_form_equals_the_general_round(num_drafts: int) -> None:
    """For one-hot targets the short greedy form and the general round return the same tokens, always."""
    for draft_ids in itertools.product(range(3), repeat=num_drafts):
        for target_ids in itertools.product(range(3), repeat=num_drafts + 1):
            target_probs = sampling_module.one_hot(torch.tensor(target_ids), 3)
            uniforms = torch.full((num_drafts + 1,), 0.5, dtype=torch.float64)
            general = verify_module.verify(draft_ids, target_probs, None, uniforms)
            assert verify_module.verify_greedy(draft_ids, target_ids) == general


def test_empty_residual_falls_back_to_the_target() -> None:
    """Where both rows agree the residual is empty and the target row stands in, without a NaN."""
    row = torch.tensor([0.25, 0.75], dtype=torch.float64)
    assert torch.equal(row, verify_module.residual(row, 0, row))
    certain = torch.tensor([0.0, 1.0], dtype=torch.float64)
    assert torch.equal(certain, verify_module.residual(certain, 1, None))


def test_draw_follows_the_cumulative_mass_and_never_returns_a_zero() -> None:
    """A draw returns the token whose share of the mass holds the number, and no impossible token."""
    probs = torch.tensor([0.0, 0.25, 0.0, 0.75, 0.0], dtype=torch.float64)
    drawn = [sampling_module.draw(probs, uniform) for uniform in (0.0, 0.2499, 0.25, 0.9999, 1.0)]
    assert drawn == [1, 1, 3, 3, 3]


def test_top_p_looks_beyond_its_first_look() -> None:
    """A flat distribution larger than the first look is truncated as a full sort would."""
    logits = torch.linspace(0.0, 0.01, 2000, dtype=torch.float64)[None]
    probs = sampling_module.compute_probs(logits, SamplingParams(max_tokens=1, temperature=1.0, top_p=0.5))
    full = torch.softmax(logits, -1)[0]
    ordered = full.sort(descending=True).values
    kept = int((ordered.cumsum(0) - ordered < 0.5).sum())
    assert int((probs > 0).sum()) == kept
    assert float(probs.sum()) == pytest.approx(1.0, abs=1e-12)
