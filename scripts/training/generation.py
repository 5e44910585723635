"""Answers of the target with the hidden states behind them: what a drafter is trained on.

A plain loop over many sequences at once, without server, queue or speculation: a sequence that ends makes
room for the next. Hidden states are kept because every drafter that reads the target learns from them, and
computing them again would cost as much as the answers did.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import torch

from draftproof.reference.models.decoder import Decoder
from draftproof.reference.models.ragged import CacheShape, RaggedBatch, SequenceCache


@dataclass(frozen=True, slots=True)
class Task:
    """One text to continue; `temperature` 0 is greedy.

    With `reply_ids` the text is a user's turn that the model writes itself, at `opening_temperature`: when it
    ends, these tokens open the answer.
    """

    prompt_ids: tuple[int, ...]
    temperature: float
    reply_ids: tuple[int, ...] = ()
    opening_temperature: float = 1.0


@dataclass(frozen=True, slots=True)
class Answer:
    """A finished text: its tokens, the first `prompt_tokens` not the answer's, and hidden states.

    Row i of `hidden`, [tokens - 1, taps, hidden] bfloat16, is what the tapped layers gave at token i, from
    which token i + 1 was chosen. An answer whose user's turn never ended has no tokens of its own.
    """

    task: Task
    token_ids: tuple[int, ...]
    prompt_tokens: int
    hidden: torch.Tensor


@dataclass(slots=True)
class _Live:
    task: Task
    cache: SequenceCache
    token_ids: list[int]
    prompt_tokens: int
    opening: bool  # the model is still writing the user's turn
    hidden: list[torch.Tensor] = field(default_factory=list)

    @property
    def pending(self) -> list[int]:
        return self.token_ids[self.cache.length :]

    @property
    def temperature(self) -> float:
        return self.task.opening_temperature if self.opening else self.task.temperature

    def append(self, token_id: int, eos_ids: frozenset[int], max_tokens: int) -> bool:
        """Take the next token; return whether the text goes on."""
        self.token_ids.append(token_id)
        written = len(self.token_ids) - self.prompt_tokens
        if self.opening and token_id in eos_ids:
            self.token_ids += self.task.reply_ids
            self.prompt_tokens, self.opening = len(self.token_ids), False
            return True
        return token_id not in eos_ids and written < max_tokens

    def answer(self) -> Answer:
        prompt_tokens = len(self.token_ids) if self.opening else self.prompt_tokens
        return Answer(self.task, tuple(self.token_ids), prompt_tokens, torch.cat(self.hidden))


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
        max_tokens: of an answer, and of a user's turn.
        width: sequences at once.
        seed: of the sampled answers.
    """
    waiting, live = deque(tasks), list[_Live]()
    generator = torch.Generator().manual_seed(seed)
    while waiting or live:
        while waiting and len(live) < width:
            task = waiting.popleft()
            prompt, opening = list(task.prompt_ids), bool(task.reply_ids)
            live.append(_Live(task, SequenceCache(cache_shape), prompt, len(prompt), opening))
        logits = _step(decoder, live, taps)
        still: list[_Live] = []
        for one, token_id in zip(live, _choose(logits, live, generator), strict=True):
            if one.append(token_id, eos_ids, max_tokens):
                still.append(one)
            else:
                yield one.answer()
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
        if one.temperature > 0:
            probs = torch.softmax(logits[row] / one.temperature, dim=-1)
            chosen[row] = int(torch.multinomial(probs, 1, generator=generator))
    return chosen
