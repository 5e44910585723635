"""Long random use with faults of every kind: nothing is left behind and nobody's tokens change."""

import asyncio
import gc
import logging
import os
import random
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import psutil
import pytest
import torch
from tiny_drafters import make_proposers
from tiny_engine import FakeFailure, make_engine, repetitive_prompt, run_all, tiny_target, token_ids_of

from draftproof.reference.async_engine import AsyncEngine
from draftproof.reference.models.model import TargetModel, TargetPass
from draftproof.reference.models.ragged import SequenceCache
from draftproof.reference.proposer import Drafts
from draftproof.reference.scheduler import LiveSequence, QueueFullError
from draftproof.reference.types import GenerationRequest, RoundOutput, SamplingParams, SpeculationParams

METHODS = ("off", "ngram", "draft_model", "attached", "self")
MOST_TOKENS = 40
SAMPLINGS: tuple[dict[str, Any], ...] = (
    *[{}] * 4,
    {"temperature": 1.0, "seed": 1},
    {"temperature": 0.7, "top_k": 20, "top_p": 0.9, "min_p": 0.01},
    {"temperature": 0.9, "repetition_penalty": 1.3, "presence_penalty": 0.5, "logprobs": 3},
    {"json_schema": '{"type": "array", "items": {"type": "boolean"}, "maxItems": 9}'},
)
_PREFIX = "soak-"


@pytest.fixture(scope="module")
def target():
    return tiny_target()


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    # A kept log record keeps the traceback of a fault, and that every sequence of its step.
    caplog.set_level(logging.CRITICAL, logger="draftproof.reference")


class Chaos:
    """Breaks passes of the target, drafters and logits at random, while it is armed."""

    def __init__(self, target: TargetModel, seed: int) -> None:
        self._random = random.Random(seed)  # noqa: S311 - a test's choices
        self._forward = target.forward
        self.counts: Counter[str] = Counter()

    def forward(self, *arguments: Any) -> TargetPass:
        """Fail before or after the pass, or spoil one row of its logits."""
        dice = self._random.random()
        if dice < 0.01:
            self.counts["raised before"] += 1
            raise torch.OutOfMemoryError("no memory")
        result: TargetPass = self._forward(*arguments)
        if dice < 0.02:
            self.counts["raised after"] += 1
            raise FakeFailure("device lost")
        if dice < 0.06 and len(result.logits):
            self.counts["spoilt"] += 1
            result.logits[self._random.randrange(len(result.logits))] = float("nan")
        return result

    def break_proposer(self, proposer: Any) -> None:
        """Make a proposer raise, answer nonsense, or refuse what it is shown, now and then."""
        propose, release = proposer.propose, proposer.release

        def proposing(contexts: Any) -> Drafts:
            dice = self._random.random()
            if dice < 0.02:
                self.counts["drafter raised"] += 1
                raise MemoryError
            if dice < 0.03:
                self.counts["drafter lied"] += 1
                return Drafts(token_ids=[[10**6] for _ in contexts])
            drafts: Drafts = propose(contexts)
            return drafts

        def releasing(request_id: str) -> None:
            release(request_id)
            if self._random.random() < 0.02:
                raise KeyError(request_id)

        proposer.propose, proposer.release = proposing, releasing


def all_proposers(target: TargetModel) -> dict[str, Any]:
    families = ("ngram", "draft_model", "attached", "early_exit")
    return {method: one for family in families for method, one in make_proposers(family, target).items()}


