"""The measuring loop: block after block, arm after arm, every record into the journal as it ends."""

import asyncio
from collections.abc import Collection, Mapping

import aiohttp

from draftproof.client.transport import HttpTransport
from draftproof.errors import EngineError
from draftproof.load.driver import LoadSettings, run_turn, run_warmup
from draftproof.load.turn import Turn, turns_of
from draftproof.plan.schema import Plan
from draftproof.qualify.behaviour import list_unprobed, probe_arm
from draftproof.qualify.fleet import Fleet
from draftproof.qualify.masking import MaskingSink
from draftproof.qualify.progress import Interrupted, Progress
from draftproof.store import RunDirectory
from draftproof.telemetry.host import HostReader
from draftproof.telemetry.sampler import Sampler, Target
from draftproof.workload.answers import AnswerView, view_answer
from draftproof.workload.blocks import plan_blocks
from draftproof.workload.items import Item


def plan_turns(plan: Plan, items: tuple[Item, ...], arms: Collection[str]) -> tuple[Turn, ...]:
    """Return every turn of a run in order: a pure function of plan, items and seed."""
    blocks = plan_blocks(items, plan.load, tuple(arms), plan.seed, plan.workload.segment_by)
    levels = {level.name: level for level in plan.load}
    return tuple(
        turn
        for block in blocks
        for turn in turns_of(
            block,
            think_s=levels[block.load].think_s,
            max_in_flight=levels[block.load].max_in_flight,
        )
    )


async def measure(
    run: RunDirectory, fleet: Fleet, items: tuple[Item, ...], progress: Progress, stop: asyncio.Event
) -> tuple[int, int]:
    """Run what is missing of a run; return how many of all turns are complete.

    Raises:
        EngineError: an arm's process ended; its unanswered requests are recorded as failures.
        StoreError: the journal cannot be written.
        Interrupted: stopped while an arm started or was probed.
    """
    turns = plan_turns(fleet.plan, items, fleet.arms)
    finished = run.load_completed_turns()
    answered = {
        one.request_id: view_answer(one) if one.outcome == "ok" else None for one in run.load().records
    }
    loop = _Loop(run, fleet, {item.id: item for item in items}, answered, stop)
    waiting = [turn for turn in turns if (turn.block, turn.arm) not in finished]
    last_of = {turn.arm: turn for turn in waiting}
    done = len(turns) - len(waiting)
    try:
        for turn in waiting:
            if stop.is_set():
                break
            progress.advance(done, len(turns), f"{turn.load}: {turn.arm}")
            done += await loop.take(turn)
            if fleet.takes_turns and turn is last_of[turn.arm]:
                await _probe(run, fleet, (turn.arm,), progress, stop)
                progress.phase("Measuring")
        if done == len(turns):
            await _probe(run, fleet, fleet.arms, progress, stop)
    except Interrupted as stopped:
        raise Interrupted(run.path, done, len(turns)) from stopped
    finally:
        await loop.close()
    progress.advance(done, len(turns), "measured" if done == len(turns) else "stopped")
    return done, len(turns)


async def _probe(
    run: RunDirectory, fleet: Fleet, arms: Collection[str], progress: Progress, stop: asyncio.Event
) -> None:
    """Ask the arms what the run does not know yet of their behaviour."""
    arms = list_unprobed(fleet.plan, arms, run.load().behaviours)
    if arms:
        progress.phase("Asking the arms about stop strings, tools, limits and cancellation")
    for number, arm in enumerate(arms):
        progress.advance(number, len(arms), arm)
        await fleet.ensure(arm)
        await probe_arm(run, fleet, arm, stop)
    if arms:
        progress.phase("Measuring" if fleet.takes_turns else "Probed")


class _Loop:
    """Carries what all turns share: transport, journal, items, and who has been warmed up at which level."""

    def __init__(
        self,
        run: RunDirectory,
        fleet: Fleet,
        items: Mapping[str, Item],
        answered: Mapping[str, AnswerView | None],
        stop: asyncio.Event,
    ) -> None:
        self._run, self._fleet, self._items, self._stop = run, fleet, items, stop
        self._answered, self._warm = answered, set[tuple[str, str]]()
        self._transport = HttpTransport()
        self._session = aiohttp.ClientSession()
        self._host = HostReader()
        self._sink = MaskingSink(run.journal, fleet.secrets)
        plan = fleet.plan
        self._sampler = Sampler(
            self._session,
            lambda sample: run.append_telemetry(sample.arm, sample),
            interval_s=plan.limits.sample_s,
            host=self._host,
        )
        self._settings = LoadSettings(
            request_timeout_s=plan.limits.request_s, max_tokens=plan.workload.max_tokens
        )

    async def take(self, turn: Turn) -> bool:
        """Run one turn and return whether it was completed."""
        if await self._fleet.ensure(turn.arm):
            self._warm = {(load, arm) for load, arm in self._warm if arm != turn.arm}
        await self._warm_up(turn)
        async with self._sampler.turn(self._target(turn.arm), f"{turn.load}/{turn.block}", self._stop):
            block = await run_turn(
                turn,
                self._fleet.contacts[turn.arm].endpoint,
                self._items,
                transport=self._transport,
                sink=self._sink,
                settings=self._settings,
                done=self._answered,
                answered=self._answered,
                stop=self._stop,
            )
            self._run.journal.append(block)
        if not self._stop.is_set():
            self._check_alive(turn.arm)
        return block.completed

    async def close(self) -> None:
        """Let go of every connection."""
        await self._transport.close()
        await self._session.close()
        self._host.close()

    async def _warm_up(self, turn: Turn) -> None:
        """Warm an arm up at a level once per start; warm-up requests are recorded and never counted."""
        count = self._fleet.plan.limits.warmup_requests
        if (turn.load, turn.arm) in self._warm or not count:
            return
        self._warm.add((turn.load, turn.arm))
        await run_warmup(
            turn,
            self._fleet.contacts[turn.arm].endpoint,
            self._items,
            count=max(count, turn.concurrency or 1),
            transport=self._transport,
            sink=self._sink,
            settings=self._settings,
            stop=self._stop,
        )

    def _check_alive(self, arm: str) -> None:
        try:
            self._fleet.check_alive(arm)
        except EngineError as error:
            raise EngineError(
                f"{error.message} Its unanswered requests are recorded as failures of this arm.",
                place=error.place,
                fix=f"see the log, then continue with: draftproof run --resume {self._run.path}",
            ) from error

    def _target(self, arm: str) -> Target:
        """Return what is sampled of an arm as it runs now."""
        service = self._fleet.contacts[arm].service
        return Target(
            arm=arm,
            urls=service.metrics_urls,
            series=service.adapter.facts.series,
            headers=service.headers,
            pid=self._fleet.pid(arm),
        )
