"""Networks that break in mid-request: it goes on by ordinary decoding, and nobody else notices."""

from collections import defaultdict

import pytest
import torch
from exact_oracle import (
    Walker,
    assert_same_joint,
    given_first,
    run_branches,
    target_joint,
)
from tiny_drafters import (
    NETWORK_FAMILIES,
    family_request,
    make_network,
    make_proposers,
    small_target,
)
from tiny_engine import FakeFailure, make_engine, run_all, token_ids_of

from draftproof.reference.drafters.lockstep import LockstepProposer
from draftproof.reference.proposer import DraftContext, Drafts, collect_drafts
from draftproof.reference.types import SamplingParams

VOCAB = 10
MAX_TOKENS = 16
FAULTS = (FakeFailure("broken"), MemoryError("no room"), torch.OutOfMemoryError("no room on the device"))


@pytest.fixture(scope="module")
def target():
    return small_target(VOCAB)


@pytest.fixture(scope="module")
def prompts():
    generator = torch.Generator().manual_seed(4)
    return [torch.randint(0, VOCAB, (7,), generator=generator).tolist() for _ in range(3)]


@pytest.fixture(scope="module")
def ordinary(target, prompts):
    requests = requests_for("attached", prompts, drafts=0)
    return {name: token_ids_of(found) for name, found in run_all(make_engine(target), requests).items()}


def requests_for(family, prompts, *, drafts=4):
    return [
        family_request(family, f"r{index}", prompt, drafts=drafts, max_tokens=MAX_TOKENS)
        for index, prompt in enumerate(prompts)
    ]


class Saboteur:
    """Makes one method of a network fail from its n-th call on, whenever request r1 takes part."""

    def __init__(self, network, method, failure, *, calls=3):
        self._network, self._failure, self._calls_left = network, failure, calls
        self._names = []
        self._begin, self._real = network.begin, getattr(network, method)
        network.begin = self._note_and_begin
        setattr(network, method, getattr(self, method))

    def begin(self, contexts):
        self._names = [context.request_id for context in contexts]
        return self._break(self._names, lambda: self._begin(contexts))

    def extend(self, rows, token_ids):
        return self._break([self._names[row] for row in rows], lambda: self._real(rows, token_ids))

    def observe(self, request_id, start, states):
        return self._break([request_id], lambda: self._real(request_id, start, states))

    def _note_and_begin(self, contexts):
        self._names = [context.request_id for context in contexts]
        return self._begin(contexts)

    def _break(self, names, real):
        result = None
        self._calls_left -= "r1" in names
        breaks = "r1" in names and self._calls_left < 0
        if breaks and isinstance(self._failure, Exception):
            raise type(self._failure)(*self._failure.args)  # a raised one would keep the frames it passed
        result = real()
        if breaks and result is not None:
            result = result.clone()
            result[names.index("r1")] = self._failure
        return result


OFTEN = ("FakeFailure('broken')", "nan")  # what every family meets in the fast suite; one meets all
CASES = [
    pytest.param(
        family,
        method,
        failure,
        marks=() if family == "attached" or repr(failure) in OFTEN else pytest.mark.slow,
    )
    for family in NETWORK_FAMILIES
    if not family.endswith("_reduced")
    for method in ("begin", "extend", "observe")
    if method != "observe" or family == "attached"
    for failure in (*FAULTS, float("nan"), float("inf"))
    if method != "observe" or isinstance(failure, Exception)
]


@pytest.mark.parametrize(("family", "method", "failure"), CASES)
def test_a_fault_costs_one_request_its_drafter(family, method, failure, target, prompts, ordinary) -> None:  # noqa: PLR0917 - fixtures
    """All outputs are ordinary decoding's, the request at fault falls back once, its neighbours draft on."""
    proposers = make_proposers(family, target)
    [proposer] = proposers.values()
    Saboteur(proposer.network, method, failure)
    engine = make_engine(target, proposers=proposers)
    outputs = run_all(engine, requests_for(family, prompts))
    assert {name: token_ids_of(found) for name, found in outputs.items()} == ordinary
    assert {name: found[-1].fallbacks for name, found in outputs.items()} == {"r0": 0, "r1": 1, "r2": 0}
    late_rounds = [output.round for output in outputs["r0"][-3:-1]]
    assert all(round_.proposed for round_ in late_rounds)


