"""Trains the simpler drafters: a draft model cut from the target's layers, an early exit's adapter."""

from collections.abc import Iterator, Sequence

import torch
from torch import nn

from training.attached import distil
from training.corpus import Example, count_batches, repeat
from training.fit import FitReport, Progress, fit
from training.modules import ExitModule, Rotary, TrainedLayer
from training.teacher import Teacher


class DraftModule(nn.Module):
    """A few layers between the target's embedding and its output rows.

    Args:
        layers: in order.
        hidden: width of a state.
        eps: of the norms.
    """

    def __init__(self, layers: Sequence[TrainedLayer], hidden: int, eps: float) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.final_norm = nn.RMSNorm(hidden, eps)

    def forward(self, embeddings: torch.Tensor, rotary: Rotary) -> torch.Tensor:
        """Return the normed states, [texts, tokens, hidden]."""
        hidden = embeddings
        for layer in self.layers:
            hidden = layer(hidden, rotary)
        normed: torch.Tensor = self.final_norm(hidden)
        return normed


def train_draft(
    corpus: Sequence[Example],
    teacher: Teacher,
    vocabulary: torch.Tensor,
    *,
    copied_layers: Sequence[int],
    epochs: int,
    rate: float,
    batch_tokens: int,
    seed: int,
    tell: Progress,
) -> tuple[DraftModule, FitReport]:
    """Train a draft model that begins as some of the target's layers, its last state the last column.

    Args:
        corpus: texts with states.
        teacher: the target.
        vocabulary: [draft vocab] token ids it may draft.
        copied_layers: the target's layers it begins as.
        epochs: passes over the corpus.
        rate: learning rate.
        batch_tokens: of a batch.
        seed: order of batches.
        tell: receives progress.
    """
    layers = [teacher.copied_layer(index) for index in copied_layers]
    module = DraftModule(layers, teacher.config.hidden_size, teacher.eps)
    with torch.no_grad():
        module.final_norm.weight.copy_(teacher.final_norm)
    rotary, rows = teacher.rotary(), teacher.embedding[vocabulary]
    generator = torch.Generator().manual_seed(seed)
    passes = repeat(corpus, epochs, batch_tokens=batch_tokens, taps=(-1,), generator=generator)

    def losses() -> Iterator[torch.Tensor]:
        for batch in passes:
            output = module(teacher.embedding[batch.token_ids[:, :-1]], rotary)[batch.counted]
            yield distil(output, teacher.normed(batch.states[:, :, 0][batch.counted]), rows)

    steps = epochs * count_batches(corpus, batch_tokens)
    return module, fit(module, losses(), steps=steps, rate=rate, tell=tell, label="draft model")


def train_exit(
    corpus: Sequence[Example],
    teacher: Teacher,
    vocabulary: torch.Tensor,
    *,
    column: int,
    epochs: int,
    rate: float,
    batch_tokens: int,
    seed: int,
    tell: Progress,
) -> tuple[ExitModule, FitReport]:
    """Train the adapter of an early exit.

    Args:
        corpus: texts with states.
        teacher: the target.
        vocabulary: [draft vocab] token ids it may draft.
        column: of the corpus' states, the exit's layer.
        epochs: passes over the corpus.
        rate: learning rate.
        batch_tokens: of a batch.
        seed: order of batches.
        tell: receives progress.
    """
    module = ExitModule(teacher.config.hidden_size, teacher.config.intermediate_size, teacher.eps)
    with torch.no_grad():
        module.final_norm.weight.copy_(teacher.final_norm)
    rows, generator = teacher.embedding[vocabulary], torch.Generator().manual_seed(seed)
    passes = repeat(corpus, epochs, batch_tokens=batch_tokens, taps=(column, -1), generator=generator)

    def losses() -> Iterator[torch.Tensor]:
        for batch in passes:
            states = batch.states[batch.counted]  # [positions, 2, hidden]
            yield distil(module(states[:, 0]), teacher.normed(states[:, 1]), rows)

    steps = epochs * count_batches(corpus, batch_tokens)
    return module, fit(module, losses(), steps=steps, rate=rate, tell=tell, label="early exit")
