"""Every check of an arm that needs no running service fires on what it is for, and on nothing else."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from typing import Any

import msgspec
import psutil
import pytest
from arm_builders import NGRAM, manifest, plan

from draftproof.core.errors import EngineError, PlanError
from draftproof.measure.client.exchange import Exchange
from draftproof.measure.load.period import Endpoint
from draftproof.measure.run.service_group import find_change
from draftproof.plan.environment import check_request_fields
from draftproof.plan.schema import Arm
from draftproof.services.arms.behaviour_asking import Seen, has_content
from draftproof.services.arms.behaviour_judging import _find_stream_faults
from draftproof.services.arms.contract import build_contract
from draftproof.services.arms.findings import judge_contract
from draftproof.services.arms.manifest import IdentityAnswers, Started, fetch_manifest
from draftproof.services.arms.probe import _check_answered
from draftproof.services.arms.process import ArmProcess, describe_exit, group_exists
from draftproof.services.arms.service import (
    Service,
    check_address,
    explain_status,
)
from draftproof.services.engines import REFERENCE, adapter_for
from draftproof.services.engines.protocol import Answer
from draftproof.services.telemetry.host import find_family


def service(engine: str = "vllm") -> Service:
    return Service(arm="candidate", url="http://h", adapter=adapter_for(engine))


def identify(bodies, engine="vllm", arm=None):
    """The manifest of a service that said this."""
    made = arm or Arm(engine=engine, url="http://h")
    asked = fetch_manifest(None, made, service(engine), answers=IdentityAnswers(bodies=bodies, silent=()))  # type: ignore[arg-type]
    return asyncio.run(asked)


def exchanged(**fields: Any) -> Exchange:
    """What one request brought, an empty answer unless told otherwise."""
    values: dict[str, Any] = {
        "outcome": "ok", "sent_ns": 0, "headers_ns": 1, "end_ns": 9, "http_status": 200, "error": None,
        "malformed_raw": None, "warnings": (), "answer": Answer(),
    }  # fmt: skip
    return Exchange(**(values | fields))


MODELS = b'{"data": [{"id": "m", "max_model_len": 64, "owned_by": "vllm"}, {"id": "n"}, {"no": "id"}]}'


def test_the_served_model_is_the_first_or_the_one_that_the_plan_names():
    """With its context length, where the service tells it; a name that is not served is an error."""
    assert identify({"/v1/models": MODELS}).settings["served_model"] == "m"
    assert identify({"/v1/models": MODELS}).settings["max_model_len"] == 64
    named = Arm(engine="vllm", url="http://h", served_model="n")
    assert "max_model_len" not in identify({"/v1/models": MODELS}, arm=named).settings
    with pytest.raises(EngineError, match=r"does not serve 'x'.*use one of: m, n"):
        identify({"/v1/models": MODELS}, arm=Arm(engine="vllm", url="http://h", served_model="x"))


def test_a_service_of_another_engine_is_named():
    """A llama.cpp server under a plan that says vLLM, and any other under one that says reference."""
    other = b'{"data": [{"id": "m", "owned_by": "llamacpp"}]}'
    with pytest.raises(EngineError, match=r"says it is 'llama\.cpp server', not vLLM"):
        identify({"/v1/models": other})
    with pytest.raises(EngineError, match="not the reference engine"):
        identify({"/v1/models": MODELS}, engine="reference")
    assert identify({"/v1/models": other}, engine="generic").engine == "generic"


@pytest.mark.parametrize(
    ("outcome", "status", "error", "fix"),
    [
        ("timeout", None, None, "limits.request_s"),
        ("rejected", 429, None, "wait until the service takes requests"),
        ("http_error", 401, None, "give its key"),
        ("http_error", 422, None, "arms.candidate.request"),
        ("http_error", 302, None, "the address that answers itself"),
        ("http_error", 404, None, "/v1/chat/completions must lie"),
        ("malformed", 200, "the body is compressed", "switch its compression off"),
        ("malformed", 200, "not an event stream", "does not stream chat completions"),
        ("cut", 200, None, None),
    ],
)
def test_a_test_request_that_fails_stops_with_the_key_that_mends_it(outcome, status, error, fix):
    """The outcome is named, and the remedy is the plan's key for it, where there is one."""
    exchange = exchanged(outcome=outcome, http_status=status, error=error)
    endpoint = Endpoint(url="http://h", served_model="m", engine="vllm")
    with pytest.raises(EngineError, match=rf"does not answer a test request \({outcome}") as caught:
        _check_answered(service(), endpoint, exchange)
    assert (fix is None) is (caught.value.fix is None)
    assert fix is None or fix in str(caught.value.fix)
    _check_answered(service(), endpoint, msgspec.structs.replace(exchange, outcome="ok"))


def test_a_draft_with_another_tokenizer_and_outputs_of_their_own_are_found():
    """The first forbids the run, the second is told; a contract without either gives nothing."""
    made = build_contract(manifest("candidate", NGRAM), plan(), plan().arms.candidate, REFERENCE)
    assert judge_contract(made) == []
    strange = msgspec.structs.replace(
        made, tokenizer_compatible=False, tokenizer_differences=("id 1",), equivalence="approximate"
    )
    found = judge_contract(strange)
    assert [(one.code, one.severity) for one in found] == [
        ("tokenizer_mismatch", "error"),
        ("output_not_equivalent", "warning"),
    ]


def test_a_secret_among_the_fields_of_a_request_is_refused():
    """Fields are stored with the run; those that hold no secret pass."""
    check_request_fields({"min_p": 0.1}, "arms.candidate.request")
    with pytest.raises(PlanError, match=r"arms\.candidate\.request\.api_key"):
        check_request_fields({"api_key": "k"}, "arms.candidate.request")


