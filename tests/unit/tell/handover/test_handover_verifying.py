"""Whoever spoils, re-makes or mislabels a package is found out, and the report says how."""

import os
import re
import shutil
from random import Random

import msgspec
import pytest
from package_builders import repack, store_run, unpack

from draftproof.cli.verify import describe_report
from draftproof.core.errors import InvalidRunError, NotVerifiedError, StoreError
from draftproof.core.manifests import Manifest
from draftproof.measure.run.reporting import recompute
from draftproof.plan.loading import parse_plan, plan_sha256, thresholds_sha256
from draftproof.store.run_directory import encode_document
from draftproof.tell.handover.packing import PackOptions, pack_run
from draftproof.tell.handover.verifying import load_package, verify_package

JOURNAL, RESULTS = "journal/records.jsonl", "results.json"


def failures(report):
    return {one.name: one.detail for one in report.checks if one.status == "failed"}


def forge(package, **changed):
    """Re-make a package with changed members and hashes made anew; None removes one."""
    members = unpack(package) | {name: data for name, data in changed.items() if data is not None}
    return {name: data for name, data in members.items() if changed.get(name, b"") is not None}


def test_a_package_verifies_and_is_authentic(package, keys):
    """Everything passes with the signer's key, and the decision is told."""
    report, opened = verify_package(package, public_key=keys / "key.pub")
    assert failures(report) == {}
    assert (report.verified, report.authentic, report.withheld) == (True, True, False)
    assert opened is not None
    assert report.decision == opened.results.verdict.decision
    assert {one.name for one in report.checks} >= {
        "archive",
        "hashes",
        "journal order",
        "thresholds",
        "recomputed",
        "signature",
    }


def test_without_a_key_it_is_not_authenticated(package):
    """Hashes show damage and not authorship: verified, and said in so many words."""
    report, _ = verify_package(package)
    assert (report.verified, report.authentic) == (True, None)
    assert "anyone could have made this package" in report.checks[-1].detail


def test_a_flipped_byte_is_found_wherever_it_is(package):
    """Densely over the archive, two headers, a padding and the end; all bytes are tried on a tiny one."""
    whole = package.read_bytes()
    places = {*range(0, 1024, 3), *range(len(whole) - 1100, len(whole), 3)}
    drawn = Random(5).sample(range(len(whole)), 150)  # noqa: S311 - places, fixed
    places |= {*drawn, *range(1024, len(whole), 1997)}
    descriptor = os.open(package, os.O_RDWR)
    passed = []
    for at in sorted(places):
        os.pwrite(descriptor, bytes([whole[at] ^ (1 << at % 8)]), at)
        try:
            load_package(package)
            passed.append(at)
        except NotVerifiedError:
            pass
        os.pwrite(descriptor, whole[at : at + 1], at)
    os.close(descriptor)
    assert passed == []
    assert package.read_bytes() == whole


def test_a_flip_fails_verification_with_its_place(package):
    """The report names the member; nothing of it is computed."""
    data = bytearray(package.read_bytes())
    data[data.index(b'"kind"') + 1] ^= 1
    package.write_bytes(data)
    report, opened = verify_package(package)
    assert (report.verified, opened) == (False, None)
    assert "was changed" in failures(report)["hashes"]


@pytest.mark.parametrize(
    "name", [JOURNAL, RESULTS, "contract.json", "bom.cdx.json", "README.txt", "plan.toml"]
)
def test_a_removed_file_is_found(package, tmp_path, name):
    """With the old hashes it is missing from the list; with new hashes it is missing from the run."""
    kept = forge(package, **{name: None})
    report, _ = verify_package(repack(kept, tmp_path / "old.tar", rehash=False))
    assert failures(report)["hashes"] == f"{name} is missing"
    report, _ = verify_package(repack(kept, tmp_path / "new.tar"))
    assert not report.verified


def test_an_added_file_is_found(package, tmp_path):
    """A stowaway is unlisted with the old hashes, and no member of a package with new ones."""
    added = forge(package, **{"extra.txt": b"hello"})
    report, _ = verify_package(repack(added, tmp_path / "old.tar", rehash=False))
    assert failures(report)["hashes"] == "extra.txt is not listed"
    report, _ = verify_package(repack(added, tmp_path / "new.tar"))
    assert "extra.txt is no member of a package" in failures(report)["recomputed"]


