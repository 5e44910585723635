"""The contract states what is known, and None where nothing is."""

import pytest
from arm_builders import NGRAM, OFF, item, manifest, plan

from draftproof.arms.contract import build_contract, decide_equivalence, find_unsupported_items
from draftproof.arms.model_files import ModelFacts
from draftproof.arms.tokenizers_compat import TokenizerComparison
from draftproof.plan.loading import load_builtin_plan
from draftproof.workload.reader import load_workload
from draftproof.workload.segments import select


def contract(arm: str = "candidate", settings=NGRAM, extra: str = "", facts=None, **changes):
    made = plan(extra)
    section = made.arms.candidate if arm == "candidate" else made.arms.baseline
    return build_contract(manifest(arm, settings, **changes), made, section, target=facts)


def test_ngram_on_the_reference_engine_is_exact_by_method():
    """n-gram lookup has no tokenizer of its own and is verified exactly."""
    made = contract(settings=NGRAM | {"speculation.ngram_min": 2, "speculation.ngram_max": 4})
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
        ("draftproof-reference", {"speculation.method": "eagle"}, "assumed"),
    ],
)
def test_equivalence_is_never_more_than_is_known(engine, settings, expected):
    """Of another engine or method exactness is an assumption, and without a method nothing is known."""
    assert decide_equivalence(manifest("candidate", settings, engine=engine)) == expected


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
    compared = TokenizerComparison(
        compatible=False, target_size=2, draft_size=2, differences=("id 1",), difference_count=1
    )
    made = build_contract(
        manifest("candidate", {"speculation.method": "draft_model"}),
        plan(),
        plan().arms.candidate,
        tokenizers=compared,
    )
    assert made.tokenizer_compatible is False
    assert made.tokenizer_differences == ("id 1",)


def test_demo_asks_for_nothing_that_its_engine_lacks():
    """The demo's own items pass its own preflight, nine of each of four tasks."""
    made, _ = load_builtin_plan("demo")
    choice = made.workload
    items = select(
        load_workload(choice.path), choice.where, choice.items_per_segment, choice.segment_by, made.seed
    )
    assert len(items) == 4 * 9
    assert find_unsupported_items(items, contract()) == {}


def test_items_with_a_response_schema_are_found_before_the_run():
    """The reference engine does not constrain decoding: items that ask for it are listed."""
    items = [item("a"), item("b", response_schema={"type": "object"})]
    assert find_unsupported_items(items, contract()) == {"response_schema": ("b",)}
    assert find_unsupported_items(items, contract(engine="vllm")) == {}
