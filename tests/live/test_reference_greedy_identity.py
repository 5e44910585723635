"""Greedy identity with the demo's real model in float32: every family gives ordinary decoding's tokens."""

import pytest
import torch

from draftproof.reference.drafters.loading import BUILTIN_BY_METHOD, load_drafters
from draftproof.reference.drafters.ngram import NgramProposer
from draftproof.reference.engine import Engine
from draftproof.reference.models.model import load_target
from draftproof.reference.models.ragged import SequenceCache
from draftproof.reference.types import EngineConfig, GenerationRequest, SamplingParams, SpeculationParams
from draftproof.reference.weights.fetch import demo_model_path

TIE_MARGIN = 1e-4
MAX_TOKENS = 32
SAMPLE_TOKENS = 10
METHODS = ("ngram", "draft_model", "attached", "self")
BATCH_SIZES = (1, 4, 8)
DRAFT_LENGTHS = (1, 4, 8)
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
def target():
    """Return the demo's model on one thread: it keeps its pace when the other cores are busy."""
    return load_target(EngineConfig(model_path=str(demo_model_path()), num_threads=1))


@pytest.fixture(scope="module")
def proposers(target):
    """Return every drafter that ships, and n-gram lookup."""
    loaded = load_drafters([BUILTIN_BY_METHOD[method] for method in METHODS if method != "ngram"], target)
    return {"ngram": NgramProposer(ngram_min=2, ngram_max=4), **loaded}


@pytest.fixture(scope="module")
def ordinary(target):
    """Return a function that gives prompts and their tokens by ordinary decoding, one at a time."""
    known = {}

    def answer(count, max_tokens):
        if count not in known:
            prompts = [encode(target, text) for text in make_prompts(count)]
            known[count] = prompts, run(target, prompts, SpeculationParams(), max_tokens, batch_size=1)[0]
        return known[count]

    return answer


def encode(target, text):
    """Return the token ids of one user message under the model's chat template."""
    messages = [{"role": "user", "content": text}]
    rendered = target.tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    return tuple(target.tokenizer(rendered, add_special_tokens=False)["input_ids"])


def run(target, prompts, speculation, max_tokens, *, batch_size, proposers=None):
    """Return tokens per prompt and the drafts accepted, from a fresh engine around the same model."""
    config = EngineConfig(model_path="demo", max_num_seqs=batch_size, max_queue=len(prompts))
    engine = Engine(target, config, proposers=proposers)
    for index, prompt in enumerate(prompts):
        engine.add_request(
            GenerationRequest(
                request_id=str(index),
                prompt_token_ids=prompt,
                sampling=SamplingParams(max_tokens=max_tokens),
                speculation=speculation,
            )
        )
    tokens: list[list[int]] = [[] for _ in prompts]
    while engine.has_work:
        for request_id, output in engine.step():
            tokens[int(request_id)].extend(output.token_ids)
    stats = engine.stats()
    assert stats.fallbacks == 0
    return tokens, stats.accepted_tokens


def margin_at_first_difference(target, prompt, expected, got):
    """Return the distance of the two largest logits where two outputs part."""
    same = next((i for i, (a, b) in enumerate(zip(expected, got, strict=False)) if a != b), None)
    assert same is not None, f"{len(got)} tokens instead of {len(expected)}"
    ids = [*prompt, *expected[:same]]
    with torch.inference_mode():
        cache = SequenceCache(target.cache_shape)
        logits = target.forward(ids, [(cache, len(ids))], [len(ids) - 1]).logits[0]
    top_two = logits.topk(2).values
    return float(top_two[0] - top_two[1])


def count_ties(target, prompts, expected, found):
    """Return how many outputs part at a proven tie; any other difference fails."""
    ties = 0
    for prompt, wanted, got in zip(prompts, expected, found, strict=True):
        if wanted != got:
            assert margin_at_first_difference(target, prompt, wanted, got) < TIE_MARGIN
            ties += 1
    assert not (ties and target.decoder.kernels.row_independent), "rows that do not see each other cannot tie"
    return ties


@pytest.mark.timeout(900)
@pytest.mark.parametrize("method", METHODS)
def test_a_sample_of_prompts_is_identical(method, target, proposers, ordinary) -> None:
    """Five prompts at once, drafts of four: every token equal, or parted by a proven tie."""
    prompts, expected = ordinary(5, SAMPLE_TOKENS)
    speculation = SpeculationParams(method=method, num_spec_tokens=4)
    found, accepted = run(target, prompts, speculation, SAMPLE_TOKENS, batch_size=4, proposers=proposers)
    assert accepted > 0
    assert count_ties(target, prompts, expected, found) <= 1


@pytest.mark.live
@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("num_spec_tokens", DRAFT_LENGTHS)
@pytest.mark.parametrize("batch_size", BATCH_SIZES)
def test_200_prompts_are_identical(
    method, num_spec_tokens, batch_size, *, target, proposers, ordinary
) -> None:
    """Two hundred prompts: every token equal, or parted by a proven tie."""
    prompts, expected = ordinary(200, MAX_TOKENS)
    speculation = SpeculationParams(method=method, num_spec_tokens=num_spec_tokens)
    found, accepted = run(
        target, prompts, speculation, MAX_TOKENS, batch_size=batch_size, proposers=proposers
    )
    assert accepted > 0
    assert count_ties(target, prompts, expected, found) <= 10
