"""What adapters find wrong or name fires on what it is for, and on nothing else."""

from typing import Any

import pytest

from draftproof.core.records import SpecCounts
from draftproof.services.engines import ADAPTERS, REFERENCE, adapter_for
from draftproof.services.engines.adapter import ProbeObservation
from draftproof.services.engines.chat.metrics_block import _check_steps
from draftproof.services.engines.protocol import Answer


def counts(drafted, accepted, steps=2):
    return SpecCounts(
        num_spec_steps=steps,
        num_draft_tokens=8,
        num_accepted_draft_tokens=3,
        acceptance_histogram=(),
        per_step_drafted=drafted,
        per_step_accepted=accepted,
    )


def test_lists_of_steps_that_contradict_the_counters_are_a_fault():
    """Their number and their sums must be those of the counters; a service without lists has none."""
    assert _check_steps(counts((4, 4), (1, 2))) == []
    assert _check_steps(counts((), ())) == []
    for odd in (counts((4, 4), (1, 1)), counts((4, 3), (1, 2)), counts((4, 4), (1, 2), steps=3)):
        (fault,) = _check_steps(odd)
        assert fault.startswith("the lists of steps hold 2 steps")


@pytest.mark.parametrize(
    ("engine", "settings", "named"),
    [
        ("vllm", {"speculation.num_speculative_tokens_per_batch_size": "[[1,8,4]]"}, True),
        ("sglang", {"speculation.adaptive": True}, True),
        ("sglang", {"speculation.adaptive": False}, False),
        ("tensorrt-llm", {"speculation.max_concurrency": 4}, True),
        ("reference", {"speculation.policy": "auto"}, True),
        ("reference", {"speculation.policy": "fixed"}, False),
        ("llamacpp", {"speculation.adaptive": True}, False),
    ],
)
def test_a_setting_that_lets_drafting_pause_is_named(engine, settings, named):
    """Key and value, where the engine knows such a policy and it is on."""
    ((key, value),) = settings.items()
    assert adapter_for(engine).facts.name_pausing_policy(settings) == (f"{key} = {value}" if named else None)


def test_a_llamacpp_server_is_known_by_its_models_too():
    """Without a build in /props the owner of the models tells; another owner is another engine."""
    adapter = ADAPTERS["llamacpp"]
    told = {owner: b'{"data": [{"id": "m", "owned_by": "%s"}]}' % owner for owner in (b"llamacpp", b"vllm")}
    assert adapter.read_identity({"/v1/models": told[b"llamacpp"]}).engine == "llamacpp"
    assert adapter.read_identity({"/v1/models": told[b"vllm"]}).engine is None


def test_an_idle_drafter_of_the_reference_engine_is_named():
    """By its method; without one nothing is idle."""
    assert REFERENCE.explain_idle(ProbeObservation(settings={"speculation.method": "self"})) == (
        "the drafter of self is idle"
    )
    assert REFERENCE.explain_idle(ProbeObservation(settings={"speculation.method": "off"})) is None


def test_synthetic_acceptance_that_refuses_everything_is_named():
    """VLLM's own stand-in for a verifier, and not the drafter, is why no draft is taken."""
    settings: dict[str, Any] = {
        "speculation.method": "draft_model",
        "speculation.rejection_sample_method": "synthetic",
    }
    answer = Answer(speculation=SpecCounts(4, 16, 0, ()))
    found = ADAPTERS["vllm"].explain_idle(ProbeObservation(settings=settings, answer=answer, after={}))
    assert found == "synthetic acceptance refuses every draft"
    plain: dict[str, Any] = {**settings, "speculation.rejection_sample_method": "standard"}
    other = ADAPTERS["vllm"].explain_idle(ProbeObservation(settings=plain, answer=answer, after={}))
    assert "vocabularies" in str(other)
