"""Sampled output of a real (tiny, random) model has the model's own distribution: seeded G-tests."""

import itertools
import math
from collections import Counter

import pytest
import torch
from scipy.stats import chi2
from tiny_engine import byte_tokenizer, make_engine, make_request, tiny_llama, token_ids_of

from draftproof.reference import verify as verify_module
from draftproof.reference.models.model import TargetModel
from draftproof.reference.processors import compute_probs, draw_uniforms
from draftproof.reference.proposer import Drafts
from draftproof.reference.types import RoundOutput, SamplingParams

VOCAB = 5
LENGTH = 3  # tokens looked at jointly
PROMPT = (1, 4, 2)
SAMPLING = SamplingParams(max_tokens=LENGTH, temperature=0.9, top_p=0.95)
SIGNIFICANCE = 1e-3
FAST_ROUNDS = 4_000  # of three tokens each; a fault is found in as many


def expected_joint(model):
    """Return the model's own probability of every continuation of the prompt, and its rows by prefix."""
    rows: dict[tuple[int, ...], torch.Tensor] = {}
    joint: dict[tuple[int, ...], float] = {(): 1.0}
    for depth in range(LENGTH):
        prefixes = list(joint)
        with torch.inference_mode():
            logits = model(torch.tensor([[*PROMPT, *prefix] for prefix in prefixes])).logits[:, -1]
        rows |= dict(zip(prefixes, compute_probs(logits, SAMPLING), strict=True))
        joint = {
            (*prefix, token_id): joint[prefix] * float(rows[prefix][token_id])
            for prefix in prefixes
            for token_id in range(VOCAB)
        }
        assert len(joint) == VOCAB ** (depth + 1)
    return joint, rows


def assert_g_test_passes(counts, expected):
    """Assert that counts agree with probabilities (likelihood-ratio test, cells under five pooled)."""
    total = sum(counts.values())
    pooled_count, pooled_expected, statistic, cells = 0, 0.0, 0.0, 0
    for path, probability in expected.items():
        wanted, seen = probability * total, counts.get(path, 0)
        assert probability > 0 or seen == 0, f"{path} is impossible and came {seen} times"
        if wanted < 5:
            pooled_count, pooled_expected = pooled_count + seen, pooled_expected + wanted
            continue
        cells += 1
        statistic += 2 * seen * math.log(seen / wanted) if seen else 0.0
    if pooled_expected >= 5:
        cells += 1
        statistic += 2 * pooled_count * math.log(pooled_count / pooled_expected) if pooled_count else 0.0
    p_value = float(chi2.sf(statistic, cells - 1))
    assert p_value > SIGNIFICANCE, f"G = {statistic:.1f} over {cells} cells, p = {p_value:.2g}"


@torch.inference_mode()
def round_counts(rows, rounds, seed):
    """Return how often each joint outcome came from single rounds of two drafts on the model's rows.

    Half the rounds draft with certainty, half from a uniform drafter; a short round is completed by ordinary
    draws from the model's row.
    """
    generator = torch.Generator().manual_seed(seed)
    all_drafts = torch.randint(0, VOCAB, (rounds, LENGTH - 1), generator=generator).tolist()
    uniform = torch.full((LENGTH - 1, VOCAB), 1.0 / VOCAB, dtype=torch.float64)
    stacked = {
        path: torch.stack([rows[path[:depth]] for depth in range(LENGTH)])
        for path in itertools.product(range(VOCAB), repeat=LENGTH - 1)
    }
    counts: Counter[tuple[int, ...]] = Counter()
    for index, drafts in enumerate(all_drafts):
        draft_probs = uniform if index % 2 else None
        tokens = verify_module.verify(
            drafts, stacked[tuple(drafts)], draft_probs, draw_uniforms(generator, LENGTH)
        )
        while len(tokens) < LENGTH:
            row = rows[tuple(tokens)]
            tokens.append(verify_module.verify([], row[None], None, draw_uniforms(generator, 1))[0])
        counts[tuple(tokens)] += 1
    return counts


