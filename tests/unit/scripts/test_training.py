"""Training of drafters: what is trained is what the engine runs, and nothing unseen is trained on."""

import pytest
import torch
from tiny_drafters import decoder_of
from tiny_engine import make_engine, make_request, run_all, tiny_target, token_ids_of
from training.build import attached_tensors
from training.corpus import Example, count_batches, frequent_tokens, repeat
from training.fit import fit
from training.generation import Task, generate
from training.modules import AttachedModule, Rotary, TrainedLayer
from training.prompts import open_prompts, overlaps

from draftproof.reference.drafters.artefact import DrafterRecord, TargetIdentity, write_drafter
from draftproof.reference.drafters.loading import load_drafter
from draftproof.reference.drafters.lockstep import TappedProposer
from draftproof.reference.models.ragged import SequenceCache
from draftproof.reference.proposer import DraftContext

HIDDEN, HEADS, KV_HEADS, HEAD_SIZE = 48, 6, 2, 8  # those of the tiny Llama


@pytest.fixture(scope="module")
def target():
    return tiny_target()


def fresh_head(scales):
    """Return an untrained attached head for the tiny target."""
    torch.manual_seed(3)
    layer = TrainedLayer(
        hidden=HIDDEN, heads=HEADS, kv_heads=KV_HEADS, head_size=HEAD_SIZE, intermediate=64, eps=1e-6
    )
    return AttachedModule(layer, 2, HIDDEN, torch.tensor(scales), 1e-6)


@torch.inference_mode()
def test_the_trained_head_is_the_head_that_drafts(target, tmp_path) -> None:
    """At each depth the unrolled module gives the logits of the engine's head over the same drafts."""
    decoder, depth = decoder_of(target), 3
    module = fresh_head([0.5, 2.0])
    vocabulary = torch.arange(0, target.vocab_size, 2)
    identity = TargetIdentity(origin="tiny", weights_sha256="", vocab_size=260, hidden_size=HIDDEN)
    record = DrafterRecord(
        name="tiny",
        family="attached",
        target=identity,
        reads=(1, 2),
        layers=1,
        vocab_size=len(vocabulary),
        parameters=0,
        licence="",
        provenance="",
        corpus={},
        training={},
        weights_sha256="",
    )
    write_drafter(tmp_path, record, {**attached_tensors(module), "vocabulary": vocabulary.to(torch.int32)})
    _, proposer = load_drafter(str(tmp_path), target)
    assert isinstance(proposer, TappedProposer)

    text = [(37 * index + 11) % 250 for index in range(20)]
    cache = SequenceCache(target.cache_shape)
    states = target.forward(text[:-1], [(cache, len(text) - 1)], [0], (1, 2)).states
    assert states is not None
    proposer.observe("r", 0, states)
    given = [proposer.network.begin([DraftContext("r", text, depth)])]
    drafts: list[int] = []
    for _ in range(depth - 1):
        drafts.append(int(vocabulary[given[-1].argmax()]))
        given.append(proposer.network.extend([0], drafts[-1:]))

    embeddings = decoder.embed(text[1:] + drafts)[None]
    outputs = module(states[None], embeddings, Rotary(decoder.inverse_frequencies, 64), depth)
    for own, output in zip(given, outputs, strict=True):
        expected = output[0, -1] @ decoder.output_rows[vocabulary].T
        torch.testing.assert_close(own[0], expected, rtol=1e-3, atol=1e-3)


def test_generated_answers_are_the_engines_greedy_ones_with_a_state_for_each_token(target) -> None:
    """Texts of different lengths, more than fit at once, give ordinary greedy tokens and all states."""
    prompts = [tuple(range(start, start + 3 + start % 4)) for start in range(1, 8)]
    tasks = [Task(prompt, 0.0) for prompt in prompts]
    answers = list(
        generate(
            decoder_of(target),
            target.cache_shape,
            tasks,
            eos_ids=target.eos_ids,
            taps=(1, 2),
            max_tokens=9,
            width=3,
        )
    )
    requests = [make_request(str(at), prompt, max_tokens=9) for at, prompt in enumerate(prompts)]
    ordinary = run_all(make_engine(target), requests)
    found = {answer.task.prompt_ids: answer for answer in answers}
    for at, prompt in enumerate(prompts):
        answer = found[prompt]
        assert list(answer.token_ids) == [*prompt, *token_ids_of(ordinary[str(at)])]
        assert answer.hidden.shape == (len(answer.token_ids) - 1, 2, HIDDEN)
        assert answer.prompt_tokens == len(prompt)


