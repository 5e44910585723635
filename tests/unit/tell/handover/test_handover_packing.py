"""One run, one archive: the same bytes from the same run, and nothing that does not fit together."""

import errno
import hashlib
import shutil

import msgspec
import pytest
from package_builders import build_items, build_lines, plan_text, store_run, unpack

from draftproof.core.errors import InvalidRunError, StoreError, UsageError
from draftproof.judge.results.decide import read_reference
from draftproof.measure.run.reporting import recompute
from draftproof.store import save_compacted
from draftproof.tell.handover.contents import HandoverContract
from draftproof.tell.handover.packing import PackOptions, pack_run
from draftproof.workload.items import Message


def test_a_package_holds_all_that_another_team_asks_for(packed):
    """Plan, facts, prompts, raw data, results, report, envelope, contract, bill, monitoring, hashes."""
    names = set(unpack(packed.archive))
    assert names >= {
        "plan.toml",
        "manifest.json",
        "workload.jsonl",
        "journal/records.jsonl",
        "results.json",
        "report.html",
        "envelope.json",
        "contract.json",
        "bom.cdx.json",
        "README.txt",
        "SHA256SUMS",
        "MANIFEST.json",
    }
    envelope = msgspec.json.decode(unpack(packed.archive)["envelope.json"])
    # Where speculation may run nowhere there is nothing to watch.
    assert any(name.startswith("monitoring/") for name in names) == bool(envelope["entries"])
    assert packed.members == len(names)
    assert not any(name.startswith("logs/") for name in names)


def test_the_contract_names_who_answers_and_what_voids_it(packed):
    """Owner, approver, rollback, triggers and the boundary of early responses are shown beside the arms."""
    contract = msgspec.json.decode(
        unpack(packed.archive)["contract.json"], type=HandoverContract, dec_hook=read_reference
    )
    assert contract.approval["owner"] == "team-serving"
    assert contract.approval["rollback_artefact"] == "image@sha256:0"
    assert "drafter_hash" in contract.approval["change_triggers"]
    assert contract.approval["early_response"] == "unknown"
    assert [one.arm for one in contract.contracts] == ["baseline", "candidate", "baseline_null"]
    assert contract.verdict.decision == packed.decision


def test_the_same_run_gives_the_same_bytes_elsewhere(packed, run_path, keys, tmp_path):
    """Copied to another folder, with logs and a lock beside it: archive and signature are equal."""
    shutil.copytree(run_path, tmp_path / "other name")
    (tmp_path / "other name" / "logs").mkdir(exist_ok=True)
    (tmp_path / "other name" / "logs" / "a.log").write_text("noise")
    (tmp_path / "other name" / "notes.txt").write_text("mine")
    again = pack_run(tmp_path / "other name", tmp_path / "b.tar", PackOptions(key=keys / "key.pem"))
    assert again.archive.read_bytes() == packed.archive.read_bytes()
    assert again.signature is not None
    assert again.signature.read_bytes() == packed.signature.read_bytes()


def test_a_compacted_run_is_packed_as_lines(packed, run_path, tmp_path):
    """Tables become a journal again: same records, same results, readable with any tool."""
    save_compacted(run_path, tmp_path / "compact")
    again = unpack(pack_run(tmp_path / "compact", tmp_path / "c.tar", PackOptions()).archive)
    before = unpack(packed.archive)
    for name in ("journal/records.jsonl", "results.json", "workload.jsonl"):
        assert again[name] == before[name]
    assert not any(name.endswith(".parquet") for name in again)


def test_results_that_the_records_do_not_give_are_refused(run_path, tmp_path):
    """What people have read is what is packed, or nothing is."""
    shutil.copytree(run_path, tmp_path / "run")
    results = tmp_path / "run" / "results.json"
    results.write_bytes(results.read_bytes().replace(b'"inconclusive"', b'"adopt"', 1))
    with pytest.raises(InvalidRunError, match=r"results\.json is not what the records give"):
        pack_run(tmp_path / "run", tmp_path / "a.tar", PackOptions())
    results.unlink()
    assert pack_run(tmp_path / "run", tmp_path / "a.tar", PackOptions()).members


