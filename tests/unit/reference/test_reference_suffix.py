"""The suffix structure shared by requests: what it finds, what it forgets, and that it is off by default."""

import random
from collections import Counter

import pytest
import torch
from tiny_engine import make_request, repetitive_prompt, run_all, tiny_target, token_ids_of

from draftproof.core.errors import UsageError
from draftproof.reference.drafters import ngram as suffix
from draftproof.reference.drafters.ngram import NgramProposer, SharedSuffixes
from draftproof.reference.engine import Engine
from draftproof.reference.proposer import DraftContext
from draftproof.reference.types import EngineConfig

PROMPT = [90, 91, 92]


class CountedDict(dict):  # type: ignore[type-arg]
    """A dictionary that counts how often it is asked."""

    asked = 0

    def __getitem__(self, key):
        CountedDict.asked += 1
        return super().__getitem__(key)

    def __setitem__(self, key, value):
        CountedDict.asked += 1
        super().__setitem__(key, value)

    def get(self, *arguments):
        CountedDict.asked += 1
        return super().get(*arguments)

    def setdefault(self, *arguments):
        CountedDict.asked += 1
        return super().setdefault(*arguments)

    def pop(self, *arguments):
        CountedDict.asked += 1
        return super().pop(*arguments)


def learn(shared: SharedSuffixes, request_id: str, output: list[int]) -> None:
    """Show a structure an output that ends, token by token."""
    for end in range(1, len(output) + 1):
        shared.observe(request_id, PROMPT + output[:end])
    shared.release(request_id)


def ngrams_of(shared: SharedSuffixes, *, lengths: range) -> dict[tuple[int, ...], list[int]]:
    """Return the n-grams of the blocks that are kept, each with its places, found by scanning."""
    found: dict[tuple[int, ...], list[int]] = {}
    for number, block in sorted(shared._blocks.items()):
        for end in range(block.start, len(block.token_ids)):
            for length in lengths:
                if length <= end:
                    ngram = tuple(block.token_ids[end - length : end])
                    found.setdefault(ngram, []).append(number * suffix._BLOCK_TOKENS + end - block.start)
    return found


def match_by_scanning(log: list[tuple[str, int]], text: list[int], bounds: tuple[int, int]):
    """Return the length of the longest match and the token that followed it most often, then latest.

    `log` holds every output token with its request in the order they came.
    """
    for length in range(bounds[1], bounds[0] - 1, -1):
        following = []
        for index, (request_id, token_id) in enumerate(log):
            before = [token for other, token in log[:index] if other == request_id][-length:]
            if len(before) == length and before == text[-length:]:
                following.append(token_id)
        if following:
            votes = Counter(following)
            best = max(range(len(following)), key=lambda at: (votes[following[at]], at))
            return length, following[best]
    return 0, None


@pytest.mark.parametrize("seed", range(12))
def test_lookup_finds_what_a_scan_of_all_outputs_finds(seed, monkeypatch) -> None:
    """Of outputs that grow side by side, the token that follows the longest match most often is drafted."""
    monkeypatch.setattr(suffix, "_OCCURRENCES", 10_000)
    rng = random.Random(seed)  # noqa: S311 - a test input
    bounds = (rng.randint(1, 2), rng.randint(2, 4))
    shared = SharedSuffixes(*bounds, 10_000)
    texts = {name: list(PROMPT) for name in "abc"}
    log: list[tuple[str, int]] = []
    for _ in range(40):
        name = rng.choice("abc")
        grown = [rng.randrange(3) for _ in range(1 if len(texts[name]) == len(PROMPT) else rng.randint(1, 3))]
        texts[name] += grown
        log += [(name, token_id) for token_id in grown]
        shared.observe(name, texts[name])
        asking = [rng.randrange(3) for _ in range(5)]
        length, token_id = match_by_scanning(log, asking, bounds)
        assert shared.lookup(asking, 1) == ([] if token_id is None else [token_id])
        assert shared.lookup(asking, 1, above=length) == []