@pytest.fixture(scope="module")
def model():
    return tiny_llama(vocab_size=VOCAB, sharpness=0.5)


def test_rounds_on_a_models_rows_do_not_differ_from_the_model(model) -> None:
    """Over 10,000 seeded draws, three joint positions a round, agree with the model's joint distribution."""
    expected, rows = expected_joint(model)
    assert_g_test_passes(round_counts(rows, FAST_ROUNDS, seed=3), expected)


@pytest.mark.slow
def test_100_000_rounds_on_a_models_rows_do_not_differ_from_the_model(model) -> None:
    """The same over 100,000 rounds."""
    expected, rows = expected_joint(model)
    assert_g_test_passes(round_counts(rows, 100_000, seed=4), expected)


def test_the_g_test_catches_a_drafter_that_is_trusted_too_much(model, monkeypatch) -> None:
    """Accepting drafts a little too often is rejected by the same assertion with the same draws."""
    expected, rows = expected_joint(model)
    accept = verify_module.accept
    monkeypatch.setattr(verify_module, "accept", lambda *given: (accept(*given) * 1.3).clamp_max(1.0))
    with pytest.raises(AssertionError, match="G = "):
        assert_g_test_passes(round_counts(rows, FAST_ROUNDS, seed=3), expected)


class UniformProposer:
    """Drafts uniformly at random, with the distribution it drew from or as if each id were certain."""

    def __init__(self, *, tells_probs):
        self._tells_probs = tells_probs
        self._generator = torch.Generator().manual_seed(17)

    def propose(self, contexts):
        drafts = [
            torch.randint(0, VOCAB, (context.max_draft_tokens,), generator=self._generator).tolist()
            for context in contexts
        ]
        rows = [torch.full((len(draft), VOCAB), 1.0 / VOCAB, dtype=torch.float64) for draft in drafts]
        return Drafts(token_ids=drafts, draft_probs=rows if self._tells_probs else None)

    def release(self, request_id):
        """Keep nothing."""


def engine_counts(sequences, *, tells_probs):
    """Return how often each joint outcome came from whole requests through the engine."""
    target = TargetModel(tiny_llama(vocab_size=VOCAB, sharpness=0.5), byte_tokenizer())
    engine = make_engine(
        target,
        proposers={"ngram": UniformProposer(tells_probs=tells_probs)},
        max_num_seqs=128,
        max_num_batched_tokens=512,
        max_queue=sequences,
        max_model_len=16,
    )
    outputs: dict[str, list[RoundOutput]] = {}
    for index in range(sequences):
        request = make_request(
            f"s{index}", PROMPT, drafts=2, max_tokens=LENGTH, temperature=0.9, top_p=0.95, seed=index
        )
        engine.add_request(request)
    while engine.has_work:
        for request_id, output in engine.step():
            outputs.setdefault(request_id, []).append(output)
    counts: Counter[tuple[int, ...]] = Counter()
    for found in outputs.values():
        counts[tuple(token_ids_of(found))] += 1
    assert engine.stats().accepted_tokens > 0
    return counts


@pytest.mark.parametrize("tells_probs", [True, False])
def test_requests_through_the_engine_do_not_differ_from_the_model(model, tells_probs) -> None:
    """Seeded requests, batched and speculated upon, agree with the model's joint distribution."""
    expected, _ = expected_joint(model)
    assert_g_test_passes(engine_counts(1_500, tells_probs=tells_probs), expected)


@pytest.mark.slow
@pytest.mark.parametrize("tells_probs", [True, False])
def test_100_000_draws_through_the_engine_do_not_differ_from_the_model(model, tells_probs) -> None:
    """The same over more than 100,000 tokens from whole requests."""
    expected, _ = expected_joint(model)
    assert_g_test_passes(engine_counts(35_000, tells_probs=tells_probs), expected)
