"""Wherever a run is cut, what was measured counts once, and a resumed run asks exactly for the rest.

The measuring loop, the run directory and the journal are the real ones; the services answer from a script, so
that the same question gets the same answer in every run.
"""

import asyncio
import errno
import hashlib
import os
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable
from functools import cache, partial
from itertools import accumulate
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from tests.builders.host import ScriptedHost
from tests.builders.records import build_item
from tests.builders.transport import FakeTransport, Story

from draftproof.core.errors import StoreError
from draftproof.core.manifests import Manifest
from draftproof.core.records import SCHEMA_VERSION, RequestRecord
from draftproof.judge.observe.attempts import PeriodCount
from draftproof.measure.client.exchange import WireRequest
from draftproof.measure.load.period import Endpoint
from draftproof.measure.load.request_runner import LoadSettings
from draftproof.measure.run import measure as measuring
from draftproof.measure.run.host_watch import HostWatch
from draftproof.measure.run.progress import Progress
from draftproof.measure.run.reporting import recompute
from draftproof.measure.run.second_attempts import count_starts, list_request_ids
from draftproof.plan.loading import parse_plan, plan_sha256, thresholds_sha256
from draftproof.services.engines import GENERIC
from draftproof.store import RunDirectory
from draftproof.workload.items import FollowUp

ARMS = ("baseline", "candidate")
PLAN = """\
name = "crash"
seed = 3
[workload]
path = "items.jsonl"
[[load]]
name = "single"
concurrency = 1
block_size = 3
[[load]]
name = "pair"
concurrency = 2
block_size = 5
[[load]]
name = "rate"
arrivals = {{ rps = 200, spacing = "even" }}
block_size = 5
[arms.baseline]
url = "http://h:1"
[arms.candidate]
url = "http://h:2"
[comparison]
null_arm = false
resamples = 200
statistic = "p50"
[limits]
warmup_requests = {warmup}
behaviour_probes = false
"""
ITEMS = (
    *(build_item(name) for name in "abc"),
    build_item("talk", follow_ups=(FollowUp(content="and then?"),)),
    build_item("row", follow_ups=(FollowUp(content="you are wrong"), FollowUp(content="still there?"))),
)
JOURNAL = Path("journal") / "records.jsonl"


def story_of(request: WireRequest) -> Story:
    """Answer with a digest of all that was asked; the candidate refuses to be told that it is wrong."""
    asked = msgspec.json.decode(request.body)["messages"]
    is_refused = asked[-1]["content"] == "you are wrong" and ":2/" in request.url
    if is_refused:
        return Story(sent_ns=1, status=500, content_type="application/json", headers_ns=2, end_ns=3)
    text = hashlib.sha256(msgspec.json.encode(asked)).hexdigest()[:16]
    frame = {"choices": [{"delta": {"role": "assistant", "content": text}, "finish_reason": "stop"}]}
    body = b"data: " + msgspec.json.encode(frame) + b"\n\ndata: [DONE]\n\n"
    return Story(sent_ns=1, headers_ns=2, body=((3, body),), end_ns=4)


class ScriptedFleet:
    """Two services that always run, and are started anew in no time."""

    def __init__(self, text: str, started_before: dict[str, int]) -> None:
        self.start_s, self._starts = 0.0, {arm: started_before.get(arm, 0) + 1 for arm in ARMS}
        self.plan, self.arms = parse_plan(text), dict.fromkeys(ARMS)
        self.secrets: tuple[str, ...] = ()
        self.takes_turns = False
        self.model = None
        service = SimpleNamespace(metrics_urls=(), adapter=GENERIC, headers=())
        self.contacts = {
            arm: SimpleNamespace(
                service=service,
                endpoint=Endpoint(url=f"http://h:{port}", served_model="m", engine="generic"),
            )
            for port, arm in enumerate(ARMS, start=1)
        }

    async def restart(self) -> tuple[str, ...]:
        self._starts = {arm: number + 1 for arm, number in self._starts.items()}
        return ARMS

    def process(self, name: str) -> int:
        return self._starts[name]

    async def ensure(self, _name: str) -> bool:
        return False

    def check_alive(self, _name: str) -> None: ...

    async def find_change(self, _name: str) -> None: ...

    def pid(self, _name: str) -> None: ...


@pytest.fixture(scope="module")
def shelf():
    """Return a folder in memory where there is one: hundreds of runs would wait for a busy disk's syncs."""
    memory = Path("/dev/shm")  # noqa: S108 - a folder of our own in it
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        yield Path(folder)


