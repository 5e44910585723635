"""The contract states what is known, and None where nothing is."""

from typing import Any

import pytest
from arm_builders import ATTACHED, NGRAM, OFF, manifest, plan

from draftproof.reference.http.wire import parse_wanted
from draftproof.reference.http.wire_fields import BadRequestError
from draftproof.reference.types import SpeculationParams
from draftproof.services.arms.contract import (
    build_contract,
    decide_equivalence,
    drafts_target_ids,
)
from draftproof.services.arms.model_files import ModelFacts, TokenizerComparison
from draftproof.services.arms.request_fit import list_unsupported
from draftproof.services.engines import GENERIC, REFERENCE, EngineAdapter, adapter_for
from draftproof.services.engines.reference import REFERENCE_ENGINE


def adapter_of(engine: str) -> EngineAdapter:
    """The adapter of an engine, or one that knows nothing of it."""
    known = {REFERENCE_ENGINE: REFERENCE, "vllm": adapter_for("vllm")}
    return known.get(engine, GENERIC)


def contract(arm: str = "candidate", settings=NGRAM, extra: str = "", facts=None, **changes):
    made = plan(extra)
    section = made.arms.candidate if arm == "candidate" else made.arms.baseline
    stated = manifest(arm, settings, **changes)
    return build_contract(stated, made, section, adapter_of(stated.engine), target=facts)


def test_ngram_on_the_reference_engine_is_exact_by_method():
    """n-gram lookup has no tokenizer of its own and is verified exactly."""
    bounds = {"speculation.ngram_min": 2, "speculation.ngram_max": 4}
    made = contract(settings=NGRAM | bounds | {"speculation.policy": "fixed"})
    assert made.equivalence == "guaranteed by method"
    assert made.tokenizer_compatible is True
    assert made.num_spec_tokens == 4
    assert made.draft_policy == "fixed: at most 4 drafted tokens a step, matching the last 2 to 4 tokens"


def test_baseline_has_no_drafter():
    """With speculation off there is no drafter, no draft length and nothing to fall back from."""
    made = contract("baseline", OFF)
    assert made.drafter_kind == "none"
    assert made.num_spec_tokens is None
    assert made.draft_policy is None
    assert made.fallback == "not needed: nothing is drafted"


@pytest.mark.parametrize(
    ("engine", "settings", "expected"),
    [
        ("vllm", NGRAM, "assumed"),
        ("vllm", {}, None),
        ("vllm", OFF, "guaranteed by method"),
        ("vllm", {"speculation.method": "draft_model"}, "assumed"),
        ("draftproof-reference", {"speculation.method": "eagle"}, "assumed"),
        ("draftproof-reference", {"speculation.method": "draft_model"}, "guaranteed by method"),
        ("draftproof-reference", ATTACHED, "guaranteed by method"),
        ("draftproof-reference", {"speculation.method": "self"}, "guaranteed by method"),
    ],
)
def test_equivalence_is_never_more_than_is_known(engine, settings, expected):
    """Of another engine or method exactness is an assumption, and without a method nothing is known."""
    assert decide_equivalence(manifest("candidate", settings, engine=engine), adapter_of(engine)) == expected


def test_undisclosed_service_has_none_for_what_is_unknown():
    """A service that discloses nothing gets None and `undisclosed`, not a guess."""
    made = contract(settings={}, engine="generic")
    assert (made.drafter_kind, made.algorithm, made.fallback) == ("undisclosed", "undisclosed", "unknown")
    assert made.tokenizer_compatible is None
    assert made.max_context_tokens is None
    assert made.target_licence is None
    assert made.target_sha256 is None


def test_plan_licence_wins_over_the_card_and_the_smaller_context_counts():
    """The plan's licence is the one that was reviewed; the smaller of two context limits holds."""
    facts = ModelFacts(licence="card", sha256="h", max_context_tokens=64)
    made = contract(settings=NGRAM | {"max_model_len": 32}, extra='[target]\nlicence = "plan"\n', facts=facts)
    assert made.target_licence == "plan"
    assert made.target_sha256 == "h"
    assert made.max_context_tokens == 32


def test_facts_of_the_drafter_come_from_the_plan():
    """Identity, provenance and licence of the drafter are those the plan states."""
    made = contract(extra='[arms.candidate.drafter]\nidentity = "lookup"\nlicence = "MIT"\n')
    assert (made.drafter_identity, made.drafter_licence, made.drafter_provenance) == ("lookup", "MIT", None)