class Soak:
    """One engine, its prompts with their ordinary greedy answers, and what came of the requests."""

    def __init__(self, target: TargetModel, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.prompts = [repetitive_prompt(generator) * (1 + 4 * (index % 4 == 0)) for index in range(10)]
        plain = [self.request(str(i), i, "off", MOST_TOKENS, {}) for i in range(len(self.prompts))]
        answers = run_all(make_engine(target), plain)
        self.expected = [token_ids_of(answers[one.request_id]) for one in plain]
        self.random = random.Random(seed)  # noqa: S311 - a test's choices
        self.ended: Counter[str] = Counter()
        self.identical: Counter[str] = Counter()
        proposers = all_proposers(target)
        self.chaos = Chaos(target, seed)
        for proposer in proposers.values():
            self.chaos.break_proposer(proposer)
        limits = {"max_num_seqs": 6, "max_num_batched_tokens": 60, "max_queue": 6}
        self.engine = make_engine(target, proposers=proposers, **limits)
        self.backend = AsyncEngine(self.engine)
        self.serial = 0

    def request(
        self, name: str, prompt: int, method: str, max_tokens: int, sampling: dict[str, Any]
    ) -> GenerationRequest:
        policy = "fixed" if method == "off" else self.random.choice(("fixed", "adaptive", "batch", "auto"))
        return GenerationRequest(
            request_id=_PREFIX + name,
            prompt_token_ids=tuple(self.prompts[prompt]),
            sampling=SamplingParams(max_tokens=max_tokens, **sampling),
            speculation=SpeculationParams(method=method, num_spec_tokens=3, policy=policy),  # type: ignore[arg-type]
        )

    async def use(self, clients: int, each: int) -> None:
        """Let clients send their requests, each the next when the last has ended."""
        await asyncio.gather(*(self._client(each) for _ in range(clients)))
        while self.backend.stats().running or self.backend.stats().waiting:  # noqa: ASYNC110 - no event
            await asyncio.sleep(0.001)
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    async def _client(self, each: int) -> None:
        for _ in range(each):
            self.serial += 1
            prompt, method = self.random.randrange(len(self.prompts)), self.random.choice(METHODS)
            sampling, tokens = self.random.choice(SAMPLINGS), self.random.randint(1, MOST_TOKENS)
            asked = self.request(str(self.serial), prompt, method, tokens, sampling)
            outputs = await self._ask(asked)
            reason = outputs[-1].finish_reason if outputs else None
            self.ended[reason or "left"] += 1
            if reason in {"length", "stop"} and not sampling:
                assert token_ids_of(outputs) == self.expected[prompt][:tokens], method
                self.identical[method] += 1

    async def _ask(self, asked: GenerationRequest) -> list[RoundOutput]:
        """Read all of an answer, or leave at a random moment in one of three ways."""
        manner = self.random.choice(("read", "read", "read", "close", "cancel", "ignore"))
        while True:
            try:
                if manner != "cancel":
                    return await self._read(asked, None if manner == "read" else self.random.randrange(9))
                task = asyncio.create_task(self._read(asked, None))
                await asyncio.sleep(self.random.random() * 0.03)
                task.cancel()
                await asyncio.wait({task})
                return [] if task.cancelled() else task.result()
            except QueueFullError:
                self.ended["refused"] += 1
                await asyncio.sleep(0.002)

    async def _read(self, asked: GenerationRequest, most: int | None) -> list[RoundOutput]:
        stream = self.backend.generate(asked)
        outputs: list[RoundOutput] = []
        try:
            while most is None or len(outputs) < most:
                outputs.append(await anext(stream))
        except StopAsyncIteration:
            pass
        finally:
            await stream.aclose()
        return outputs


def live_sequences() -> list[object]:
    """Return every live sequence and cache of the process, those of tests before included."""
    gc.collect()
    # isinstance would wake lazy modules of torch
    return [thing for thing in gc.get_objects() if type(thing) in {LiveSequence, SequenceCache}]


def left_behind(before: list[object]) -> list[object]:
    """Return the live sequences and caches that came since, and every mapping that knows a request."""
    known = {id(thing) for thing in before}  # alive in the list, so no other object has their ids
    found = [thing for thing in live_sequences() if id(thing) not in known]
    mappings = [thing for thing in gc.get_objects() if type(thing) is dict]
    named = [[key for key in one if type(key) is str and key.startswith(_PREFIX)] for one in mappings]
    return [*found, *filter(None, named)]


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - the names do not matter


def soak(
    target: TargetModel, monkeypatch: pytest.MonkeyPatch, *, warm_up: int, rounds: int, growth_mib: int
) -> Soak:
    """Warm up, measure, use the engine for some rounds, and measure again.

    What libraries keep for themselves, such as the states of schemas, levels off after some hundred requests.
    """
    before, threads, use = live_sequences(), threading.active_count(), Soak(target, seed=5)
    monkeypatch.setattr(target, "forward", use.chaos.forward)
    use.backend.start()
    for _ in range(warm_up):
        asyncio.run(use.use(clients=16, each=8))
    files, memory = open_files(), psutil.Process().memory_info().rss
    for _ in range(rounds):
        asyncio.run(use.use(clients=16, each=8))
    assert psutil.Process().memory_info().rss - memory < growth_mib << 20
    assert open_files() == files
    monkeypatch.undo()
    asyncio.run(_last_request(use))  # a round's own notes are kept until the next round
    stats = use.backend.stats()
    assert (stats.running, stats.waiting, stats.kv_tokens, stats.kv_bytes) == (0, 0, 0, 0)
    assert not use.engine.has_work
    assert left_behind(before) == []
    use.backend.stop()
    assert threading.active_count() == threads
    return use


async def _last_request(use: Soak) -> None:
    outputs = await use._read(use.request("last", 0, "off", 3, {}), None)
    assert token_ids_of(outputs) == use.expected[0][:3]


def test_random_use_leaves_nothing_behind(target: TargetModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """After faults, cancellations and refusals: no sequence, cache, id, task, thread or file is left.

    Every greedy answer that was completed is the ordinary one, whatever drafted for it.
    """
    use = soak(target, monkeypatch, warm_up=1, rounds=1, growth_mib=96)
    assert set(use.identical) == set(METHODS)
    assert {"raised before", "raised after", "spoilt", "drafter raised", "drafter lied"} <= set(
        use.chaos.counts
    )
    assert {"left", "error", "length", "refused"} <= set(use.ended)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_long_random_use_leaves_nothing_behind(target: TargetModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same over five thousand requests, so that a small leak for each would show."""
    use = soak(target, monkeypatch, warm_up=8, rounds=32, growth_mib=16)
    assert min(use.identical[method] for method in METHODS) > 50


def test_a_thousand_queued_requests_are_all_answered(target: TargetModel) -> None:
    """As many as fit are admitted and complete, each with its own answer; one more is refused."""
    prompts = [[65 + index % 7, 66, 67] for index in range(1000)]
    plain = run_all(make_engine(target), [simple(str(i), prompts[i], 2) for i in range(7)])
    backend = AsyncEngine(make_engine(target, max_num_seqs=8, max_queue=992))

    async def crowd() -> list[list[int]]:
        streams = [backend.generate(simple(str(i), prompt, 2)) for i, prompt in enumerate(prompts)]
        with pytest.raises(QueueFullError):
            backend.generate(simple("extra", prompts[0], 2))
        backend.start()
        return [token_ids_of([output async for output in stream]) for stream in streams]

    try:
        answers = asyncio.run(crowd())
    finally:
        backend.stop()
    assert answers == [token_ids_of(plain[_PREFIX + str(i % 7)]) for i in range(1000)]
    assert backend.stats().kv_bytes == 0


def simple(name: str, prompt: list[int], max_tokens: int) -> GenerationRequest:
    return GenerationRequest(
        request_id=_PREFIX + name,
        prompt_token_ids=tuple(prompt),
        sampling=SamplingParams(max_tokens=max_tokens, ignore_eos=True),
        speculation=SpeculationParams(method="ngram", num_spec_tokens=3),
    )


class Gate:
    """Stops the engine's thread at one call of a function, until it is let through."""

    def __init__(self, function: Any, call: int) -> None:
        self._function, self._calls_left = function, call
        self.reached, self.open = threading.Event(), threading.Event()

    def __call__(self, *arguments: Any) -> Any:
        self._calls_left -= 1
        if self._calls_left == 0:
            self.reached.set()
            assert self.open.wait(60)
        return self._function(*arguments)


@pytest.fixture
def small(target: TargetModel) -> Iterator[AsyncEngine]:
    """Return an engine for two sequences whose prompts go in by sixteen tokens a step."""
    backend = AsyncEngine(make_engine(target, max_num_seqs=2, max_num_batched_tokens=16, max_queue=3))
    yield backend
    backend.stop()


@pytest.mark.parametrize(
    ("place", "call"),
    [("prefill", 2), ("round", 12), ("delivery", 12), ("queue", 2)],
)
def test_a_request_may_be_cancelled_at_any_point(
    target: TargetModel, small: AsyncEngine, monkeypatch: pytest.MonkeyPatch, place: str, call: int
) -> None:
    """Inside its prompt, a round, a delivery, or in the queue: it ends, its id is free, the others go on."""
    monkeypatch.setattr(target, "forward", target.forward)
    prompts = {
        "victim": [70 + index % 9 for index in range(90)],
        "other": [65, 66, 67],
        "third": [68, 66, 65],
    }
    plain = {
        name: token_ids_of(run_all(make_engine(target), [simple(name, prompt, 30)])[_PREFIX + name])
        for name, prompt in prompts.items()
    }
    where, name = (small, "_deliver") if place == "delivery" else (target, "forward")
    gate = Gate(getattr(where, name), call)
    monkeypatch.setattr(where, name, gate)

    async def ask(name: str) -> list[int]:
        outputs = [one async for one in small.generate(simple(name, prompts[name], 30))]
        return [token_id for output in outputs for token_id in output.token_ids]

    async def cancel() -> tuple[list[int], ...]:
        names = ("other", "third", "victim") if place == "queue" else ("victim", "other", "third")
        tasks = {name: asyncio.create_task(ask(name)) for name in names}
        await asyncio.sleep(0)
        small.start()
        assert await asyncio.to_thread(gate.reached.wait, 60)
        tasks["victim"].cancel()
        await asyncio.wait({tasks["victim"]})
        gate.open.set()
        again = await ask("victim")
        return again, await tasks["other"], await tasks["third"]

    assert asyncio.run(cancel()) == (plain["victim"], plain["other"], plain["third"])
    assert (small.stats().running, small.stats().kv_bytes) == (0, 0)
    assert small.stats().finished["cancelled"] == 1


def test_a_request_that_cannot_be_taken_in_harms_nobody(
    small: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What goes wrong when the engine's thread takes a request in ends that request and not the thread."""
    add = small.engine.add_request

    def refuse(request: GenerationRequest, **more: Any) -> None:
        if request.request_id == _PREFIX + "bad":
            raise FakeFailure("no grammar")
        add(request, **more)

    monkeypatch.setattr(small.engine, "add_request", refuse)
    small.start()

    async def ask() -> tuple[list[RoundOutput], list[RoundOutput]]:
        streams = [small.generate(simple(name, [65, 66], 4)) for name in ("bad", "good")]
        bad, good = [[output async for output in stream] for stream in streams]
        return bad, good

    bad, good = asyncio.run(ask())
    assert [(output.finish_reason, output.error) for output in bad] == [("error", "FakeFailure: no grammar")]
    assert good[-1].finish_reason == "length"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_dies_leaves_no_reader_waiting(
    target: TargetModel, small: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Should the engine's thread end by itself, its streams end too and newcomers are told."""

    def die(*_: object) -> None:
        raise SystemExit

    monkeypatch.setattr(target, "forward", die)
    small.start()

    async def ask() -> RoundOutput:
        return [output async for output in small.generate(simple("a", [65, 66], 4))][-1]

    assert asyncio.run(asyncio.wait_for(ask(), 60)).finish_reason == "cancelled"
    with pytest.raises(Exception, match="stopping"):
        asyncio.run(ask())
