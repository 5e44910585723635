"""Screening says what the engine does: exactly on greedy texts, in expectation on sampled ones."""

import pytest
import torch
from tiny_drafters import METHODS, NETWORK_FAMILIES, family_request, make_proposers, small_target
from tiny_engine import make_engine, run_all, token_ids_of

from draftproof.core.errors import EngineError, UsageError
from draftproof.explore.renewal import expect_rounds
from draftproof.reference import screening
from draftproof.reference.drafters import teacher_forcing
from draftproof.reference.drafters.ngram import NgramIndex
from draftproof.reference.drafters.teacher_forcing import Lookup
from draftproof.reference.screening import Impossible, Kept, Screener
from draftproof.reference.types import EngineConfig

VOCAB, MAX_TOKENS, LONGEST = 10, 24, 8
LENGTHS = tuple(range(1, LONGEST + 1))


@pytest.fixture(scope="module")
def target():
    return small_target(VOCAB)


@pytest.fixture(scope="module")
def prompts():
    generator = torch.Generator().manual_seed(3)
    return [torch.randint(0, VOCAB, (size,), generator=generator).tolist() for size in (1, 2, 9, 17)]


@pytest.fixture
def make_screener(target, monkeypatch):
    """Return a function that makes a screener of one family around a tiny target."""

    def make(family, on=target, **settings):
        monkeypatch.setattr(screening, "load_target", lambda _config: on)
        monkeypatch.setattr(screening, "load_drafter", lambda name, of: _only(make_proposers(name, of)))
        given = {"methods": ("ngram",)} if family == "ngram" else {"methods": (), "drafters": (family,)}
        return Screener(EngineConfig(model_path="tiny"), lookup=Lookup(1, 3), **given | settings)

    return make


def _only(proposers):
    [pair] = proposers.items()
    return pair


def measure(target, prompts, family, drafts, **request):
    """Return the tokens of each prompt and the counts of its rounds, decoded with speculation."""
    engine = make_engine(target, proposers=make_proposers(family, target), max_num_seqs=3)
    asked = [
        family_request(family, f"r{at}", prompt, drafts=drafts, **{"max_tokens": MAX_TOKENS} | request)
        for at, prompt in enumerate(prompts)
    ]
    outputs = run_all(engine, asked).values()
    assert engine.stats().fallbacks == 0
    rounds = [[output.round for output in found if output.round] for found in outputs]
    return asked, [tuple(token_ids_of(found)) for found in outputs], [count(each, drafts) for each in rounds]


def count(rounds, drafts):
    """Return the counts of rounds in the order of `Expected`."""
    drafting = [one for one in rounds if one.proposed]
    reached = [sum(one.proposed > at and one.accepted >= at for one in drafting) for at in range(drafts)]
    kept = [sum(one.accepted > at for one in drafting) for at in range(drafts)]
    return [len(rounds), len(drafting), sum(one.proposed for one in drafting), *reached, *kept]


def screen(screener, asked, tokens):
    """Return the counts that are expected, by draft length and answer."""
    kept = screener.screen(list(zip(asked, tokens, strict=True)), LONGEST)
    found = {one.at: expect_rounds(one.kept, one.made, LENGTHS) for one in kept if isinstance(one, Kept)}
    return [
        [
            [one.rounds, one.drafting_rounds, one.drafted, *one.reached, *one.kept]
            for one in (found[at][length - 1] for at in range(len(asked)))
        ]
        for length in LENGTHS
    ]


@pytest.mark.parametrize("family", METHODS)
def test_greedy_counts_are_those_of_the_engine(family, target, prompts, make_screener) -> None:
    """At every draft length, rounds, drafts and acceptance by position are the engine's own."""
    measured = [measure(target, prompts, family, length) for length in LENGTHS]
    asked, tokens, _ = measured[0]
    assert all(found == tokens for _, found, _ in measured)
    assert screen(make_screener(family), asked, tokens) == [counts for _, _, counts in measured]
    assert sum(counts[3 + LONGEST] for counts in measured[-1][2]) > 0


@pytest.mark.parametrize("family", ["ngram", "draft_model", "attached", "skipping"])
@pytest.mark.parametrize("end", ["length", "stop"])
def test_an_answer_may_end_anywhere(family, end, target, prompts, make_screener) -> None:
    """Answers that a limit or a stop token ends inside a draft have the engine's rounds too."""
    _, whole, _ = measure(target, prompts, family, 1)
    for size in (1, 2, 3, 5):
        limit = {"max_tokens": size} if end == "length" else {"stop_token_ids": (whole[3][size],)}
        measured = [measure(target, prompts[3:], family, length, **limit) for length in LENGTHS]
        asked, tokens, _ = measured[0]
        if len(tokens[0]) > 1:
            found = screen(make_screener(family), asked, tokens)
            assert found == [counts for _, _, counts in measured]


def test_batches_change_nothing(target, prompts, make_screener, monkeypatch) -> None:
    """Answers that go through in several passes have the same tables as in one."""
    asked, tokens, _ = measure(target, prompts, "attached", 1)
    together = screen(make_screener("attached"), asked, tokens)
    monkeypatch.setattr(screening, "_BATCH_TOKENS", 40)
    monkeypatch.setattr(teacher_forcing, "_ROWS", 5)
    monkeypatch.setattr(teacher_forcing, "_PASS_TOKENS", 7)
    assert screen(make_screener("attached"), asked, tokens) == together


