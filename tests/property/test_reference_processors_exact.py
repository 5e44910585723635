"""A round stays exact when the request changes the logits: every outcome enumerated, nothing sampled.

The distributions come from the functions the engine runs; what they must be is computed anew, row by row.
"""

import itertools
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from test_reference_verify_exact import (
    TOLERANCE,
    VOCAB,
    logits_after,
    round_outcomes,
)

from draftproof.reference import processors as processors_module
from draftproof.reference import spans as spans_module
from draftproof.reference.models.ragged import CacheShape
from draftproof.reference.proposer import Draft
from draftproof.reference.scheduler import LiveSequence
from draftproof.reference.types import GenerationRequest, SamplingParams, SpeculationParams

Prefix = tuple[int, ...]
PROMPT: Prefix = (1, 1)  # 3 is nowhere yet, 1 only here
COMMITTED: Prefix = (2, 0, 2)  # output before the round that is enumerated
LENGTH = 3  # positions looked at jointly
EOS_ID = 0


def sampling_of(**fields: object) -> SamplingParams:
    return SamplingParams(max_tokens=99, **{"temperature": 0.9, **fields})  # type: ignore[arg-type]


SAMPLINGS = {
    "repetition": sampling_of(repetition_penalty=1.8),
    "repetition_below_1": sampling_of(repetition_penalty=0.6),
    "presence": sampling_of(presence_penalty=1.3),
    "frequency": sampling_of(frequency_penalty=0.9),
    "all_penalties": sampling_of(repetition_penalty=1.3, presence_penalty=-0.7, frequency_penalty=0.4),
    "bias": sampling_of(logit_bias=((1, 1.5), (2, -100.0))),
    "bias_and_repetition": sampling_of(logit_bias=((0, 2.0), (3, -2.0)), repetition_penalty=1.5),
    "min_p": sampling_of(min_p=0.3),
    "min_p_top_k_top_p": sampling_of(min_p=0.05, top_k=3, top_p=0.9, presence_penalty=0.8),
    "min_tokens": sampling_of(min_tokens=len(COMMITTED) + 2),
    "grammar": sampling_of(json_schema="{}"),
    "grammar_min_tokens_penalty": sampling_of(json_schema="{}", min_tokens=5, frequency_penalty=1.0),
    "greedy": sampling_of(temperature=0.0, repetition_penalty=1.5, frequency_penalty=0.9, min_p=0.5),
}


def grammar_allows(output: Prefix) -> np.ndarray:
    """Return [vocab] bool of a made-up grammar: what may follow depends on all that came before."""
    allowed = np.ones(VOCAB, dtype=bool)
    allowed[[sum(output) % VOCAB, (sum(output) + len(output)) % VOCAB]] = False
    return allowed


class MadeUpConstraint:
    """Stands in for a compiled grammar."""

    failure = None

    def __init__(self) -> None:
        self.output: Prefix = ()

    def commit(self, token_id: int) -> None:
        self.output = (*self.output, token_id)

    def allowed(self, draft_ids) -> torch.Tensor:
        rows = [grammar_allows((*self.output, *draft_ids[:depth])) for depth in range(len(draft_ids) + 1)]
        return torch.from_numpy(np.stack(rows))


def reference_probs(output: Prefix, sampling: SamplingParams) -> np.ndarray:
    """Return [vocab], what the next token must be distributed like after an output, by its definition."""
    logits = logits_after(output, salt=1).copy()
    for token_id, bias in sampling.logit_bias:
        logits[token_id] += bias
    for token_id in range(VOCAB):
        if token_id in PROMPT + output:
            factor = sampling.repetition_penalty
            logits[token_id] = (
                logits[token_id] / factor if logits[token_id] > 0 else logits[token_id] * factor
            )
        logits[token_id] -= sampling.frequency_penalty * output.count(token_id)
        logits[token_id] -= sampling.presence_penalty * (token_id in output)
    banned = np.zeros(VOCAB, dtype=bool) if sampling.json_schema is None else ~grammar_allows(output)
    if len(output) < sampling.min_tokens:
        banned[EOS_ID] = True
    logits[banned] = -np.inf
    return truncated_softmax(logits, sampling)


def truncated_softmax(logits: np.ndarray, sampling: SamplingParams) -> np.ndarray:
    if sampling.temperature == 0.0:
        return np.asarray(np.eye(VOCAB)[logits.argmax()])
    probs = np.exp((logits - logits.max()) / sampling.temperature)
    probs[probs < sampling.min_p * probs.max()] = 0.0
    order = np.argsort(-probs)
    probs[order[sampling.top_k or VOCAB :]] = 0.0
    probs /= probs.sum()
    before = np.cumsum(probs[order]) - probs[order]
    probs[order[before >= sampling.top_p]] = 0.0
    return np.asarray(probs / probs.sum())


def ordinary_joint(sampling: SamplingParams, path: Prefix = ()) -> dict[Prefix, float]:
    """Return the probability of every continuation of the committed output by ordinary decoding."""
    if len(path) == LENGTH:
        return {path: 1.0}
    joint: dict[Prefix, float] = {}
    for token_id, prob in enumerate(reference_probs(COMMITTED + path, sampling)):
        if prob > 0.0:
            rest = ordinary_joint(sampling, (*path, token_id))
            joint |= {whole: float(prob) * mass for whole, mass in rest.items()}
    return joint


