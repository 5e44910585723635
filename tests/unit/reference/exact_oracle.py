"""What ordinary decoding would give: a sampler written a second time, in numpy, over passes without a cache.

Beside it the two ways of comparing an engine with it: an enumeration of everything its random numbers could
do, and a G-test.
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pytest
import torch
from scipy.stats import chi2

from draftproof.reference import spans as spans_module
from draftproof.reference import verify as verify_module
from draftproof.reference.drafters import lockstep as lockstep_module
from draftproof.reference.engine import Engine
from draftproof.reference.models.model import TargetModel
from draftproof.reference.models.ragged import SequenceCache
from draftproof.reference.scheduler import _STREAM_STRIDE
from draftproof.reference.types import GenerationRequest, SamplingParams

Path = tuple[int, ...]
SIGNIFICANCE = 1e-4
_ROUNDING = 1e-14  # what should be zero and is not


def oracle_probs(logits: np.ndarray, sampling: SamplingParams, prompt: Path, output: Path) -> np.ndarray:
    """Return the distribution of the token after `output` from the model's logits [vocab], by sorting."""
    scores = logits.astype(np.float64)
    for token_id, bias in sampling.logit_bias:
        scores[token_id] += bias
    for token_id in {*prompt, *output}:
        scores[token_id] *= (
            1 / sampling.repetition_penalty if scores[token_id] > 0 else sampling.repetition_penalty
        )
    for token_id in set(output):
        scores[token_id] -= sampling.presence_penalty + sampling.frequency_penalty * output.count(token_id)
    order = np.argsort(-scores, kind="stable")
    if sampling.temperature == 0.0:
        return np.asarray(np.eye(len(scores))[order[0]])
    weights = np.exp((scores - scores.max()) / sampling.temperature)
    weights[weights < sampling.min_p * weights.max()] = 0.0
    weights[order[sampling.top_k or len(scores) :]] = 0.0
    weights /= weights.sum()
    before = np.cumsum(weights[order]) - weights[order]
    weights[order[before >= sampling.top_p]] = 0.0
    return np.asarray(weights / weights.sum())


def target_joint(target: TargetModel, sampling: SamplingParams, prompt: Path) -> dict[Path, float]:
    """Return the probability of every output of `max_tokens` tokens by ordinary decoding."""
    joint: dict[Path, float] = {(): 1.0}
    for depth in range(sampling.max_tokens):
        rows = _whole_passes(target, [(*prompt, *output) for output in joint])
        joint = {
            (*output, token_id): mass * float(prob)
            for (output, mass), row in zip(joint.items(), rows, strict=True)
            for token_id, prob in enumerate(oracle_probs(row, sampling, prompt, output))
            if prob > 0.0
        }
        assert all(len(output) == depth + 1 for output in joint)
    return joint


def _whole_passes(target: TargetModel, texts: Sequence[Path]) -> np.ndarray:
    """Return [texts, vocab] logits after each text, every one read from its start into a new cache."""
    spans = [(SequenceCache(target.cache_shape), len(text)) for text in texts]
    ends = np.cumsum([len(text) for text in texts]) - 1
    tokens = [token_id for text in texts for token_id in text]
    return np.asarray(target.forward(tokens, spans, ends.tolist()).logits)


