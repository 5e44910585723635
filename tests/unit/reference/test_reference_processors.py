"""Penalties, biases, minimum lengths, stop tokens: what they do to a row, and the same with speculation."""

import pytest
import torch
from tiny_engine import (
    EOS_ID,
    OracleProposer,
    make_engine,
    make_request,
    repetitive_prompt,
    run_all,
    tiny_target,
    token_ids_of,
)
from transformers import RepetitionPenaltyLogitsProcessor

from draftproof.core.errors import UsageError
from draftproof.reference import spans as spans_module
from draftproof.reference.processors import compute_probs, process_logits, truncate_min_p
from draftproof.reference.types import SamplingParams

MAX_TOKENS = 24
CHANGES: dict[str, dict[str, object]] = {
    "penalties": {"repetition_penalty": 1.3, "presence_penalty": 0.6, "frequency_penalty": 0.4},
    "bias": {"logit_bias": ((65, 3.0), (66, 2.5)), "frequency_penalty": 0.7},
    "rewarded": {"presence_penalty": -1.0, "repetition_penalty": 0.8},
    "min_tokens": {"logit_bias": ((EOS_ID, 9.0),), "min_tokens": 9},
}


@pytest.fixture(scope="module")
def target():
    return tiny_target()


@pytest.fixture(scope="module")
def prompts():
    generator = torch.Generator().manual_seed(5)
    return [repetitive_prompt(generator) for _ in range(4)]


def processed(logits, *, prompt=(), output=(), drafts=(), ends=(), allowed=None, **fields):
    return process_logits(
        torch.tensor(logits, dtype=torch.float32),
        SamplingParams(max_tokens=9, **fields),
        prompt_ids=prompt,
        output_ids=output,
        draft_ids=drafts,
        end_ids=set(ends),
        allowed=allowed,
    )


def test_each_row_is_penalised_for_its_own_prefix() -> None:
    """Presence and frequency count the output and the drafts before a row, and nothing of the prompt."""
    rows = processed(
        [[0.0] * 4] * 3, prompt=[3, 3], output=[1], drafts=[1, 2], presence_penalty=0.5, frequency_penalty=1.0
    )
    assert rows.tolist() == [[0, -1.5, 0, 0], [0, -2.5, 0, 0], [0, -2.5, -1.5, 0]]


def test_repetition_penalty_is_that_of_transformers() -> None:
    """Over prompt, output and drafts before a row, it equals transformers' processor on that text."""
    logits = torch.randn(3, 6, generator=torch.Generator().manual_seed(1)).tolist()
    rows = processed(logits, prompt=[0, 0, 5], output=[2], drafts=[4, 1], repetition_penalty=1.7)
    for row, text in enumerate(([0, 0, 5, 2], [0, 0, 5, 2, 4], [0, 0, 5, 2, 4, 1])):
        theirs = RepetitionPenaltyLogitsProcessor(penalty=1.7)(
            torch.tensor([text]), torch.tensor([logits[row]], dtype=torch.float64)
        )
        assert torch.allclose(rows[row : row + 1], theirs, atol=1e-6)


def test_bias_comes_before_the_repetition_penalty() -> None:
    """A bias is part of the logit that is penalised, as in vLLM's sampler; a repeated bias adds up."""
    rows = processed(
        [[1.0, 1.0]], prompt=[0], logit_bias=((0, 2.0), (0, 1.0), (1, -3.0)), repetition_penalty=2.0
    )
    assert rows.tolist() == [[2.0, -2.0]]


def test_min_tokens_holds_ends_back_until_the_row_that_reaches_it() -> None:
    """With one token out and three wanted, two rows cannot end and the third can."""
    rows = processed([[1.0, 2.0, 3.0]] * 3, output=[0], drafts=[0, 0], ends=[1, 2], min_tokens=3)
    inf = torch.inf
    assert rows.tolist() == [[1, -inf, -inf], [1, -inf, -inf], [1, 2, 3]]


def test_min_tokens_yields_where_only_an_end_is_left() -> None:
    """A complete grammar allows the end alone; masking that too would leave no token to draw."""
    allowed = torch.tensor([[False, False, True]])
    rows = processed([[5.0, 4.0, 3.0]], ends=[2], min_tokens=3, allowed=allowed)
    assert rows.tolist() == [[-torch.inf, -torch.inf, 3.0]]


def test_the_models_logits_stay_as_they_are() -> None:
    """Processing works on a copy: log-probabilities are read from the same tensor afterwards."""
    logits = torch.ones(1, 3, dtype=torch.float64)
    process_logits(
        logits,
        SamplingParams(max_tokens=1, logit_bias=((0, 5.0),), presence_penalty=1.0),
        prompt_ids=[0],
        output_ids=[1],
        draft_ids=[],
        end_ids=set(),
    )
    assert torch.equal(logits, torch.ones(1, 3, dtype=torch.float64))


def test_min_p_is_relative_to_the_likeliest_after_temperature() -> None:
    """Kept is what has at least `min_p` of the largest probability; a tie with the edge is kept."""
    probs = torch.tensor([[0.5, 0.25, 0.2, 0.05]], dtype=torch.float64)
    kept = compute_probs(probs.log(), SamplingParams(max_tokens=1, temperature=1.0, min_p=0.3))
    assert torch.allclose(kept, torch.tensor([[0.5, 0.25, 0.2, 0.0]], dtype=torch.float64) / 0.95)
    cold = compute_probs(probs.log(), SamplingParams(max_tokens=1, temperature=0.5, min_p=0.3))
    assert (cold > 0).tolist() == [[True, False, False, False]]
    ties = torch.zeros(1, 3, dtype=torch.float64)
    assert torch.equal(truncate_min_p(ties, 1.0), ties)