@pytest.fixture
def place(shelf, request):
    """Return where a test may put its runs."""
    return shelf / hashlib.sha256(request.node.nodeid.encode()).hexdigest()[:12]


@pytest.fixture(autouse=True)
def scripted(monkeypatch):
    """Let the measuring loop talk to the script, and let no slot rest after a failure."""
    monkeypatch.setattr(measuring, "HttpTransport", lambda: FakeTransport(story_of))
    quick = partial(LoadSettings, failure_pause_s=0.0, stagger_s=0.0)
    monkeypatch.setattr(measuring, "LoadSettings", quick)


def create(path: Path, *, warmup: int = 0) -> str:
    text = PLAN.format(warmup=warmup)
    facts = Manifest(
        schema_version=SCHEMA_VERSION, draftproof_version="0", run_name="crash", created_wall_ns=1,
        anchor_wall_ns=1, anchor_monotonic_ns=1, plan_sha256=plan_sha256(text),
        thresholds_sha256=thresholds_sha256(parse_plan(text)), workload_sha256="w", workload_name="w",
        workload_version="1", evidence="smoke", seed=3, host={}, arms=(), contracts=(),
    )  # fmt: skip
    RunDirectory.create(path, text, parse_plan(text), facts, ITEMS).close()
    return text


def go_on(path: Path, prepare: Callable[[RunDirectory], None] = lambda _run: None) -> None:
    """Measure what a run lacks, as `draftproof run --resume` does."""
    with RunDirectory.open(path) as run:
        prepare(run)
        contents = run.load()
        service_group: Any = ScriptedFleet(
            (path / "plan.toml").read_text(), count_starts(contents.blocks, contents.warmups)
        )
        count = asyncio.run(measure(run, service_group))
    assert count.ended == count.planned


async def measure(run: RunDirectory, service_group: Any) -> PeriodCount:
    watch = HostWatch(ScriptedHost(), Progress())
    return await measuring.measure(run, service_group, ITEMS, Progress(), watch)


def wanted_ids() -> list[str]:
    """Return the id of every counted request of a whole run."""
    periods = measuring.plan_periods(parse_plan(PLAN.format(warmup=0)), ITEMS, ARMS)
    return [
        name for period in periods for name in list_request_ids(period, {item.id: item for item in ITEMS})
    ]


def counted(path: Path) -> list[RequestRecord]:
    return [one for one in RunDirectory.open(path).load().records if one.phase == "measure"]


def answers(records: list[RequestRecord]) -> dict[str, RequestRecord]:
    """Return id -> record without the times of this client, which differ from run to run."""
    return {
        one.request_id: msgspec.structs.replace(
            one, scheduled_ns=0, concurrency=0, end_ns=one.end_ns if one.sent_ns else 0
        )
        for one in records
    }


@pytest.fixture(scope="module")
def whole(shelf):
    """Return a run that nothing disturbed."""
    path: Path = shelf / "whole"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measuring, "HttpTransport", lambda: FakeTransport(story_of))
        create(path)
        go_on(path)
    return path


def cut_copy(whole: Path, path: Path, journal: bytes) -> Path:
    """Copy a run with another content of its journal."""
    shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(whole, path)
    (path / JOURNAL).write_bytes(journal)
    return path


def assert_made_whole(path: Path, whole: Path) -> None:
    """Resume a run; every counted request is there once, none that was kept was asked again."""
    kept = counted(path)
    go_on(path)
    after = counted(path)
    assert Counter(one.request_id for one in after) == Counter(wanted_ids())
    assert set(map(msgspec.json.encode, kept)) <= set(map(msgspec.json.encode, after))
    assert answers(after) == whole_answers(whole)


def boundaries(data: bytes) -> list[int]:
    """Return the ends of lines: all beside a line that counts, every eighth between two that only fill."""
    lines = data.splitlines(keepends=True)
    fills = [b'"phase":"fill"' in line for line in lines]
    ends = enumerate(accumulate(map(len, lines), initial=0))
    return [end for number, end in ends if number % 8 == 0 or not all(fills[max(number - 1, 0) : number + 1])]


@cache
def whole_answers(whole: Path) -> dict[str, RequestRecord]:
    return answers(counted(whole))