def test_a_re_ordered_journal_is_refused(tmp_path):
    """A run whose lines were moved is not given a clean package."""
    lines = list(build_lines())
    lines[1], lines[2] = lines[2], lines[1]
    run = store_run(tmp_path / "run", lines=lines)
    with pytest.raises(InvalidRunError, match=r"journal/records\.jsonl:3: it ended before"):
        pack_run(run, tmp_path / "a.tar", PackOptions())


@pytest.mark.parametrize("where", ["prompt", "answer"])
def test_a_secret_in_a_run_is_refused_by_place(tmp_path, where):
    """In a prompt or an answer: file and line are named; allowed by name or with texts withheld, it goes."""
    key = "sk-abc123DEF456ghi789jkl"
    items, lines = build_items(), list(build_lines())
    if where == "prompt":
        items[0] = msgspec.structs.replace(items[0], messages=(Message(role="user", content=key),))
    else:
        lines[0] = msgspec.structs.replace(lines[0], text=f"my key is {key}")
    run = store_run(tmp_path / "run", items=items, lines=lines)
    place = "workload.jsonl:1" if where == "prompt" else "journal/records.jsonl:1"
    with pytest.raises(UsageError, match=f"an API key at {place}") as refused:
        pack_run(run, tmp_path / "a.tar", PackOptions())
    assert key not in str(refused.value)
    assert not (tmp_path / "a.tar").exists()
    if where == "prompt":
        pack_run(run, tmp_path / "a.tar", PackOptions(allowed=(place,)))
    else:
        pack_run(run, tmp_path / "a.tar", PackOptions(salt=b"0123456789abcdef"))


def test_a_secret_of_the_plan_is_refused_whatever_its_shape(tmp_path, monkeypatch):
    """The value that the plan takes from the environment must not be in any member."""
    text = plan_text().replace(
        "[arms.candidate]", '[arms.candidate]\nheaders = { Authorization = "Bearer ${HANDOVER_KEY}" }'
    )
    lines = list(build_lines())
    lines[0] = msgspec.structs.replace(lines[0], text="the service said quietkey42 to me")
    run = store_run(tmp_path / "run", text=text, lines=lines)
    monkeypatch.setenv("HANDOVER_KEY", "quietkey42")
    with pytest.raises(UsageError, match="the value of a secret of the plan at journal"):
        pack_run(run, tmp_path / "a.tar", PackOptions())


def test_nothing_is_overwritten(run_path, keys, tmp_path):
    """Neither an archive nor a signature that lies there."""
    for name in ("a.tar", "b.tar.sig"):
        (tmp_path / name).write_text("mine")
    with pytest.raises(UsageError, match="exists already"):
        pack_run(run_path, tmp_path / "a.tar", PackOptions())
    with pytest.raises(UsageError, match="exists already"):
        pack_run(run_path, tmp_path / "b.tar", PackOptions(key=keys / "key.pem"))
    with pytest.raises(StoreError, match="no such folder"):
        pack_run(run_path, tmp_path / "nowhere" / "a.tar", PackOptions())
    assert (tmp_path / "a.tar").read_text() == "mine"


def test_a_run_that_was_interrupted_is_packed_with_the_verdict_it_has(tmp_path):
    """A package is no reward: it says what is missing, and approves nothing."""
    run = store_run(tmp_path / "run", lines=list(build_lines())[:7])
    recompute(run, write=True)
    found = pack_run(run, tmp_path / "a.tar", PackOptions())
    assert any("approves nothing" in note for note in found.notes)
    assert any(note.startswith("Only 1 of 3 periods have a record that they ended") for note in found.notes)
    assert any("not signed" in note for note in found.notes)


def test_missing_names_are_said(tmp_path):
    """Without owner and approver the package is packed and says that nobody answers for it."""
    text = plan_text().partition("[approval]")[0]
    found = pack_run(store_run(tmp_path / "run", text=text), tmp_path / "a.tar", PackOptions())
    assert "names no owner, no approver, no rollback_artefact" in " ".join(found.notes)
    assert "Approved by: nobody is named" in unpack(found.archive)["README.txt"].decode()


