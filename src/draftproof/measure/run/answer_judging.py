"""The judging and counting after a run: functions and judge models are asked once, what they say is kept.

A report never asks them: it reads what is kept, so that it gives the same bytes where neither the code nor
the judge is at hand. What was not judged stays not judged.

Counts answers that no service counted, with the target's tokenizer, when no request is in flight.

What is counted goes into the journal, so that a report gives the same numbers where no tokenizer is at hand.
"""

import os
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import msgspec
import uvloop

from draftproof.core.errors import DraftproofError, PlanError, UsageError
from draftproof.core.records import Judgement, TokenCounts
from draftproof.judge.metrics.request import apply_counts, count_tokens, list_uncounted
from draftproof.judge.observe.observed import RunData
from draftproof.measure.run.judge_models import FunctionProcess, ask_function, ask_judge
from draftproof.measure.run.progress import Interrupted, Progress, stop_on_signal, unless_stopped
from draftproof.plan.environment import resolve_headers
from draftproof.plan.loading import BUILTIN_PREFIX
from draftproof.plan.schema import Plan
from draftproof.services.arms.request_fit import load_token_starts
from draftproof.store import RunDirectory
from draftproof.workload.items import Item, JudgeCheck, PythonCheck
from draftproof.workload.judging import Task, list_tasks


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

    `progress`: told how the judging goes. `contents`: what the run holds, None to read it. Raises StoreError:
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
