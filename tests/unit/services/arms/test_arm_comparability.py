"""Arms are compared only where they differ in nothing but what the plan declares."""

import pytest
from arm_builders import ATTACHED, NGRAM, OFF, manifest, plan

from draftproof.core.errors import IncompatibleError
from draftproof.services.arms.comparability import (
    check_comparable,
    check_devices,
    check_settings_applied,
    find_differences,
)
from draftproof.services.engines import adapter_for
from draftproof.services.engines.vllm import VLLM


def test_declared_difference_is_allowed():
    """The candidate may differ in speculation."""
    check_comparable([manifest(), manifest("candidate", NGRAM)], plan().comparison)
    assert [d.key for d in find_differences(manifest(), manifest("candidate", NGRAM))] == [
        "speculation.method"
    ]


def test_every_undeclared_difference_is_named_with_both_values():
    """A hidden second change stops the run; all keys and both values are named."""
    other = manifest("candidate", NGRAM | {"max_num_seqs": 16, "num_threads": 2})
    with pytest.raises(IncompatibleError) as caught:
        check_comparable([manifest(), other], plan().comparison)
    assert caught.value.place == "arms.candidate"
    assert "max_num_seqs (8 / 16), num_threads (absent / 2)" in str(caught.value)
    assert "speculation.method" not in str(caught.value)


@pytest.mark.parametrize("change", [{"engine": "other"}, {"engine_version": "2"}])
def test_engine_and_version_must_agree(change):
    """Two versions of an engine are not comparable."""
    with pytest.raises(IncompatibleError, match=next(iter(change))):
        check_comparable([manifest(), manifest("candidate", **change)], plan().comparison)


def test_null_arm_may_differ_in_nothing():
    """What is allowed to the candidate is not allowed to the null arm."""
    with pytest.raises(IncompatibleError, match=r"arms\.baseline_null.*speculation\.method"):
        check_comparable([manifest(), manifest("baseline_null", NGRAM)], plan().comparison)


def test_alternative_may_differ_where_it_is_declared():
    """The alternative's own list counts, not the candidate's."""
    declared = plan('[comparison]\nalternative_may_differ = ["max_num_seqs"]\n').comparison
    check_comparable([manifest(), manifest("alternative", OFF | {"max_num_seqs": 16})], declared)
    with pytest.raises(IncompatibleError, match=r"speculation\.method"):
        check_comparable([manifest(), manifest("alternative", NGRAM)], declared)


def test_address_and_memory_are_not_compared():
    """Two services differ in port, url, command, load time and memory by nature."""
    left = manifest(settings=OFF | {"port": 1, "url": "a"}, resident_bytes=1)
    right = manifest("baseline_null", OFF | {"port": 2}, url="b", command=("x",), load_time_s=3.0)
    assert find_differences(left, right) == ()


def test_true_is_not_one():
    """Values of different types differ even where Python calls them equal."""
    found = find_differences(manifest(settings={"x": True}), manifest(settings={"x": 1}))
    assert [d.key for d in found] == ["x"]


def test_setting_that_is_not_in_force_is_named():
    """A service that ignores a setting of the plan is found, with both values."""
    with pytest.raises(
        IncompatibleError, match=r"max_num_seqs \(plan 16, service 8\), z \(plan 1, service absent\)"
    ):
        check_settings_applied({"max_num_seqs": 16, "z": 1}, manifest())


def test_a_drafter_of_its_own_is_a_declared_difference():
    """Off against an attached head passes with the plan's defaults: policy, drafter and hash may differ."""
    stated = ATTACHED | {"drafters": '["builtin:attached"]'}
    base = OFF | {"speculation.policy": "fixed", "drafters": "[]"}
    check_comparable([manifest(settings=base), manifest("candidate", stated)], plan().comparison)
    found = {d.key for d in find_differences(manifest(settings=base), manifest("candidate", stated))}
    assert found == {
        "speculation.method", "speculation.policy", "drafter", "drafter.attached", "drafter.attached.sha256",
    }  # fmt: skip


def test_other_kernels_are_a_hidden_second_change():
    """An arm that fell back to other arithmetic is not comparable, whatever speculation it has."""
    arms = [
        manifest(settings=OFF | {"kernels": "native"}),
        manifest("candidate", ATTACHED | {"kernels": "portable"}),
    ]
    with pytest.raises(IncompatibleError, match=r"does not declare: kernels \(native / portable\)"):
        check_comparable(arms, plan().comparison)


def test_a_declared_key_covers_what_is_below_it_and_no_namesake():
    """`drafter` stands for `drafter.self`, and not for a key that only begins with the same letters."""
    check_comparable([manifest(), manifest("candidate", OFF | {"drafter.self": "x"})], plan().comparison)
    with pytest.raises(IncompatibleError, match="drafterless"):
        check_comparable([manifest(), manifest("candidate", OFF | {"drafterless": 1})], plan().comparison)