def test_a_run_that_nothing_disturbs_asks_everything_once(whole):
    """The rig itself: conversations, a failure in one of them, three kinds of load, no request twice."""
    records = counted(whole)
    assert Counter(one.request_id for one in records) == Counter(wanted_ids())
    assert len(records) == len(ARMS) * 3 * sum(item.turns for item in ITEMS)
    outcomes = Counter((one.arm, one.item_id, one.conversation_turn, one.outcome) for one in records)
    assert outcomes["candidate", "row", 1, "http_error"] == 3
    assert outcomes["candidate", "row", 2, "cancelled"] == 3
    assert all(one.outcome == "ok" for one in records if one.arm == "baseline")


def test_every_period_knows_the_process_that_answered(whole, place):
    """A new start before each second block of a load; a resumed run counts on, and no number comes twice."""
    blocks = RunDirectory.open(whole).load().blocks
    assert {one.process for one in blocks} == {1, 2}
    assert all(one.process == first.process for one in blocks for first in blocks if one.block == first.block)
    data = (whole / JOURNAL).read_bytes()
    path = cut_copy(whole, place / "run", data[: boundaries(data)[-2]])
    before = RunDirectory.open(path).load().blocks
    go_on(path)
    after = [one for one in RunDirectory.open(path).load().blocks if one not in before]
    known = count_starts(before, ())
    assert after
    assert all(one.process == known[one.arm] + 1 for one in after)


@pytest.mark.parametrize("part", range(8))
def test_cut_at_every_record_nothing_is_lost_or_asked_twice(whole, place, part):
    """A process that dies leaves a prefix: cut beside any record that counts, a run goes on and is whole."""
    data = (whole / JOURNAL).read_bytes()
    for end in boundaries(data)[part::8]:
        assert_made_whole(cut_copy(whole, place / "run", data[:end]), whole)


@pytest.mark.parametrize("seed", range(3))
def test_cut_at_any_byte_only_the_cut_record_is_asked_again(whole, place, seed):
    """Half a record is no record: it is set aside, counted as torn, and its request is asked."""
    data = (whole / JOURNAL).read_bytes()
    drawn = random.Random(seed)  # noqa: S311 - places to cut, fixed
    for _ in range(12):
        end = drawn.randrange(len(data))
        path = cut_copy(whole, place / "run", data[:end])
        torn = int(not data[:end].endswith(b"\n") and end > 0)
        assert RunDirectory.open(path).load().torn_lines == torn
        assert_made_whole(path, whole)
        assert RunDirectory.open(path).load().torn_lines == torn


def garbage(drawn: random.Random) -> bytes:
    """Return what a power cut may leave behind the last block that reached the device."""
    size = drawn.randrange(1, 600)
    return drawn.choice(
        [
            bytes(size),
            bytes(size) + b"\n",
            drawn.randbytes(size),
            drawn.randbytes(size) + b"\n\n" + drawn.randbytes(size),
            b"\n" * drawn.randrange(1, 9),
        ]
    )


@pytest.mark.parametrize("seed", range(3))
def test_after_a_power_cut_garbage_at_the_end_costs_no_more_than_the_cut(whole, place, seed):
    """NULs, random bytes and pieces of lines at the end are set aside, with or without a newline."""
    data = (whole / JOURNAL).read_bytes()
    drawn = random.Random(100 + seed)  # noqa: S311 - garbage, fixed
    for _ in range(12):
        end = drawn.randrange(len(data))
        path = cut_copy(whole, place / "run", data[:end] + garbage(drawn))
        assert RunDirectory.open(path).load().torn_lines >= 1
        assert_made_whole(path, whole)


def test_a_run_that_is_cut_again_and_again_is_still_whole(whole, place):
    """Each resumed part is cut in turn; warm-ups are asked at each start and never under a used id."""
    path, drawn = place / "run", random.Random(7)  # noqa: S311 - places to cut, fixed
    create(path, warmup=1)
    for _ in range(6):
        go_on(path)
        data = (path / JOURNAL).read_bytes()
        (path / JOURNAL).write_bytes(data[: drawn.randrange(len(data))])
    go_on(path)
    assert answers(counted(path)) == whole_answers(whole)
    ids = Counter(one.request_id for one in RunDirectory.open(path).load().records)
    assert {name: count for name, count in ids.items() if count > 1} == {}