def test_a_conversation_answers_the_period_it_made_up(target) -> None:
    """When the user's turn ends, the reply's opening follows, and only what comes then is the answer's."""
    eos = next(iter(target.eos_ids))
    ends_at_once = frozenset(range(target.vocab_size))  # whatever comes first ends the period, and the answer
    task = Task((1, 2), 0.0, reply_ids=(7, 8, 9), opening_temperature=1.0)
    (answer,) = generate(
        decoder_of(target), target.cache_shape, [task], eos_ids=ends_at_once, taps=(1,), max_tokens=4
    )
    assert answer.token_ids[3:6] == (7, 8, 9)
    assert answer.prompt_tokens == 6
    assert len(answer.token_ids) == 7
    assert len(answer.hidden) == 6
    assert eos in ends_at_once


def test_a_prompt_near_an_unseen_text_is_found() -> None:
    """Eight words in a row are enough, all words of a shorter text too; less is not."""
    unseen = ("What makes a good friend?", "Explain in a short paragraph why the Earth has seasons.")
    assert overlaps("What makes a good friend?", unseen)
    assert overlaps("Tell me: what makes a good friend? Be brief.", unseen)
    assert overlaps("Please explain in a short paragraph why the earth is round.", unseen)
    assert not overlaps("What makes a good neighbour?", unseen)
    assert not overlaps("Explain why the Earth has seasons in a short paragraph.", unseen)


def test_open_prompts_are_different_and_the_same_for_a_seed() -> None:
    """A count of prompts is that many different ones, again and again."""
    assert open_prompts(300, 5) == open_prompts(300, 5)
    assert len(set(open_prompts(300, 5))) == 300
    assert open_prompts(300, 5) != open_prompts(300, 6)


def make_examples(lengths):
    """Return texts of these lengths whose states are their positions."""
    return [
        Example(
            torch.arange(length),
            2,
            torch.arange(length - 1).to(torch.bfloat16).view(-1, 1, 1).expand(-1, 2, 4),
        )
        for length in lengths
    ]


def test_batches_hold_every_text_once_an_epoch_and_count_answers_only() -> None:
    """Padding and prompts are never counted; every answer token is, as often as there are epochs."""
    examples = make_examples([5, 9, 7, 30, 6])
    generator = torch.Generator().manual_seed(0)
    found = list(repeat(examples, 2, batch_tokens=20, taps=(-1,), generator=generator))
    assert len(found) == 2 * count_batches(examples, 20)
    assert sum(int(batch.counted.sum()) for batch in found) == 2 * sum(len(e.token_ids) - 2 for e in examples)
    for batch in found:
        rows, positions = batch.counted.nonzero(as_tuple=True)
        assert bool((batch.states[rows, positions, 0, 0] == positions).all())
        assert bool((positions >= 1).all())


def test_the_frequent_tokens_are_those_of_answers() -> None:
    """Prompts do not count, tokens that must be there are, and the list is in rising order."""
    examples = [Example(torch.tensor([9, 9, 9, 4, 4, 5]), 3, torch.zeros(5, 1, 2))]
    assert frequent_tokens(examples, 2, always=()).tolist() == [4, 5]
    assert frequent_tokens(examples, 2, always=(7,)).tolist() == [4, 7]


def test_fitting_takes_a_step_for_each_loss_and_lowers_it() -> None:
    """Weights move towards what the loss asks for, at a rate that ends near nothing."""
    module = torch.nn.Linear(1, 1, bias=False)
    rates: list[float] = []

    def losses():
        for _ in range(120):
            before = float(module.weight.detach())
            yield (module.weight - 3.0).square().sum()
            rates.append(abs(float(module.weight.detach()) - before))

    report = fit(module, losses(), steps=120, rate=0.2, tell=lambda _line: None, label="test")
    assert report.steps == 120
    assert abs(float(module.weight.detach()) - 3.0) < 0.5
    assert rates[-1] < max(rates) / 5