def test_a_changed_threshold_is_found(package, tmp_path):
    """In the plan, with hashes made anew, and with the run's own hashes of plan and thresholds too."""
    plan = unpack(package)["plan.toml"].replace(b"failure_margin = 0.5", b"failure_margin = 0.9")
    report, _ = verify_package(
        repack(forge(package, **{"plan.toml": plan}), tmp_path / "a.tar", rehash=False)
    )
    assert "plan.toml was changed" in failures(report)["hashes"]
    report, _ = verify_package(repack(forge(package, **{"plan.toml": plan}), tmp_path / "b.tar"))
    assert "thresholds differ from those hashed before the first request" in failures(report)["records"]
    manifest = msgspec.json.decode(unpack(package)["manifest.json"], type=Manifest)
    text = plan.decode()
    new = msgspec.structs.replace(
        manifest, plan_sha256=plan_sha256(text), thresholds_sha256=thresholds_sha256(parse_plan(text))
    )
    forged = forge(package, **{"plan.toml": plan, "manifest.json": encode_document(new)})
    report, _ = verify_package(repack(forged, tmp_path / "c.tar"))
    assert "results.json is not what the raw data give" in failures(report)["recomputed"]


@pytest.mark.parametrize("seed", range(6))
def test_a_re_ordered_journal_is_found_even_with_new_hashes(package, tmp_path, seed):
    """The order in which a run ends its requests cannot be changed without its times."""
    lines = unpack(package)[JOURNAL].splitlines(keepends=True)
    first, second = Random(seed).sample(range(len(lines)), 2)  # noqa: S311 - a fixed disorder
    lines[first], lines[second] = lines[second], lines[first]
    report, _ = verify_package(repack(forge(package, **{JOURNAL: b"".join(lines)}), tmp_path / "a.tar"))
    assert failures(report)["journal order"].startswith("journal/records.jsonl:")


def test_a_line_that_is_there_twice_is_found_and_not_packed(package, tmp_path, run_path):
    """It was measured once: in a package it fails the journal, and a run that holds it is not packed."""
    lines = unpack(package)[JOURNAL].splitlines(keepends=True)
    twice = b"".join([lines[0], *lines])
    report, _ = verify_package(repack(forge(package, **{JOURNAL: twice}), tmp_path / "a.tar"))
    assert "journal/records.jsonl:2: the request " in failures(report)["journal order"]
    run = shutil.copytree(run_path, tmp_path / "run")
    (run / JOURNAL).write_bytes(twice)
    found = recompute(run, write=True)
    assert found.counts["duplicates"] == 1
    assert any("repeat a request id" in text for text in found.warnings)
    with pytest.raises(InvalidRunError, match="stands there a second time"):
        pack_run(run, tmp_path / "b.tar", PackOptions())


def test_a_package_without_a_period_of_the_plan_says_so(package, tmp_path, run_path):
    """Taken out with the requests, and all computed anew: whole in itself, and known to be incomplete."""
    lines = unpack(package)[JOURNAL].splitlines(keepends=True)
    run = shutil.copytree(run_path, tmp_path / "run")
    (run / JOURNAL).write_bytes(b"".join(line for line in lines if b'"arm":"candidate"' not in line))
    recompute(run, write=True)
    packed = pack_run(run, tmp_path / "a.tar", PackOptions())
    report, _ = verify_package(packed.archive)
    found = {one.name: (one.status, one.detail) for one in report.checks}
    assert found["periods"][0] == "not_checked"
    assert found["periods"][1].startswith("only 2 of 3 periods have a record that they ended")
    assert report.decision == "invalid"
    whole, _ = verify_package(package)
    assert "periods" not in {one.name for one in whole.checks}


def test_a_dropped_or_changed_record_is_found_even_with_new_hashes(package, tmp_path):
    """Results are computed again: a failure that is left out, or an answer that got faster, changes them."""
    raw = re.sub(rb'"crc":"[0-9a-f]{8}",', b"", unpack(package)[JOURNAL])  # a forger makes them anew
    lines = raw.splitlines(keepends=True)
    without = b"".join(line for line in lines if b'"http_error"' not in line)
    faster = re.sub(
        rb'"arm":"candidate"(.*?)"end_ns":(\d+)', rb'"arm":"candidate"\1"end_ns":\g<2>1', raw, count=1
    )
    for name, data in (("a", without), ("b", faster)):
        assert data != raw
        report, _ = verify_package(repack(forge(package, **{JOURNAL: data}), tmp_path / f"{name}.tar"))
        assert not report.verified


