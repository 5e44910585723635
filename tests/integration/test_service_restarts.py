"""A service that somebody else runs goes away in mid-block, and comes back, stays away, or is another one."""

import asyncio
import contextlib
import json
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from byte_server import CHAT, DIALECTS, JSON, TEXT, ByteServer, Reply, Request, events, models, respond

from draftproof.core.errors import EngineError, IncompatibleError
from draftproof.measure.run.progress import Progress
from draftproof.measure.run.reporting import recompute
from draftproof.measure.run.runner import resume_run, run_plan
from draftproof.measure.run.service_group import ServiceGroup
from draftproof.plan.loading import load_plan, parse_plan
from draftproof.store import RunDirectory

PLAN = """\
name = "attached"
question = "Does it pay?"
[workload]
path = "items.jsonl"
[[load]]
name = "single"
concurrency = 1
block_size = 3
[arms.baseline]
engine = "{engine}"
url = "http://127.0.0.1:{baseline}"
[arms.candidate]
engine = "{engine}"
url = "http://127.0.0.1:{candidate}"
[comparison]
null_arm = false
resamples = 200
statistic = "p50"
candidate_may_differ = ["m", "launch", "speculation", "drafter"]
[thresholds]
failure_margin = 1.0
quality_margin = 1.0
[limits]
ready_s = {ready_s}
request_s = 5.0
warmup_requests = 1
warmup_max_s = 0.001
client_lag_ms = 5000.0
repeat_disturbed = false
behaviour_probes = false
"""
ITEMS = 9
DRAFTING = ("--acceptance", "active", "--tokens-per-chunk", "2")


