"""The judging and counting after a run: functions and judge models are asked once, what they say is kept.

A report never asks them: it reads what is kept, so that it gives the same bytes where neither the code nor
the judge is at hand. What was not judged stays not judged.

Counts answers that no service counted, with the target's tokenizer, when no request is in flight.

What is counted goes into the journal, so that a report gives the same numbers where no tokenizer is at hand.

Asks functions of the user's in a process of their own, with a time limit for each answer.

Asks a judge model over an OpenAI-compatible service. What it is asked and what it means lie elsewhere.
"""

import asyncio
import contextlib
import os
import secrets
import signal
import sys
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Self

import aiohttp
import msgspec
import uvloop

from draftproof.core.errors import DraftproofError, EngineError, PlanError, UsageError
from draftproof.core.records import Judgement, TokenCounts
from draftproof.judge.metrics.request import apply_counts, count_tokens, list_uncounted
from draftproof.judge.observe.observed import RunData
from draftproof.measure.run.progress import Interrupted, Progress, stop_on_signal, unless_stopped
from draftproof.measure.run.python_worker import Asked
from draftproof.plan.environment import find_secrets, mask_struct, resolve_headers
from draftproof.plan.loading import BUILTIN_PREFIX
from draftproof.plan.schema import Arm, Plan
from draftproof.plan.tables import Judge
from draftproof.services.arms.request_fit import load_token_starts
from draftproof.services.arms.service import fetch_completion
from draftproof.store import RunDirectory
from draftproof.workload.checks import (
    JudgingView,
    Task,
    hash_judge,
    list_tasks,
    make_judgement,
    read_verdict,
    render_prompt,
)
from draftproof.workload.items import Item, JudgeCheck, PythonCheck

WORKER = Path(__file__).with_name("python_worker.py")
LOAD_S = 60.0
_LINE_LIMIT_BYTES = 1 << 20
_NOT_ITS_REPLY = "what came back is not the reply to this answer: the function writes where replies go"


class _Said(msgspec.Struct, frozen=True):
    nonce: str
    sha256: str | None = None
    error: str | None = None
    passed: bool | None = None
    detail: str = ""