@pytest.mark.parametrize("url", ["ftp://h", "http://", "http://u:p@h", "http://h/?a=1"])
def test_an_address_that_cannot_be_used_is_refused(url):
    """No scheme, no host, a user's name or a query; the plain form passes."""
    with pytest.raises(PlanError, match=r"arms\.candidate\.url"):
        check_address(url, "candidate")
    check_address("http://127.0.0.1:8000/v1", "candidate")
    check_address("http://h/metrics?format=text", "candidate", is_base=False)
    with pytest.raises(PlanError, match=r"arms\.candidate\.metrics_urls"):
        check_address("http://h/metrics?api_key=x", "candidate", is_base=False)


def test_a_status_that_no_waiting_mends_is_explained():
    """A refused key with the header to write, a redirect with its target; all others may still come right."""
    refused = explain_status(401, None, "http://h", "baseline_null", has_headers=False)
    assert refused is not None
    assert "asks for a key (status 401)" in str(refused)
    assert "[arms.baseline.headers]" in str(refused.fix)
    moved = explain_status(302, "http://x", "http://h", "candidate", has_headers=True)
    assert moved is not None
    assert "redirects (status 302) to http://x" in str(moved)
    for status in (200, 404, 503):
        assert explain_status(status, None, "http://h", "candidate", has_headers=True) is None


@pytest.mark.parametrize(
    ("code", "words"),
    [(3, "ended with exit code 3"), (-signal.SIGKILL, "was killed by signal SIGKILL"), (-99, "by signal 99")],
)
def test_the_end_of_a_process_is_in_words(code, words):
    """A code, a signal by its name, and one that has none."""
    assert words in describe_exit(code)


def test_a_process_that_ended_is_found_with_its_last_words(tmp_path):
    """Alive passes; ended is an error with the exit code and the log's tail."""
    log = tmp_path / "arm.log"
    arm = ArmProcess("candidate", command=None, log_path=log)
    arm.check_alive()
    log.write_text("no memory left\n")
    arm._process = subprocess.Popen([sys.executable, "-c", "raise SystemExit(7)"])
    arm._process.wait()
    with pytest.raises(EngineError, match=r"candidate ended with exit code 7\. Last output: no memory left"):
        arm.check_alive()


def test_a_group_lives_as_long_as_one_of_its_processes():
    """Its leader and children are its family; what is dead and not yet buried is no member."""
    waiting = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    leader = subprocess.Popen(waiting, stdin=subprocess.PIPE, start_new_session=True)
    assert [one.pid for one in find_family(leader.pid)] == [leader.pid]
    assert group_exists(leader.pid)
    leader.stdin.close()  # type: ignore[union-attr]
    while psutil.Process(leader.pid).status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.01)
    assert not group_exists(leader.pid)
    leader.wait()
    assert find_family(leader.pid) == find_family(None) == ()
    assert group_exists(os.getpgrp())


@pytest.mark.parametrize("name", ["content", "reasoning", "reasoning_content", "tool_calls"])
def test_a_frame_has_content_where_a_delta_says_something(name):
    """Text, thoughts and pieces of a tool call count; a role, an id or nothing does not."""
    assert has_content({"choices": [{"delta": {name: "x"}}]})
    silent: list[dict[str, Any]] = [
        {"choices": [{"delta": {"role": "assistant", name: ""}}]},
        {"choices": []},
        {"usage": {}},
    ]
    for frame in silent:
        assert not has_content(frame)


def test_a_restarted_arm_that_states_less_is_no_changed_arm():
    """What is not stated any more is a change only where everything is compared."""
    before = manifest(settings={"a": 1, "b": 2})
    less, other = manifest(settings={"a": 1}), manifest(settings={"a": 1, "b": 3})
    assert find_change(before, less) is not None
    assert find_change(before, less, is_whole=False) is None
    assert find_change(before, other, is_whole=False) is not None


def test_events_that_tell_nothing_are_a_fault_of_a_stream():
    """An empty delta alone is counted; a count that grew, an id or a role is something."""
    whole = [
        {"choices": [{"delta": {"role": "assistant"}}]},
        {"choices": [{"delta": {"content": "a"}}]},
        {"choices": [{"delta": {"content": "b"}, "finish_reason": "stop"}], "usage": {"x": 1}},
    ]
    hollow: dict[str, Any] = {"choices": [{"delta": {}}]}

    def faults(*frames):
        return list(_find_stream_faults(Seen(exchange=exchanged(), frames=frames)))

    assert faults(*whole) == []
    assert faults(whole[0], hollow, hollow, *whole[1:]) == ["2 empty events"]
    answers = {"choices": [{"delta": {}}], "usage": {"completion_tokens": 1}}
    assert faults(whole[0], answers, *whole[1:]) == []


def test_what_a_service_runs_on_stands_apart_from_its_settings():
    """The engine's word counts before the host's; a service that was not started here tells its own only."""
    started = Started(
        command=("vllm", "serve", "m"),
        log="vLLM is using nccl==2.27.5\n",
        platform={"driver": "550", "nccl": "1"},
    )
    bodies = {"/v1/models": MODELS}
    asked = fetch_manifest(
        None,  # type: ignore[arg-type]
        Arm(engine="vllm", command=("vllm", "serve", "m", "{port}")),
        service(),
        started,
        answers=IdentityAnswers(bodies=bodies, silent=()),
    )
    made = asyncio.run(asked)
    assert made.platform == {"driver": "550", "nccl": "2.27.5"}
    assert not any(key.startswith("platform.") for key in made.settings)
    assert identify(bodies).platform == {}
