"""Which request a free slot takes next, and how one period is dealt to several load workers. Pure.

Until `open_counting` only fill requests are handed out: they bring the load up, outside what is counted, and
ask other items than the period counts, for a fast service gets through more of them than a slow one. Then
come the counted ones in block order. While some of them are still in flight and none is left to start, free
slots take fill requests again, so that the last counted ones meet the same load as the first. A slot that has
begun a conversation asks its later turns before anything else.

The deal is the same for every arm and on every machine, and a conversation stays in one worker. Items are put
in an order drawn from their ids and then dealt like cards, so that the workers' parts differ by one item at
most; slots, fill requests and arrivals of a ramp-up are dealt by their number.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Literal

import msgspec

from draftproof.core.records import Phase
from draftproof.measure.load.period import Job, Period
from draftproof.workload.arm_orders import order_by_seed
from draftproof.workload.conversation import AnswerView
from draftproof.workload.items import Item


class Share(msgspec.Struct, frozen=True):
    """The part `index` of `of` equal ones; the default is the whole."""

    index: int = 0
    of: int = 1

    @property
    def is_whole(self) -> bool:
        """Whether nobody else has a part."""
        return self.of == 1

    def owns(self, number: int) -> bool:
        """Tell whether the thing of this number is in this part."""
        return number % self.of == self.index

    def own_slots(self, slots: int) -> range:
        """Return the slots of a closed loop that are in this part."""
        return range(self.index, slots, self.of)

    def own_limit(self, limit: int) -> int:
        """Return this part of a limit; the parts sum up to it."""
        return len(self.own_slots(limit))


def count_parts(period: Period, workers: int) -> int:
    """Return into how many parts a period is dealt: never more than requests may be open, so none is idle."""
    return max(1, min(workers, period.max_in_flight if period.concurrency is None else period.concurrency))


def deal_items(period: Period, share: Share) -> frozenset[int]:
    """Return the places in the block whose items are in a part.

    In a closed loop a part has as many items as its slots are of all slots, within one a slot.
    """
    if share.is_whole:
        return frozenset(range(len(period.item_ids)))
    places = {item_id: place for place, item_id in enumerate(period.item_ids)}
    drawn = order_by_seed(places, "worker", period.load, period.block, period.repeat)
    slots = period.concurrency or share.of
    return frozenset(places[item_id] for rank, item_id in enumerate(drawn) if share.owns(rank % slots))


SeedOf = Callable[[Item, int], int | None]


class Schedule:
    """Hands out the jobs of one period.

    `items`: the workload's items by id. `done`: request ids that an earlier run has already recorded; counted
    ones are not asked again. `seed_of`: seed of an item at a repeat, the same for every arm. `phase`:
    `measure`, or `warmup`: the same items, never counted and never followed by fill requests; of a
    conversation only its opening. `answered`: request id -> answer of what an earlier run has recorded, None
    for a failure. A conversation that was broken off goes on from the answers it had: its turns are in the
    journal and count, and asking them once more would count them twice. `share`: the part of the period that
    is handed out; the parts of all workers are the whole period, and no two of them share a request id.
    """

    def __init__(
        self,
        period: Period,
        items: Mapping[str, Item],
        *,
        done: Collection[str],
        seed_of: SeedOf,
        phase: Literal["measure", "warmup"] = "measure",
        answered: Mapping[str, AnswerView | None] | None = None,
        share: Share | None = None,
    ) -> None:
        self._period, self._items, self._done, self._seed_of = period, items, done, seed_of
        self._phase: Phase = phase
        self._answered, self._share = answered or {}, share or Share()
        missing = list(self._missing_jobs())
        self.missing_orders = tuple(job.order_in_block for job in missing)
        own: Collection[int] = deal_items(period, self._share)
        if phase == "warmup":
            own = self._share.own_slots(len(period.item_ids))
        self._waiting = deque(job for job in missing if job.order_in_block in own)
        self._outstanding = sum(map(self._count_missing, self._waiting))
        self._fills = self._make_fills()
        counted = set(period.item_ids)
        others = [item_id for item_id in items if item_id not in counted]
        self._has_others = bool(others)
        self._ramp_up_ids = order_by_seed(
            others or period.item_ids, "lead", period.load, period.block, period.repeat
        )
        self._ramp_up_count = 0
        # True once counted requests are handed out; from the start where a single slot needs no ramp.
        self.is_counting = phase != "measure" or period.concurrency == 1

    @property
    def is_over(self) -> bool:
        """True once every counted request of this part has ended."""
        return self._outstanding == 0

    @property
    def is_filling(self) -> bool:
        """True while fill requests keep the load up: a part goes on until its worker is asked to end."""
        return self._phase == "measure" and not (self._share.is_whole and self.is_over)

    @property
    def ramp_up_asks_counted(self) -> bool | None:
        """Whether what was asked before the counted part was of counted items; None where nothing was."""
        return not self._has_others if self._ramp_up_count else None

    @property
    def has_waiting(self) -> bool:
        """True while counted requests wait to be handed out."""
        return bool(self._waiting)

    def open_counting(self) -> None:
        """Hand out counted requests from now on."""
        self.is_counting = True

    def next_job(self) -> Job | None:
        """Return the next job for a free slot, None when the slot may rest for good."""
        if self._waiting and self.is_counting:
            return self._waiting.popleft()
        if not self.is_filling or self._period.concurrency == 1:
            return None
        return next(self._fills) if self.is_counting else self.ramp_up_job(1.0, "ramp")

    def ramp_up_job(self, token_share: float, mark: str = "lead") -> Job:
        """Return a request of the ramp-up, which asks for a part of its tokens.

        Of an item that the period does not count, where there is one: a service that keeps prompts must not
        know a counted one from one of the ramp-up.
        """
        number = self._share.index + self._ramp_up_count * self._share.of
        item_id = self._ramp_up_ids[number % len(self._ramp_up_ids)]
        self._ramp_up_count += 1
        job = self._free_job(item_id, number + 1, "fill", mark=mark)
        return msgspec.structs.replace(job, token_share=token_share)

    def follow(self, job: Job, answer: AnswerView | None) -> Job | None:
        """Return the next turn of a job's conversation that is not recorded yet, None at its end.

        Without an `answer` the job failed, and all its later turns are blocked.
        """
        turn = job.conversation_turn + 1
        if job.phase == "warmup" or turn >= job.item.turns or job.token_share < 1:
            return None
        if job.phase == "fill" and not self.is_filling:
            return None
        if job.phase == "fill":
            mark = job.request_id.rpartition("#")[2].rstrip("0123456789.")  # each kind is numbered apart
            following = self._free_job(job.item.id, job.order_in_block, "fill", turn, mark)
        else:
            following = self._job(job.item.id, job.order_in_block, job.phase, turn=turn)
        following = msgspec.structs.replace(
            following,
            answers=job.answers if answer is None else (*job.answers, answer),
            blocked=job.blocked or answer is None,
        )
        return self._pass_recorded(following)

    def finish(self, job: Job) -> None:
        """Count a job as ended."""
        if job.phase == self._phase:
            self._outstanding -= 1

    def interrupt(self, job: Job) -> Job:
        """Return a counted job as one that was stopped, under an id that does not claim it as done."""
        if job.phase != "measure":
            return job
        return self._free_job(job.item.id, job.order_in_block, "interrupted", job.conversation_turn)

    def _missing_jobs(self) -> Iterator[Job]:
        for order, item_id in enumerate(self._period.item_ids):
            if self._phase == "warmup":
                yield self._free_job(item_id, order, "warmup")
            elif (job := self._pass_recorded(self._job(item_id, order, "measure"))) is not None:
                yield job

    def _count_missing(self, job: Job) -> int:
        """Return how many turns of a conversation are still to be asked, from its first missing one on."""
        if self._phase == "warmup":
            return 1
        return sum(
            self._job(job.item.id, job.order_in_block, "measure", turn=turn).request_id not in self._done
            for turn in range(job.conversation_turn, job.item.turns)
        )

    def _pass_recorded(self, job: Job) -> Job | None:
        """Return a job, or what follows it where an earlier run has recorded it; none is asked twice."""
        if job.request_id not in self._done:
            return job
        return self.follow(job, self._answered.get(job.request_id))

    def _make_fills(self) -> Iterator[Job]:
        order = len(self._period.item_ids)
        while True:
            for item_id in self._period.item_ids:
                if self._share.owns(order):
                    yield self._free_job(item_id, order, "fill")
                order += 1

    def _free_job(
        self, item_id: str, order: int, phase: Phase, turn: int = 0, mark: str | None = None
    ) -> Job:
        """Return a job with the first number that no earlier run has used."""
        name = f"#{mark or phase}{order}"
        job = self._job(item_id, order, phase, name, turn)
        again = 0
        while job.request_id in self._done:
            again += 1
            job = self._job(item_id, order, phase, f"{name}.{again}", turn)
        return job

    def _job(self, item_id: str, order: int, phase: Phase, suffix: str = "", turn: int = 0) -> Job:
        item = self._items[item_id]
        later = f"+{turn}" if turn else ""
        return Job(
            request_id=f"{self._period.key}/{item_id}{later}{suffix}",
            conversation_turn=turn,
            item=item,
            phase=phase,
            order_in_block=order,
            seed=self._seed_of(item, self._period.repeat),
        )


def warmup_period(period: Period, count: int) -> Period:
    """Return a period of `count` requests cycling over the items of `period`."""
    ids = period.item_ids
    return msgspec.structs.replace(
        period,
        concurrency=min(period.concurrency or count, max(count, 1)),
        item_ids=tuple(ids[index % len(ids)] for index in range(count)) if ids else (),
        due_ns=(),
        ramp_up=None,
        think_s=0.0,
    )


class Part:
    """What a loop owns of a period, and what whoever conducts the period has said of it so far.

    A period that one loop runs alone is a part that is the whole: it decides by itself when its ramp-up is
    over, and it ends with its last counted request. `start_ns`: when the period begins, the same for all
    parts; None: at once.
    """

    def __init__(self, share: Share | None = None, start_ns: int | None = None) -> None:
        self.share, self.start_ns = share or Share(), start_ns
        self.period_over = asyncio.Event()  # every counted request of every part has ended
        self._base_known = asyncio.Event()
        self._base_ns = 0

    def begin_counting(self, base_ns: int) -> None:
        """Say when the counted part of an open loop begins; a second word changes nothing."""
        if not self._base_known.is_set():
            self._base_ns = base_ns
            self._base_known.set()

    async def wait_for_base(self) -> int:
        """Return when the counted part begins, as soon as that is said."""
        await self._base_known.wait()
        return self._base_ns
