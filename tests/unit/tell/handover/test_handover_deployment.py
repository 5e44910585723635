"""An approval holds for the service that was approved: what changed is named, what is unknown not guessed."""

from datetime import date

import msgspec
import pytest
from package_builders import DIGESTS
from tests.builders.records import build_arm_manifest, build_contract, build_manifest

from draftproof.cli.verify import describe_deployment
from draftproof.core.errors import UsageError
from draftproof.judge.compare.comparison import ArmFacts, name_trigger
from draftproof.operate.deployment import check_end, compare_deployment
from draftproof.plan.tables import Approval

TODAY = date(2026, 6, 1)
CHANGES = [
    ({"version": "0.12.0"}, "version", "engine_version"),
    ({"target_sha256": "d" * 64}, "model_hash", "target_sha256"),
    ({"drafter_sha256": "d" * 64}, "drafter_hash", "drafter_sha256"),
    ({"settings": {"max_num_seqs": 16}}, "flags", "max_num_seqs"),
    ({"settings": {"speculation.num_spec_tokens": 5}}, "flags", "speculation.num_spec_tokens"),
    ({"platform": {"accelerator": "NVIDIA L4"}}, "accelerator", "accelerator"),
    ({"platform": {"driver": "560"}}, "driver", "driver"),
    ({"platform": {"torch": "2.10"}}, "libraries", "torch"),
    ({"platform": {"attention_backend": "FLASHINFER"}}, "kernels", "attention_backend"),
]
SETTINGS = {
    "speculation.method": "draft_model",
    "speculation.num_spec_tokens": 4,
    "max_num_seqs": 8,
    "served_model": "/models/target",
    "launch": "/usr/bin/serve /models/target",
}


PLATFORM = {"accelerator": "NVIDIA H100", "driver": "550", "torch": "2.9", "attention_backend": "FLASH_ATTN"}


def facts(*, settings=None, platform=PLATFORM, command=("/usr/bin/serve", "--port", "8000"), **changes):
    contract = build_contract(
        arm="candidate",
        target_model="/models/target",
        target_sha256=DIGESTS["target"],
        tokenizer_sha256=DIGESTS["tokenizer"],
        drafter_kind="draft_model",
        drafter_sha256=DIGESTS["drafter"],
    )
    manifest = build_arm_manifest(
        arm="candidate",
        engine="vllm",
        engine_version=changes.pop("version", "0.11.0"),
        command=command,
        settings=SETTINGS | (settings or {}),
        platform=PLATFORM | platform,
    )
    return ArmFacts(manifest=manifest, contract=msgspec.structs.replace(contract, **changes))


def approved(one=None):
    one = one or facts()
    return build_manifest(arms=(one.manifest,), contracts=(one.contract,))


def compare(running, *, package=None, decision="adopt", **approval):
    return compare_deployment(package or approved(), Approval(**approval), running, TODAY, decision)


def test_the_same_service_keeps_its_approval():
    """Started again, on another port, under another program path: nothing changed."""
    again = facts(command=("/opt/bin/serve", "--port", "9000"), settings={"launch": "/opt/bin/serve /m"})
    found = compare(again)
    assert found.holds
    assert (found.voided, found.unknown, found.undeclared, found.facts) == ((), (), (), ())


@pytest.mark.parametrize(("changes", "trigger", "key"), CHANGES)
def test_a_change_voids_the_approval_and_is_named(changes, trigger, key):
    """The trigger that fired, and the fact behind it with both values."""
    found = compare(facts(**changes))
    assert not found.holds
    assert found.voided == (trigger,)
    assert key in {one.key for one in found.facts}


def test_a_new_tokenizer_is_named_as_such():
    """It voids as a tokenizer, and as a part of the model."""
    found = compare(facts(tokenizer_sha256="e" * 64))
    assert found.voided == ("model_hash", "tokenizer")


def test_only_declared_triggers_void():
    """What the approved plan does not declare is told and does not void."""
    found = compare(facts(version="0.12.0"), change_triggers=("drafter_hash",))
    assert found.holds
    assert found.undeclared == ("version",)