class Services:
    """Two services that this test runs, the second of which dies at a request."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.out = folder, folder / "run"
        self._processes: list[subprocess.Popen[bytes]] = []
        self.ports = [_free_port(), _free_port()]
        prompts = {f"item-{n}": [{"role": "user", "content": f"{n}"}] for n in range(ITEMS)}
        lines = [
            {"id": name, "messages": messages, "segments": {"task": "chat"}}
            for name, messages in prompts.items()
        ]
        (folder / "items.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))

    def serve(self, number: int, *options: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "tests.builders.serve_script", "--port", str(self.ports[number])]
        self._processes.append(subprocess.Popen([*command, *options]))
        self._wait_for(self.ports[number])
        return self._processes[-1]

    @staticmethod
    def _wait_for(port: int) -> None:
        deadline_s = time.monotonic() + 60
        while time.monotonic() < deadline_s:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                return
            time.sleep(0.05)
        raise AssertionError(f"nobody listens at {port}")

    def replace_when_dead(
        self, dying: subprocess.Popen[bytes], *options: str, after_s: float = 1.0
    ) -> threading.Thread:
        def wait() -> None:
            dying.wait(120)
            time.sleep(after_s)
            self.serve(1, *options)

        thread = threading.Thread(target=wait)
        thread.start()
        return thread

    def replace(self, number: int | None, *options: str) -> None:
        """End a service, all where none is named, and put another one in its place."""
        for place, process in enumerate(self._processes):
            if number in (place, None):
                process.kill()
                process.wait()
        if number is not None:
            self.serve(number, *options)

    def run(
        self,
        ready_s: float = 60.0,
        engine: str = "generic",
        progress: Progress | None = None,
        *,
        probes: bool = False,
    ):
        plan, text = self.load_plan(ready_s, engine, probes=probes)
        return run_plan(plan, text, self.out, _no_model, progress or Progress())

    def load_plan(self, ready_s: float, engine: str, *, probes: bool = False):
        path = self.folder / "plan.toml"
        ports = {"baseline": self.ports[0], "candidate": self.ports[1]}
        text = PLAN.format(**ports, ready_s=ready_s, engine=engine)
        path.write_text(text.replace("behaviour_probes = false", "") if probes else text)
        return load_plan(path)

    def resume(self):
        return resume_run(self.out, _no_model, Progress())

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()


def _no_model(name):
    raise AssertionError(name)


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@pytest.fixture
def services(tmp_path):
    services = Services(tmp_path)
    yield services
    services.close()


def failed(services) -> dict[str, str]:
    records = RunDirectory.open(services.out).load().records
    return {
        one.request_id: one.error or "" for one in records if one.phase == "measure" and one.outcome != "ok"
    }


def test_a_service_that_comes_back_fails_what_it_left_and_is_warmed_up_anew(services):
    """Its failures are its own, the period says that it was gone, and the run goes on with a warm service."""
    services.serve(0)
    dying = services.serve(1, *DRAFTING, "--die-after", "6")
    returning = services.replace_when_dead(dying, *DRAFTING)
    results = services.run()
    returning.join()
    contents = RunDirectory.open(services.out).load()
    measured = [one for one in contents.records if one.phase == "measure"]
    assert len({one.request_id for one in measured}) == len(measured) == 2 * ITEMS
    unreached = {one.block: one.unreached for one in contents.blocks if one.unreached}
    assert len(unreached) == 1
    assert {one.arm for one in contents.blocks if one.unreached} == {"candidate"}
    assert failed(services)
    assert all("/candidate/" in name for name in failed(services))
    assert any("Requests found no service to connect to" in text for text in results.warnings)
    assert [one.start for one in contents.warmups if one.arm == "candidate"] == [1, 2]
    assert all(one.unreached == 0 for one in contents.blocks if one.block not in unreached)


def test_a_service_that_is_back_before_the_next_request_is_warmed_up_anew_all_the_same(services):
    """The request that it took with it is enough: nobody has to meet a closed door."""
    services.serve(0)
    dying = services.serve(1, *DRAFTING, "--die-after", "7")  # the last request of its second period
    returning = services.replace_when_dead(dying, *DRAFTING, after_s=0.0)
    services.run()
    returning.join()
    contents = RunDirectory.open(services.out).load()
    broken = {(one.block, one.arm): one.broken for one in contents.blocks if one.broken}
    assert list(broken.values()) == [1]
    assert {arm for _, arm in broken} == {"candidate"}
    assert not any(one.unreached for one in contents.blocks)
    assert [one.start for one in contents.warmups if one.arm == "candidate"] == [1, 2]


def test_a_service_that_stays_away_stops_the_run_and_not_its_arm(services):
    """One period fails, honestly; the others wait until it is there again."""
    services.serve(0)
    services.serve(1, *DRAFTING, "--die-after", "6")
    with pytest.raises(EngineError, match=r"candidate did not answer.*recorded as failures.*run --resume"):
        services.run(ready_s=1.0)
    kept = failed(services)
    assert 1 <= len(kept) <= 3
    services.serve(1, *DRAFTING)
    results = services.resume()
    assert failed(services) == kept
    assert results.counts["measured"] == 2 * ITEMS
    assert results.counts["duplicates"] == 0


def test_a_service_that_comes_back_as_another_one_is_refused(services):
    """What was measured of the old one is kept; nothing of the new one is added to it."""
    known = ("--engine", "draftproof-reference", "--setting", "max_num_seqs=8")
    other = ("--engine", "draftproof-reference", "--setting", "max_num_seqs=16")
    services.serve(0, *known)
    dying = services.serve(1, *DRAFTING, *known, "--die-after", "6")
    returning = services.replace_when_dead(dying, *DRAFTING, *other, after_s=0.0)
    with pytest.raises(IncompatibleError, match=r"arms\.candidate: it is not what it was.*max_num_seqs"):
        services.run(engine="reference")
    returning.join()
    assert failed(services)


class Replacing(Progress):
    """Puts another service in the candidate's place after so many of its periods, when nothing is in flight.

    Args:
        services: those of the test.
        after: periods of the candidate.
        options: of the other service; None: all services end and none comes.
    """

    def __init__(self, services: Services, after: int, options: tuple[str, ...] | None) -> None:
        self._services, self._left, self._options = services, after, options

    def period_ended(self, period) -> None:
        self._left -= period.arm == "candidate"
        if self._left == 0 and period.arm == "candidate":
            self._services.replace(None if self._options is None else 1, *(self._options or ()))


@pytest.mark.parametrize("after", [1, 2])
def test_a_service_that_is_replaced_between_periods_is_found_out(services, after):
    """No request was in flight and none failed: it is asked after each of its periods, the last too."""
    known = ("--engine", "draftproof-reference", "--setting", "max_num_seqs=8")
    other = ("--engine", "draftproof-reference", "--setting", "max_num_seqs=16")
    services.serve(0, *known)
    services.serve(1, *DRAFTING, *known)
    progress = Replacing(services, after, (*DRAFTING, *other))
    with pytest.raises(
        IncompatibleError, match=r"candidate: it is not what it was.*max_num_seqs \(8 -> 16\)"
    ):
        services.run(engine="reference", progress=progress)
    contents = RunDirectory.open(services.out).load()
    ended = [one.completed for one in contents.blocks if one.arm == "candidate"]
    assert ended[-1] is False
    assert all(ended[:-1])
    assert not failed(services)
    results = recompute(services.out, write=True)
    assert results.verdict.decision not in {"adopt", "adopt_limited"}
    assert any("its service said that it is not what it was" in text for text in results.warnings)
    with pytest.raises(IncompatibleError, match="max_num_seqs"):
        services.resume()


def test_a_service_that_is_replaced_after_its_last_period_is_not_probed(services):
    """What was measured stands; how the other one behaves is no fact of the arm."""
    known = ("--engine", "draftproof-reference", "--setting", "max_num_seqs=8")
    other = ("--engine", "draftproof-reference", "--setting", "max_num_seqs=16")
    services.serve(0, *known)
    services.serve(1, *DRAFTING, *known)
    progress = Replacing(services, 3, (*DRAFTING, *other))
    with pytest.raises(IncompatibleError, match="candidate: it is not what it was"):
        services.run(engine="reference", progress=progress, probes=True)
    contents = RunDirectory.open(services.out).load()
    assert sum(one.completed for one in contents.blocks) == 6
    assert "candidate" not in {one.arm for one in contents.behaviours}


def test_a_service_that_is_silent_after_a_period_is_asked_when_it_is_needed(services):
    """Silence is no other answer: the next period waits for it as ever, and none waits after the last."""
    services.serve(0)
    services.serve(1, *DRAFTING)
    service_group = ServiceGroup(
        services.load_plan(60.0, "generic")[0], None, services.folder, Progress(), asyncio.Event()
    )

    async def ask() -> tuple[object, object]:
        async with service_group:
            before = await service_group.find_change("candidate")
            services.replace(None)
            return before, await service_group.find_change("candidate")

    assert asyncio.run(ask()) == (None, None)


@pytest.mark.parametrize("path", ["/version", "/v1/models"])
@pytest.mark.parametrize(
    ("status", "change"), [(503, None), (500, None), (429, None), (404, "not what it was"), (501, "not what")]
)
def test_an_address_that_cannot_tell_just_now_is_no_other_answer(tmp_path, path, status, change):
    """A busy gateway is no other service; one that lacks the address is."""
    told = {"/version": respond('{"version": "0.9"}', kind=JSON), "/v1/models": models("m")}
    answer = respond(events(DIALECTS["vllm"].frames), framing="chunked")
    ill: list[str] = []

    def tell(request: Request) -> Reply:
        return respond("busy", status=status, kind=TEXT) if request.path in ill else told[request.path]

    async def ask(url: str) -> IncompatibleError | None:
        ports = dict.fromkeys(("baseline", "candidate"), url.rpartition(":")[2])
        plan = parse_plan(PLAN.format(engine="vllm", ready_s=5.0, **ports))
        async with ServiceGroup(plan, None, tmp_path, Progress(), asyncio.Event()) as service_group:
            assert await service_group.find_change("candidate") is None
            ill.append(path)
            return await service_group.find_change("candidate")

    with ByteServer({CHAT: answer, "/health": respond("", kind=TEXT), **dict.fromkeys(told, tell)}) as server:
        found = asyncio.run(ask(server.url))
    assert (found is None) == (change is None)
    assert change is None or change in str(found)


def test_an_attached_service_that_breaks_answers_off_is_measured_and_stops_no_run(services):
    """It is there, and the same, and every answer of it breaks: those are failures of its arm."""
    whole = respond(events(DIALECTS["generic"].frames), framing="chunked")
    cut = Reply((whole.packets[0][:200],), "close")
    asked = iter(range(100))

    def answer(_: Request) -> Reply:
        return whole if next(asked) < 3 else cut

    routes = {"/v1/models": models("m")}
    with ByteServer({CHAT: whole, **routes}) as sound, ByteServer({CHAT: answer, **routes}) as breaking:
        services.ports = [int(one.url.rpartition(":")[2]) for one in (sound, breaking)]
        results = services.run()
    assert results.counts["measured"] == 2 * ITEMS
    assert len(failed(services)) >= ITEMS - 3
    assert all("/candidate/" in name for name in failed(services))
    assert results.verdict.decision not in {"adopt", "adopt_limited"}
