"""A service that counts nothing, and the target's tokenizer: counted after the run, and nowhere before."""

import pytest
from attached import Attached
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

from draftproof.store import RunDirectory
from draftproof.testing.scripted_server import ScriptedServer
from draftproof.testing.scripts import Script

SILENT = Script(tokens_per_chunk=(1, 3, 2), gaps_s=(0.01,), usage="none", token_ids=False)


@pytest.fixture
def attached(tmp_path, call):
    return Attached(tmp_path, call)


@pytest.fixture
def target(tmp_path):
    """Return the plan's table of a target whose tokens are words."""
    folder = tmp_path / "model"
    folder.mkdir()
    tokenizer = Tokenizer(WordLevel({"?": 0}, unk_token="?"))  # noqa: S106
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    return f'[target]\nmodel = "{folder}"\n'


def test_a_run_is_counted_when_its_requests_have_ended(attached, target):
    """The answers have counts by chunk, made after the journal was written, and no warning of missing ones."""
    with ScriptedServer(SILENT) as server:
        code, out, err = attached.call("run", server.url, after=target)
    assert code in {20, 30}, out + err
    contents = RunDirectory.open(attached.out).load()
    measured = [one for one in contents.records if one.phase == "measure"]
    assert {one.token_source for one in measured} == {"tokenizer"}
    assert {tuple(chunk.cumulative_tokens for chunk in one.chunks) for one in measured} == {(1, 4, 6)}
    assert b"cumulative_tokens" not in (attached.out / "journal" / "records.jsonl").read_bytes()
    results = RunDirectory.open(attached.out).load_results()
    assert not any("not even its total is known" in text for text in results.warnings)
    assert {one.counting.text for one in contents.manifest.arms} == {"the target's tokenizer, after the run"}
