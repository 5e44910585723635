"""Greedy identity with the demo's real model in fp32: n-gram lookup gives ordinary decoding's tokens."""

import pytest
import torch

from draftproof.reference.engine import Engine, load_engine
from draftproof.reference.fetch import demo_model_path
from draftproof.reference.types import EngineConfig, GenerationRequest, SamplingParams, SpeculationParams

TIE_MARGIN = 1e-4
NUM_SPEC_TOKENS = 4
MAX_TOKENS = 32
SUBJECTS = ("harbour", "library", "orchard", "railway", "kitchen", "museum", "garden", "market")
TASKS = (
    "Repeat this sentence word by word: The old {0} near the river opens at {1} every morning.",
    "Correct the spelling: The {0} has beeen closed sinse {1} and nobody knos why.",
    "Answer from the text. Text: The {0} has {1} rooms and two doors. Question: How many rooms?",
    "Write three short lines about a {0} with {1} visitors.",
    "Turn into JSON with keys place and number: the {0} counts {1} people.",
)


def make_prompts(count):
    """Return `count` different prompts: rewriting, grounded answers, open text, structured output."""
    tasks = [TASKS[i % len(TASKS)].format(SUBJECTS[i // 5 % len(SUBJECTS)], i + 2) for i in range(count)]
    assert len(set(tasks)) == count
    return tasks


@pytest.fixture(scope="module")
def engine():
    """Return an engine on one thread: it keeps its pace when the other cores are busy."""
    return load_engine(EngineConfig(model_path=str(demo_model_path()), num_threads=1))


def encode(engine, text):
    """Return the token ids of one user message under the model's chat template."""
    tokenizer = engine.target.tokenizer
    messages = [{"role": "user", "content": text}]
    rendered = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    return tuple(tokenizer(rendered, add_special_tokens=False)["input_ids"])


def run(engine, prompts, method, batch_size):
    """Return tokens per prompt and the drafts accepted, from a fresh engine around the same model."""
    config = EngineConfig(model_path="demo", max_num_seqs=batch_size, max_queue=len(prompts))
    fresh = Engine(engine.target, config)
    for index, prompt in enumerate(prompts):
        fresh.add_request(
            GenerationRequest(
                request_id=str(index),
                prompt_token_ids=prompt,
                sampling=SamplingParams(max_tokens=MAX_TOKENS),
                speculation=SpeculationParams(method=method, num_spec_tokens=NUM_SPEC_TOKENS),
            )
        )
    tokens: list[list[int]] = [[] for _ in prompts]
    while fresh.has_work:
        for request_id, output in fresh.step():
            tokens[int(request_id)].extend(output.token_ids)
    return tokens, fresh.stats().accepted_tokens


def margin_at_first_difference(engine, prompt, expected, got):
    """Return the distance of the two largest logits where two outputs part."""
    from draftproof.reference.cache import SequenceCache

    same = next((i for i, (a, b) in enumerate(zip(expected, got, strict=False)) if a != b), None)
    assert same is not None, f"{len(got)} tokens instead of {len(expected)}"
    ids = [*prompt, *expected[:same]]
    with torch.inference_mode():
        cache = SequenceCache(engine.target.cache_shape)
        logits = engine.target.forward(ids, [(cache, len(ids))], [len(ids) - 1])[0]
    top_two = logits.topk(2).values
    return float(top_two[0] - top_two[1])


def assert_identical_but_for_ties(engine, count):
    """Assert identity with one-by-one ordinary decoding at batch sizes 1, 4, 8; return the number of ties."""
    prompts = [encode(engine, text) for text in make_prompts(count)]
    expected, _ = run(engine, prompts, "off", 1)
    ties = 0
    for batch_size in (1, 4, 8):
        got, accepted = run(engine, prompts, "ngram", batch_size)
        assert accepted > 0
        for prompt, wanted, found in zip(prompts, expected, got, strict=True):
            if wanted != found:
                assert margin_at_first_difference(engine, prompt, wanted, found) < TIE_MARGIN
                ties += 1
    print(f"{count} prompts x 3 batch sizes: {ties} ties")  # noqa: T201 - a figure of the closing report
    return ties


@pytest.mark.timeout(900)
def test_a_sample_of_prompts_is_identical(engine) -> None:
    """Five prompts at three batch sizes: every token equal, or parted by a proven tie."""
    assert assert_identical_but_for_ties(engine, 5) <= 1


@pytest.mark.live
@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_200_prompts_are_identical(engine) -> None:
    """Two hundred prompts at three batch sizes: every token equal, or parted by a proven tie."""
    assert assert_identical_but_for_ties(engine, 200) <= 20