class Walker:
    """Stands in for an engine's random numbers and takes every branch they could, one branch a request.

    A request's seed names it; `script` is what it chooses at each turn, the first possible where that ends.
    The first token of all is not left to chance: everything is conditional on it.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.scripts: list[list[int]] = []
        self.trails: list[list[tuple[int, list[int], float]]] = []  # (choice, possible choices, its weight)
        self._walking = 0
        monkeypatch.setattr(lockstep_module, "draw_uniforms", self._whose_turn)
        monkeypatch.setattr(spans_module, "draw_uniforms", self._whose_turn)
        monkeypatch.setattr(lockstep_module, "draw", lambda probs, _uniform: self._choose(probs.tolist()))
        monkeypatch.setattr(spans_module, "verify", self._verify)

    def generations(self) -> Iterator[list[int]]:
        """Yield the seeds of requests to run, until every branch was taken."""
        self.scripts = [[]]
        done = 0
        while done < len(self.scripts):
            seeds = list(range(done, len(self.scripts)))
            self.trails += [[] for _ in seeds]
            yield seeds
            done = len(self.scripts)
            for seed in seeds:
                self.scripts += self._branches(seed)

    def weight(self, seed: int) -> float:
        """Return the probability of what a request went through."""
        return math.prod(weight for _, _, weight in self.trails[seed])

    def _branches(self, seed: int) -> list[list[int]]:
        """Return the scripts that part from a request's trail where its own script had ended."""
        trail = self.trails[seed]
        taken = [choice for choice, _, _ in trail]
        return [
            [*taken[:turn], other]
            for turn in range(len(self.scripts[seed]), len(trail))
            for other in trail[turn][1]
            if other != taken[turn]
        ]

    def _whose_turn(self, generator: torch.Generator, count: int) -> torch.Tensor:
        seed = generator.initial_seed()
        self._walking = seed if seed < len(self.scripts) else (seed - _STREAM_STRIDE) % (1 << 64)
        return torch.zeros(count, dtype=torch.float64)

    def _choose(self, weights: Sequence[float]) -> int:
        script, trail = self.scripts[self._walking], self.trails[self._walking]
        if not trail:
            trail.append((int(np.argmax(weights)), [], 1.0))
            return trail[-1][0]
        possible = [choice for choice, weight in enumerate(weights) if weight > _ROUNDING]
        choice = script[len(trail)] if len(trail) < len(script) else possible[0]
        trail.append((choice, possible, weights[choice]))
        return choice

    def _verify(
        self,
        draft_ids: Sequence[int],
        target_probs: torch.Tensor,
        draft_probs: torch.Tensor | None,
        _uniforms: torch.Tensor,
    ) -> list[int]:
        """Call the real `verify` with random numbers that lead where the walk goes."""
        kept_probs = verify_module.accept(draft_ids, target_probs, draft_probs).tolist()
        uniforms: list[float] = []
        while len(uniforms) < len(draft_ids):
            kept_prob = kept_probs[len(uniforms)]
            is_kept = self._choose([1.0 - kept_prob, kept_prob])
            uniforms.append(kept_prob / 2 if is_kept else (1.0 + kept_prob) / 2)
            if not is_kept:
                break
        kept = sum(uniform < prob for uniform, prob in zip(uniforms, kept_probs, strict=False))
        if kept == len(draft_ids):
            row = verify_module.bonus(target_probs)
        else:
            draft_row = None if draft_probs is None else draft_probs[kept]
            row = verify_module.residual(target_probs[kept], draft_ids[kept], draft_row)
        edges = np.concatenate(([0.0], np.cumsum(row.tolist())))
        token_id = self._choose(row.tolist())
        uniforms += [0.5] * (len(draft_ids) - len(uniforms)) + [edges[token_id : token_id + 2].mean()]
        drawn = torch.tensor(uniforms, dtype=torch.float64)
        tokens = verify_module.verify(draft_ids, target_probs, draft_probs, drawn)
        assert len(tokens) == kept + 1, f"{kept} drafts accepted, {len(tokens)} tokens committed"
        assert tokens == [*draft_ids[:kept], token_id]
        return tokens


def run_branches(engine: Engine, requests: Sequence[GenerationRequest]) -> list[Path]:
    """Return the output tokens of each request."""
    tokens: dict[str, list[int]] = {request.request_id: [] for request in requests}
    for request in requests:
        engine.add_request(request)
    while engine.has_work:
        for request_id, output in engine.step():
            tokens[request_id] += output.token_ids
    return [tuple(found) for found in tokens.values()]


def assert_same_joint(found: Mapping[Path, float], expected: Mapping[Path, float]) -> None:
    """Assert that two distributions over outputs agree to 1e-9."""
    paths = {*found, *expected}
    worst = max(abs(found.get(path, 0.0) - expected.get(path, 0.0)) for path in paths)
    assert worst < 1e-9, f"off by {worst}"
    assert abs(math.fsum(found.values()) - 1.0) < 1e-9, "off by a mass that is not 1"


def given_first(joint: Mapping[Path, float]) -> dict[Path, float]:
    """Return the distribution given the likeliest first token."""
    first: dict[int, float] = {}
    for path, mass in joint.items():
        first[path[0]] = first.get(path[0], 0.0) + mass
    chosen = max(first, key=lambda token_id: first[token_id])
    return {path: mass / first[chosen] for path, mass in joint.items() if path[0] == chosen}


def last_tokens(joint: Mapping[Path, float], count: int) -> dict[Path, float]:
    """Return the joint distribution of the last `count` tokens."""
    key = lambda item: item[0][-count:]  # noqa: E731 - used twice in the next line alone
    groups = itertools.groupby(sorted(joint.items(), key=key), key)
    return {path: math.fsum(mass for _, mass in group) for path, group in groups}


def assert_g_test_passes(counts: Mapping[Path, int], expected: Mapping[Path, float]) -> None:
    """Assert that counts agree with probabilities (likelihood-ratio test, cells under five pooled)."""
    total = sum(counts.values())
    impossible = {path for path in counts if path not in expected}
    assert not impossible, f"G = inf: {impossible} cannot come"
    cells = [(counts.get(path, 0), mass * total) for path, mass in expected.items()]
    rare = [cell for cell in cells if cell[1] < 5]
    cells = [cell for cell in cells if cell[1] >= 5]
    if rare:
        cells.append((sum(seen for seen, _ in rare), sum(wanted for _, wanted in rare)))
    statistic = 2 * sum(seen * math.log(seen / wanted) for seen, wanted in cells if seen)
    assert len(cells) > 1
    p_value = float(chi2.sf(statistic, len(cells) - 1))
    assert p_value > SIGNIFICANCE, f"G = {statistic:.1f} over {len(cells)} cells, p = {p_value:.2g}"