def test_the_null_arm_has_the_baseline_s_drafter():
    """Two baselines with different weights in their drafter are not the same service."""
    arms = [
        manifest(settings=ATTACHED),
        manifest("baseline_null", ATTACHED | {"drafter.attached.sha256": "b"}),
    ]
    with pytest.raises(IncompatibleError, match=r"drafter\.attached\.sha256 \(f00d / b\)"):
        check_comparable(arms, plan().comparison)


def test_the_plan_s_drafter_must_be_the_one_in_force():
    """The service's list of drafters is compared with the plan's name."""
    check_settings_applied({"drafter": "layers:0-9"}, manifest(settings={"drafters": '["layers:0-9"]'}))
    for stated in ('["layers:0-8"]', '["layers:0-9","x"]', "[]", "no list", None):
        with pytest.raises(IncompatibleError, match=r"drafter \(plan layers:0-9, service "):
            check_settings_applied({"drafter": "layers:0-9"}, manifest(settings={"drafters": stated}))


def test_kernels_left_to_the_service_are_any():
    """`auto` is no fault where the service states what it chose; a named one must be in force."""
    check_settings_applied({"kernels": "auto"}, manifest(settings={"kernels": "native"}))
    with pytest.raises(IncompatibleError, match=r"kernels \(plan native, service portable\)"):
        check_settings_applied({"kernels": "native"}, manifest(settings={"kernels": "portable"}))
    with pytest.raises(IncompatibleError, match=r"speculation\.policy \(plan auto, service fixed\)"):
        check_settings_applied(
            {"speculation.policy": "auto"}, manifest(settings={"speculation.policy": "fixed"})
        )


def test_a_plan_may_spell_the_method_as_the_engine_takes_it():
    """A method that the engine maps to another name is in force under that name."""
    running = manifest(settings={"speculation.method": "mtp"})
    check_settings_applied({"speculation.method": "qwen3_5_mtp"}, running, VLLM.facts.name_method)
    with pytest.raises(IncompatibleError, match="eagle3"):
        check_settings_applied({"speculation.method": "eagle3"}, running, VLLM.facts.name_method)


@pytest.mark.parametrize(
    ("engine", "settings", "devices"),
    [
        ("vllm", {"tensor_parallel_size": 4, "pipeline_parallel_size": 2}, 8),
        ("vllm", {"tensor_parallel_size": 2, "data_parallel_size": 3}, 6),
        ("sglang", {"tp_size": 4, "pp_size": 1, "dp_size": 2}, 8),
        ("sglang", {"tp_size": 4, "pp_size": 1, "dp_size": 2, "enable_dp_attention": True}, 4),
        ("tensorrt-llm", {"tensor_parallel_size": 2, "context_parallel_size": 2}, 4),
        ("tgi", {"num_shard": 2}, 2),
        ("llamacpp", {"device": "CUDA0", "speculation.draft_device": "CUDA1"}, 2),
        ("llamacpp", {"device": "CUDA0,CUDA1", "speculation.draft_device": "CUDA1"}, 2),
        ("llamacpp", {"device": "none"}, None),
        ("vllm", {}, None),
        ("generic", {"tensor_parallel_size": 8}, None),
    ],
)
def test_devices_are_counted_from_the_settings(engine, settings, devices):
    """Parallel sizes multiply, but for one that lies within another; lists of devices are joined."""
    assert adapter_for(engine).facts.count_devices(settings) == devices


def test_an_arm_that_takes_more_devices_than_its_budget_stops_the_comparison():
    """Both numbers are named; fewer than granted, or none told, is no fault."""
    with pytest.raises(
        IncompatibleError, match=r"arms\.candidate\.devices: the service takes 8 devices .* is 1"
    ):
        check_devices(manifest("candidate"), 1, 8)
    for used in (1, 8, None):
        check_devices(manifest("candidate"), 8, used)


def test_arms_on_other_accelerators_or_drivers_are_not_comparable():
    """A difference that both arms tell stops the comparison by name; what only one tells does not."""
    here = manifest(platform={"accelerator": "NVIDIA H100", "driver": "550"})
    other = manifest("candidate", NGRAM, platform={"accelerator": "NVIDIA L4", "driver": "550", "torch": "2"})
    with pytest.raises(IncompatibleError, match=r"platform\.accelerator \(NVIDIA H100 / NVIDIA L4\)"):
        check_comparable([here, other], plan().comparison)
    same = manifest("candidate", NGRAM, platform={"accelerator": "NVIDIA H100", "nccl": "2"})
    check_comparable([here, same], plan().comparison)
    check_comparable([here, manifest("candidate", NGRAM)], plan().comparison)
