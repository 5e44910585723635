"""The training corpus in memory: token ids, where answers begin, and the target's hidden states.

Shards are files of finished answers; a batch is cut from answers of similar length, padded to the longest.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch


@dataclass(frozen=True, slots=True)
class Example:
    """One text: [tokens] ids, `prompt_tokens` of them given, and [tokens - 1, taps, hidden] bfloat16."""

    token_ids: torch.Tensor
    prompt_tokens: int
    states: torch.Tensor


@dataclass(frozen=True, slots=True)
class Batch:
    """Texts padded to the same length.

    Attributes:
        token_ids: [texts, tokens]; padding is 0.
        states: [texts, tokens - 1, taps, hidden] float32.
        counted: [texts, tokens - 1], whether the state at a position stands before a token of the answer.
    """

    token_ids: torch.Tensor
    states: torch.Tensor
    counted: torch.Tensor


def save_shard(examples: Sequence[Example], path: Path) -> None:
    """Write examples to a file."""
    rows = [
        {"token_ids": one.token_ids, "prompt_tokens": one.prompt_tokens, "states": one.states}
        for one in examples
    ]
    torch.save(rows, path)


def load_corpus(folder: Path) -> list[Example]:
    """Return every example of a folder of shards, in order of file and place."""
    rows = [row for path in sorted(folder.glob("shard*.pt")) for row in torch.load(path, mmap=True)]
    return [Example(**row) for row in rows]


def count_tokens(examples: Sequence[Example]) -> int:
    """Return the number of answer tokens."""
    return sum(len(one.token_ids) - one.prompt_tokens for one in examples)


def frequent_tokens(examples: Sequence[Example], size: int, always: Sequence[int]) -> torch.Tensor:
    """Return the `size` most frequent tokens of the answers, `always` among them, in rising order: [size]."""
    counts: Counter[int] = Counter()
    for one in examples:
        counts.update(one.token_ids[one.prompt_tokens :].tolist())
    chosen = list(always) + [token for token, _ in counts.most_common() if token not in set(always)]
    return torch.tensor(sorted(chosen[:size]))


def coverage(examples: Sequence[Example], vocabulary: torch.Tensor) -> float:
    """Return the share of answer tokens that are in a vocabulary."""
    answers = torch.cat([one.token_ids[one.prompt_tokens :] for one in examples])
    return float(torch.isin(answers, vocabulary).float().mean())


def repeat(
    examples: Sequence[Example],
    epochs: int,
    *,
    batch_tokens: int,
    taps: Sequence[int],
    generator: torch.Generator,
) -> Iterator[Batch]:
    """Yield the examples `epochs` times, each time in another order, about `batch_tokens` tokens at a time.

    Args:
        examples: the corpus.
        epochs: passes over it.
        batch_tokens: of a batch, padding included.
        taps: columns of the states to take.
        generator: order of batches.
    """
    groups = _groups(examples, batch_tokens)
    for _ in range(epochs):
        for at in torch.randperm(len(groups), generator=generator).tolist():
            yield _pad([examples[index] for index in groups[at]], taps)


def count_batches(examples: Sequence[Example], batch_tokens: int) -> int:
    """Return the number of batches of one pass."""
    return len(_groups(examples, batch_tokens))


def _groups(examples: Sequence[Example], batch_tokens: int) -> list[list[int]]:
    """Return indices of examples of similar length, as many together as fit a batch."""
    by_length = sorted(range(len(examples)), key=lambda index: len(examples[index].token_ids))
    groups: list[list[int]] = [[]]
    for index in by_length:
        if groups[-1] and (len(groups[-1]) + 1) * len(examples[index].token_ids) > batch_tokens:
            groups.append([])
        groups[-1].append(index)
    return groups


def _pad(examples: Sequence[Example], taps: Sequence[int]) -> Batch:
    longest = max(len(one.token_ids) for one in examples)
    hidden = examples[0].states.shape[-1]
    token_ids = torch.zeros(len(examples), longest, dtype=torch.long)
    states = torch.zeros(len(examples), longest - 1, len(taps), hidden)
    counted = torch.zeros(len(examples), longest - 1, dtype=torch.bool)
    for row, one in enumerate(examples):
        length = len(one.token_ids)
        token_ids[row, :length] = one.token_ids
        states[row, : length - 1] = one.states[:, list(taps)].float()
        counted[row, one.prompt_tokens - 1 : length - 1] = True
    return Batch(token_ids, states, counted)
