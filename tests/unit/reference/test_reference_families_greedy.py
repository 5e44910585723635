"""Greedy decoding with every family is ordinary decoding, and no cache keeps a rejected token."""

import itertools
from typing import Any

import pytest
import torch
from tiny_drafters import (
    METHODS,
    NETWORK_FAMILIES,
    family_request,
    make_proposers,
    small_target,
)
from tiny_engine import make_engine, run_all, token_ids_of

from draftproof.reference.draft_planner import LengthPlanner
from draftproof.reference.drafters.attached import AttachedHead
from draftproof.reference.drafters.lockstep import DraftModel, _common_prefix
from draftproof.reference.drafters.self_speculation import SelfSpeculation
from draftproof.reference.models.ragged import SequenceCache

VOCAB = 10
MAX_TOKENS = 20


@pytest.fixture(scope="module")
def target():
    return small_target(VOCAB)


@pytest.fixture(scope="module", params=[(1, 9, 17), pytest.param((1, 5, 9, 12, 17), marks=pytest.mark.slow)])
def prompts(request):
    generator = torch.Generator().manual_seed(3)
    return [torch.randint(0, VOCAB, (size,), generator=generator).tolist() for size in request.param]


def decode(target, prompts, family, *, drafts, proposers=None, limits=None, **request):
    """Return the engine and every request's tokens, all prompts at once."""
    engine = make_engine(target, proposers=proposers or make_proposers(family, target), **(limits or {}))
    requests = [
        family_request(family, f"r{i}", prompt, drafts=drafts, **{"max_tokens": MAX_TOKENS, **request})
        for i, prompt in enumerate(prompts)
    ]
    outputs = run_all(engine, requests)
    return engine, [token_ids_of(found) for found in outputs.values()]


@pytest.fixture(scope="module")
def ordinary(target, prompts):
    return [decode(target, [prompt], "ngram", drafts=0)[1][0] for prompt in prompts]


