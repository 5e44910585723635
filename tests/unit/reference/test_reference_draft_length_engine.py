"""Draft-length policies in the engine: greedy outputs stay, decisions are reported, states go on."""

from typing import Any

import msgspec
import pytest
import torch
from tiny_engine import OracleProposer, make_request, run_all, tiny_target, token_ids_of

from draftproof.reference.engine import Engine
from draftproof.reference.http.answer import describe_lengths
from draftproof.reference.http.exposition import RequestCounters, ServerCollector, render_metrics
from draftproof.reference.proposer import Drafts
from draftproof.reference.types import EngineConfig, SpeculationParams

PROMPT = [65, 66, 67, 65, 66]
TABLE = ((1, 4), (2, 1), (3, 0))
MS = 1_000_000


class ManualClock:
    """Moves only when told."""

    def __init__(self) -> None:
        self.now_ns = 0

    def __call__(self) -> int:
        return self.now_ns


class PricedTarget:
    """A target whose passes take 10 ms and 1 ms a row on a manual clock."""

    def __init__(self, target, clock) -> None:
        self._target, self._clock = target, clock

    def __getattr__(self, name):
        return getattr(self._target, name)

    def forward(self, token_ids, *rest):
        """Advance the clock by the price of the rows."""
        self._clock.now_ns += (10 + len(token_ids)) * MS
        return self._target.forward(token_ids, *rest)


class PricedProposer:
    """Drafts from a table, a millisecond a token, and records the states it is shown."""

    taps = (1,)

    def __init__(self, tokens, clock) -> None:
        oracle = OracleProposer({tuple(PROMPT): tokens}, prompt_tokens=len(PROMPT))
        self._propose, self.release = oracle.propose, oracle.release
        self._clock = clock
        self.seen: list[int] = []

    def propose(self, contexts) -> Drafts:
        """Advance the clock by the price of the longest draft."""
        self._clock.now_ns += MS * max(context.max_draft_tokens for context in contexts)
        drafts: Drafts = self._propose(contexts)
        return drafts

    def observe(self, _request_id: str, start: int, states: torch.Tensor) -> None:
        """Note the positions."""
        self.seen += range(start, start + len(states))


@pytest.fixture(scope="module")
def target():
    return tiny_target()


@pytest.fixture(scope="module")
def tokens(target):
    """Return what ordinary greedy decoding gives."""
    return run_policy(target, None, "fixed")[0]


@pytest.fixture(scope="module")
def stopped(target, tokens):
    """Return what `run_policy` gives of the automatic policy where every draft is wrong."""
    return run_policy(target, [(token_id + 1) % 250 for token_id in tokens], "auto")


def run_policy(target, drafts, policy, *, num_requests=1, max_tokens=300):
    """Return (tokens, rounds, stats, proposer) of greedy requests; `drafts` None is without speculation."""
    clock = ManualClock()
    proposer = PricedProposer(drafts, clock)
    config = EngineConfig(model_path="tiny", max_model_len=512, draft_length_by_batch=TABLE)
    priced: Any = PricedTarget(target, clock)  # it passes on whatever a target has
    engine = Engine(priced, config, proposers={"ngram": proposer}, clock=clock)
    speculation = SpeculationParams(
        method="ngram" if drafts else "off", num_spec_tokens=4 if drafts else 0, policy=policy
    )
    requests = [
        msgspec.structs.replace(
            make_request(str(index), PROMPT, max_tokens=max_tokens, ignore_eos=True), speculation=speculation
        )
        for index in range(num_requests)
    ]
    outputs = run_all(engine, requests)["0"]
    rounds = [output.round for output in outputs if output.round is not None]
    return token_ids_of(outputs), rounds, engine.stats(), proposer


def test_auto_stops_a_drafter_that_is_always_wrong(tokens, stopped) -> None:
    """Almost no round of the second half drafts, the tokens are ordinary decoding's, states go on."""
    got, rounds, stats, proposer = stopped
    assert got == tokens
    assert sum(r.proposed > 0 for r in rounds[150:]) <= 15
    assert sum(r.draft_limit == 0 for r in rounds) == stats.paused_rounds["auto"] >= 200
    assert stats.draft_gains["ngram"] < 1
    assert proposer.seen == list(range(len(PROMPT) + len(tokens) - 1))


@pytest.mark.parametrize("policy", ["auto", "adaptive"])
def test_a_drafter_that_is_always_right_stays_on(target, tokens, policy) -> None:
    """All but the rounds that are timed without drafts draft as much as allowed; tokens are the same."""
    got, rounds, stats, _ = run_policy(target, tokens, policy)
    assert got == tokens
    assert len(rounds) < len(tokens) / 4
    assert stats.paused_rounds[policy] == sum(r.draft_limit == 0 for r in rounds) <= 4
    assert stats.draft_gains["ngram"] > 2


def test_fixed_asks_for_all_in_every_round(target, tokens) -> None:
    """Right or wrong, the drafts are as many as the request asks for, and no gain is estimated."""
    for drafts in (tokens, [(token_id + 1) % 250 for token_id in tokens]):
        got, rounds, stats, _ = run_policy(target, drafts, "fixed", max_tokens=100)
        assert got == tokens[:100]
        assert {r.draft_limit for r in rounds[:-4]} == {4}
        assert stats.paused_rounds == {"fixed": 0}
        assert stats.draft_gains == {}


def test_the_batch_policy_drafts_less_beside_a_neighbour(target, tokens) -> None:
    """Alone a request drafts four tokens a round, two together one each, three none."""
    for num_requests, length in ((1, 4), (2, 1), (3, 0)):
        got, rounds, _, _ = run_policy(target, tokens, "batch", num_requests=num_requests, max_tokens=40)
        assert got == tokens[:40]
        assert {r.draft_limit for r in rounds[:-4]} == {length}


def test_metrics_tell_the_policy_and_its_decisions(stopped) -> None:
    """The scrape has rounds and pauses by policy, length and gain; a request's block has its own."""
    _, rounds, stats, _ = stopped
    text = render_metrics(ServerCollector(RequestCounters(), lambda: stats, "m", 4)).decode()
    able = [r for r in rounds if r.draft_limit is not None]
    paused = sum(r.draft_limit == 0 for r in able)
    assert f'draftproof:spec_rounds_total{{model_name="m",policy="auto"}} {float(len(able))}' in text
    assert f'draftproof:spec_paused_rounds_total{{model_name="m",policy="auto"}} {float(paused)}' in text
    assert f'draftproof:spec_draft_length_current{{model_name="m"}} {float(able[-1].draft_limit)}' in text
    assert (
        f'draftproof:spec_estimated_gain{{method="ngram",model_name="m"}} {stats.draft_gains["ngram"]}'
        in text
    )
    assert describe_lengths(rounds) == {
        "mean_draft_length": pytest.approx(sum(r.proposed for r in able) / len(able)),
        "paused_rounds": paused,
    }
    assert describe_lengths([]) == {"mean_draft_length": None, "paused_rounds": 0}
