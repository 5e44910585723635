"""N-gram lookup, the scheduler's shares, the cache's bounds and the packed linear layers."""

import random

import pytest
import torch
from torch import nn

from draftproof.core.errors import UsageError
from draftproof.reference.drafters.ngram import NgramIndex, NgramProposer
from draftproof.reference.models import linear
from draftproof.reference.models.ragged import CacheShape, SequenceCache
from draftproof.reference.proposer import DraftContext
from draftproof.reference.scheduler import share_budget

SHAPE = CacheShape(num_layers=2, num_kv_heads=1, head_dim=4, dtype=torch.float32, device=torch.device("cpu"))


def lookup_by_scanning(tokens, ngram_min, ngram_max, limit):
    """Return the draft by trying every earlier position, longest match first, most recent first."""
    for length in range(ngram_max, ngram_min - 1, -1):
        suffix = tokens[-length:]
        for start in range(len(tokens) - length - 1, -1, -1):
            if length < len(tokens) and tokens[start : start + length] == suffix:
                return tokens[start + length : start + length + limit]
    return []


@pytest.mark.parametrize("seed", range(20))
def test_incremental_lookup_equals_a_full_scan(seed) -> None:
    """After every growth of the sequence the index finds what a scan of the whole sequence finds."""
    rng = random.Random(seed)  # noqa: S311 - a test input
    ngram_min = rng.randint(1, 2)
    ngram_max = ngram_min + rng.randint(0, 3)
    index = NgramIndex(ngram_min, ngram_max)
    tokens = []
    for _ in range(60):
        tokens += [rng.randrange(4) for _ in range(rng.randint(1, 5))]
        index.extend(tokens)
        assert index.lookup(tokens, 4) == lookup_by_scanning(tokens, ngram_min, ngram_max, 4)


def test_longest_and_most_recent_match_wins() -> None:
    """A longer match beats a more recent shorter one; among equals the most recent is followed."""
    index = NgramIndex(1, 3)
    tokens = [1, 2, 3, 7, 9, 2, 3, 8, 1, 2, 3]
    index.extend(tokens)
    assert index.lookup(tokens, 2) == [7, 9]
    tokens = [5, 6, 1, 5, 6, 2, 5, 6]
    index = NgramIndex(2, 2)
    index.extend(tokens)
    assert index.lookup(tokens, 1) == [2]


def test_sequences_never_see_each_other() -> None:
    """A match in another sequence's text is no match, and a released sequence is forgotten."""
    proposer = NgramProposer(ngram_min=2, ngram_max=3)
    known = DraftContext("known", [1, 2, 3, 1, 2], 4)
    stranger = DraftContext("stranger", [9, 1, 2], 4)
    assert proposer.propose([known, stranger]).token_ids == [[3, 1, 2], []]
    proposer.release("known")
    assert proposer.propose([DraftContext("known", [4, 4, 1, 2], 4)]).token_ids == [[]]


@pytest.mark.parametrize(("ngram_min", "ngram_max"), [(0, 2), (3, 2)])
def test_impossible_ngram_bounds_are_refused(ngram_min, ngram_max) -> None:
    """Bounds that admit no n-gram are a usage error."""
    with pytest.raises(UsageError, match="do not fit together"):
        NgramProposer(ngram_min=ngram_min, ngram_max=ngram_max)


def test_budget_is_shared_in_order() -> None:
    """The first in line get all they want until the budget is used up."""
    assert share_budget([3, 5, 2], 6) == [3, 3, 0]
    assert share_budget([], 6) == []


def test_truncated_positions_are_never_visible_again() -> None:
    """What is written after a truncation replaces what was rejected, and earlier tokens survive growth."""
    cache = SequenceCache(SHAPE)
    cache.reserve(3)
    for layer in cache.view(0, 3):
        layer.fill_(1.0)
    cache.advance(3)
    cache.truncate(2)
    cache.reserve(200)
    for layer in cache.view(2, 202):
        layer.fill_(2.0)
    cache.advance(200)
    seen = cache.view(0, cache.length)[1][0, 0, :, 0].tolist()
    assert seen == [1.0, 1.0] + [2.0] * 200
    cache.truncate(500)
    assert cache.length == 202
    assert cache.capacity_tokens == 256


def test_packed_layers_give_the_same_numbers_and_spare_the_embedding() -> None:
    """Packing replaces every fp32 layer, changes nothing but rounding, and leaves tied weights in place."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(24, 40), nn.Linear(40, 24, bias=False))
    embedding = nn.Embedding(24, 40)
    model[1].weight = nn.Parameter(embedding.weight.detach())
    rows = torch.randn(1, 5, 24)
    with torch.inference_mode():
        expected = model(rows)
        kept = embedding.weight.clone()
        replaced = linear.pack_linears(model)
        assert replaced == (2 if linear.packing_available() else 0)
        assert torch.allclose(model(rows), expected, atol=1e-5)
    assert torch.equal(embedding.weight, kept)


def test_layers_that_disagree_or_cannot_be_packed_stay(monkeypatch) -> None:
    """A packed form with other numbers is not used, nor is one for another dtype or a missing product."""
    monkeypatch.setattr(linear, "_agrees", lambda _packed, _layer: False)
    assert linear.pack_linears(nn.Sequential(nn.Linear(8, 8))) == 0
    monkeypatch.undo()
    assert linear.pack_linears(nn.Sequential(nn.Linear(8, 8, dtype=torch.bfloat16))) == 0
    monkeypatch.setattr(linear, "packing_available", lambda: False)
    assert linear.pack_linears(nn.Sequential(nn.Linear(8, 8))) == 0