def test_answers_are_the_targets_own(target, prompts, make_screener) -> None:
    """What the screener answers is what ordinary decoding gives."""
    asked, tokens, _ = measure(target, prompts, "ngram", 2)
    plain = [
        family_request("ngram", one.request_id, one.prompt_token_ids, drafts=0, max_tokens=MAX_TOKENS)
        for one in asked
    ]
    done = []
    assert make_screener("ngram").answer(plain, lambda *now: done.append(now)) == tokens
    assert done[-1] == (4, 4)


def test_greedy_drafts_of_sampled_requests_are_the_likeliest(target, prompts, make_screener) -> None:
    """An engine that drafts greedily keeps its likeliest token where that is the answer's."""
    asked, tokens, _ = measure(target, prompts[2:], "draft_model", 2, temperature=1.3, seed=5)
    screener = make_screener("draft_model", greedy_drafts=True)
    for one in screener.screen(list(zip(asked, tokens, strict=True)), LONGEST):
        assert isinstance(one, Kept)
        assert set(one.kept.ravel()) <= {0.0, 1.0}


def test_a_token_that_the_target_cannot_draw_is_named(target, prompts, make_screener) -> None:
    """An answer with a token of probability 0 is not this target's: the token is told, others go on."""
    asked, tokens, _ = measure(target, prompts[2:], "draft_model", 2, temperature=0.7, top_k=2, seed=5)
    screener = make_screener("draft_model")
    [own, other] = list(screener.screen(list(zip(asked, tokens, strict=True)), LONGEST))
    assert isinstance(own, Kept)
    assert isinstance(other, Kept)
    possible = {token_id: at for at, token_id in enumerate(tokens[1])}
    wrong = next(token_id for token_id in range(VOCAB) if token_id not in possible)
    bent = (tokens[0], (*tokens[1][:4], wrong, *tokens[1][5:]))
    found = list(screener.screen(list(zip(asked, bent, strict=True)), LONGEST))
    assert {one.at: type(one) for one in found} == {0: Kept, 1: Impossible}
    assert next(one.reason for one in found if isinstance(one, Impossible)).startswith("token ")


def test_nothing_but_impossible_answers_is_no_fault(target, prompts, make_screener) -> None:
    """Where no answer of a pass can be this target's, each is named and no drafter is asked."""
    asked, tokens, _ = measure(target, prompts[2:], "attached", 2, temperature=0.7, top_k=1, seed=5)
    bent = [(*one[:4], (one[4] + 1) % VOCAB, *one[5:]) for one in tokens]
    found = list(make_screener("attached").screen(list(zip(asked, bent, strict=True)), LONGEST))
    assert [type(one) for one in found] == [Impossible, Impossible]
    [other] = make_screener("attached").screen([(asked[0], (1, VOCAB))], LONGEST)
    assert isinstance(other, Impossible)
    assert "lacks" in other.reason


def test_an_answer_of_one_token_has_no_round(target, prompts, make_screener) -> None:
    """Its only token comes from the prefill."""
    [request], _, _ = measure(target, prompts[:1], "ngram", 1)
    [found] = make_screener("ngram").screen([(request, (3,))], LONGEST)
    assert isinstance(found, Impossible)
    assert "before any round" in found.reason


def test_a_broken_drafter_ends_with_a_sentence(target, prompts, make_screener) -> None:
    """Logits that are no numbers say nothing of acceptance."""
    asked, tokens, _ = measure(target, prompts, "draft_model", 1)
    screener = make_screener("draft_model")
    [judge] = screener.judges.values()
    judge.network.logits = lambda hidden: torch.full((len(hidden), VOCAB), torch.nan)
    with pytest.raises(EngineError, match="not finite"):
        list(screener.screen(list(zip(asked, tokens, strict=True)), LONGEST))


def test_an_unknown_method_is_refused() -> None:
    """The error lists what there is."""
    with pytest.raises(UsageError, match=r"no method 'eagle'.*ngram, draft_model, attached, self"):
        Screener(EngineConfig(model_path="tiny"), methods=("eagle",))


@pytest.mark.parametrize(("earliest", "drafted"), [(False, [7]), (True, [5, 9])])
def test_the_earliest_match_is_that_of_vllm(earliest, drafted) -> None:
    """Of two matches of one length the first one drafts, or the last."""
    index = NgramIndex(1, 2, earliest=earliest)
    text = [1, 2, 5, 9, 1, 2, 7, 1, 2]
    index.extend(text)
    assert index.lookup(text, 2)[: len(drafted)] == drafted


@pytest.mark.parametrize("family", NETWORK_FAMILIES)
def test_the_lookup_needs_no_model(family, prompts, make_screener, monkeypatch) -> None:
    """For n-grams nothing is loaded; a drafter is loaded when it is first asked."""
    screener = make_screener("ngram")
    monkeypatch.setattr(screening, "load_target", None)
    request = family_request(family, "r", prompts[3], drafts=2, max_tokens=MAX_TOKENS)
    assert isinstance(next(iter(screener.screen([(request, (1, 2, 3))], LONGEST))), Kept)