@pytest.mark.parametrize("name", CHANGES)
def test_greedy_output_is_the_same_with_speculation(target, prompts, name) -> None:
    """Whatever is changed in the logits, n-gram and oracle drafts leave the greedy tokens as they were."""
    plain_requests = [
        make_request(f"r{index}", prompt, max_tokens=MAX_TOKENS, **CHANGES[name])
        for index, prompt in enumerate(prompts)
    ]
    plain = run_all(make_engine(target), plain_requests)
    unchanged = run_all(make_engine(target), [make_request("u", prompts[0], max_tokens=MAX_TOKENS)])
    assert token_ids_of(plain["r0"]) != token_ids_of(unchanged["u"]), "the change changes nothing"
    table = {tuple(prompt): token_ids_of(plain[f"r{index}"]) for index, prompt in enumerate(prompts)}
    accepted = 0
    for proposers in (None, {"ngram": OracleProposer(table, len(prompts[0]))}):
        requests = [
            make_request(f"r{index}", prompt, max_tokens=MAX_TOKENS, drafts=4, **CHANGES[name])
            for index, prompt in enumerate(prompts)
        ]
        outputs = run_all(make_engine(target, proposers=proposers), requests)
        for request_id, found in outputs.items():
            assert token_ids_of(found) == token_ids_of(plain[request_id])
            accepted += sum(output.round.accepted for output in found if output.round is not None)
    assert accepted > MAX_TOKENS, "drafts hardly took part"


def test_min_tokens_moves_the_end(target, prompts) -> None:
    """With a bias towards the end, an output ends at once, or with `min_tokens` exactly there."""
    bias = ((EOS_ID, 100.0),)
    early = run_all(make_engine(target), [make_request("a", prompts[0], logit_bias=bias)])["a"]
    late = run_all(make_engine(target), [make_request("a", prompts[0], logit_bias=bias, min_tokens=5)])["a"]
    assert token_ids_of(early) == [EOS_ID]
    tokens = token_ids_of(late)
    assert len(tokens) == 6
    assert EOS_ID not in tokens[:5]
    assert (tokens[5], late[-1].finish_reason) == (EOS_ID, "stop")


@pytest.mark.parametrize("ignore_eos", [False, True])
@pytest.mark.parametrize("drafts", [0, 4])
def test_a_stop_token_ends_the_output_and_is_not_shown(target, prompts, drafts, ignore_eos) -> None:
    """It is delivered, its text is not, and the reason is stop: also with drafts behind it."""
    whole = run_all(make_engine(target), [make_request("a", prompts[0], ignore_eos=True)])["a"]
    tokens = token_ids_of(whole)
    at = next(index for index in range(3, len(tokens)) if tokens[index] not in tokens[:index])
    oracle = {"ngram": OracleProposer({tuple(prompts[0]): tokens}, len(prompts[0]))}
    request = make_request(
        "a", prompts[0], drafts=drafts, ignore_eos=ignore_eos, stop_token_ids=(tokens[at],)
    )
    stopped = run_all(make_engine(target, proposers=oracle), [request])["a"]
    assert token_ids_of(stopped) == tokens[: at + 1]
    assert stopped[-1].finish_reason == "stop"
    assert "".join(output.text for output in stopped) == target.decode(tokens[:at])


def test_plain_requests_pay_nothing(target, prompts, monkeypatch) -> None:
    """Greedy requests without changes never reach the processors, also beside one that does."""
    seen = []

    def spy(*args, **kwargs):
        seen.append(kwargs["prompt_ids"])
        return process_logits(*args, **kwargs)

    monkeypatch.setattr(spans_module, "process_logits", spy)
    requests = [
        make_request("plain", prompts[0], drafts=2, stop_token_ids=(3,), min_p=0.5, logprobs=1),
        make_request("changed", prompts[1], drafts=2, presence_penalty=0.5),
    ]
    run_all(make_engine(target), requests)
    assert set(seen) == {tuple(prompts[1])}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("min_p", -0.1),
        ("min_p", 1.1),
        ("min_p", float("nan")),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", float("inf")),
        ("presence_penalty", 2.1),
        ("presence_penalty", float("nan")),
        ("frequency_penalty", -2.1),
        ("logit_bias", ((260, 1.0),)),
        ("logit_bias", ((-1, 1.0),)),
        ("logit_bias", ((1, 100.5),)),
        ("logit_bias", ((1, 200.0), (1, 1.0))),
        ("logit_bias", ((1, float("nan")),)),
        ("min_tokens", -1),
        ("min_tokens", 25),
        ("stop_token_ids", (260,)),
        ("stop_token_ids", (-1,)),
        ("logprobs", -1),
        ("logprobs", 21),
    ],
)
def test_values_out_of_range_are_refused_by_name(target, field, value) -> None:
    """The error names the field and says what to use; nothing is queued."""
    engine = make_engine(target)
    with pytest.raises(UsageError) as caught:
        engine.add_request(make_request("a", [1, 2], **{field: value}))
    assert caught.value.place == field
    assert caught.value.fix
    assert not engine.has_work


@pytest.mark.parametrize(
    "fields",
    [
        {"min_p": 1.0, "logprobs": 20, "min_tokens": 24, "repetition_penalty": 0.01},
        {"presence_penalty": -2.0, "frequency_penalty": 2.0, "logit_bias": ((0, -100.0), (259, 100.0))},
    ],
)
def test_values_at_the_edge_are_taken(target, fields) -> None:
    """The ends of the allowed ranges run."""
    outputs = run_all(make_engine(target), [make_request("a", [1, 2], temperature=1.0, seed=1, **fields)])
    assert outputs["a"][-1].finish_reason in {"stop", "length"}