class FunctionProcess:
    """One function in one process; started at need, and anew after it had to be killed.

    `folder`: where its file lies.
    """

    def __init__(self, folder: Path, function: str) -> None:
        self._folder, self._function = folder, function
        self._process: asyncio.subprocess.Process | None = None
        self.sha256 = ""

    async def ask(self, view: JudgingView, timeout_s: float) -> tuple[bool | None, str]:
        """Return what the function says of an answer.

        None where it takes too long, ends its process, or what comes back is not the reply to this answer.
        Raises UsageError: it cannot be loaded.
        """
        process = self._process or await self.start()
        try:
            async with asyncio.timeout(timeout_s):
                said = await _exchange(process, view)
        except TimeoutError:
            await self.close()
            return None, f"the function gave no answer within {timeout_s:g} s"
        if isinstance(said, str):
            # A line that is not the reply may have the reply behind it.
            await self.close()
            return None, said
        return said.passed, said.detail

    async def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None:
            if process.returncode is None:
                # With whatever the function started; the process leads a group of its own.
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
            await process.wait()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self) -> asyncio.subprocess.Process:
        """Start the process, so that a function that cannot be loaded is known of early.

        Raises UsageError: it cannot be loaded.
        """
        self._process = process = await asyncio.create_subprocess_exec(
            sys.executable,
            str(WORKER),
            str(self._folder),
            self._function,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            limit=_LINE_LIMIT_BYTES,
            # Ctrl-C is meant for this program: a function that it ended would count as undecided for good.
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(LOAD_S):
                said = await _exchange(process)
        except TimeoutError:
            said = f"it did not load within {LOAD_S:g} s"
        if isinstance(said, str) or said.sha256 is None:
            await self.close()
            raise UsageError(
                f"the function cannot be loaded ({said if isinstance(said, str) else said.error})",
                place=f"{self._folder}: {self._function}",
                fix="correct it, then judge again with: draftproof judge RUN",
            )
        self.sha256 = said.sha256
        return process


async def ask_function(folder: Path, function: str, tasks: Iterable[Task]) -> AsyncIterator[Judgement]:
    """Yield what one function says of every task that asks for it.

    Raises UsageError: it cannot be loaded.
    """
    async with FunctionProcess(folder, function) as process:
        for task in tasks:
            assert isinstance(task.check, PythonCheck)  # noqa: S101 - the caller sends no other
            judged = await process.ask(task.view, task.check.timeout_s)
            yield make_judgement(task, judged, by=function, source_sha256=process.sha256)


async def _exchange(process: asyncio.subprocess.Process, view: JudgingView | None = None) -> _Said | str:
    """Ask for a verdict, or without an answer for the function to be loaded; return the reply, or why not."""
    assert process.stdin is not None  # noqa: S101 - both are pipes
    assert process.stdout is not None  # noqa: S101
    nonce = secrets.token_hex(16)
    try:
        process.stdin.write(msgspec.json.encode(Asked(nonce=nonce, view=view)) + b"\n")
        await process.stdin.drain()
        reply = await process.stdout.readline()
        if not reply.endswith(b"\n"):
            return "the function ended its process"
        said = msgspec.json.decode(reply, type=_Said)
    except ConnectionError:
        return "the function ended its process"
    except (ValueError, msgspec.DecodeError):
        return _NOT_ITS_REPLY
    return said if secrets.compare_digest(said.nonce, nonce) else _NOT_ITS_REPLY


MOST_FAILURES = 3


async def ask_judge(
    judge: Judge, tasks: Sequence[Task], environment: Mapping[str, str] | None = None
) -> AsyncIterator[Judgement]:
    """Yield a judgement for every task that the judge answers, in the order in which its answers come.

    Raises PlanError: a header refers to a name that is not set; EngineError: the judge did not answer several
    times; the rest is left for another call.
    """
    environment = os.environ if environment is None else environment
    headers = dict(resolve_headers(judge.headers, environment, "judge.headers"))
    secrets = find_secrets([Arm(headers=judge.headers)], environment)
    failures: list[str] = []
    waiting = list(reversed(tasks))
    async with aiohttp.ClientSession(
        headers=headers,
        timeout=aiohttp.ClientTimeout(total=judge.timeout_s),
        # A connection that the judge closed meanwhile would fail a request that it never saw.
        connector=aiohttp.TCPConnector(force_close=True),
    ) as session:
        running: set[asyncio.Task[Judgement]] = set()
        try:
            while (waiting or running) and len(failures) < MOST_FAILURES:
                while waiting and len(running) < judge.concurrency:
                    running.add(asyncio.ensure_future(_ask(session, judge, waiting.pop())))
                ended, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for one in ended:
                    error = one.exception()
                    if error is None:
                        yield mask_struct(one.result(), secrets)
                    elif isinstance(error, EngineError):
                        failures.append(error.message)
                    else:
                        raise error
        finally:
            for one in running:
                one.cancel()
            if running:
                await asyncio.wait(running)
    if failures:
        raise EngineError(
            f"the judge did not answer ({failures[0]})",
            place="judge.url",
            fix="see what keeps it, then go on with: draftproof judge RUN",
        )


async def _ask(session: aiohttp.ClientSession, judge: Judge, task: Task) -> Judgement:
    check = task.check
    assert isinstance(check, JudgeCheck)  # noqa: S101 - the caller sends no other
    payload = {
        "model": judge.model,
        "messages": [{"role": "user", "content": render_prompt(task, check)}],
        "temperature": 0.0,
        "max_tokens": judge.max_tokens,
        **judge.request,
    }
    url = judge.url.rstrip("/").removesuffix("/v1") + "/v1/chat/completions"
    reply = await fetch_completion(session, url, payload) or ""
    return make_judgement(
        task,
        read_verdict(reply, check),
        by=judge.model,
        source_sha256=hash_judge(judge.model, check, judge.request),
    )


class JudgingReport(msgspec.Struct, frozen=True, kw_only=True):
    """How a judging went: how much was asked for, how much was kept, and why something is left."""

    wanted: int
    judged: int
    problems: tuple[str, ...] = ()

    @property
    def left(self) -> int:
        """What is still to be judged."""
        return self.wanted - self.judged


async def check_judging(plan: Plan, items: tuple[Item, ...], environment: Mapping[str, str]) -> None:
    """Do nothing if every function can be loaded and a judge is named where one is needed.

    Raises PlanError: a check of type judge and no [judge], or one whose headers cannot be resolved;
    UsageError: a function that cannot be loaded.
    """
    checks = [
        check
        for item in items
        for checks in (item.checks, *(one.checks for one in item.follow_ups))
        for check in checks
    ]
    if any(isinstance(one, JudgeCheck) for one in checks):
        if plan.judge is None:
            raise PlanError(
                "the workload has checks of type judge and the plan names no judge",
                place="judge",
                fix="add a table [judge] with url and model, or leave these checks out.",
            )
        resolve_headers(plan.judge.headers, environment, "judge.headers")
    for function in dict.fromkeys(one.function for one in checks if isinstance(one, PythonCheck)):
        async with FunctionProcess(find_folder(plan), function) as process:
            await process.start()


async def judge_run(run: RunDirectory, progress: Progress, contents: RunData | None = None) -> JudgingReport:
    """Ask for every judgement that a run still lacks and keep each as it comes.

    `progress`: gets how the judging goes. `contents`: what the run holds, None to read it. Raises StoreError:
    the run cannot be read, or the judgements not be written; Interrupted: stopped by a signal; what was
    judged is kept.
    """
    contents = contents or run.load()
    tasks = list_tasks(contents.records, contents.items, contents.judgements, contents.plan.seed)
    if not tasks:
        return JudgingReport(wanted=0, judged=0)
    progress.phase("Judging answers")
    try:
        with stop_on_signal() as stop:
            return await unless_stopped(_judge(run, contents.plan, tasks, progress), stop)
    except Interrupted as stopped:
        raise Interrupted(run.path) from stopped


def find_folder(plan: Plan) -> Path:
    """Return where a workload's functions lie: beside it.

    Raises UsageError: a workload that ships has none.
    """
    if plan.workload.path.startswith(BUILTIN_PREFIX):
        raise UsageError("a built-in workload has no functions beside it", place="workload.path")
    return Path(plan.workload.path).parent


async def _judge(run: RunDirectory, plan: Plan, tasks: tuple[Task, ...], progress: Progress) -> JudgingReport:
    judged, problems = 0, _find_missing_judge(plan, tasks)
    for asking in _askings(plan, tasks):
        try:
            async for judgement in asking:
                run.append_beside(judgement)
                judged += 1
                progress.advance(judged, len(tasks), f"{judgement.kind}: {judgement.item_id}")
        except DraftproofError as error:
            if not isinstance(error, UsageError) and error.place != "judge.url":
                raise
            problems.append(str(error))
    return JudgingReport(wanted=len(tasks), judged=judged, problems=tuple(problems))


def _find_missing_judge(plan: Plan, tasks: tuple[Task, ...]) -> list[str]:
    left = sum(isinstance(task.check, JudgeCheck) for task in tasks)
    if not left or plan.judge is not None:
        return []
    return [f"judge: the plan of this run names no judge, so {left} judgements cannot be asked for."]


def _askings(plan: Plan, tasks: tuple[Task, ...]) -> list[AsyncIterator[Judgement]]:
    by_function: dict[str, list[Task]] = {}
    for task in tasks:
        if isinstance(task.check, PythonCheck):
            by_function.setdefault(task.check.function, []).append(task)
    of_judge = [task for task in tasks if isinstance(task.check, JudgeCheck)]
    found = [ask_function(find_folder(plan), function, own) for function, own in by_function.items()]
    if of_judge and plan.judge is not None:
        found.append(ask_judge(plan.judge, of_judge, os.environ))
    return found


def run_judging(path: Path, progress: Progress) -> JudgingReport:
    """Judge what a run lacks, in this call's own event loop; see `judge_run`."""
    with RunDirectory.open(path) as run:
        return uvloop.run(judge_run(run, progress))


def count_answers(run: RunDirectory, contents: RunData, tokenizer: Path | None) -> RunData:
    """Count what can be counted, keep it, and return the contents with it.

    `run`: where the counts go. `contents`: records of the run. `tokenizer`: the target's tokenizer.json, None
    where it is not at hand. Raises StoreError: the counts cannot be written.
    """
    uncounted = list_uncounted(contents.records)
    if tokenizer is None or not uncounted:
        return contents
    starts_of = load_token_starts(tokenizer)
    found = list[TokenCounts]()
    for record in uncounted:
        cumulative = count_tokens(record, starts_of)
        if cumulative is not None:
            counts = TokenCounts(
                request_id=record.request_id, end_ns=record.end_ns, cumulative_tokens=cumulative
            )
            run.append_beside(counts)
            found.append(counts)
    return msgspec.structs.replace(contents, records=apply_counts(contents.records, found))
