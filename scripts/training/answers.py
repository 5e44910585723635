"""Lets the target answer the training prompts: its own, the templates', and tasks on its earlier answers."""

import hashlib
import json
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from draftproof.reference.models.model import TargetModel
from training.corpus import Example, save_shard
from training.fit import Progress
from training.generation import Answer, Task, generate
from training.prompts import editing_prompts, open_prompts, overlaps

PLAN_NAME = "plan.json"
_SHARD = 64
_CHUNK = 384
_GREEDY_SHARE = 0.8  # most services that speculate decode at or near temperature 0
_SAMPLED_AT = 0.8
_OPENING_TEMPERATURE = 0.9
_PASSAGE_CHARS, _PASSAGE_SENTENCES, _EDITS = (80, 700), 5, 64


@dataclass(frozen=True, slots=True)
class CorpusPlan:
    """How much of what: conversations the target makes up, prompts of templates, tokens of an answer."""

    conversations: int
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
    shards = _Shards(folder, tell)
    (folder / PLAN_NAME).write_text(json.dumps(asdict(plan)))
    templates = open_prompts(plan.templates, plan.seed)
    tasks = [_chat_task(target, prompt, rng) for prompt in templates if not overlaps(prompt, held_out)]
    tasks += [_conversation_task(target, rng) for _ in range(plan.conversations)]
    rng.shuffle(tasks)
    for start in range(0, len(tasks), _CHUNK):
        answers = _answers(target, plan, tasks[start : start + _CHUNK], rng)
        greedy = [one for one in answers if shards.add(one, target, held_out) and one.task.temperature == 0]
        passages = [_passage(target, one) for one in greedy]
        fitting = [text for text in passages if _PASSAGE_CHARS[0] < len(text) < _PASSAGE_CHARS[1]]
        rng.shuffle(fitting)
        edits = editing_prompts(fitting[:_EDITS], plan.seed + start)
        edit_tasks = [_chat_task(target, prompt, rng) for prompt in edits if not overlaps(prompt, held_out)]
        for answer in _answers(target, plan, edit_tasks, rng):
            shards.add(answer, target, held_out)
    shards.close()


def _chat_task(target: TargetModel, prompt: str, rng: random.Random) -> Task:
    return Task(chat_ids(target, prompt), _draw_temperature(rng))


def _conversation_task(target: TargetModel, rng: random.Random) -> Task:
    """Return a task in which the target writes the user's turn as well.

    A model tuned on conversations has also learnt what users ask (Xu et al. 2024, Magpie).
    """
    opening, reply = _turn_ids(target)
    return Task(opening, _draw_temperature(rng), reply, _OPENING_TEMPERATURE)


def _draw_temperature(rng: random.Random) -> float:
    return 0.0 if rng.random() < _GREEDY_SHARE else _SAMPLED_AT


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


def _turn_ids(target: TargetModel) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the tokens before a user's turn, and those between its end token and the answer."""
    marker = "\0"
    text = target.tokenizer.apply_chat_template(
        [{"role": "user", "content": marker}], add_generation_prompt=True, tokenize=False
    )
    before, _, after = text.partition(marker)
    closing = target.tokenizer.encode(after, add_special_tokens=False)
    return tuple(target.tokenizer.encode(before, add_special_tokens=False)), tuple(closing[1:])


def _answers(
    target: TargetModel, plan: CorpusPlan, tasks: Sequence[Task], rng: random.Random
) -> Iterator[Answer]:
    if target.decoder is None:
        raise ValueError("the target has no decoder of the engine's own")
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
    text = target.decode(list(answer.token_ids[answer.prompt_tokens :])).strip()
    return " ".join(re.split(r"(?<=[.!?])\s+", text)[:_PASSAGE_SENTENCES])


def _own_turn(target: TargetModel, answer: Answer) -> str:
    """Return the user's turn that the target wrote itself."""
    end = answer.prompt_tokens - len(answer.task.reply_ids)
    return target.decode(list(answer.token_ids[len(answer.task.prompt_ids) : end]))


class _Shards:
    """Writes examples to numbered files as they come."""

    def __init__(self, folder: Path, tell: Progress) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._tell = folder, tell
        self._pending: list[Example] = []
        self._written, self._tokens = 0, 0

    def add(self, answer: Answer, target: TargetModel, held_out: Sequence[str]) -> bool:
        """Keep an answer unless it has none, or its user's turn is like one that must stay unseen."""
        if answer.prompt_tokens == len(answer.token_ids):
            return False
        if answer.task.reply_ids and overlaps(_own_turn(target, answer), held_out):
            return False
        self._pending.append(Example(torch.tensor(answer.token_ids), answer.prompt_tokens, answer.hidden))
        self._tokens += len(answer.token_ids) - answer.prompt_tokens
        if len(self._pending) == _SHARD:
            self.close()
        return True

    def close(self) -> None:
        if self._pending:
            save_shard(self._pending, self._folder / f"shard{self._written:04d}.pt")
            self._written += 1
            self._pending = []
            self._tell(f"answers: {self._tokens} tokens")