@pytest.mark.parametrize("name", [RESULTS, "report.html", "contract.json", "envelope.json", "bom.cdx.json"])
def test_a_changed_document_is_found_even_with_new_hashes(package, tmp_path, name):
    """Every document is made again from the raw data and compared byte for byte."""
    report, _ = verify_package(
        repack(forge(package, **{name: unpack(package)[name] + b" "}), tmp_path / "a.tar")
    )
    assert f"{name} is not what the raw data give" in failures(report)["recomputed"]


@pytest.mark.parametrize(
    ("listed", "name"),
    [
        ({"decision": "adopt"}, "recomputed"),
        ({"run_name": "another"}, "recomputed"),
        ({"withheld": True}, "records"),
        ({"clock_restarts": ("journal/records.jsonl:3",)}, "journal order"),
    ],
)
def test_a_listing_that_lies_is_found(package, tmp_path, listed, name):
    """What MANIFEST.json says beside the hashes is checked against the run."""
    report, _ = verify_package(repack(unpack(package), tmp_path / "a.tar", **listed))
    assert name in failures(report)


def test_another_version_is_held_to_decision_and_envelope(package, tmp_path):
    """Bytes are not compared then, and that is said; another decision is still found."""
    members = unpack(package)
    report, _ = verify_package(repack(members, tmp_path / "a.tar", draftproof_version="0.0.1"))
    assert report.verified
    assert "bytes are not compared" in next(o.detail for o in report.checks if o.name == "recomputed")
    unread = next(one for one in report.checks if one.name == "documents")
    assert (unread.status, "report.html" in unread.detail) == ("not_checked", True)
    assert "documents not compared" in describe_report(report).splitlines()[0]
    report, _ = verify_package(
        repack(members, tmp_path / "c.tar", draftproof_version="0.0.1", run_name="another")
    )
    assert "another run" in failures(report)["recomputed"]
    results = msgspec.json.decode(members[RESULTS])
    results["verdict"]["decision"] = "adopt"
    forged = members | {RESULTS: msgspec.json.encode(results)}
    report, _ = verify_package(
        repack(forged, tmp_path / "b.tar", draftproof_version="0.0.1", decision="adopt")
    )
    assert "come out otherwise" in failures(report)["recomputed"]


def test_another_build_of_this_version_is_named_and_held_to_decision_and_envelope(package, tmp_path):
    """What a checkout with changes of its own words otherwise is no forgery, and is not passed in silence."""
    members = unpack(package)
    other = members | {"report.html": members["report.html"].replace(b"</html>", b"<!-- other --></html>")}
    report, _ = verify_package(repack(other, tmp_path / "a.tar", source_sha256="0" * 64))
    assert report.verified
    found = {one.name: one for one in report.checks}
    assert "made by another build of 0.1.0: packed by draftproof 0.1.0 (source 000000000000)" in (
        found["recomputed"].detail
    )
    assert found["documents"].status == "not_checked"
    same, _ = verify_package(repack(other, tmp_path / "b.tar"))
    assert "report.html is not what the raw data give" in failures(same)["recomputed"]
    results = msgspec.json.decode(members[RESULTS])
    results["verdict"]["decision"] = "adopt"
    adopted = members | {RESULTS: msgspec.json.encode(results)}
    forged, _ = verify_package(repack(adopted, tmp_path / "c.tar", source_sha256="0" * 64))
    assert "come out otherwise" in failures(forged)["recomputed"]


def test_another_build_that_says_the_same_is_compared_byte_for_byte(package, tmp_path):
    """A change of the sources that changes no document leaves nothing to doubt."""
    report, _ = verify_package(repack(unpack(package), tmp_path / "a.tar", source_sha256="0" * 64))
    assert "same byte for byte" in next(one.detail for one in report.checks if one.name == "recomputed")


