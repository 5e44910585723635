"""Takes the trials of a knee search, one after the other, until it is over.

Owns no choice: `verdict/knee` replays the search from the journal and says which trial comes next, so that a
run goes on after a crash with the trial that it would have taken.
"""

import asyncio
from collections.abc import Iterable

import msgspec

from draftproof.core.records import BlockRecord, RequestRecord
from draftproof.judge.knee.compute import name_arm, write_load
from draftproof.judge.knee.search import Search, replay
from draftproof.judge.knee.trials import read_periods
from draftproof.judge.observe.levels import Trial, knee_levels, list_items
from draftproof.judge.observe.observed import RunData
from draftproof.measure.load.period import periods_of
from draftproof.measure.run.answer_judging import count_answers
from draftproof.measure.run.host_watch import HostWatch
from draftproof.measure.run.measure import run_periods
from draftproof.measure.run.period_runner import open_pool
from draftproof.measure.run.progress import Interrupted, Progress
from draftproof.measure.run.service_group import ServiceGroup
from draftproof.store import RunDirectory
from draftproof.store.journal import JournalTail


async def search_knee(
    run: RunDirectory, service_group: ServiceGroup, progress: Progress, watch: HostWatch
) -> None:
    """Take every trial that the search of a run still lacks.

    Raises DraftproofError: as `measure`; Interrupted: stopped before its end.
    """
    tail = JournalTail(run.path / "journal")
    contents = count_answers(run, _keep_knee(run.load()), service_group.tokenizer)
    plan, periods = contents.plan, read_periods(contents)
    search, every = replay(plan, contents.items, periods), list_items(plan, contents.items)
    pool = None if search.next is None else open_pool(run, service_group, every)
    try:
        while (trial := search.next) is not None and not watch.halt.is_set():
            progress.phase(describe_trial(contents, trial))
            await run_periods(
                run,
                service_group,
                periods_of(trial.block),
                items=every,
                contents=contents,
                progress=progress,
                watch=watch,
                pool=pool,
            )
            contents = _extend(_keep_trial(contents, trial), tail.read())
            contents = await asyncio.to_thread(count_answers, run, contents, service_group.tokenizer)
            periods = periods | read_periods(contents)
            search = replay(plan, contents.items, periods)
    except Interrupted as stopped:
        raise Interrupted(run.path, *_count_periods(search)) from stopped
    finally:
        if pool is not None:
            await pool.close()
    if search.next is not None:
        raise Interrupted(run.path, *_count_periods(search))
    progress.phase(f"Knee search: over after {len(search.trials)} trials")


def is_over(contents: RunData) -> bool:
    """Tell whether the search of a run has ended."""
    periods = read_periods(_keep_knee(contents))
    return replay(contents.plan, contents.items, periods).next is None


def describe_trial(contents: RunData, trial: Trial) -> str:
    """Say which load is looked at, how often it was before, and by whom."""
    knee = contents.plan.knee
    unit = "" if knee is None else f" {knee.unit}"
    arms = ", ".join(name_arm(arm).removeprefix("the ") for arm in trial.block.arm_order)
    again = f", trial {trial.number + 1}" if trial.number else ""
    return f"Knee search: {write_load(trial.load)}{unit}{again} ({arms})"


def _keep_knee(contents: RunData) -> RunData:
    """Return what a run directory holds of the search."""
    levels = knee_levels(contents.plan)
    return msgspec.structs.replace(
        contents,
        records=tuple(one for one in contents.records if one.load in levels),
        blocks=tuple(one for one in contents.blocks if one.load in levels),
        warmups=tuple(one for one in contents.warmups if one.load in levels),
        telemetry=(),
        judgements=(),
        behaviours=(),
    )


def _keep_trial(contents: RunData, trial: Trial) -> RunData:
    """Return what is held of one trial: of those before it only what they showed is needed."""
    index = trial.block.index
    return msgspec.structs.replace(
        contents,
        records=tuple(one for one in contents.records if one.block == index),
        blocks=tuple(one for one in contents.blocks if one.block == index),
    )


def _extend(contents: RunData, added: Iterable[RequestRecord | BlockRecord]) -> RunData:
    every = list(added)
    return msgspec.structs.replace(
        contents,
        records=(*contents.records, *(one for one in every if isinstance(one, RequestRecord))),
        blocks=(*contents.blocks, *(one for one in every if isinstance(one, BlockRecord))),
    )


def _count_periods(search: Search) -> tuple[int, int]:
    """Return how many periods are done and how many are known of; the sum is not known before the end."""
    done = sum(len(trial.block.arm_order) for trial in search.trials)
    left = len(search.next.block.arm_order) if search.next else 0
    return done, done + left
