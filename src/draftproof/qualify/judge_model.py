"""Asks a judge model over an OpenAI-compatible service. What it is asked and what it means lie elsewhere."""

import asyncio
import os
from collections.abc import AsyncIterator, Mapping, Sequence

import aiohttp
import msgspec

from draftproof.errors import EngineError
from draftproof.plan.environment import find_secrets, mask_struct, resolve_headers
from draftproof.plan.judge import Judge
from draftproof.plan.schema import Arm
from draftproof.records import Judgement
from draftproof.workload.items import JudgeCheck
from draftproof.workload.judging import Task, hash_judge, make_judgement, read_verdict, render_prompt

MOST_FAILURES = 3
# A verdict is a word; a service that sends without end must not fill the memory.
LARGEST_REPLY_BYTES = 1 << 20


class _Part(msgspec.Struct, frozen=True):
    text: str | None = None


class _Message(msgspec.Struct, frozen=True):
    content: str | tuple[_Part, ...] | None = None

    @property
    def text(self) -> str:
        """What it says; parts that are no text say nothing."""
        if isinstance(self.content, tuple):
            return "".join(part.text or "" for part in self.content)
        return self.content or ""


class _Choice(msgspec.Struct, frozen=True):
    message: _Message


class _Reply(msgspec.Struct, frozen=True):
    choices: tuple[_Choice, ...]


async def ask_judge(
    judge: Judge, tasks: Sequence[Task], environment: Mapping[str, str] | None = None
) -> AsyncIterator[Judgement]:
    """Yield a judgement for every task that the judge answers, in the order in which its answers come.

    Raises:
        PlanError: a header refers to a name that is not set.
        EngineError: the judge did not answer several times; the rest is left for another call.
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
    reply = await _post(session, judge, payload)
    return make_judgement(
        task,
        read_verdict(reply, check),
        by=judge.model,
        source_sha256=hash_judge(judge.model, check, judge.request),
    )


async def _post(session: aiohttp.ClientSession, judge: Judge, payload: Mapping[str, object]) -> str:
    url = judge.url.rstrip("/").removesuffix("/v1") + "/v1/chat/completions"
    try:
        async with session.post(
            url,
            data=msgspec.json.encode(payload),
            headers={"Content-Type": "application/json"},
            allow_redirects=False,
        ) as response:
            body = await _read_limited(response)
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise EngineError(f"{type(error).__name__}: {error}") from error
    if response.status != 200:
        raise EngineError(f"HTTP {response.status}")
    try:
        return msgspec.json.decode(body, type=_Reply).choices[0].message.text
    except (msgspec.DecodeError, UnicodeDecodeError, IndexError) as error:
        raise EngineError("its reply is not that of a chat completion") from error


async def _read_limited(response: aiohttp.ClientResponse) -> bytes:
    body = bytearray()
    async for piece in response.content.iter_any():
        body += piece
        if len(body) > LARGEST_REPLY_BYTES:
            raise EngineError(f"its reply is larger than {LARGEST_REPLY_BYTES:,} bytes")
    return bytes(body)