def test_two_journals_are_cut_apart_from_each_other(whole, place):
    """Records of two workers and the lines of periods lie in files of their own, each cut where it likes.

    A period whose line survived a power cut that took a request of it is not taken as finished.
    """
    lines = (whole / JOURNAL).read_bytes().splitlines(keepends=True)
    parts: dict[str, list[bytes]] = {"records": [], "records-w0": [], "records-w1": []}
    for line in lines:
        item = msgspec.json.decode(line)["record"].get("item_id")
        parts[f"records-w{'abctalkrow'.index(item) % 2}" if item else "records"].append(line)
    drawn = random.Random(11)  # noqa: S311 - places to cut, fixed
    for round_ in range(15):
        path = cut_copy(whole, place / "run", b"")
        for name, own in parts.items():
            data = b"".join(own)
            end = len(data) if round_ == 0 and name == "records" else drawn.randrange(len(data) + 1)
            (path / "journal" / f"{name}.jsonl").write_bytes(data[:end])
        kept = counted(path)
        go_on(path)
        assert Counter(one.request_id for one in counted(path)) == Counter(wanted_ids())
        assert answers(counted(path)) == whole_answers(whole)
        assert answers(kept).items() <= answers(counted(path)).items()


class FaultyDevice:
    """Takes so many bytes and so many syncs, then no more."""

    def __init__(self, *, room: int = 1 << 30, syncs: int = 1 << 30) -> None:
        self.room, self.syncs = room, syncs

    def write(self, fd: int, data: bytes) -> int:
        if not self.room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        taken = os.write(fd, data[: self.room])
        self.room -= taken
        return taken

    def fsync(self, _fd: int) -> None:
        self.syncs -= 1
        if self.syncs < 0:
            raise OSError(errno.EIO, os.strerror(errno.EIO))


def measure_on(device: FaultyDevice, path: Path) -> StoreError:
    """Measure a new run whose journal lies on a device, and return what that ends with."""

    def use(run: RunDirectory) -> None:
        run.journal._lines._write, run.journal._lines._fsync = device.write, device.fsync

    create(path)
    with pytest.raises(StoreError) as caught:
        go_on(path, use)
    return caught.value


@pytest.mark.parametrize("room", [0, 1, 500, 5_000, 20_000, 40_000])
def test_a_disk_that_gets_full_at_any_byte_costs_no_record(whole, place, room):
    """The run ends with one sentence and whole lines; with space it goes on as if nothing had happened."""
    error = measure_on(FaultyDevice(room=room), place / "run")
    assert "the disk is full" in str(error)
    assert "--resume" in str(error)
    data = (place / "run" / JOURNAL).read_bytes()
    assert len(data) <= room
    assert data.endswith(b"\n") or not data
    assert_made_whole(place / "run", whole)


@pytest.mark.parametrize("syncs", [0, 1, 4])
def test_a_device_that_refuses_a_sync_ends_the_run_and_costs_no_record(whole, place, syncs):
    """Nothing is measured on for a device that does not keep it; on a sound one the run goes on."""
    error = measure_on(FaultyDevice(syncs=syncs), place / "run")
    assert "the device refused" in str(error)
    assert (place / "run" / JOURNAL).read_bytes().count(b'"kind":"block"') == syncs + 1
    assert_made_whole(place / "run", whole)


def test_a_damaged_line_taken_out_is_asked_again_and_nothing_else(whole, place):
    """What the message for a damaged line advises costs one request, even of a run that was finished.

    Here it is the first turn of a conversation whose later turns are on record.
    """
    lines = (whole / JOURNAL).read_bytes().splitlines(keepends=True)
    at = next(number for number, line in enumerate(lines) if b'/row","arm"' in line)
    path = cut_copy(whole, place / "run", b"".join(lines[:at] + lines[at + 1 :]))
    go_on(path)
    assert answers(counted(path)) == whole_answers(whole)
    appended = (path / JOURNAL).read_bytes().splitlines()[len(lines) - 1 :]
    assert sum(b'"phase":"measure"' in line for line in appended) == 1


def test_the_results_of_a_resumed_run_are_those_of_an_undisturbed_one(whole, place):
    """Counts, outcomes and shares do not tell whether a run was interrupted."""
    data = (whole / JOURNAL).read_bytes()
    path = cut_copy(whole, place / "run", data[: len(data) // 2])
    go_on(path)
    found, wanted = recompute(path, write=False), recompute(whole, write=False)
    assert found.counts["measured"] == wanted.counts["measured"] == len(wanted_ids())
    assert found.counts["duplicates"] == found.counts["repeated"] == 0
    assert [(one.arm, one.segment, one.load, one.outcomes) for one in found.arm_cells] == [
        (one.arm, one.segment, one.load, one.outcomes) for one in wanted.arm_cells
    ]