@pytest.mark.parametrize("max_tokens", [1, 3, 50, 300])
def test_memory_is_bounded_and_holds_the_blocks_that_are_left(max_tokens) -> None:
    """Never more tokens than allowed, and the index leads to exactly the text that is kept."""
    rng = random.Random(max_tokens)  # noqa: S311 - a test input
    shared = SharedSuffixes(1, 3, max_tokens)
    texts: dict[str, list[int]] = {}
    for step in range(400):
        name = f"request {rng.randrange(4)}"
        texts.setdefault(name, list(PROMPT)).append(rng.randrange(5))
        shared.observe(name, texts[name])
        shared.lookup([rng.randrange(5) for _ in range(4)], 3)
        assert shared.num_tokens <= max_tokens
        if step % 20 == 0:
            shared.release(name)
            del texts[name]
    kept = [block.token_ids[block.start :] for block in shared._blocks.values()]
    assert sum(len(tokens) for tokens in kept) == shared.num_tokens > 0
    scanned = ngrams_of(shared, lengths=range(3, 0, -1))
    assert shared._places.keys() <= scanned.keys()
    for ngram, places in shared._places.items():
        assert 0 < len(places) <= suffix._OCCURRENCES
        assert set(places) <= set(scanned[ngram])


def test_what_was_not_used_for_longest_goes_first() -> None:
    """An old output that still drafts outlives a newer one that does not."""
    shared = SharedSuffixes(2, 2, 20)
    learn(shared, "old", [1, 2, 3, 4, 5, 6, 7, 8])
    learn(shared, "newer", [11, 12, 13, 14, 15, 16, 17, 18])
    assert shared.lookup([1, 2], 2) == [3, 4]
    learn(shared, "newest", [21, 22, 23, 24, 25, 26, 27, 28])
    assert shared.lookup([1, 2], 2) == [3, 4]
    assert shared.lookup([11, 12], 2) == []
    assert shared.lookup([21, 22], 2) == [23, 24]


def test_an_output_longer_than_a_block_is_found_across_its_cut() -> None:
    """The tokens in front of a cut still lead to the token behind it."""
    output = list(range(1000, 1000 + 2 * suffix._BLOCK_TOKENS))
    shared = SharedSuffixes(2, 4, 10_000)
    learn(shared, "long", output)
    for cut in (suffix._BLOCK_TOKENS, suffix._BLOCK_TOKENS + 1):
        assert shared.lookup(output[cut - 4 : cut], 3) == output[cut : cut + 3]


def test_the_most_frequent_continuation_is_drafted() -> None:
    """Two outputs that agree beat a later one; between equals the later one wins."""
    shared = SharedSuffixes(2, 2, 1000)
    learn(shared, "a", [1, 2, 3, 4])
    learn(shared, "b", [1, 2, 9, 9])
    assert shared.lookup([1, 2], 2) == [9, 9]
    learn(shared, "c", [1, 2, 3, 5])
    learn(shared, "d", [1, 2, 7, 7])
    assert shared.lookup([1, 2], 2) == [3, 5]


def test_the_work_of_a_token_does_not_grow_with_what_is_kept() -> None:
    """Dictionaries are asked a fixed number of times a token, in a small memory and in a large one."""
    rng = random.Random(3)  # noqa: S311 - a test input
    most_for_token, most_for_lookup = {}, {}
    for max_tokens in (200, 4000):
        shared = SharedSuffixes(2, 4, max_tokens)
        shared._places, shared._blocks = CountedDict(), CountedDict()
        text, asked_by_token, asked_by_lookup = list(PROMPT), [], []
        for _ in range(6000):
            text.append(rng.randrange(3))
            CountedDict.asked = 0
            shared.observe("a", text)
            asked_by_token.append(CountedDict.asked)
            CountedDict.asked = 0
            shared.lookup(text[-7:-3], 4)
            asked_by_lookup.append(CountedDict.asked)
        evictions = 6000 // suffix._BLOCK_TOKENS + 1
        most_for_token[max_tokens] = sum(asked_by_token) / len(asked_by_token)
        most_for_lookup[max_tokens] = max(asked_by_lookup)
        assert sum(asked > 12 for asked in asked_by_token) <= evictions
        assert max(len(places) for places in shared._places.values()) == suffix._OCCURRENCES
    assert max(most_for_token.values()) <= 3 * 4 + 6
    assert max(most_for_lookup.values()) <= 3 + suffix._OCCURRENCES + 2


