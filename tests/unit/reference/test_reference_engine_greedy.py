"""Greedy decoding: speculation, batching and the ragged cache change nothing but the time it takes."""

import pytest
import torch
from tiny_engine import (
    TIE_MARGIN,
    OracleProposer,
    make_engine,
    make_request,
    repetitive_prompt,
    run_all,
    tiny_llama,
    tiny_target,
    token_ids_of,
)

from draftproof.reference.models.ragged import SequenceCache


@pytest.fixture(scope="module")
def target():
    return tiny_target()


@pytest.fixture(scope="module", params=[8, pytest.param(16, marks=pytest.mark.slow)])
def prompts(request):
    generator = torch.Generator().manual_seed(11)
    return [repetitive_prompt(generator) for _ in range(request.param)]


@pytest.fixture(scope="module")
def ordinary(target, prompts):
    """Return the tokens of ordinary decoding, one request at a time, by prompt."""
    tokens = {}
    for prompt in prompts:
        outputs = run_all(make_engine(target), [make_request("one", prompt)])["one"]
        tokens[tuple(prompt)] = token_ids_of(outputs)
    return tokens


def tie_at_first_difference(prompt, expected, got):
    """Say whether two greedy outputs part where the model's top two logits are numerically equal."""
    same = next(i for i, (a, b) in enumerate(zip(expected, got, strict=True)) if a != b)
    with torch.inference_mode():
        logits = tiny_llama()(torch.tensor([[*prompt, *expected[:same]]])).logits[0, -1]
    top_two = logits.topk(2).values
    return bool(top_two[0] - top_two[1] < TIE_MARGIN)


def assert_same_greedy_tokens(target, ordinary, *, batch_size, drafts, proposers=None):
    """Assert token-for-token equality with ordinary decoding; return (rounds, ties)."""
    engine = make_engine(target, max_num_seqs=batch_size, proposers=proposers)
    requests = [
        make_request(f"r{index}", prompt, drafts=drafts) for index, prompt in enumerate(map(list, ordinary))
    ]
    outputs = run_all(engine, requests)
    ties = 0
    for index, (prompt, expected) in enumerate(ordinary.items()):
        got = token_ids_of(outputs[f"r{index}"])
        if got != expected:
            assert len(got) == len(expected), f"{len(got)} tokens instead of {len(expected)}"
            assert tie_at_first_difference(prompt, expected, got), f"prompt {index} parts without a tie"
            ties += 1
    rounds = [output.round for found in outputs.values() for output in found if output.round is not None]
    return rounds, ties


@pytest.mark.parametrize("drafts", [1, 4, 8])
@pytest.mark.parametrize("batch_size", [1, 4, 8])
def test_ngram_lookup_gives_ordinary_tokens(target, ordinary, batch_size, drafts) -> None:
    """Whatever the batch and draft length, greedy tokens are ordinary decoding's, and drafts really ran."""
    rounds, ties = assert_same_greedy_tokens(target, ordinary, batch_size=batch_size, drafts=drafts)
    assert ties <= 1
    assert sum(round_.proposed for round_ in rounds) > 0
    assert any(round_.accepted < round_.proposed for round_ in rounds)


@pytest.mark.parametrize("wrong_at", [0, 2, 3, None])
def test_partly_wrong_drafts_give_ordinary_tokens(target, ordinary, wrong_at) -> None:
    """Drafts that are right up to a position, or throughout, leave greedy tokens as they are."""
    continuations = {
        prompt: [(t + 1) % 250 if i % 4 == wrong_at else t for i, t in enumerate(tokens)]
        for prompt, tokens in ordinary.items()
    }
    oracle = OracleProposer(continuations, prompt_tokens=15)
    rounds, _ = assert_same_greedy_tokens(
        target, ordinary, batch_size=8, drafts=4, proposers={"ngram": oracle}
    )
    assert all(round_.accepted == round_.proposed for round_ in rounds) == (wrong_at is None)
    assert max(round_.accepted for round_ in rounds) > 0


def test_a_stale_cache_is_caught(target, ordinary, monkeypatch) -> None:
    """If rejected positions stayed visible, the identity assertion above would fail."""
    monkeypatch.setattr(SequenceCache, "truncate", lambda _self, _length: None)
    with pytest.raises(AssertionError, match="parts without a tie"):
        assert_same_greedy_tokens(target, ordinary, batch_size=4, drafts=4)


def test_ordinary_decoding_equals_transformers_generate(ordinary) -> None:
    """The ragged cache and attention give the tokens of transformers' own greedy generation."""
    own = tiny_llama()
    for prompt, tokens in ordinary.items():
        ids = torch.tensor([prompt])
        whole = own.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=24, do_sample=False)
        assert tokens == whole[0, len(prompt) :].tolist()


@pytest.mark.parametrize("budget", [8, 11, 32])
def test_chunked_prefill_gives_ordinary_tokens(target, ordinary, budget) -> None:
    """Prompts that come in over several steps, beside decoding neighbours, end in the same tokens."""
    engine = make_engine(target, max_num_seqs=4, max_num_batched_tokens=budget)
    requests = [make_request(f"r{i}", prompt, drafts=2) for i, prompt in enumerate(ordinary)]
    outputs = run_all(engine, requests)
    assert [token_ids_of(found) for found in outputs.values()] == list(ordinary.values())


def test_sampled_tokens_do_not_depend_on_neighbours(target, ordinary) -> None:
    """A seeded request draws the same tokens alone and in a full batch."""
    prompt = list(ordinary)[0]  # noqa: RUF015
    wanted = make_request("mine", prompt, drafts=3, temperature=1.0, seed=5)
    alone = token_ids_of(run_all(make_engine(target), [wanted])["mine"])
    neighbours = [
        make_request(f"n{i}", other, drafts=4, temperature=1.0, seed=i) for i, other in enumerate(ordinary)
    ]
    together = run_all(make_engine(target, max_num_seqs=8), [*neighbours[:3], wanted, *neighbours[3:]])
    assert token_ids_of(together["mine"]) == alone
