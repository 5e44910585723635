"""Values at the edge of what may be asked, and drafters that break in unusual places."""

import math

import pytest
import torch
from tiny_engine import make_engine, make_request, run_all, tiny_target, token_ids_of

from draftproof.reference.processors import compute_probs
from draftproof.reference.proposer import Drafts
from draftproof.reference.types import SamplingParams

PROMPT = [65, 66, 67, 65, 66]


@pytest.fixture(scope="module")
def target():
    return tiny_target()


class OddProposer:
    """Answers what it is given; raises on release if told to."""

    def __init__(self, drafts, *, raises_on_release=False):
        self.drafts, self.raises_on_release = drafts, raises_on_release

    def propose(self, contexts):
        return Drafts(
            token_ids=[self.drafts.token_ids[0] for _ in contexts], draft_probs=self.drafts.draft_probs
        )

    def release(self, request_id):
        if self.raises_on_release:
            raise KeyError(request_id)


@pytest.mark.parametrize("temperature", [5e-324, 1e-310, 1e-30, 1e-5])
def test_a_tiny_temperature_gives_the_largest_logit(temperature):
    """However small the temperature, each row is a distribution, and all of it lies on the largest logit."""
    logits = torch.tensor([[1.0, 40.0, -3.0], [-7.0, -9.0, -8.0]])
    probs = compute_probs(logits, SamplingParams(max_tokens=1, temperature=temperature))
    assert probs.tolist() == [[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]]


def test_a_tiny_temperature_harms_no_neighbour(target):
    """A request at the smallest temperature there is and its neighbour both get their greedy tokens."""
    requests = [
        make_request("tiny", PROMPT, drafts=3, temperature=math.ulp(0.0), seed=1),
        make_request("greedy", PROMPT, drafts=3),
    ]
    outputs = run_all(make_engine(target), requests)
    assert token_ids_of(outputs["tiny"]) == token_ids_of(outputs["greedy"])
    assert {got[-1].finish_reason for got in outputs.values()} <= {"length", "stop"}


def test_a_drafter_that_raises_on_release_harms_nobody(target):
    """Both requests end as they would without it, and the engine has no work left."""
    proposer = OddProposer(Drafts(token_ids=[[1]]), raises_on_release=True)
    engine = make_engine(target, proposers={"ngram": proposer})
    requests = [make_request(name, PROMPT, drafts=2, max_tokens=5 + 5 * (name == "b")) for name in "ab"]
    outputs = run_all(engine, requests)
    assert [len(token_ids_of(outputs[name])) for name in "ab"] == [5, 10]
    assert engine.stats().running == 0


@pytest.mark.parametrize(
    "drafts",
    [
        Drafts(token_ids=[[1.0]]),  # type: ignore[list-item]
        Drafts(token_ids=[["1"]]),  # type: ignore[list-item]
        Drafts(token_ids=[[1]], draft_probs=[torch.full((1, 260), math.nan)]),
        Drafts(token_ids=[[1]], draft_probs=[torch.full((1, 260), -1.0)]),
    ],
    ids=["float", "text", "nan", "negative"],
)
def test_drafts_that_are_no_token_ids_or_no_probabilities_are_a_fallback(target, drafts):
    """They never reach the target: the request completes by ordinary decoding and counts one fallback."""
    engine = make_engine(target, proposers={"ngram": OddProposer(drafts)})
    outputs = run_all(engine, [make_request("r", PROMPT, drafts=2, max_tokens=8, temperature=0.8, seed=3)])
    plain = run_all(make_engine(target), [make_request("r", PROMPT, max_tokens=8, temperature=0.8, seed=3)])
    assert token_ids_of(outputs["r"]) == token_ids_of(plain["r"])
    assert outputs["r"][-1].fallbacks == 1
