"""The bill of materials is valid CycloneDX 1.6 and lists what the run used, models first."""

import json

import msgspec
import pytest
from package_builders import ARMS, DIGESTS, build_contract_of
from tests.builders.records import build_manifest

from draftproof.plan.tables import Approval
from draftproof.tell.handover.contents import find_tool_version, library_version, render_bom

APPROVAL = Approval(owner="team-serving", drafter_retirement="with the next target")
MANIFEST = build_manifest(
    created_wall_ns=1_767_945_600_000_000_000, contracts=tuple(map(build_contract_of, ARMS))
)


def bill(manifest=MANIFEST, content="1" * 64):
    return json.loads(render_bom(manifest, APPROVAL, content))


def components(document):
    return {part["bom-ref"].partition(":")[0]: part for part in document["components"]}


def properties(part):
    return {one["name"]: one["value"] for one in part.get("properties", [])}


@pytest.mark.parametrize("kind", ["draft_model", "ngram", "none"])
def test_the_standard_accepts_it(kind):
    """The library's strict validator of version 1.6 finds no fault."""
    from cyclonedx.schema import SchemaVersion  # seconds to load, for this test alone
    from cyclonedx.validation.json import JsonStrictValidator

    contracts = tuple(
        msgspec.structs.replace(one, drafter_kind=kind if one.arm == "candidate" else "none")
        for one in MANIFEST.contracts
    )
    raw = render_bom(msgspec.structs.replace(MANIFEST, contracts=contracts), APPROVAL, "1" * 64)
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(raw.decode()) is None
    spoilt = raw.decode().replace('"machine-learning-model"', '"machine"').replace('"type"', '"typo"')
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(spoilt) is not None


def test_both_models_are_components_with_hash_licence_and_card():
    """Target and drafter are governed alike; the drafter has provenance and retirement beside them."""
    found = components(bill())
    assert found["model"]["type"] == found["drafter"]["type"] == "machine-learning-model"
    for name, digest in (("model", "target"), ("drafter", "drafter"), ("tokenizer", "tokenizer")):
        assert found[name]["hashes"] == [{"alg": "SHA-256", "content": DIGESTS[digest]}]
    assert found["model"]["licenses"][0]["license"]["id"] == "Apache-2.0"
    assert found["drafter"]["licenses"][0]["license"]["name"] == "our own terms"
    assert found["drafter"]["modelCard"]["modelParameters"] == {"task": "text-generation"}
    assert properties(found["drafter"]) == {
        "draftproof:kind": "draft_model",
        "draftproof:provenance": "distilled from the target",
        "draftproof:retirement": "with the next target",
        "draftproof:owner": "team-serving",
    }


def test_runtime_workload_and_program_are_listed():
    """What served, what was asked, and what measured, each with its version."""
    document = bill()
    found = components(document)
    assert (found["runtime"]["name"], found["runtime"]["version"]) == ("reference", "0.1.0")
    assert found["workload"]["hashes"][0]["content"] == "2" * 64
    tools = {one["name"]: one["version"] for one in document["metadata"]["tools"]["components"]}
    assert tools == {"draftproof": "0.1.0", "cyclonedx-python-lib": library_version()}
    depends = {one["ref"]: one.get("dependsOn", []) for one in document["dependencies"]}
    assert depends["run"] == ["runtime:reference@0.1.0", "workload"]
    assert [ref.partition(":")[0] for ref in depends["runtime:reference@0.1.0"]] == [
        "drafter",
        "model",
        "tokenizer",
    ]


def lookup_of(runtime="reference", **changes):
    lookup = {"drafter_kind": "ngram", "drafter_sha256": None, "runtime": runtime} | changes
    return msgspec.structs.replace(build_contract_of("candidate"), **lookup)


