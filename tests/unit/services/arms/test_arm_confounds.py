"""What a method forces is declared, shown and charged to its arm; a baseline that gives it up is named."""

import msgspec
import pytest
from arm_builders import manifest, plan

from draftproof.core.errors import IncompatibleError
from draftproof.core.manifests import ArmManifest
from draftproof.plan.schema import Arm
from draftproof.services.arms.comparability import (
    check_comparable,
    describe_confounds,
    describe_forced,
    find_known_forced,
    find_pinned,
    find_undeclared,
)
from draftproof.services.arms.findings import judge_pinned
from draftproof.services.engines import ADAPTERS, adapter_for
from draftproof.services.engines.facts import Settings

VLLM = adapter_for("vllm")
NO_OVERLAP = "disable_overlap_scheduler"
TODAY: Settings = {"speculation.method": "off", "async_scheduling": True}
LOOKUP: Settings = {"speculation.method": "ngram", "async_scheduling": False}
DECLARED = plan(
    '[comparison.forced_by_method.candidate]\nasync_scheduling = "n-gram lookup rules it out."\n'
).comparison


def arms(baseline: Settings = TODAY, candidate: Settings = LOOKUP) -> tuple[ArmManifest, ArmManifest]:
    return manifest(settings=baseline), manifest("candidate", candidate)


def test_what_the_method_forces_is_no_undeclared_difference():
    """Declared with its reason, async scheduling may differ in the candidate, and in no other arm."""
    assert find_undeclared(*arms(), DECLARED) == ()
    assert find_undeclared(manifest(settings=TODAY), manifest("alternative", TODAY), DECLARED) == ()
    other = manifest("baseline_null", TODAY | {"async_scheduling": False})
    assert [one.key for one in find_undeclared(manifest(settings=TODAY), other, DECLARED)] == [
        "async_scheduling"
    ]


def test_the_remedy_for_a_forced_difference_is_to_declare_it():
    """Making both arms equal would slow the baseline down, so the fix names the plan's key and the reason."""
    with pytest.raises(IncompatibleError) as caught:
        check_comparable(arms(), plan().comparison, {"candidate": find_known_forced(VLLM, "ngram")})
    assert 'write async_scheduling = "asynchronous scheduling' in str(caught.value.fix)
    assert "into comparison.forced_by_method.candidate" in str(caught.value.fix)
    assert "make them equal" not in str(caught.value.fix)
    more = arms(candidate=LOOKUP | {"max_num_seqs": 4})
    with pytest.raises(IncompatibleError, match=r'; make them equal, or add "max_num_seqs" to comparison'):
        check_comparable(more, plan().comparison, {"candidate": find_known_forced(VLLM, "ngram")})


def test_a_forced_difference_is_told_with_both_values_and_the_reason():
    """One phrase a key; where no difference shows, that is said."""
    assert describe_forced(*arms(), DECLARED) == (
        "async_scheduling (True -> False): n-gram lookup rules it out",
    )
    silent = arms({"speculation.method": "off"}, {"speculation.method": "ngram"})
    assert describe_forced(*silent, DECLARED) == (
        "async_scheduling (no difference shows): n-gram lookup rules it out",
    )
    assert describe_forced(manifest(settings=TODAY), manifest("baseline_null", TODAY), DECLARED) == ()


@pytest.mark.parametrize(
    ("engine", "method", "told", "key"),
    [
        ("vllm", "ngram", {"command": ("vllm", "serve", "m", "--no-async-scheduling")}, "async_scheduling"),
        (
            "sglang",
            "NGRAM",
            {"command": ("sglang", "--disable-overlap-schedule")},
            "disable_overlap_schedule",
        ),
        ("sglang", "EAGLE", {"command": ("sglang", "--max-running-requests", "48")}, "max_running_requests"),
        (
            "tensorrt-llm",
            "NGram",
            {"settings": {"disable_overlap_scheduler": True}},
            "disable_overlap_scheduler",
        ),
        ("tgi", "n-gram", {"env": {"PREFILL_CHUNKING": "0"}}, "env.PREFILL_CHUNKING"),
    ],
)
def test_a_baseline_that_is_pinned_to_what_the_method_forces_is_found(engine, method, told, key):
    """Its flags, settings or environment give up what speculation rules out: it is no service of today."""
    adapter, drafting = adapter_for(engine), manifest("candidate", {"speculation.method": method})
    stated = Arm(engine=engine, **told)
    baseline = manifest(settings={}, command=stated.command)
    assert list(find_pinned(baseline, stated, drafting, adapter)) == [key]
    plain = Arm(engine=engine, command=("x", "{port}"))
    assert find_pinned(manifest(command=plain.command), plain, drafting, adapter) == {}
    off = manifest("candidate", {"speculation.method": "off"})
    assert find_pinned(baseline, stated, off, adapter) == {}


def test_a_pinned_baseline_warns_and_says_what_to_do():
    """The finding is the baseline's, names the key and the plan's table."""
    stated = Arm(engine="vllm", command=("vllm", "serve", "m", "--no-async-scheduling"))
    baseline = manifest(settings=TODAY, command=stated.command)
    adapters = {"baseline": VLLM, "candidate": VLLM}
    found = judge_pinned(baseline, stated, [baseline, manifest("candidate", LOOKUP)], adapters)
    assert [(one.code, one.severity, one.arm) for one in found] == [
        ("baseline_pinned", "warning", "baseline")
    ]
    assert "async_scheduling" in found[0].text
    assert "comparison.forced_by_method" in found[0].text
    default = Arm(engine="vllm", command=("vllm", "serve", "m"))
    plain = msgspec.structs.replace(baseline, command=default.command)
    assert judge_pinned(plain, default, [plain, manifest("candidate", LOOKUP)], adapters) == []


def test_what_a_service_chose_by_itself_is_no_pin():
    """A baseline that states no async scheduling without being told so has it off for a reason of its own."""
    stated = Arm(engine="vllm", command=("vllm", "serve", "m"))
    baseline = manifest(settings=TODAY | {"async_scheduling": False}, command=stated.command)
    assert find_pinned(baseline, stated, manifest("candidate", LOOKUP), VLLM) == {}


@pytest.mark.parametrize("engine", sorted(ADAPTERS))
def test_every_forced_setting_is_one_that_a_manifest_can_show(engine):
    """What a method forces is among the confound's settings or is the variable that pins it."""
    for one in adapter_for(engine).facts.confounds:
        assert {key for key in one.forces if not key.startswith("env.")} <= set(one.settings)
        assert not any(key.startswith("capacity.") for key in one.forces)


def test_confounds_are_held_equal_changed_or_not_visible():
    """Each confound of the method is told once, with its values where they show."""
    told = describe_confounds(*arms(), VLLM)
    assert any(one.startswith("changes too: asynchronous scheduling") for one in told)
    assert any(
        "async_scheduling True -> False); a copy of the baseline shows it alone" in one for one in told
    )
    equal = arms(TODAY | {"async_scheduling": False}, LOOKUP)
    assert any(one.startswith("held equal: asynchronous") for one in describe_confounds(*equal, VLLM))
    assert any(one.startswith("not visible here: ") for one in told)
    assert describe_confounds(manifest(), manifest("alternative"), VLLM) == ()
