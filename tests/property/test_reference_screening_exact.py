"""Given the text, what screening expects is what the engine does on average over its chance, text by text.

All branches of the engine's random numbers are taken (drafts, acceptances, residuals, bonus tokens); those
that end in the same text are averaged by their probabilities.
"""

from collections import defaultdict
from typing import Any

import numpy as np
import pytest
import torch
from exact_oracle import Walker
from tiny_drafters import METHODS, family_request, make_proposers, small_target
from tiny_engine import make_engine

from draftproof.explore.renewal import expect_rounds
from draftproof.reference import screening
from draftproof.reference.drafters import teacher_forcing
from draftproof.reference.drafters.teacher_forcing import Lookup
from draftproof.reference.screening import Screener
from draftproof.reference.types import EngineConfig, RoundOutput

PROMPT = (1, 3, 2, 1, 3)
SAMPLINGS = {
    "temperature": {"temperature": 0.9},
    "top_k": {"temperature": 1.1, "top_k": 3},
    "top_p": {"temperature": 0.9, "top_p": 0.8},
    "penalties": {
        "temperature": 0.8,
        "repetition_penalty": 1.3,
        "presence_penalty": 0.4,
        "frequency_penalty": 0.3,
        "logit_bias": ((0, 0.7), (3, -0.5)),
    },
}


@pytest.fixture(scope="module")
def precise():
    """Return a target in float64, whose numbers depend on the batch by 1e-15 only."""
    return small_target(4, sharpness=0.5, dtype=torch.float64)


def walk_engine(target, family, sampling, monkeypatch, *, drafts, length):
    """Return the counts of rounds by text, each the mean over the branches that end in it."""
    engine = make_engine(
        target,
        proposers=make_proposers(family, target),
        max_num_seqs=512,
        max_num_batched_tokens=4096,
        max_queue=1_000_000,
        max_model_len=32,
    )
    weights: dict[tuple[int, ...], float] = defaultdict(float)
    sums: dict[tuple[int, ...], np.ndarray] = defaultdict(lambda: np.zeros(3))
    with monkeypatch.context() as patch:
        walker = Walker(patch)
        for seeds in walker.generations():
            outputs: dict[str, list[RoundOutput]] = {f"s{seed}": [] for seed in seeds}
            for name in outputs:
                seed = int(name[1:])
                asked = {"drafts": drafts, "max_tokens": length, "seed": seed} | sampling
                engine.add_request(family_request(family, name, PROMPT, **asked))
            while engine.has_work:
                for name, output in engine.step():
                    outputs[name].append(output)
            for name, found in outputs.items():
                text = tuple(token_id for output in found for token_id in output.token_ids)
                rounds = [output.round for output in found if output.round]
                weight = walker.weight(int(name[1:]))
                weights[text] += weight
                sums[text] += weight * np.array(
                    [len(rounds), sum(one.proposed for one in rounds), sum(one.accepted for one in rounds)]
                )
    assert engine.stats().fallbacks == 0
    return {text: sums[text] / weight for text, weight in weights.items() if weight > 1e-9}


def screen_texts(target, family, sampling, texts, monkeypatch, *, drafts, length):
    """Return what screening expects of each text."""
    monkeypatch.setattr(screening, "load_target", lambda _config: target)
    monkeypatch.setattr(
        screening, "load_drafter", lambda name, of: next(iter(make_proposers(name, of).items()))
    )
    given = {"methods": ("ngram",)} if family == "ngram" else {"methods": (), "drafters": (family,)}
    screener = Screener(EngineConfig(model_path="tiny"), lookup=Lookup(1, 3), **given)
    request = family_request(family, "r", PROMPT, drafts=drafts, max_tokens=length, **sampling)
    found: Any = screener.screen([(request, text) for text in texts], drafts)
    expected = [
        expect_rounds(one.kept, one.made, [drafts])[0] for one in sorted(found, key=lambda one: one.at)
    ]
    return [[one.rounds, one.drafted, sum(one.kept)] for one in expected]


def assert_same_given_text(target, family, sampling, monkeypatch, *, drafts=2, length=4):
    """Assert that screening and the engine's branches agree on every text that can come."""
    walked = walk_engine(target, family, sampling, monkeypatch, drafts=drafts, length=length)
    assert len(walked) > 5
    screened = screen_texts(target, family, sampling, walked, monkeypatch, drafts=drafts, length=length)
    assert np.allclose(list(walked.values()), screened, atol=1e-9, rtol=0)


@pytest.mark.parametrize("family", METHODS)
def test_every_family_is_expected_to_do_what_it_does(family, precise, monkeypatch) -> None:
    """Rounds, drafts and accepted drafts agree to 1e-9 on each text, under truncation."""
    assert_same_given_text(precise, family, SAMPLINGS["top_p"], monkeypatch)


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize(
    "family", ["attached_reduced", "early_exit", pytest.param("skipping", marks=pytest.mark.slow)]
)
def test_every_way_of_sampling_is_followed(family, sampling, precise, monkeypatch) -> None:
    """The chance is that of the target's processed distribution and of the drafter's truncated one."""
    assert_same_given_text(precise, family, SAMPLINGS[sampling], monkeypatch, drafts=1, length=3)


@pytest.mark.parametrize("family", ["attached", "skipping"])
def test_a_round_start_that_is_dropped_is_caught(family, precise, monkeypatch) -> None:
    """A head or skipped layers taken for stateless, chances of first drafts at every depth, fail the same."""
    follow = teacher_forcing.Judge.follow

    def forget_starts(judge, read):
        tables = follow(judge, read)
        for table in tables:
            for depth in range(1, table.shape[1]):
                table[: len(table) - depth, depth] = np.where(
                    table[: len(table) - depth, depth] > 0, table[depth:, 0], 0.0
                )
        return tables

    monkeypatch.setattr(teacher_forcing.Judge, "follow", forget_starts)
    with pytest.raises(AssertionError):
        assert_same_given_text(precise, family, SAMPLINGS["temperature"], monkeypatch)