def test_the_same_weights_under_another_name_are_the_same():
    """A path is where a model lies, not what it is; without hashes the name is all there is."""
    moved = {"target_model": "/mnt/m", "settings": {"served_model": "/mnt/m"}}
    assert compare(facts(**moved)).holds
    unhashed = facts(target_sha256=None)
    found = compare(facts(**moved, target_sha256=None), package=approved(unhashed))
    assert found.voided == ("model_hash",)


def test_what_an_attached_service_does_not_disclose_is_unknown():
    """A setting that only the launched one told is neither changed nor unchanged, and is named."""
    running = facts(command=None)
    told = dict(running.manifest.settings)
    del told["max_num_seqs"]
    running = ArmFacts(
        manifest=msgspec.structs.replace(running.manifest, settings=told), contract=running.contract
    )
    found = compare(running)
    assert found.holds
    assert (found.unknown, found.undisclosed) == (("flags",), ("max_num_seqs",))
    assert running.manifest is not None
    started = msgspec.structs.replace(running.manifest, command=("serve",))
    assert compare(msgspec.structs.replace(running, manifest=started)).voided == ("flags",)


def test_unknown_versions_and_hashes_are_unknown():
    """A managed service says little: named, not passed."""
    package = approved(facts(version="unknown", target_sha256=None, tokenizer_sha256=None))
    found = compare(facts(version="unknown", target_sha256=None, tokenizer_sha256=None), package=package)
    assert set(found.unknown) == {"version", "model_hash", "tokenizer"}


@pytest.mark.parametrize(("until", "holds"), [("2026-06-01", True), ("2026-05-31", False)])
def test_an_approval_ends_after_its_last_day(until, holds):
    """With a deployment and without one."""
    found = compare(facts(), valid_until=until)
    assert found.holds is holds
    assert (check_end(Approval(valid_until=until), TODAY, "adopt") is None) is holds


def test_a_package_without_a_candidate_is_refused():
    """There is nothing to compare with."""
    with pytest.raises(UsageError, match="says nothing of its candidate"):
        compare(facts(), package=build_manifest())


@pytest.mark.parametrize("decision", ["defer", "inconclusive", "invalid"])
def test_a_verdict_that_approves_nothing_leaves_nothing_to_hold(decision):
    """The same service: with another verdict its approval would hold."""
    found = compare(facts(), decision=decision)
    assert (found.state, found.holds) == ("nothing_approved", False)
    assert describe_deployment(found) == (
        f"NOTHING APPROVED: the verdict is {decision}, and there is nothing to hold"
    )
    assert compare(facts(), decision="adopt_limited").holds


def test_where_no_declared_trigger_can_be_told_the_approval_is_not_said_to_hold():
    """One that can be told is enough; what cannot is listed."""
    unknown = facts(version="unknown", target_sha256=None, tokenizer_sha256=None)
    package = approved(unknown)
    found = compare(unknown, package=package, change_triggers=("version", "tokenizer"))
    assert (found.state, found.holds, found.unknown) == ("unknown", False, ("version", "tokenizer"))
    assert describe_deployment(found).startswith("NOT KNOWN WHETHER THE APPROVAL HOLDS")
    assert compare(unknown, package=package, change_triggers=("version", "driver")).holds


def test_each_changed_value_says_whether_it_voids():
    """By its trigger; one that no trigger watches, or that the plan does not declare, voids nothing."""
    after = facts(version="0.12.0", max_output_tokens=64, platform={"driver": "560"})
    text = describe_deployment(compare(after, change_triggers=("version",)))
    assert "engine engine_version: 0.11.0 -> 0.12.0 (voids: version)" in text
    assert "platform driver: 550 -> 560 (voids nothing: driver is no trigger of the approved plan)" in text
    assert "-> 64 (voids nothing: no trigger watches it)" in text


@pytest.mark.parametrize("change", CHANGES)
def test_the_trigger_of_a_fact_is_the_one_that_fires_for_it(change):
    """Naming and finding agree: what voids is said at the fact that did it."""
    changes, trigger, key = change
    (fact,) = [one for one in compare(facts(**changes)).facts if one.key == key]
    assert name_trigger(fact.group, fact.key) == trigger
