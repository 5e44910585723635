"""Lets the target answer the training prompts: its own, the templates', and tasks on its earlier answers."""

import hashlib
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from draftproof.reference.model import TargetModel
from draftproof.reference.training.corpus import Example, save_shard
from draftproof.reference.training.fit import Progress
from draftproof.reference.training.generation import Answer, Task, generate
from draftproof.reference.training.prompts import editing_prompts, open_prompts, overlaps

_SHARD = 64
_CHUNK = 384
_GREEDY_SHARE = 0.8  # most services that speculate decode at or near temperature 0
_SAMPLED_AT = 0.8
_PROMPT_TOKENS, _PROMPT_CHARS = 80, (12, 500)
_PASSAGE_CHARS, _PASSAGE_SENTENCES, _EDITS = (80, 700), 5, 64


@dataclass(frozen=True, slots=True)
class CorpusPlan:
    """How much of what: prompts the target makes up, prompts of templates, tokens an answer may have."""

    self_made: int
    templates: int
    max_tokens: int
    taps: tuple[int, ...]
    width: int = 32
    seed: int = 1


def write_corpus(
    target: TargetModel, plan: CorpusPlan, held_out: Sequence[str], folder: Path, tell: Progress
) -> None:
    """Write shards of answers with their states.

    Args:
        target: the target, on the engine's own decoder.
        plan: how much.
        held_out: texts no training prompt may overlap.
        folder: receives the shards.
        tell: receives progress.
    """
    rng = random.Random(plan.seed)  # noqa: S311 - reproducible, not secret
    prompts = make_up_prompts(target, plan, tell) + open_prompts(plan.templates, plan.seed)
    prompts = [prompt for prompt in prompts if not overlaps(prompt, held_out)]
    rng.shuffle(prompts)
    shards = _Shards(folder, tell)
    for start in range(0, len(prompts), _CHUNK):
        passages = [
            _passage(target, answer)
            for answer in _answers(target, plan, prompts[start : start + _CHUNK], rng)
            if shards.add(answer) and answer.task.temperature == 0
        ]
        fitting = [text for text in passages if _PASSAGE_CHARS[0] < len(text) < _PASSAGE_CHARS[1]]
        rng.shuffle(fitting)
        edits = editing_prompts(fitting[:_EDITS], plan.seed + start)
        for answer in _answers(target, plan, [one for one in edits if not overlaps(one, held_out)], rng):
            shards.add(answer)
    shards.close()


def make_up_prompts(target: TargetModel, plan: CorpusPlan, tell: Progress) -> list[str]:
    """Return user turns the target writes itself when its chat template stops before one.

    A model tuned on conversations has also learnt what users ask (Xu et al. 2024, Magpie).
    """
    if target.decoder is None:
        raise ValueError("the target has no decoder of the engine's own")
    opening = _open_user_turn(target)
    tasks = [Task(opening, 0.9, "prompt")] * plan.self_made
    made: set[str] = set()
    for number, answer in enumerate(
        generate(
            target.decoder,
            target.cache_shape,
            tasks,
            eos_ids=target.eos_ids,
            taps=(),
            max_tokens=_PROMPT_TOKENS,
            width=plan.width,
            seed=plan.seed,
        ),
        start=1,
    ):
        text = target.decode(list(answer.token_ids[len(opening) :])).strip()
        whole = answer.token_ids[-1] in target.eos_ids
        if whole and _PROMPT_CHARS[0] <= len(text) <= _PROMPT_CHARS[1]:
            made.add(text)
        if number % 100 == 0:
            tell(f"prompts: {number} of {plan.self_made}")
    return sorted(made)


def corpus_digest(examples: Sequence[Example]) -> str:
    """Return the SHA-256 of all token ids, which names a corpus."""
    digest = hashlib.sha256()
    for one in examples:
        digest.update(one.token_ids.to(torch.int32).numpy().tobytes())
    return digest.hexdigest()


def chat_ids(target: TargetModel, prompt: str) -> tuple[int, ...]:
    """Return the token ids of a chat with one user turn, ready for the answer."""
    turns = [{"role": "user", "content": prompt}]
    text = target.tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False)
    return tuple(target.tokenizer.encode(text, add_special_tokens=False))


def _open_user_turn(target: TargetModel) -> tuple[int, ...]:
    marker = "\0"
    turns = [{"role": "user", "content": marker}]
    text = target.tokenizer.apply_chat_template(turns, add_generation_prompt=False, tokenize=False)
    return tuple(target.tokenizer.encode(text.partition(marker)[0], add_special_tokens=False))


def _answers(
    target: TargetModel, plan: CorpusPlan, prompts: Sequence[str], rng: random.Random
) -> Iterator[Answer]:
    if target.decoder is None:
        raise ValueError("the target has no decoder of the engine's own")
    tasks = [
        Task(chat_ids(target, prompt), 0.0 if rng.random() < _GREEDY_SHARE else _SAMPLED_AT, "answer")
        for prompt in prompts
    ]
    yield from generate(
        target.decoder,
        target.cache_shape,
        tasks,
        eos_ids=target.eos_ids,
        taps=plan.taps,
        max_tokens=plan.max_tokens,
        width=plan.width,
        seed=rng.randrange(1 << 30),
    )


def _passage(target: TargetModel, answer: Answer) -> str:
    text = target.decode(list(answer.token_ids[len(answer.task.prompt_ids) :])).strip()
    return " ".join(re.split(r"(?<=[.!?])\s+", text)[:_PASSAGE_SENTENCES])


class _Shards:
    """Writes examples to numbered files as they come."""

    def __init__(self, folder: Path, tell: Progress) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._tell = folder, tell
        self._pending: list[Example] = []
        self._written, self._tokens = 0, 0

    def add(self, answer: Answer) -> bool:
        prompt_tokens = len(answer.task.prompt_ids)
        self._pending.append(Example(torch.tensor(answer.token_ids), prompt_tokens, answer.hidden))
        self._tokens += len(answer.token_ids) - prompt_tokens
        if len(self._pending) == _SHARD:
            self.close()
        return True

    def close(self) -> None:
        if self._pending:
            save_shard(self._pending, self._folder / f"shard{self._written:04d}.pt")
            self._written += 1
            self._pending = []
            self._tell(f"answers: {self._tokens} tokens")