@pytest.mark.parametrize("failure", [FakeFailure("broken"), float("nan")])
@pytest.mark.parametrize("method", ["begin", "extend"])
@pytest.mark.parametrize("family", ["early_exit", "skipping"])
def test_a_fault_leaves_the_targets_cache_as_it_was(family, method, failure, target, prompts) -> None:
    """After every step, also after a fault, the cache holds all committed tokens but the last."""
    proposers = make_proposers(family, target)
    [proposer] = proposers.values()
    Saboteur(proposer.network, method, failure)
    engine = make_engine(target, proposers=proposers)
    for request in requests_for(family, prompts):
        engine.add_request(request)
    while engine.has_work:
        engine.step()
        for sequence in engine._scheduler.running:
            assert sequence.cache.length == len(sequence.token_ids) - 1


def test_drafts_before_a_fault_stand_so_that_the_distribution_does(monkeypatch) -> None:
    """A network that breaks behind certain drafts leaves the output's distribution exact: all branches."""
    precise = small_target(4, sharpness=0.5, dtype=torch.float64)
    prompt, sampling = (1, 3, 2), {"temperature": 1.0, "top_k": 3}
    assert_same_joint(*joints_with_fault(precise, prompt, sampling, monkeypatch))


def test_dropping_drafts_for_what_followed_is_caught(monkeypatch) -> None:
    """Were the drafts before a fault dropped with it, the assertion above would fail."""
    precise = small_target(4, sharpness=0.5, dtype=torch.float64)
    lengthen = LockstepProposer._lengthen

    def lengthen_and_drop(proposer, drafts, rows):
        lengthen(proposer, drafts, rows)
        for draft in drafts:
            if draft.failed:
                draft.token_ids.clear()
                draft.drawn_from.clear()

    monkeypatch.setattr(LockstepProposer, "_lengthen", lengthen_and_drop)
    with pytest.raises(AssertionError, match="off by"):
        assert_same_joint(
            *joints_with_fault(precise, (1, 3, 2), {"temperature": 1.0, "top_k": 3}, monkeypatch)
        )


def joints_with_fault(target, prompt, sampling, monkeypatch):
    """Return what comes out where drafting breaks behind tokens 0 and 1, and what ordinary decoding gives."""
    proposers = make_proposers("draft_model", target)
    network = proposers["draft_model"].network
    extend = network.extend

    def fragile(rows, token_ids):
        if {0, 1} & set(token_ids):
            raise FakeFailure
        return extend(rows, token_ids)

    monkeypatch.setattr(network, "extend", fragile)
    walker = Walker(monkeypatch)
    found: dict[tuple[int, ...], float] = defaultdict(float)
    limits = {"max_num_seqs": 256, "max_num_batched_tokens": 2048, "max_queue": 100_000, "max_model_len": 16}
    engine = make_engine(target, proposers=proposers, **limits)
    for seeds in walker.generations():
        requests = [
            family_request("draft_model", f"s{seed}", prompt, drafts=2, max_tokens=4, seed=seed, **sampling)
            for seed in seeds
        ]
        for seed, tokens in zip(seeds, run_branches(engine, requests), strict=True):
            found[tokens] += walker.weight(seed)
    assert engine.stats().fallbacks > 0
    params = SamplingParams(max_tokens=4, **sampling)
    return found, given_first(target_joint(target, params, prompt))


BROKEN_ROWS = {
    "its sum is not 1": [0.5, 0.4, 0.0],
    "no probability": [1.5, -0.5, 0.0],
    "a drafted token is impossible": [0.0, 0.5, 0.5],
    "draft_probs has shape": [0.5, 0.5],
}


@pytest.mark.parametrize("message", BROKEN_ROWS)
def test_rows_that_are_no_distribution_of_the_draft_are_refused(message, caplog) -> None:
    """What a drafter tells must be a distribution that could give its drafts, or nothing is verified."""

    class Teller:
        def propose(self, contexts):
            return Drafts([[0] for _ in contexts], [torch.tensor([BROKEN_ROWS[message]]) for _ in contexts])

        def release(self, request_id):
            """Keep nothing."""

    [draft] = collect_drafts(Teller(), [DraftContext("a", [1, 2], 1)], vocab_size=3)
    assert draft.failed
    assert draft.token_ids == []
    assert message in caplog.text


