"""Functions of the user's in their own process, and a judge model over a socket."""

import asyncio
import hashlib
import os

import msgspec
import pytest
from tests.builders.playback import render_json_response
from tests.builders.records import build_item, build_record
from tests.builders.scripted_server import ScriptedServer
from tests.builders.scripts import Script

from draftproof.core.errors import EngineError, UsageError
from draftproof.measure.run.answer_judging import (
    FunctionProcess,
    _find_missing_judge,
    ask_function,
    ask_judge,
)
from draftproof.plan.loading import parse_plan
from draftproof.plan.tables import Judge
from draftproof.services.arms.service import LARGEST_REPLY_BYTES
from draftproof.workload.checks import JudgingView, list_tasks
from draftproof.workload.items import JudgeCheck, PythonCheck

CODE = """\
import os, time

LINES = {
    "write": b'{"nonce": "0", "passed": true, "detail": "forged"}\\n' * 2,
    "write part": b'{"passed": true',
}

def polite(answer):
    print("noise on stdout \u2212 \U0001f600")
    return "please" in answer.text, f"{len(answer.text)} characters"

def plain(answer):
    return answer.finish_reason == "stop"

def misbehaving(answer):
    if answer.text == "sleep":
        time.sleep(60)
    if answer.text == "exit":
        os._exit(3)
    if answer.text == "fork":
        os.fork()
    if answer.text == "fork":
        time.sleep(0.05)
    if answer.text == "raise":
        raise ValueError("no idea")
    if answer.text == "none":
        return None
    if answer.text in ("write", "write part"):
        for descriptor in range(3, 20):
            try:
                os.write(descriptor, LINES[answer.text])
            except OSError:
                pass
    if answer.text == "change":
        answer.text = "changed"
    return True
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "checks.py").write_text(CODE)
    return tmp_path


def ask(folder, function, *texts, timeout_s=5.0):
    async def run():
        async with FunctionProcess(folder, function) as process:
            views = [JudgingView(text=text, finish_reason="stop") for text in texts]
            return [await process.ask(view, timeout_s) for view in views], process.sha256

    return asyncio.run(run())


def test_a_function_judges_and_its_code_is_hashed(folder):
    """A bool and a sentence, or a bool alone; what it prints is no verdict; a file and a module alike."""
    said, sha256 = ask(folder, "checks.py:polite", "please", "now")
    assert said == [(True, "6 characters"), (False, "3 characters")]
    assert sha256 == hashlib.sha256(CODE.encode()).hexdigest()
    assert ask(folder, "checks:plain", "x") == ([(True, "passed")], sha256)


def test_what_a_function_prints_is_not_its_end(folder, monkeypatch):
    """Characters that the encoding of the output lacks are replaced."""
    monkeypatch.setenv("PYTHONIOENCODING", "latin-1")
    assert ask(folder, "checks.py:polite", "please")[0] == [(True, "6 characters")]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("exit", "ended its process"),
        ("raise", "raised ValueError: no idea"),
        ("none", "returned NoneType"),
        ("change", "raised AttributeError"),
        ("write", "is not the reply to this answer"),
        ("write part", "is not the reply to this answer"),
    ],
)
def test_a_function_that_misbehaves_leaves_the_answer_undecided_and_the_next_one_is_judged(
    folder, text, said
):
    """Neither an error nor the end of its process is a verdict; the view cannot be changed."""
    (bad, good), _ = ask(folder, "checks.py:misbehaving", text, "fine")
    assert (bad[0], said in bad[1]) == (None, True), bad
    assert good[0] is True


def test_a_function_that_forks_answers_once(folder):
    """A second answer would be taken for the next answer's."""
    said, _ = ask(folder, "checks.py:misbehaving", "fork", "none", "fine", "none")
    assert [one[0] for one in said] == [True, None, True, None]


def test_a_function_that_writes_replies_forges_and_shifts_none_of_the_others(folder):
    """Two lines too many would be the verdicts of the next two answers; those get their own."""
    said, _ = ask(folder, "checks.py:misbehaving", "write", "none", "fine", "none")
    assert [one[0] for one in said] == [None, None, True, None]
    assert said[1][1].startswith("returned NoneType")


def test_a_module_that_replies_while_it_is_loaded_is_not_taken_at_its_word(folder):
    """The hash of the code is what this program says, not what the code says."""
    forger = 'import os\nos.write(3, b\'{"sha256": "f", "nonce": ""}\\n\')\ndef f(answer): return True\n'
    (folder / "forger.py").write_text(forger)
    with pytest.raises(UsageError, match="not the reply"):
        ask(folder, "forger.py:f", "x")


def test_ctrl_c_reaches_no_function(folder):
    """A terminal sends it to the whole group; a function has a group of its own and is not ended by it."""

    async def run():
        async with FunctionProcess(folder, "checks.py:plain") as process:
            await process.start()
            assert process._process is not None
            return os.getpgid(process._process.pid)

    assert asyncio.run(run()) != os.getpgid(0)


