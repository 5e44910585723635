"""Change triggers and configuration facts: what fires, what does not, and what is not disclosed."""

import pytest
from tests.builders.records import build_arm_manifest, build_contract

from draftproof.judge.compare.comparison import ArmFacts, find_triggers, normalise_command
from draftproof.judge.compare.configuration import compare_arm_facts
from draftproof.plan.tables import PLATFORM_PARTS

PARTS = ("accelerator", "driver", "libraries", "kernels")
SETTINGS = {"served_model": "m", "dtype": "bfloat16", "speculation.method": "draft_model"}
DISCLOSED = {
    "target_sha256": "t1",
    "tokenizer_sha256": "k1",
    "drafter_kind": "draft_model",
    "drafter_identity": "small",
    "drafter_sha256": "d1",
    "confounds": (),
}


def build_facts(manifest=None, contract=None, settings=None):
    return ArmFacts(
        manifest=build_arm_manifest(
            **{"engine_version": "1.0", "settings": SETTINGS | (settings or {})} | (manifest or {})
        ),
        contract=build_contract(**DISCLOSED | (contract or {})),
    )


@pytest.mark.parametrize(
    ("after", "fired"),
    [
        ({}, ()),
        ({"manifest": {"engine_version": "1.1"}}, ("version",)),
        ({"manifest": {"engine": "other"}}, ("version",)),
        ({"contract": {"target_sha256": "t2"}}, ("model_hash",)),
        ({"contract": {"tokenizer_sha256": "k2"}}, ("model_hash",)),
        ({"contract": {"target_revision": "r2"}}, ("model_hash",)),
        ({"settings": {"served_model": "n"}}, ("model_hash",)),
        ({"contract": {"drafter_sha256": "d2"}}, ("drafter_hash",)),
        ({"contract": {"drafter_identity": "smaller"}}, ("drafter_hash",)),
        ({"settings": {"drafter.attached.sha256": "d3"}}, ("drafter_hash",)),
        ({"settings": {"dtype": "float32"}}, ("flags",)),
        ({"settings": {"max_num_seqs": 4}}, ("flags",)),
        ({"settings": {"port": 9, "host": "::1", "capacity.kv_blocks": 7}}, ()),
        (
            {"manifest": {"engine_version": "2"}, "contract": {"target_sha256": "x", "drafter_sha256": "y"}},
            ("version", "model_hash", "drafter_hash"),
        ),
    ],
)
def test_each_trigger_fires_for_its_own_change_alone(after, fired):
    """A change fires the trigger that it belongs to; address and what follows from memory fire none."""
    found = find_triggers(build_facts(), build_facts(**after))
    assert found.fired == fired
    assert found.unknown == PARTS


def test_what_is_not_disclosed_is_neither_changed_nor_the_same():
    """A service that says nothing has no trigger that can be told."""
    silent = ArmFacts(
        manifest=build_arm_manifest(
            engine="generic", engine_version="unknown", settings={"served_model": "m"}
        ),
        contract=build_contract(drafter_kind="undisclosed", algorithm="undisclosed"),
    )
    found = find_triggers(silent, silent)
    assert found.fired == ()
    assert found.unknown == ("version", "model_hash", "drafter_hash", "flags", *PARTS)
    assert find_triggers(ArmFacts(manifest=None, contract=None), silent).fired == ("model_hash",)


def test_a_hash_that_came_or_went_is_a_change():
    """A model that was identified and is not any more is no unchanged model."""
    found = find_triggers(build_facts(), build_facts(contract={"target_sha256": None}))
    assert found.model_hash is True


@pytest.mark.parametrize("kind", ["none", "ngram"])
def test_a_drafter_without_weights_has_no_hash_to_miss(kind):
    """Lookup and ordinary decoding have no drafter file, so its trigger is known to be quiet."""
    facts = build_facts(contract={"drafter_kind": kind, "drafter_identity": None, "drafter_sha256": None})
    assert find_triggers(facts, facts).drafter_hash is False


def test_the_port_of_a_launched_service_is_no_flag():
    """The same command on another port is the same command; another number in it is not."""
    runs = [
        build_arm_manifest(url=f"http://127.0.0.1:{port}", command=("serve", "--port", str(port), "-n", "80"))
        for port in (8000, 43211)
    ]
    assert normalise_command(runs[0]) == normalise_command(runs[1]) == "serve --port {port} -n 80"
    facts = [ArmFacts(manifest=run, contract=None) for run in runs]
    assert find_triggers(*facts).flags is False
    assert compare_arm_facts("baseline", *facts) == ()
    other = build_arm_manifest(url="http://127.0.0.1:8000", command=("serve", "--port", "8000", "-n", "81"))
    assert find_triggers(facts[0], ArmFacts(manifest=other, contract=None)).flags is True


def test_facts_of_an_arm_are_listed_with_both_values():
    """Settings, contract fields and confounds that differ are named; what agrees is not."""
    before = build_facts(contract={"confounds": ("held equal: x.",), "fallback": "none"})
    after = build_facts(
        contract={"confounds": ("changes too: x.",), "fallback": "ordinary"}, settings={"dtype": "float32"}
    )
    found = {(one.group, one.key): (one.before, one.after) for one in compare_arm_facts("a", before, after)}
    assert found.pop(("settings", "dtype")) == ("bfloat16", "float32")
    assert found.pop(("contract", "fallback")) == ("none", "ordinary")
    assert set(found) == {("confounds", "confounds")}
    texts = [
        (one.before, one.after) for one in compare_arm_facts("a", before, after) if one.group == "confounds"
    ]
    assert texts == [("held equal: x.", None), (None, "changes too: x.")]


def test_the_address_counts_for_a_service_that_was_attached_to():
    """A managed API at another address is another service until shown otherwise."""
    facts = [
        ArmFacts(manifest=build_arm_manifest(url=f"https://{name}.example/v1"), contract=None)
        for name in "ab"
    ]
    (found,) = compare_arm_facts("baseline", *facts)
    assert (found.key, found.before, found.after) == (
        "url",
        "https://a.example/v1",
        "https://b.example/v1",
    )


FACTS = [(name, part) for part, names in PLATFORM_PARTS.items() for name in names]


@pytest.mark.parametrize(("fact", "part"), FACTS)
def test_each_part_of_the_platform_fires_for_its_own_change_alone(fact, part):
    """A changed accelerator, driver, library or kernel is named by its part; one told once fires nothing."""

    def stated(value):
        return build_facts(manifest={"platform": {fact: value}})

    assert find_triggers(stated("1"), stated("2")).fired == (part,)
    assert find_triggers(stated("1"), stated("1")).fired == ()
    assert part not in find_triggers(stated("1"), stated("1")).unknown
    assert part in find_triggers(stated("1"), build_facts()).unknown
    (change,) = compare_arm_facts("candidate", stated("1"), stated("2"))
    assert (change.group, change.key, change.before, change.after) == ("platform", fact, "1", "2")
