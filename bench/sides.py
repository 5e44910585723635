"""The programs that are compared, each behind one call: a prompt in, tokens and times out.

Both sides are timed the same way: the whole call, prefill included, from token ids to token ids; the moment
of the first new token is kept beside it, so that the time per output token can be told without the prefill.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from transformers import AutoModelForCausalLM

from draftproof.core.clock import monotonic_ns
from draftproof.core.errors import EngineError
from draftproof.reference.engine import Engine
from draftproof.reference.types import (
    GenerationRequest,
    RoundOutput,
    RoundStats,
    SamplingParams,
    SpeculationMethod,
    SpeculationParams,
)

Prompt = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Limit:
    """Where an answer ends: after `max_tokens`, and at the end-of-text token unless it is ignored."""

    max_tokens: int
    ignore_eos: bool = False


@dataclass(frozen=True, slots=True)
class Call:
    """One timed answer; times in seconds since the call began.

    `first_tokens` came at `first_s`: more than one where a peer's first pass verified a draft.
    """

    token_ids: tuple[int, ...]
    seconds: float
    first_s: float
    rounds: tuple[RoundStats, ...] = ()
    first_tokens: int = 1

    @property
    def rate(self) -> float:
        """New tokens per second of the whole call."""
        return len(self.token_ids) / self.seconds

    @property
    def tpot_s(self) -> float:
        """Seconds per token after the first ones; not a number where none came after them."""
        later = len(self.token_ids) - self.first_tokens
        return (self.seconds - self.first_s) / later if later else float("nan")


class Side(Protocol):
    """A program under test."""

    def __call__(self, prompt: Prompt, limit: Limit) -> Call:
        """Answer greedily, alone."""
        ...


class EngineSide:
    """The reference engine with one method, a fixed draft length, and where an unsure drafter stops."""

    def __init__(
        self,
        engine: Engine,
        method: SpeculationMethod = "off",
        draft_tokens: int = 4,
        stop_below: float = 0.0,
    ) -> None:
        self._engine = engine
        self._speculation = SpeculationParams(
            method=method, num_spec_tokens=draft_tokens, stop_below=stop_below
        )

    def __call__(self, prompt: Prompt, limit: Limit) -> Call:
        """Answer greedily, alone in the engine.

        Raises:
            EngineError: the drafter failed: what ran on was ordinary decoding.
        """
        outputs: list[RoundOutput] = []
        start_ns = monotonic_ns()
        first_ns = start_ns
        self._engine.add_request(ask("bench", prompt, limit, self._speculation))
        while self._engine.has_work:
            before = len(outputs)
            outputs += [output for _, output in self._engine.step()]
            if not before:
                first_ns = monotonic_ns()
        end_ns = monotonic_ns()
        if any(output.fallbacks or output.error for output in outputs):
            raise EngineError("the drafter failed during the benchmark", place=self._speculation.method)
        return Call(
            token_ids=tuple(token for output in outputs for token in output.token_ids),
            seconds=(end_ns - start_ns) / 1e9,
            first_s=(first_ns - start_ns) / 1e9,
            rounds=tuple(output.round for output in outputs if output.round is not None),
        )


def ask(name: str, prompt: Prompt, limit: Limit, speculation: SpeculationParams) -> GenerationRequest:
    """Return a greedy request."""
    return GenerationRequest(
        request_id=name,
        prompt_token_ids=prompt,
        sampling=SamplingParams(max_tokens=limit.max_tokens, ignore_eos=limit.ignore_eos),
        speculation=speculation,
    )


class PeerSide:
    """`generate` of transformers.

    Args:
        model: a causal LM as `from_pretrained` gives it.
        settings: further arguments of `generate`.
    """

    def __init__(self, model: Any, **settings: Any) -> None:
        self._model, self._settings = model, settings

    def __call__(self, prompt: Prompt, limit: Limit) -> Call:
        """Answer greedily."""
        settings = dict(self._settings)
        if limit.ignore_eos:
            settings["eos_token_id"] = None
        start_ns = monotonic_ns()
        clock = _TokenClock()
        ids = torch.tensor([prompt])
        whole = self._model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=limit.max_tokens,
            streamer=clock,
            **settings,
        )
        token_ids = tuple(whole[0, len(prompt) :].tolist())
        end_ns = monotonic_ns()
        return Call(
            token_ids=token_ids,
            seconds=(end_ns - start_ns) / 1e9,
            first_s=(clock.first_ns - start_ns) / 1e9,
            first_tokens=clock.first_tokens,
        )


class _TokenClock:
    """Notes when `generate` streams its first new tokens; what it streams before them is the prompt."""

    def __init__(self) -> None:
        self.first_ns, self.first_tokens, self._calls = 0, 1, 0

    def put(self, value: torch.Tensor) -> None:
        self._calls += 1
        if self._calls == 2:
            self.first_ns, self.first_tokens = monotonic_ns(), value.numel()

    def end(self) -> None:
        """Nothing is kept back."""


def load_peer(folder: str, dtype: torch.dtype) -> Any:
    """Return a model as a user of transformers would load it: default attention, eager."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
    ends = model.generation_config.eos_token_id
    model.generation_config.pad_token_id = ends if isinstance(ends, int) else ends[0]
    return model


Calls = dict[str, list[list[Call]]]  # by side, by prompt, by repeat


def interleave(
    sides: Mapping[str, Side], prompts: Sequence[Prompt], limit: Limit, repeats: int, *, warm_up: bool = True
) -> Calls:
    """Return every side's answers to every prompt; the sides take turns, each prompt begins with another."""
    names = list(sides)
    if warm_up:
        for side in sides.values():
            side(prompts[0], Limit(min(8, limit.max_tokens), limit.ignore_eos))
    calls: Calls = {name: [[] for _ in prompts] for name in names}
    for at, prompt in enumerate(prompts):
        for period in range(repeats):
            first = (at + period) % len(names)
            for name in names[first:] + names[:first]:
                calls[name][at].append(sides[name](prompt, limit))
    return calls


def typical_rate(calls: Sequence[Call]) -> float:
    """Return the median tokens per second of a prompt's repeats."""
    return statistics.median(call.rate for call in calls)


def typical_tpot_s(calls: Sequence[Call]) -> float:
    """Return the median seconds per output token of a prompt's repeats."""
    return statistics.median(call.tpot_s for call in calls)