def test_a_lookup_is_a_component_that_says_it_has_no_weights():
    """The drafter is listed with what the contract states of it, and claims to be no model."""
    contract = lookup_of(drafter_identity="text lookup", drafter_licence="MIT")
    document = bill(msgspec.structs.replace(MANIFEST, contracts=(contract,)))
    found = components(document)
    assert (found["drafter"]["type"], found["drafter"]["name"]) == ("library", "text lookup")
    assert found["drafter"]["licenses"][0]["license"]["id"] == "MIT"
    assert not {"modelCard", "hashes"} & found["drafter"].keys()
    assert properties(found["drafter"]) == {
        "draftproof:kind": "ngram",
        "draftproof:weights": "none: it drafts by looking up text",
        "draftproof:provenance": "distilled from the target",
        "draftproof:retirement": "with the next target",
        "draftproof:owner": "team-serving",
    }
    depends = {one["ref"]: one.get("dependsOn", []) for one in document["dependencies"]}
    assert found["drafter"]["bom-ref"] in depends[found["runtime"]["bom-ref"]]


def test_a_lookup_of_which_nothing_is_stated_is_named_by_its_kind():
    """Unknown provenance and licence are left out; two runtimes' lookups are two components."""
    bare = {"drafter_identity": None, "drafter_licence": None, "drafter_provenance": None}
    contracts = (lookup_of(**bare), lookup_of("vllm", **bare))
    listed = [
        one
        for one in bill(msgspec.structs.replace(MANIFEST, contracts=contracts))["components"]
        if one["bom-ref"].startswith("drafter:")
    ]
    assert [one["name"] for one in listed] == ["ngram", "ngram"]
    assert not any("licenses" in one or "draftproof:provenance" in properties(one) for one in listed)


@pytest.mark.parametrize("kind", ["none", "undisclosed"])
def test_no_drafter_or_one_that_nobody_discloses_is_no_component(kind):
    """Nothing is listed of which nothing is known."""
    contract = lookup_of(drafter_kind=kind, drafter_identity=None)
    assert "drafter" not in components(bill(msgspec.structs.replace(MANIFEST, contracts=(contract,))))


def test_a_drafter_that_only_the_plan_names_is_a_component():
    """What the plan states of it is known, whatever the service keeps to itself."""
    contract = lookup_of(drafter_kind="undisclosed", drafter_identity="org/draft", drafter_sha256=None)
    found = components(bill(msgspec.structs.replace(MANIFEST, contracts=(contract,))))["drafter"]
    assert (found["name"], found["bom-ref"]) == ("org/draft", "drafter:org/draft")


def test_a_run_of_which_little_is_known_has_a_bill():
    """Unknown hashes, licences and versions are left out, not made up."""
    contract = msgspec.structs.replace(
        build_contract_of("baseline"), target_sha256=None, tokenizer_sha256=None, target_licence=None
    )
    document = bill(msgspec.structs.replace(MANIFEST, contracts=(contract,)))
    found = components(document)
    assert "hashes" not in found["model"]
    assert "licenses" not in found["model"]
    assert "tokenizer" not in found
    assert bill(msgspec.structs.replace(MANIFEST, contracts=()))["components"]


def test_the_same_run_has_the_same_bill():
    """Serial number and time come from the run: equal bytes, and another content is another bill."""
    assert render_bom(MANIFEST, APPROVAL, "1" * 64) == render_bom(MANIFEST, APPROVAL, "1" * 64)
    document = bill()
    assert document["metadata"]["timestamp"] == "2026-01-09T08:00:00+00:00"
    assert document["serialNumber"] != bill(content="2" * 64)["serialNumber"]


def test_the_order_of_arms_does_not_matter_to_the_list():
    """Components stand in the order of their references."""
    turned = msgspec.structs.replace(MANIFEST, contracts=MANIFEST.contracts[::-1])
    assert [one["bom-ref"] for one in bill(turned)["components"]] == sorted(
        one["bom-ref"] for one in bill()["components"]
    )


def test_the_library_that_wrote_a_bill_is_found_in_it():
    """What is no bill names none."""
    assert find_tool_version(render_bom(MANIFEST, APPROVAL, "1" * 64)) == library_version()
    assert find_tool_version(b"[]") is None
    assert find_tool_version(b"{") is None