def test_a_run_without_a_record_is_refused_by_its_own_name(tmp_path):
    """An interrupted run may have none yet; the place is the run and not a folder that is gone."""
    run = store_run(tmp_path / "run", lines=[])
    with pytest.raises(StoreError, match="no record yet") as refused:
        pack_run(run, tmp_path / "a.tar", PackOptions())
    assert refused.value.place == str(run)


def test_a_fault_of_a_run_is_placed_in_the_run(tmp_path):
    """Work is done on a copy, and the copy is gone when the message is read."""
    run = store_run(tmp_path / "run")
    (run / "plan.toml").write_text("no plan")
    with pytest.raises(UsageError) as refused:
        pack_run(run, tmp_path / "a.tar", PackOptions())
    assert str(refused.value.place).startswith(str(run))


def test_the_fix_for_a_changed_line_names_the_run_and_not_its_copy(tmp_path):
    """What the sentence says to do can be done: the copy is gone when it is read."""
    run = store_run(tmp_path / "run")
    journal = run / "journal" / "records.jsonl"
    journal.write_bytes(journal.read_bytes().replace(b'"phase":"measure"', b'"phase":"measurf"', 1))
    with pytest.raises(StoreError, match="its checksum differs") as refused:
        pack_run(run, tmp_path / "a.tar", PackOptions())
    assert f"run --resume {run}" in str(refused.value)


def test_a_name_that_no_file_can_have_is_one_sentence(tmp_path, run_path):
    """The system refuses it before anything is packed."""
    with pytest.raises(UsageError, match="no such file can be written"):
        pack_run(run_path, tmp_path / ("n" * 300 + ".tar"), PackOptions())


def test_a_full_disk_names_the_package(tmp_path, run_path, monkeypatch):
    """Not the member that happened to be written, and nothing half written stays."""

    def fail(target, _members):
        target.write(b"x")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("draftproof.tell.handover.packing.write_archive", fail)
    with pytest.raises(StoreError, match="No space left") as refused:
        pack_run(run_path, tmp_path / "a.tar", PackOptions())
    assert refused.value.place == str(tmp_path / "a.tar")
    assert list(tmp_path.iterdir()) == []


def test_the_key_of_the_judge_is_looked_for_too(tmp_path, monkeypatch):
    """The judge's headers refer to the environment as those of the arms do."""
    monkeypatch.setenv("JUDGE_KEY", "violet umbrella, said")
    text = plan_text() + '[judge]\nurl = "http://h"\nmodel = "m"\nheaders = {X-Key = "${JUDGE_KEY}"}\n'
    run = store_run(tmp_path / "run", text=text)
    with pytest.raises(UsageError, match="value of a secret of the plan"):
        pack_run(run, tmp_path / "a.tar", PackOptions())


@pytest.mark.parametrize("name", ["journal/records.jsonl", "journal", "plan.toml"])
def test_a_link_in_a_run_is_refused(run_path, tmp_path, name):
    """What it leads to may be no part of the run, and would go to another team."""
    run, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    shutil.copytree(run_path, run)
    (run / name).rename(elsewhere)
    (run / name).symlink_to(elsewhere)
    with pytest.raises(StoreError, match="this is a link") as refused:
        pack_run(run, tmp_path / "a.tar", PackOptions())
    assert refused.value.place == str(run / name)
    assert not (tmp_path / "a.tar").exists()


def test_the_archive_is_hashed_once(run_path, keys, tmp_path, monkeypatch):
    """For the signature and for what is said of it."""
    hashed, digest = [], hashlib.file_digest

    def remember(file, name):
        hashed.append(file.name)
        return digest(file, name)

    monkeypatch.setattr(hashlib, "file_digest", remember)
    packed = pack_run(run_path, tmp_path / "a.tar", PackOptions(key=keys / "key.pem"))
    assert hashed.count(str(packed.archive)) == 1