def shown_states(target, positions, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(positions, 2, target.hidden_size, generator=generator)


@torch.inference_mode()
def test_a_head_that_failed_in_a_batch_can_be_asked_again(target, monkeypatch) -> None:
    """A failed or repeated `begin` changes nothing: the same states give the same logits."""
    calm, shaken = (make_network("attached", target) for _ in range(2))
    tokens = [1, 2, 3, 4, 5, 6]
    for head in (calm, shaken):
        for name in "ab":
            head.observe(name, 0, shown_states(target, 5))
    contexts = [DraftContext(name, tokens, 4) for name in "ab"]
    monkeypatch.setattr(shaken, "_feed", lambda *_: (_ for _ in ()).throw(MemoryError))
    with pytest.raises(MemoryError):
        shaken.begin(contexts)
    shaken.end()
    monkeypatch.undo()
    with pytest.raises(ValueError, match="states of 0 positions"):
        shaken.begin([*contexts, DraftContext("stranger", tokens, 4)])
    shaken.end()
    expected = calm.begin(contexts)
    assert torch.equal(shaken.begin(contexts), expected)
    shaken.extend([0, 1], [3, 4])
    shaken.end()
    again = torch.cat([shaken.begin([context]) for context in contexts])
    assert torch.allclose(again, expected, atol=1e-5)


@torch.inference_mode()
def test_a_head_that_missed_positions_begins_anew(target) -> None:
    """States from a later position on, at first or behind a gap, serve; one that comes twice does not."""
    tokens = [1, 2, 3, 4, 5, 6, 7, 8]
    late, gap = (make_network("attached", target) for _ in range(2))
    gap.observe("a", 0, shown_states(target, 2, seed=1))
    gap.begin([DraftContext("a", tokens[:3], 4)])
    gap.end()
    logits = []
    for head in (late, gap):
        head.observe("a", 4, shown_states(target, 3))
        logits.append(head.begin([DraftContext("a", tokens, 4)]))
        head.end()
    assert torch.equal(*logits)
    with pytest.raises(ValueError, match="from position 6 on where 7 was next"):
        late.observe("a", 6, shown_states(target, 1))
    late.observe("a", 7, shown_states(target, 1))
    with pytest.raises(ValueError, match="states of 8 positions for 8 tokens"):
        late.begin([DraftContext("a", tokens, 4)])


@torch.inference_mode()
def test_a_head_whose_drafting_paused_catches_up(target) -> None:
    """States that pile up over rounds without drafting give the logits of a head that drafted in each."""
    tokens, states = [1, 2, 3, 4, 5, 6, 7, 8, 9], shown_states(target, 8)
    eager, paused = (make_network("attached", target) for _ in range(2))
    for start, stop in ((0, 3), (3, 4), (4, 7), (7, 8)):
        for head in (eager, paused):
            head.observe("a", start, states[start:stop])
        caught_up = eager.begin([DraftContext("a", tokens[: stop + 1], 4)])
        eager.extend([0], [0])
        eager.end()
    assert torch.allclose(paused.begin([DraftContext("a", tokens, 4)]), caught_up, atol=1e-5)


@torch.inference_mode()
def test_a_draft_model_whose_drafting_paused_forgets_what_was_rejected(target) -> None:
    """Rejected drafts are forgotten even where so much was committed since that only the tokens tell."""
    used, fresh = (make_network("draft_model", target) for _ in range(2))
    used.begin([DraftContext("a", [1, 2, 3], 4)])
    for token_id in (4, 5, 6):
        used.extend([0], [token_id])
    used.end()
    tokens = [1, 2, 3, 4, 9, 9, 8, 7]
    logits = used.begin([DraftContext("a", tokens, 4)])
    assert used._sequences["a"].fed == tokens
    assert torch.allclose(logits, fresh.begin([DraftContext("a", tokens, 4)]), atol=1e-5)
