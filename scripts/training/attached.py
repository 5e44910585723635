"""Trains the attached head: first on true states alone, then on its own outputs too, as it is used."""

from collections.abc import Iterator, Sequence

import torch
from torch.nn import functional

from training.corpus import Batch, Example, count_batches, repeat
from training.fit import FitReport, Progress, fit
from training.modules import AttachedModule, Rotary
from training.teacher import Teacher

_DEEPER_COUNTS = 0.8  # a draft matters only if those before it are right
_BRANCH_SCALE = 0.3  # the copied layer's output begins small beside the state it refines
_SCALE_SAMPLE = 60


def train_attached(
    corpus: Sequence[Example],
    teacher: Teacher,
    vocabulary: torch.Tensor,
    *,
    columns: Sequence[int],
    phases: Sequence[tuple[int, int]],
    rate: float,
    batch_tokens: int,
    seed: int,
    tell: Progress,
) -> tuple[AttachedModule, list[FitReport]]:
    """Train a head.

    Args:
        corpus: texts with states.
        teacher: the target.
        vocabulary: [draft vocab] token ids its output rows stand for.
        columns: taps of the corpus' states to read; the last must be the target's last layer.
        phases: (epochs, depth) in order.
        rate: learning rate of the first phase, halved for each later one.
        batch_tokens: of a batch.
        seed: order of batches.
        tell: receives progress.
    """
    module = _fresh_module(corpus, teacher, columns)
    rotary, generator = teacher.rotary(), torch.Generator().manual_seed(seed)
    reports = []
    for number, (epochs, depth) in enumerate(phases):
        steps = epochs * count_batches(corpus, batch_tokens)
        passes = repeat(corpus, epochs, batch_tokens=batch_tokens, taps=columns, generator=generator)
        losses = _losses(module, teacher, rotary, vocabulary, depth=depth, passes=passes)
        label = f"attached head, depth {depth}"
        reports.append(fit(module, losses, steps=steps, rate=rate / 2**number, tell=tell, label=label))
    return module, reports


def _fresh_module(corpus: Sequence[Example], teacher: Teacher, columns: Sequence[int]) -> AttachedModule:
    sample = torch.cat([one.states[:, list(columns)].float() for one in corpus[:_SCALE_SAMPLE]])
    scales = sample.square().mean((0, 2)).sqrt()  # [taps]
    layer = teacher.copied_layer(teacher.config.num_hidden_layers - 1)
    module = AttachedModule(layer, len(columns), teacher.config.hidden_size, scales, teacher.eps)
    with torch.no_grad():
        module.final_norm.weight.copy_(teacher.final_norm)
        layer.output.weight.mul_(_BRANCH_SCALE)
        layer.down.weight.mul_(_BRANCH_SCALE)
    return module


def _losses(
    module: AttachedModule,
    teacher: Teacher,
    rotary: Rotary,
    vocabulary: torch.Tensor,
    *,
    depth: int,
    passes: Iterator[Batch],
) -> Iterator[torch.Tensor]:
    rows = teacher.embedding[vocabulary]
    for batch in passes:
        tokens = batch.token_ids.shape[1] - 1 - depth
        embeddings = teacher.embedding[batch.token_ids[:, 1 : tokens + depth]]
        outputs = module(batch.states[:, :tokens], embeddings, rotary, depth)
        truth = teacher.normed(batch.states[:, :, -1])
        loss = torch.zeros(())
        for step, output in enumerate(outputs):
            window = slice(1 + step, 1 + step + tokens)
            counted = batch.counted[:, window]
            loss = loss + _DEEPER_COUNTS**step * distil(output[counted], truth[:, window][counted], rows)
        yield loss


def distil(output: torch.Tensor, truth: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Return the cross-entropy of a drafter against the target over the draft vocabulary.

    Args:
        output: [positions, hidden] the drafter's normed states.
        truth: [positions, hidden] the target's normed states.
        rows: [draft vocab, hidden] output rows, the same for both.
    """
    with torch.no_grad():
        wanted = (truth @ rows.T).softmax(-1)
    return functional.cross_entropy(output @ rows.T, wanted)