def test_requests_share_nothing_by_default() -> None:
    """A request that repeats another's output drafts from it with sharing on and only then."""
    first, second = [*PROMPT, 1, 2, 3, 4, 5], [7, 8, 1, 2, 3]
    for shared_tokens, expected in ((0, []), (100, [4, 5])):
        proposer = NgramProposer(ngram_min=2, ngram_max=3, shared_tokens=shared_tokens)
        proposer.propose([DraftContext("first", first[:4], 4)])
        proposer.propose([DraftContext("first", first, 4)])
        assert proposer.propose([DraftContext("second", second, 4)]).token_ids == [expected]
        proposer.release("first")
        assert proposer.propose([DraftContext("second", second, 4)]).token_ids == [expected]


def test_prompts_are_never_shared() -> None:
    """What stood in a prompt is drafted to nobody else, and leads to no output either."""
    proposer = NgramProposer(ngram_min=2, ngram_max=3, shared_tokens=100)
    first = [1, 2, 3, 4, 5, 6]
    proposer.propose([DraftContext("first", first, 4)])  # 6 is its first token of output
    proposer.propose([DraftContext("first", [*first, 20, 21, 22], 4)])
    for asking in ([9, 1, 2], [9, 3, 4], [9, 4, 5], [9, 5, 6]):
        assert proposer.propose([DraftContext("second", asking, 4)]).token_ids == [[]]
        proposer.release("second")
    assert proposer.propose([DraftContext("second", [9, 6, 20], 4)]).token_ids == [[21, 22]]


def test_own_text_wins_unless_the_shared_match_is_longer() -> None:
    """Among matches of one length the sequence's own text is followed, else the longest match."""
    proposer = NgramProposer(ngram_min=1, ngram_max=3, shared_tokens=100)
    proposer.propose([DraftContext("other", [90, 1], 4)])
    proposer.propose([DraftContext("other", [90, 1, 2, 3, 50, 51], 4)])
    assert proposer.propose([DraftContext("own", [2, 3, 60, 61, 2, 3], 2)]).token_ids == [[60, 61]]
    assert proposer.propose([DraftContext("longer", [3, 60, 61, 1, 2, 3], 2)]).token_ids == [[50, 51]]


def test_the_end_of_an_output_is_taken_in_and_its_sequence_let_go() -> None:
    """Tokens of the last round, which no draft was asked for, are shared; nothing is kept by request."""
    proposer = NgramProposer(ngram_min=2, ngram_max=3, shared_tokens=100)
    text = [90, 1, 2]
    proposer.propose([DraftContext("first", text, 4)])
    text += [3, 4]
    proposer.release("first")
    proposer.release("unknown")
    assert proposer.propose([DraftContext("second", [8, 2, 3], 4)]).token_ids == [[4]]
    proposer.release("second")
    assert not proposer._indexes
    assert proposer._shared is not None
    assert not proposer._shared._streams


def test_a_memory_of_less_than_nothing_is_refused() -> None:
    """A negative size is a usage error that says what to write."""
    with pytest.raises(UsageError, match="use 0 to share nothing"):
        NgramProposer(ngram_min=2, ngram_max=3, shared_tokens=-1)


def test_outputs_are_the_same_with_sharing_and_the_second_takes_fewer_rounds() -> None:
    """The engine's setting reaches the drafter: a repeated request is drafted for, with the same tokens."""
    target, prompt = tiny_target(), repetitive_prompt(torch.Generator().manual_seed(4))
    rounds, tokens = {}, {}
    for shared_tokens in (0, 1000):
        config = EngineConfig(model_path="tiny", max_model_len=512, ngram_shared_tokens=shared_tokens)
        engine = Engine(target, config)
        outputs = [run_all(engine, [make_request(name, prompt, drafts=4)])[name] for name in ("a", "b")]
        rounds[shared_tokens] = [len(one) for one in outputs]
        tokens[shared_tokens] = [token_ids_of(one) for one in outputs]
    assert tokens[0] == tokens[1000]
    assert rounds[0][0] == rounds[0][1] == rounds[1000][0]
    assert rounds[1000][1] < rounds[1000][0]
