"""Log-probabilities are the model's own, for every delivered token, with and without speculation."""

import math

import pytest
import torch
from tiny_engine import (
    OracleProposer,
    make_engine,
    make_request,
    repetitive_prompt,
    run_all,
    tiny_llama,
    tiny_target,
    token_ids_of,
)

from draftproof.reference.processors import token_logprobs

TOLERANCE = 1e-4  # the engine's float32 path against the model's own


@pytest.fixture(scope="module")
def target():
    return tiny_target()


@pytest.fixture(scope="module")
def prompt():
    return repetitive_prompt(torch.Generator().manual_seed(3))


def logprobs_of(outputs):
    return [one for output in outputs for one in output.logprobs]


def test_values_and_order_of_a_row() -> None:
    """The token's value is its log-softmax; the likeliest come first, as many as asked, none for 0."""
    logits = torch.tensor([[0.5, 0.2, 0.3], [0.1, 0.8, 0.1]]).log() + 7.0
    (first, second) = token_logprobs(logits, [2, 1], 2)
    assert first.logprob == pytest.approx(math.log(0.3), abs=1e-6)
    assert [token_id for token_id, _ in first.top] == [0, 2]
    assert [value for _, value in first.top] == pytest.approx([-0.693147, -1.203973], abs=1e-5)
    assert (second.token_id, second.top[0]) == (1, (1, second.logprob))
    assert [one.top for one in token_logprobs(logits, [2, 1], 0)] == [(), ()]
    assert len(token_logprobs(logits, [2, 1], 20)[0].top) == 3


@pytest.mark.parametrize("drafts", [0, 4])
@pytest.mark.parametrize(
    "sampling", [{}, {"temperature": 0.8, "seed": 4, "presence_penalty": 1.5, "top_k": 5}]
)
def test_every_delivered_token_has_the_models_value(target, prompt, drafts, sampling) -> None:
    """From the first token on they equal a whole pass of the model itself, whatever was done to draw."""
    outputs = run_all(
        make_engine(target), [make_request("a", prompt, drafts=drafts, logprobs=3, **sampling)]
    )["a"]
    tokens, found = token_ids_of(outputs), logprobs_of(outputs)
    assert [one.token_id for one in found] == tokens
    with torch.inference_mode():
        logits = tiny_llama()(torch.tensor([[*prompt, *tokens]])).logits[0, len(prompt) - 1 : -1]
    expected = token_logprobs(logits, tokens, 3)
    for one, wanted in zip(found, expected, strict=True):
        assert one.logprob == pytest.approx(wanted.logprob, abs=TOLERANCE)
        assert [value for _, value in one.top] == pytest.approx([v for _, v in wanted.top], abs=TOLERANCE)
        assert len(one.top) == 3


def test_a_cut_inside_a_round_cuts_them_too(target, prompt) -> None:
    """Drafts accepted behind an end are neither delivered nor described."""
    tokens = token_ids_of(run_all(make_engine(target), [make_request("a", prompt)])["a"])
    oracle = {"ngram": OracleProposer({tuple(prompt): tokens}, len(prompt))}
    at = next(index for index in range(2, len(tokens)) if tokens[index] not in tokens[:index])
    request = make_request("a", prompt, drafts=8, logprobs=0, stop_token_ids=(tokens[at],))
    outputs = run_all(make_engine(target, proposers=oracle), [request])["a"]
    assert [one.token_id for one in logprobs_of(outputs)] == tokens[: at + 1]
    assert max(len(output.token_ids) for output in outputs) > 1


def test_only_those_who_ask_get_them(target, prompt) -> None:
    """Beside a request that asks, one that does not has none; each gets its own rows."""
    alone = run_all(make_engine(target), [make_request("asks", prompt, logprobs=1)])["asks"]
    both = run_all(
        make_engine(target),
        [make_request("silent", prompt[::-1], drafts=4), make_request("asks", prompt, drafts=4, logprobs=1)],
    )
    assert all(output.logprobs is None for output in both["silent"])
    values = [one.logprob for one in logprobs_of(both["asks"])]
    assert values == pytest.approx([one.logprob for one in logprobs_of(alone)], abs=TOLERANCE)
