"""Answers of the target with the hidden states behind them: what a drafter is trained on.

A plain loop over many sequences at once, without server, queue or speculation: a sequence that ends makes
room for the next. Hidden states are kept because every drafter that reads the target learns from them, and
computing them again would cost as much as the answers did.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import torch

from draftproof.reference.cache import CacheShape, SequenceCache
from draftproof.reference.decoder import Decoder
from draftproof.reference.ragged import RaggedBatch


@dataclass(frozen=True, slots=True)
class Task:
    """One text to continue; `temperature` 0 is greedy."""

    prompt_ids: tuple[int, ...]
    temperature: float
    label: str


@dataclass(frozen=True, slots=True)
class Answer:
    """A finished text: `token_ids` with the prompt, and [tokens - 1, taps, hidden] bfloat16 hidden states.

    Row i of `hidden` is what the tapped layers gave at token i, from which token i + 1 was chosen.
    """

    task: Task
    token_ids: tuple[int, ...]
    hidden: torch.Tensor


@dataclass(slots=True)
class _Live:
    task: Task
    cache: SequenceCache
    token_ids: list[int]
    hidden: list[torch.Tensor] = field(default_factory=list)

    @property
    def pending(self) -> list[int]:
        return self.token_ids[self.cache.length :]


@torch.inference_mode()
def generate(
    decoder: Decoder,
    cache_shape: CacheShape,
    tasks: Iterable[Task],
    *,
    eos_ids: frozenset[int],
    taps: Sequence[int],
    max_tokens: int,
    width: int = 32,
    seed: int = 0,
) -> Iterator[Answer]:
    """Yield each task's answer as it ends.

    Args:
        decoder: the target.
        cache_shape: its cache.
        tasks: what to answer.
        eos_ids: tokens that end an answer.
        taps: numbers of layers, counted from 1, whose output is kept.
        max_tokens: of an answer.
        width: sequences at once.
        seed: of the sampled answers.
    """
    waiting, live = deque(tasks), list[_Live]()
    generator = torch.Generator().manual_seed(seed)
    while waiting or live:
        while waiting and len(live) < width:
            task = waiting.popleft()
            live.append(_Live(task, SequenceCache(cache_shape), list(task.prompt_ids)))
        logits = _step(decoder, live, taps)
        still: list[_Live] = []
        for one, token_id in zip(live, _choose(logits, live, generator), strict=True):
            one.token_ids.append(token_id)
            answered = len(one.token_ids) - len(one.task.prompt_ids)
            if token_id in eos_ids or answered >= max_tokens:
                yield Answer(one.task, tuple(one.token_ids), torch.cat(one.hidden))
            else:
                still.append(one)
        live = still


def _step(decoder: Decoder, live: Sequence[_Live], taps: Sequence[int]) -> torch.Tensor:
    """Feed every sequence's pending tokens, keep the tapped states, and return the last rows' logits."""
    counts = [len(one.pending) for one in live]
    batch = RaggedBatch([(one.cache, count) for one, count in zip(live, counts, strict=True)])
    hidden = decoder.embed([token_id for one in live for token_id in one.pending])
    angles, start, kept = decoder.angles(batch), 0, []
    for tap in taps:
        hidden = decoder.run(hidden, batch, range(start, tap), angles)
        kept.append(hidden.to(torch.bfloat16))
        start = tap
    hidden = decoder.run(hidden, batch, range(start, len(decoder.layers)), angles)
    batch.advance()
    for one, rows in zip(live, torch.split_with_sizes(torch.stack(kept, 1), counts), strict=True):
        one.hidden.append(rows)
    last = torch.tensor(counts).cumsum(0) - 1
    return decoder.logits(hidden.index_select(0, last))


def _choose(logits: torch.Tensor, live: Sequence[_Live], generator: torch.Generator) -> list[int]:
    chosen: list[int] = logits.argmax(-1).tolist()
    for row, one in enumerate(live):
        if one.task.temperature > 0:
            probs = torch.softmax(logits[row] / one.task.temperature, dim=-1)
            chosen[row] = int(torch.multinomial(probs, 1, generator=generator))
    return chosen
