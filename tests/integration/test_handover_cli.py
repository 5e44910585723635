"""`package`, `verify` and `compare` as a user calls them: exit codes, JSON, refusals, a changed service."""

import json

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from test_compare_cli import store_run
from tests.builders.scripted_server import ScriptedServer
from tests.builders.scripts import Script


@pytest.fixture
def key(tmp_path):
    """Return a private key, its public half beside it as key.pub."""
    made = Ed25519PrivateKey.from_private_bytes(bytes(32))
    public = made.public_key()
    (tmp_path / "key").write_bytes(
        made.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    (tmp_path / "key.pub").write_bytes(
        public.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    )
    return tmp_path / "key"


def store_whole_run(path, **changes):
    """Write a run whose times rise from turn to turn, as those of a real one do."""
    store_run(path, **changes)
    journal = path / "journal" / "records.jsonl"
    lines, last = [], 0
    for number, line in enumerate(journal.read_text().splitlines()):
        entry = json.loads(line)
        record = entry["record"]
        shift = number * 10_000_000_000
        for field in ("scheduled_ns", "sent_ns", "headers_ns", "end_ns"):
            if field in record:
                record[field] += shift
        for chunk in record.get("chunks", []):
            chunk[0] += shift
        if entry["kind"] == "block":
            record["started_ns"], record["ended_ns"] = last, shift
            record["order"] = ("baseline", "candidate", "baseline_null").index(record["arm"])
        last = shift
        del entry["crc"]  # as a run wrote its lines before they had one
        lines.append(json.dumps(entry))
    journal.write_text("\n".join(lines) + "\n")
    return path


def test_a_run_is_packed_signed_and_verified(tmp_path, call, key):
    """Pack, verify with the key: 0 and what was checked, in words and as JSON."""
    run, out = store_whole_run(tmp_path / "run"), tmp_path / "run.tar"
    code, text, err = call("package", run, "--out", out, "--key", key)
    assert (code, err) == (0, "")
    assert "Signature:" in text
    code, text, err = call("verify", out, "--public-key", f"{key}.pub")
    assert (code, err) == (0, ""), text
    assert text.startswith("VERIFIED: run.tar")
    code, text, _ = call("verify", out, "--public-key", f"{key}.pub", "--json")
    found = json.loads(text)
    assert (code, found["report"]["authentic"], found["deployment"]) == (0, True, None)


def test_a_spoilt_package_exits_with_50(tmp_path, call):
    """A flipped byte, and the same for compare: one word on top, the member below, no traceback."""
    run, out = store_whole_run(tmp_path / "run"), tmp_path / "run.tar"
    call("package", run, "--out", out)
    data = bytearray(out.read_bytes())
    data[5000] ^= 1
    out.write_bytes(data)
    code, text, _ = call("verify", out)
    assert (code, text.split(":")[0]) == (50, "NOT VERIFIED")
    code, _, err = call("compare", run, out)
    assert code == 50
    assert str(out) in err


def test_packages_are_compared_like_runs(tmp_path, call):
    """A package of a run beside the directory of one that bundles: the delivery changed."""
    before = store_whole_run(tmp_path / "a")
    after = store_whole_run(tmp_path / "b", tokens_per_chunk=4)
    call("package", before, "--out", tmp_path / "a.tar")
    code, text, _ = call("compare", tmp_path / "a.tar", after)
    assert code == 10
    assert "tokens per chunk where there were 1.00" in " ".join(text.split())


def test_texts_are_withheld_on_request(tmp_path, call):
    """With a salt of one's own; without one the call is refused."""
    run = store_whole_run(tmp_path / "run")
    (tmp_path / "salt").write_bytes(b"0123456789abcdef")
    code, _, err = call("package", run, "--out", tmp_path / "x.tar", "--withhold")
    assert code == 2
    assert "--withhold and --salt go together" in err
    code, _, err = call(
        "package", run, "--out", tmp_path / "w.tar", "--withhold", "--salt", tmp_path / "salt"
    )
    assert (code, err) == (0, "")
    assert b"Say something about" not in (tmp_path / "w.tar").read_bytes()
    assert call("verify", tmp_path / "w.tar")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("verify", "nowhere.tar"), "cannot be read"),
        (("package", "nowhere"), "no run in this folder"),
        (("verify", "x.tar", "--signature", "x.sig"), "--signature needs --public-key"),
        (("verify", "x.tar", "--public-key", "nowhere.pub"), "the key cannot be read"),
    ],
)
def test_bad_input_is_one_sentence(call, arguments, words, tmp_path, monkeypatch):
    """What is wrong, where, and no traceback."""
    monkeypatch.chdir(tmp_path)
    code, _, err = call(*arguments)
    assert code in {1, 2}
    assert words in err
    assert len(err.splitlines()) == 1


def test_a_deployment_is_compared_and_nothing_holds_where_nothing_was_approved(tmp_path, call, stage):
    """The run is inconclusive: 51 for the same service too; another flag of it is named with what it does."""
    stage.run()
    out = tmp_path / "run.tar"
    assert call("package", stage.out, "--out", out)[0] == 0
    code, text, err = call("verify", out, "--deployment", stage.plan())
    assert (code, err) == (51, ""), text
    assert "NOTHING APPROVED: the verdict is inconclusive" in text
    assert "Cannot be told: model_hash" in text
    other = stage.plan(candidate=("--acceptance", "active", "--tokens-per-chunk", "3"))
    code, text, err = call("verify", out, "--deployment", other)
    assert (code, err) == (51, ""), text
    assert "Changed: flags." in text
    assert "settings tokens_per_chunk: 2 -> 3 (voids: flags)" in text
    with ScriptedServer(Script()) as server:
        code, text, err = call("verify", out, "--deployment", server.url)
    assert (code, err) == (51, ""), text
    assert "NOTHING APPROVED: the verdict is inconclusive" in text
    code, text, err = call("verify", out, "--deployment", "http://127.0.0.1:9")
    assert code == 1
    assert "arm candidate" in err
    stage.assert_no_orphans()