def test_draft_with_another_tokenizer_is_in_the_contract():
    """The first differences of a tokenizer comparison are kept."""
    compared = TokenizerComparison(compatible=False, differences=("id 1",))
    made = build_contract(
        manifest("candidate", {"speculation.method": "draft_model"}),
        plan(),
        plan().arms.candidate,
        REFERENCE,
        tokenizers=compared,
    )
    assert made.tokenizer_compatible is False
    assert made.tokenizer_differences == ("id 1",)


VALUES: dict[str, Any] = {"use_beam_search": True, "continue_final_message": True, "chat_template": "x"}
LACKED = [field for feature in REFERENCE.facts.lacks for field in feature.fields]


@pytest.mark.parametrize("field", LACKED)
def test_what_the_contract_calls_unsupported_is_refused_by_the_engine(field):
    """Every field by which a feature of the list is asked for is one that the engine's reader refuses."""
    with pytest.raises(BadRequestError):
        parse_wanted({field: VALUES.get(field, [1])}, SpeculationParams(), "m", chat=True)


def test_only_media_are_lacking_without_a_field():
    """Of what the reference engine lacks, nothing but images and audio is told by no field."""
    assert [one.text for one in REFERENCE.facts.lacks if not one.fields] == ["images and audio"]
    assert contract().unsupported_features == tuple(one.text for one in REFERENCE.facts.lacks)


@pytest.mark.parametrize(
    "body",
    [
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "object"}}}},
        {"logprobs": True, "top_logprobs": 2},
        {"n": 2},
        {"presence_penalty": 1.0, "frequency_penalty": 1.0, "repetition_penalty": 1.2},
        {"min_p": 0.1},
    ],
)
def test_the_engine_takes_what_the_contract_does_not_list(body):
    """Schemas, logprobs, choices, penalties and min_p are read by the engine, so no contract denies them."""
    parse_wanted(body, SpeculationParams(), "m", chat=True)
    assert not set(body) & {field for one in list_unsupported(manifest(), REFERENCE) for field in one.fields}


def test_an_attached_head_is_described_by_what_the_service_states():
    """Name, hash, licence and provenance come from the service; the head speaks the target's tokens."""
    stated = {"drafter.attached.licence": "Apache-2.0", "drafter.attached.provenance": "trained here"}
    made = contract(settings=ATTACHED | stated | {"speculation.ngram_min": 2, "speculation.ngram_max": 4})
    assert (made.drafter_kind, made.drafter_identity, made.drafter_sha256) == ("attached", "attached", "f00d")
    assert (made.drafter_licence, made.drafter_provenance) == ("Apache-2.0", "trained here")
    assert made.algorithm.startswith("a trained head drafts from the target's hidden states")
    assert made.tokenizer_compatible is True
    assert made.draft_policy == (
        "auto: at most 4 drafted tokens a step, by recent acceptance and measured times, "
        "and none while drafting does not pay"
    )


def test_the_plan_s_words_on_a_drafter_win_over_the_service_s():
    """What a person reviewed is kept; the hash is that of the weights in force."""
    extra = '[arms.candidate.drafter]\nidentity = "mine"\nlicence = "MIT"\nprovenance = "bought"\n'
    facts = {"drafter.attached.licence": "x", "drafter.attached.provenance": "y"}
    made = contract(settings=ATTACHED | facts, extra=extra)
    assert (made.drafter_identity, made.drafter_licence, made.drafter_provenance) == ("mine", "MIT", "bought")
    assert made.drafter_sha256 == "f00d"


def test_drafters_of_other_methods_stay_out_of_the_contract():
    """A loaded drafter that the method in force does not use is not the arm's drafter."""
    made = contract(settings=ATTACHED | {"speculation.method": "ngram"})
    assert (made.drafter_identity, made.drafter_sha256) == (None, None)
    off = contract(settings=ATTACHED | {"speculation.method": "off"})
    assert (off.drafter_kind, off.drafter_identity, off.drafter_sha256) == ("none", None, None)


def test_skipping_layers_has_no_weights_of_its_own():
    """Plain layer skipping is the target: its licence, no training, no hash."""
    settings = OFF | {"speculation.method": "self", "drafter.self": "layers:0-9,20-29"}
    made = contract(settings=settings, extra='[target]\nlicence = "Apache-2.0"\n')
    assert (made.drafter_identity, made.drafter_sha256) == ("layers:0-9,20-29", None)
    assert made.drafter_licence == "Apache-2.0"
    assert made.drafter_provenance == "no training: the target's own layers"
    assert "layers skipped" in made.algorithm
    trained = contract(settings=settings | {"drafter.self": "early-exit", "drafter.self.sha256": "f00d"})
    assert (trained.drafter_sha256, trained.drafter_provenance) == ("f00d", None)
    assert "trained exit" in trained.algorithm