@pytest.mark.parametrize(
    ("batch_size", "drafts"), [(1, 4), (3, 1), (3, 8), pytest.param(5, 8, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("family", METHODS)
def test_every_family_gives_ordinary_tokens(  # noqa: PLR0917 - fixtures
    family, batch_size, drafts, target, prompts, ordinary
) -> None:
    """Token for token, at any batch and draft length, with drafts accepted and drafts rejected."""
    limits = {"max_num_seqs": batch_size}
    engine, tokens = decode(target, prompts, family, drafts=drafts, limits=limits)
    stats = engine.stats()
    assert tokens == ordinary
    assert 0 < stats.accepted_tokens < stats.draft_tokens
    assert stats.fallbacks == 0


@pytest.mark.parametrize("budget", [8])
@pytest.mark.parametrize("family", METHODS)
def test_prompts_in_chunks_give_ordinary_tokens(family, budget, target, prompts, ordinary) -> None:
    """Prompts that come in over several steps beside decoding neighbours change nothing."""
    limits = {"max_num_seqs": 3, "max_num_batched_tokens": budget}
    engine, tokens = decode(target, prompts, family, drafts=4, limits=limits)
    assert tokens == ordinary
    assert engine.stats().draft_tokens > 0
    assert engine.stats().fallbacks == 0


@pytest.mark.parametrize("family", METHODS)
def test_drafting_that_pauses_and_resumes_gives_ordinary_tokens(
    family, target, prompts, ordinary, monkeypatch
) -> None:
    """Rounds without drafts, at the start and in between, change no token and cost nobody the drafter."""
    rounds, plan = itertools.count(), LengthPlanner.plan

    def plan_and_pause(planner, *given):
        planned = plan(planner, *given)
        return planned if next(rounds) % 4 == 3 else dict.fromkeys(planned, 0)

    monkeypatch.setattr(LengthPlanner, "plan", plan_and_pause)
    engine, tokens = decode(target, prompts, family, drafts=4)
    assert tokens == ordinary
    assert engine.stats().draft_tokens > 0
    assert engine.stats().fallbacks == 0


@pytest.mark.parametrize("family", METHODS)
def test_an_end_within_a_draft_cuts_where_ordinary_decoding_ends(family, target, prompts, ordinary) -> None:
    """Stop tokens and `max_tokens` that fall inside accepted drafts end the output at the same token."""
    ends: list[dict[str, Any]] = [{"max_tokens": count} for count in (1, 3, 6)]
    ends += [{"max_tokens": MAX_TOKENS, "stop_token_ids": (token_id,)} for token_id in ordinary[0][3:6]]
    cases = list(itertools.product(ends, zip(prompts, ordinary, strict=True)))
    asked = [
        family_request(family, f"r{number}", prompt, drafts=8, **end)
        for number, (end, (prompt, _)) in enumerate(cases)
    ]
    wanted = [
        up_to(tokens[: end["max_tokens"]], *end.get("stop_token_ids", ())) for end, (_, tokens) in cases
    ]
    engine = make_engine(target, proposers=make_proposers(family, target))
    assert [token_ids_of(found) for found in run_all(engine, asked).values()] == wanted
    assert_all_released(engine)


def up_to(tokens, end_id=None):
    """Return tokens up to and including the first `end_id`."""
    return tokens[: tokens.index(end_id) + 1] if end_id in tokens else tokens


def assert_all_released(engine):
    """Assert that no drafter keeps anything for anybody."""
    for proposer in engine._drafters.proposers.values():
        keeper = getattr(proposer, "network", proposer)
        kept = [value for name, value in vars(keeper).items() if name in ("_sequences", "_indexes", "_batch")]
        assert kept, "a drafter without books"
        assert not any(kept)


@pytest.mark.parametrize("family", METHODS)
def test_a_cancelled_request_leaves_nothing_behind(family, target, prompts, ordinary) -> None:
    """Requests cancelled after some steps free their place; the same id starts anew."""
    engine = make_engine(target, proposers=make_proposers(family, target), max_num_seqs=2)
    stays = family_request(family, "stays", prompts[1], drafts=4, max_tokens=MAX_TOKENS)
    engine.add_request(stays)
    found = []
    for steps in range(1, 7):
        engine.add_request(family_request(family, "goes", prompts[2], drafts=4, max_tokens=MAX_TOKENS))
        for _ in range(steps):
            found += [output for request_id, output in engine.step() if request_id == "stays"]
        assert engine.cancel("goes")
    engine.add_request(family_request(family, "goes", prompts[0], drafts=4, max_tokens=MAX_TOKENS))
    outputs = {"stays": found, "goes": []}
    while engine.has_work:
        for request_id, output in engine.step():
            outputs[request_id].append(output)
    assert token_ids_of(outputs["goes"]) == ordinary[0]
    assert token_ids_of(found) == ordinary[1]
    assert engine.stats().fallbacks == 0
    assert_all_released(engine)


class Watch:
    """Checks a drafter's books against the committed tokens at the start and end of every round."""

    def __init__(self, network, monkeypatch):
        self.rounds = 0
        self.faults: list[str] = []  # raised in a drafter, an assertion would be survived as its fault
        self._network, self._contexts = network, []
        self._begin, self._end = network.begin, network.end
        monkeypatch.setattr(network, "begin", self.begin)
        monkeypatch.setattr(network, "end", self.end)

    def begin(self, contexts):
        self._contexts = [(context, context.target_cache.length) for context in contexts]
        logits = self._begin(contexts)
        self.rounds += 1
        for context in contexts:
            self.check_fed(context)
        return logits

    def end(self):
        self._end()
        for context, length in self._contexts:
            if not context.target_cache.length == length == len(context.token_ids) - 1:
                self.faults.append("target cache moved")
            if isinstance(self._network, AttachedHead):
                self.check_head(context)

    def check_fed(self, context):
        """Once caught up, a draft model has read exactly what was committed."""
        if isinstance(self._network, DraftModel):
            sequence = self._network._sequences[context.request_id]
            if sequence.fed != context.token_ids or sequence.cache.length != len(context.token_ids):
                self.faults.append("stale cache of a draft model")

    def check_head(self, context):
        """A head's cache ends with the last position whose true state it has: the last committed but one."""
        sequence = self._network._sequences[context.request_id]
        if not sequence.committed == sequence.cache.length == len(context.token_ids) - 1 or sequence.states:
            self.faults.append("stale cache of a head")


def assert_caches_stay_true(target, prompts, family, monkeypatch):
    """Run all prompts, checking the target's caches after every step and the drafter's in every round."""
    proposers = make_proposers(family, target)
    [proposer] = proposers.values()
    watch = Watch(proposer.network, monkeypatch)
    engine = make_engine(target, proposers=proposers, max_num_seqs=3)
    for index, prompt in enumerate(prompts):
        engine.add_request(family_request(family, f"r{index}", prompt, drafts=4, max_tokens=MAX_TOKENS))
    while engine.has_work:
        engine.step()
        assert watch.faults == []
        for sequence in engine._scheduler.running:
            if not sequence.prefill_left:
                assert sequence.cache.length == len(sequence.token_ids) - 1
    assert engine.stats().fallbacks == 0
    assert 0 < engine.stats().accepted_tokens < engine.stats().draft_tokens
    assert watch.rounds > 10
    assert_all_released(engine)


@pytest.mark.parametrize("family", NETWORK_FAMILIES)
def test_no_cache_holds_a_rejected_token(family, target, prompts, monkeypatch) -> None:
    """Every round begins with the committed tokens and nothing else in each cache, and gives all back."""
    assert_caches_stay_true(target, prompts, family, monkeypatch)


class EverLonger(SequenceCache):
    """A cache that keeps what it should forget."""

    def truncate(self, length):
        """Do nothing."""


STALE = {
    "draft_model": (f"{DraftModel.__module__}.SequenceCache", EverLonger),
    "attached": (f"{AttachedHead.__module__}.AttachedHead.end", lambda _self: None),
    "early_exit": (f"{SelfSpeculation.__module__}.SelfSpeculation.end", lambda _self: None),
}


@pytest.mark.parametrize("family", STALE)
def test_a_stale_cache_is_caught(family, target, prompts, monkeypatch) -> None:
    """A drafter that keeps what was rejected fails the checks above, though its output would stay exact."""
    place, mutant = STALE[family]
    monkeypatch.setattr(place, mutant)
    with pytest.raises(AssertionError, match=r"stale|target cache moved"):
        assert_caches_stay_true(target, prompts, family, monkeypatch)


def test_a_head_is_shown_the_true_states_of_committed_positions(target, prompts, monkeypatch) -> None:
    """Position by position, once each, states are those of one pass over the committed text."""
    proposers = make_proposers("attached", target)
    head = proposers["attached"].network
    shown: dict[str, list[torch.Tensor]] = {}
    observe = head.observe

    def record(request_id, start, states):
        assert start == sum(len(rows) for rows in shown.setdefault(request_id, []))
        shown[request_id].append(states)
        observe(request_id, start, states)

    monkeypatch.setattr(head, "observe", record)
    limits = {"max_num_seqs": 3, "max_num_batched_tokens": 15}
    _, tokens = decode(target, prompts, "attached", drafts=4, proposers=proposers, limits=limits)
    for index, prompt in enumerate(prompts):
        states = torch.cat(shown[f"r{index}"])
        text = [*prompt, *tokens[index]][: len(states)]
        cache = SequenceCache(target.cache_shape)
        whole = target.forward(text, [(cache, len(text))], [], head.taps).states
        assert len(states) >= len(prompt) + MAX_TOKENS - 9
        assert torch.allclose(states, whole, atol=1e-4)


def test_a_round_compares_only_what_is_new() -> None:
    """What is settled is not read again, so that a round's cost does not grow with the context."""

    class Counting(list[int]):
        reads = 0

        def __getitem__(self, place):
            self.reads += 1
            return super().__getitem__(place)

    fed = Counting(range(1000))
    assert _common_prefix(fed, [*range(998), -1, -2], settled=995) == 998
    assert fed.reads == 4
    assert _common_prefix([1, 2], [1, 2, 3], settled=0) == 2
    assert _common_prefix([1, 2, 3], [1, 2], settled=2) == 1
