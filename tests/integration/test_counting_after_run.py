"""A service that counts nothing, and the target's tokenizer: counted after the run, and nowhere before."""

import pytest
from attached import Attached
from tests.builders.scripted_server import ScriptedServer
from tests.builders.scripts import Script
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

from draftproof.store import RunDirectory

SILENT = Script(tokens_per_chunk=(1, 3, 2), gaps_s=(0.01,), usage="none", token_ids=False)


@pytest.fixture
def attached(tmp_path, call):
    return Attached(tmp_path, call)


@pytest.fixture
def target(tmp_path):
    """Return the plan's table of a target whose tokens are words, beside the plan."""
    tokenizer = Tokenizer(WordLevel({"?": 0}, unk_token="?"))  # noqa: S106
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return '[target]\ntokenizer = "tokenizer.json"\n'


def test_a_run_is_counted_when_its_requests_have_ended(attached, target):
    """The answers have counts by chunk, made after the journal was written, and no warning."""
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
    counting = [one.counting for one in contents.manifest.arms]
    assert {one.token_source for one in counting if one is not None} == {"tokenizer"}


@pytest.mark.parametrize(("text", "said"), [(None, "there is no file"), ("{}", "this is not a tokenizer")])
def test_a_tokenizer_that_cannot_be_read_ends_the_run_before_it_begins(attached, tmp_path, text, said):
    """One sentence with the file, and the usage code."""
    if text is not None:
        (tmp_path / "bad.json").write_text(text)
    with ScriptedServer(SILENT) as server:
        code, out, err = attached.call("check", server.url, after='[target]\ntokenizer = "bad.json"\n')
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert said in err
    assert "bad.json" in err