@pytest.mark.parametrize(
    ("settings", "engine", "expected"),
    [
        ({"speculation.method": "draft_model", "drafter.draft_model": "/m"}, "draftproof-reference", False),
        (
            {"speculation.method": "draft_model", "drafter.draft_model.sha256": "f"},
            "draftproof-reference",
            True,
        ),
        ({"speculation.method": "draft_model", "drafter.draft_model.sha256": "f"}, "vllm", False),
        ({"speculation.method": "attached"}, "draftproof-reference", True),
        ({"speculation.method": "attached"}, "vllm", False),
        ({"speculation.method": "self"}, "draftproof-reference", True),
        ({}, "draftproof-reference", False),
    ],
)
def test_only_a_foreign_draft_model_has_tokens_of_its_own(settings, engine, expected):
    """A drafter with a record drafts ids of its target; of a folder of any model that is not known."""
    assert drafts_target_ids(manifest("candidate", settings, engine=engine), adapter_of(engine)) is expected
    made = contract(settings=settings, engine=engine)
    assert made.tokenizer_compatible is (True if expected else None)


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("fixed", "fixed: at most 4 drafted tokens a step"),
        ("adaptive", "adaptive: at most 4 drafted tokens a step, by recent acceptance and measured times"),
        ("batch", "batch: at most 4 drafted tokens a step, by the number of decoding requests"),
        ("{x}", "{x}: at most 4 drafted tokens a step"),
        (None, "at most 4 drafted tokens a step"),
    ],
)
def test_the_policy_is_the_one_the_service_states(policy, expected):
    """No policy is claimed that the service does not state, and an unknown one keeps its name."""
    settings = OFF | {"speculation.method": "self", "speculation.policy": policy}
    assert contract(settings=settings).draft_policy == expected


def test_another_engine_s_verifier_is_not_called_exact():
    """The algorithm of an engine we do not know claims no more than its equivalence does."""
    assert contract(engine="vllm").algorithm.endswith("request's own tokens, verified by the target")
    unknown = contract(engine="vllm", settings={"speculation.method": "newest"})
    assert unknown.algorithm == "newest, a method of which nothing more is known"


def test_what_a_plan_claims_of_an_undisclosed_service_stays_a_claim():
    """Nothing such a service says is read, so a method in its settings is the plan's word, no proof."""
    claimed = contract(engine="other", settings={"speculation.method": "off"})
    assert (claimed.algorithm, claimed.equivalence) == ("undisclosed; the plan states off", None)
    assert contract().algorithm.endswith("verified exactly by the target")


LOSSY: dict[str, dict[str, Any]] = {
    "vllm": {"speculation.method": "ngram", "speculation.rejection_sample_method": "synthetic"},
    "sglang": {"speculation.method": "EAGLE3", "speculation.accept_threshold_acc": 0.9},
    "tensorrt-llm": {"speculation.method": "MTP", "speculation.use_relaxed_acceptance_for_thinking": True},
    "llamacpp": {"speculation.method": "ngram-simple", "speculation.synth_len": 2},
}


@pytest.mark.parametrize("engine", sorted(LOSSY))
def test_settings_that_change_the_output_make_an_arm_approximate(engine):
    """The contract never calls such an arm assumed or exact, and its algorithm says what changes."""
    adapter, settings = adapter_for(engine), LOSSY[engine]
    exact = {"speculation.method": settings["speculation.method"]}
    assert decide_equivalence(manifest("candidate", settings), adapter) == "approximate"
    assert decide_equivalence(manifest("candidate", exact), adapter) == "assumed"

    def describe(stated):
        made = manifest("candidate", stated, engine=engine)
        return build_contract(made, plan(), plan().arms.candidate, adapter).algorithm

    assert "; changes the output: " in describe(settings)
    assert "changes the output" not in describe(exact)


@pytest.mark.parametrize(
    ("method", "words"),
    [("ngram", "1 device"), ("draft_model", "1 device, the drafter on the target's"), ("off", "1 device")],
)
def test_the_topology_counts_a_drafter_that_has_weights(method, words):
    """A lookup runs on no device of its own; a draft model shares the target's unless the plan says more."""
    assert contract(settings=OFF | {"speculation.method": method}).topology == words