def test_a_function_that_takes_too_long_is_ended(folder):
    """The time limit holds for each answer, and the next one is judged by a new process."""
    (slow, good), _ = ask(folder, "checks.py:misbehaving", "sleep", "fine", timeout_s=3.0)
    assert slow == (None, "the function gave no answer within 3 s")
    assert good[0] is True


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("missing.py:f", "FileNotFoundError"),
        ("checks.py:missing", "has no attribute 'missing'"),
        ("nowhere_at_all:f", "there is no module nowhere_at_all"),
    ],
)
def test_a_function_that_cannot_be_loaded_is_one_sentence(folder, function, said):
    """It names the folder, the function and why."""
    with pytest.raises(UsageError, match=said) as error:
        ask(folder, function, "x")
    assert function in str(error.value)


def test_tasks_become_judgements_with_code_and_answer_named(folder):
    """Each carries the request, the check, the hash of the code and that of the answer."""
    item = build_item("a", checks=(PythonCheck(function="checks.py:polite", critical=True),))
    tasks = list_tasks([build_record(item_id="a", text="please")], [item], (), 1)

    async def run():
        return [one async for one in ask_function(folder, "checks.py:polite", tasks)]

    (found,) = asyncio.run(run())
    assert (found.kind, found.passed, found.by, found.check) == ("python", True, "checks.py:polite", 0)
    assert found.answer_sha256 == tasks[0].answer.sha256
    assert found.source_sha256 == hashlib.sha256(CODE.encode()).hexdigest()


ITEM = build_item("a", checks=(JudgeCheck(rubric="Polite?"),))


def reply(text):
    body = {"choices": [{"message": {"role": "assistant", "content": text}}]}
    return Script(raw_response=render_json_response(200, body))


def judge(service, *texts, **fields):
    """Judge answers and return (judgements, what was asked, headers)."""
    records = [build_record(item_id="a", block=n, text=text) for n, text in enumerate(texts)]
    tasks = list_tasks(records, [ITEM], (), 1)
    found = []

    async def run(url):
        plan = Judge(url=url, model="j", headers={"Authorization": "Bearer ${KEY}"}, **fields)
        async for one in ask_judge(plan, tasks, {"KEY": "secret-key-123"}):
            found.append(one)  # noqa: PERF401 - what came before an error is kept

    with ScriptedServer(service) as server:
        try:
            asyncio.run(run(server.url))
        except EngineError as error:
            return found, server.served, str(error)
    return found, server.served, None


def test_a_judge_is_asked_twice_at_temperature_0_with_its_key():
    """Its reply becomes a judgement; the key is in the header alone."""
    found, served, error = judge(
        lambda payload: reply("yes" if "kind" in payload["messages"][0]["content"] else "no"), "kind", "rude"
    )
    assert error is None
    assert sorted((one.request_id[:5], one.attempt, one.passed) for one in found) == [
        ("low/0", 0, True),
        ("low/0", 1, True),
        ("low/1", 0, False),
        ("low/1", 1, False),
    ]
    assert {one.by for one in found} == {"j"}
    assert {one.payload["temperature"] for one in served} == {0.0}
    assert {one.headers["authorization"] for one in served} == {"Bearer secret-key-123"}
    assert b"secret-key" not in msgspec.json.encode(found)


def test_what_a_judge_did_not_answer_is_left_for_later():
    """A judge that fails is given up after a few requests; what it said before is kept."""
    scripts = [reply("yes"), Script(status=500)]
    found, served, error = judge(scripts, *("abcdefgh"), concurrency=1)
    assert [one.passed for one in found] == [True]
    assert len(served) == 4
    assert "HTTP 500" in error
    assert "draftproof judge" in error


def test_a_reply_in_parts_is_read_as_one_text():
    """Services that answer in parts: texts are joined, other parts say nothing."""
    parts = [
        {"type": "text", "text": "ye"},
        {"type": "refusal", "refusal": "no"},
        {"type": "text", "text": "s"},
    ]
    found, _, error = judge([reply(parts)], "kind")
    assert error is None
    assert {(one.passed, one.detail) for one in found} == {(True, "said yes")}


def test_a_reply_without_end_is_given_up():
    """It is no verdict, and the memory does not fill with it."""
    found, _, error = judge([reply("yes" + " " * LARGEST_REPLY_BYTES)], "kind")
    assert found == []
    assert "larger than 1,048,576 bytes" in error


def test_a_plan_without_a_judge_says_why_nothing_was_judged():
    """What is left is counted, and the reason is shown beside it."""
    items = (build_item("a", checks=(JudgeCheck(rubric="r"),)),)
    tasks = list_tasks([build_record(item_id="a")], items, (), seed=0)
    plan = parse_plan(
        'name = "p"\n[[load]]\nname = "l"\nconcurrency = 1\n[arms.baseline]\n[arms.candidate]\n'
    )
    (problem,) = _find_missing_judge(plan, tasks)
    assert "names no judge, so 2 judgements" in problem