def drafts_of(*, certain: bool) -> Iterator[tuple[Prefix, float, torch.Tensor | None]]:
    """Return every draft, its probability and the rows it was drawn from; the drafter knows no penalties."""
    if certain:
        yield from (
            ((first, second), 1 / VOCAB**2, None) for first in range(VOCAB) for second in range(VOCAB)
        )
        return
    for path in itertools.product(range(VOCAB), repeat=LENGTH - 1):
        rows = [logits_after(path[:depth], salt=2) for depth in range(LENGTH - 1)]
        probs = torch.softmax(torch.from_numpy(np.stack(rows)), dim=-1)
        yield path, float(probs[0, path[0]] * probs[1, path[1]]), probs


def live_sequence(sampling: SamplingParams) -> LiveSequence:
    """Return a sequence that has its committed output behind it."""
    sequence = LiveSequence(
        GenerationRequest(
            request_id="one", prompt_token_ids=PROMPT, sampling=sampling, speculation=SpeculationParams()
        ),
        arrival_ns=0,
        eos_ids=frozenset({EOS_ID}),
        max_model_len=999,
        cache_shape=CacheShape(
            num_layers=1, num_kv_heads=1, head_dim=1, dtype=torch.float32, device=torch.device("cpu")
        ),
        decode=lambda _token_ids: "",
        constraint=None if sampling.json_schema is None else MadeUpConstraint(),  # type: ignore[arg-type]
    )
    for token_id in COMMITTED:
        assert sequence.commit([token_id]).token_ids == (token_id,)
    return sequence


def engine_rows(
    path: Prefix, draft_probs: torch.Tensor | None, sampling: SamplingParams, monkeypatch: pytest.MonkeyPatch
) -> torch.Tensor:
    """Return [drafts + 1, vocab] that the engine's choice of tokens hands to `verify`.

    A greedy round takes a short cut past `verify`; its tokens then stand for one-hot rows.
    """
    seen: list[torch.Tensor] = []

    def take_rows(_draft_ids, rows, _draft_probs, _uniforms) -> list[int]:
        seen.append(rows)
        return []

    def take_ids(_draft_ids, target_ids) -> list[int]:
        seen.append(torch.eye(VOCAB)[target_ids])
        return []

    span = spans_module.decode_span(live_sequence(sampling), Draft([*path], draft_probs))
    logits = [logits_after(COMMITTED + path[:depth], salt=1) for depth in range(LENGTH)]
    with monkeypatch.context() as patch:
        patch.setattr(spans_module, "verify", take_rows)
        patch.setattr(spans_module, "verify_greedy", take_ids)
        spans_module.choose_tokens([span], torch.from_numpy(np.stack(logits)))
    return seen[0].double()


def worst_error(sampling: SamplingParams, monkeypatch: pytest.MonkeyPatch, *, certain: bool) -> float:
    """Return how far the joint distribution of a round, completed by ordinary decoding, is off anywhere."""
    joint = dict.fromkeys(itertools.product(range(VOCAB), repeat=LENGTH), 0.0)
    ordinary = ordinary_joint(sampling)
    after: dict[Prefix, dict[Prefix, float]] = {}
    for path, path_mass, draft_probs in drafts_of(certain=certain):
        target_probs = engine_rows(path, draft_probs, sampling, monkeypatch)
        for tokens, mass in round_outcomes(path, target_probs, draft_probs):
            known = tuple(tokens)
            if known not in after:
                after[known] = ordinary_joint(sampling, known)
            for whole, rest_mass in after[known].items():
                joint[whole] += path_mass * mass * rest_mass
    return max(abs(mass - ordinary.get(path, 0.0)) for path, mass in joint.items())


@pytest.mark.parametrize("certain", [True, False], ids=["one_hot_drafter", "general_drafter"])
@pytest.mark.parametrize("name", SAMPLINGS)
def test_round_has_ordinary_decodings_distribution(
    name: str,
    certain: bool,  # noqa: FBT001
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Over three positions and every draft, speculation has ordinary decoding's joint law to 1e-9."""
    assert worst_error(SAMPLINGS[name], monkeypatch, certain=certain) < TOLERANCE


def counts_without_drafts(output_ids, draft_ids, like):
    """Count as if every row stood after the committed tokens alone."""
    return ORIGINAL_COUNT(output_ids, [], like) + 0 * len(draft_ids)


def ends_held_back_in_all_rows(logits, end_ids, num_rows):
    """Hold back ends beyond the row that reaches `min_tokens`."""
    return ORIGINAL_FORBID_ENDS(logits, end_ids, num_rows + 1)


def grammar_of_the_first_row(logits, forbidden):
    """Mask every row by what the grammar forbids after the committed tokens."""
    return ORIGINAL_FORBID(logits, forbidden[:1].expand_as(forbidden))


ORIGINAL_COUNT = processors_module.count_tokens
ORIGINAL_FORBID_ENDS = processors_module.forbid_ends
ORIGINAL_FORBID = processors_module.forbid
MUTANTS = [
    ("frequency", "count_tokens", counts_without_drafts),
    ("repetition", "count_tokens", counts_without_drafts),
    ("min_tokens", "forbid_ends", ends_held_back_in_all_rows),
    ("grammar", "forbid", grammar_of_the_first_row),
]


@pytest.mark.parametrize(("name", "attribute", "mutant"), MUTANTS, ids=[f"{one[0]}" for one in MUTANTS])
def test_enumeration_catches_rows_of_the_wrong_prefix(
    name: str, attribute: str, mutant: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row processed for another prefix than its own moves the joint law by far more than rounding."""
    monkeypatch.setattr(processors_module, attribute, mutant)
    assert worst_error(SAMPLINGS[name], monkeypatch, certain=True) > 1e-3
