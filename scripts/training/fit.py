"""The optimisation loop all drafters share: AdamW, a short warm-up, a cosine down to nothing."""

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import nn

Progress = Callable[[str], None]
_WARMUP_STEPS, _LAST_RATE, _LARGEST_GRADIENT = 50, 0.02, 1.0
_TELL_EVERY_S = 20.0


@dataclass(frozen=True, slots=True)
class FitReport:
    """What a training took: steps, seconds, and the exponentially averaged loss at its end."""

    steps: int
    seconds: float
    loss: float


def fit(
    module: nn.Module, losses: Iterable[torch.Tensor], *, steps: int, rate: float, tell: Progress, label: str
) -> FitReport:
    """Take one optimiser step for each loss.

    Args:
        module: its parameters are trained.
        losses: one scalar with a graph per batch, computed when asked for.
        steps: how many are expected; the learning rate falls towards that.
        rate: the highest learning rate.
        tell: receives a line now and then.
        label: what the line begins with.
    """
    optimiser = torch.optim.AdamW(module.parameters(), lr=rate, betas=(0.9, 0.95), weight_decay=0.0)
    begun = told = time.monotonic()
    average, taken = 0.0, 0
    for loss in losses:
        for group in optimiser.param_groups:
            group["lr"] = rate * _scale(taken, steps)
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(module.parameters(), _LARGEST_GRADIENT)
        optimiser.step()
        taken += 1
        average += (float(loss.detach()) - average) * max(0.05, 1 / taken)
        if time.monotonic() - told > _TELL_EVERY_S:
            told = time.monotonic()
            tell(f"{label}: step {taken} of {steps}, loss {average:.3f}, {told - begun:.0f} s")
    return FitReport(taken, time.monotonic() - begun, average)


def _scale(step: int, steps: int) -> float:
    """Return the share of the highest rate at a step."""
    warmup = min(1.0, (step + 1) / _WARMUP_STEPS)
    cosine = 0.5 * (1.0 + math.cos(math.pi * min(1.0, step / steps)))
    return warmup * (cosine + _LAST_RATE)