def test_a_package_from_before_builds_were_noted_verifies(package, tmp_path):
    """Its listing has no such field, and it must be written as it was."""
    old = repack(unpack(package), tmp_path / "a.tar", source_sha256=None)
    assert b"source_sha256" not in unpack(old)["MANIFEST.json"]
    assert verify_package(old)[0].verified


def test_a_run_that_another_build_measured_is_named(tmp_path):
    """Nobody can compute again what was measured, so it is said and nothing fails."""
    run = store_run(tmp_path / "run")
    manifest = msgspec.json.decode((run / "manifest.json").read_bytes(), type=Manifest)
    made = msgspec.structs.replace(manifest, source_sha256="0" * 64)
    (run / "manifest.json").write_bytes(encode_document(made))
    recompute(run, write=True)
    report, _ = verify_package(pack_run(run, tmp_path / "a.tar", PackOptions()).archive)
    found = next(one for one in report.checks if one.name == "build")
    assert report.verified
    assert found.status == "not_checked"
    assert "measured by draftproof 0.1.0 (source 000000000000), this is 0.1.0 (source " in found.detail


def test_a_forged_package_fails_only_by_its_signature(package, keys, tmp_path, run_path):
    """Someone re-makes all of it honestly from other data: hashes agree, the signature does not."""
    packed = pack_run(run_path, tmp_path / "mine.tar", PackOptions(salt=b"0123456789abcdef"))
    assert verify_package(packed.archive)[0].verified
    signature = package.with_name(package.name + ".sig")
    report, opened = verify_package(packed.archive, public_key=keys / "key.pub", signature=signature)
    assert list(failures(report)) == ["signature"]
    assert (report.verified, report.authentic, opened) == (False, False, None)


def test_a_wrong_key_and_a_missing_signature_are_told_apart(package, keys):
    """Each is a failure with its own sentence."""
    report, _ = verify_package(package, public_key=keys / "foreign.pub")
    assert "signed with another key" in failures(report)["signature"]
    package.with_name(package.name + ".sig").unlink()
    report, _ = verify_package(package, public_key=keys / "key.pub")
    assert "there is no signature" in failures(report)["signature"]


def test_a_cut_package_is_found(package):
    """Half a download is no package."""
    package.write_bytes(package.read_bytes()[: package.stat().st_size // 2])
    report, _ = verify_package(package)
    assert "cut off" in failures(report)["archive"]


def test_a_pattern_that_never_ends_is_not_run(package, tmp_path):
    """A foreign workload is held to the reader's rules before a single pattern is matched."""
    lines = unpack(package)["workload.jsonl"].splitlines()
    item = msgspec.json.decode(lines[0])
    item["checks"] = [{"type": "regex", "pattern": "(a+)+$"}]
    forged = forge(package, **{"workload.jsonl": b"\n".join([msgspec.json.encode(item), *lines[1:], b""])})
    report, _ = verify_package(repack(forged, tmp_path / "a.tar"))
    assert "item 'item-0'" in failures(report)["records"]


def test_a_sound_package_loads_as_a_run(package, run_path):
    """What a comparison reads from it is what the run directory holds."""
    from draftproof.store import RunDirectory

    assert load_package(package) == RunDirectory.open(run_path).load()


def test_what_is_no_file_is_refused_and_never_waited_for(tmp_path):
    """A pipe or a device may never end."""
    os.mkfifo(tmp_path / "pipe.tar")
    for path in (tmp_path / "pipe.tar", tmp_path):
        with pytest.raises(StoreError, match="not a file"):
            verify_package(path)


def test_what_a_failed_check_keeps_from_being_made_is_listed_as_not_checked(package, tmp_path):
    """A reader sees all lines of a good package, none of them passed in silence."""
    path = tmp_path / "spoilt.tar"
    data = bytearray(package.read_bytes())
    data[data.index(b"Say something") if b"Say something" in data else 5000] ^= 1
    path.write_bytes(data)
    report, opened = verify_package(path)
    found = {one.name: (one.status, one.detail) for one in report.checks}
    failed = next(iter(failures(report)))
    assert opened is None
    for name in ("journal order", "thresholds", "recomputed"):
        assert found[name] == ("not_checked", f"not checked, because the check of {failed} failed")
