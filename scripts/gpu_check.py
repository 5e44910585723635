"""Check the reference engine on a GPU: the same code paths, float32 and bfloat16, on tiny random models.

Run from the repository's root, with the `[engine]` extra installed in a torch that sees the device:

    python scripts/gpu_check.py                 # on cuda
    python scripts/gpu_check.py --device cpu    # the same checks where there is no GPU

It needs no network and no weights, takes under a minute, prints one line per check, and exits with 1 if any
check failed and 2 if there is no such device. Checked per family and precision: the logits of the engine's
path against the model's own whatever the split, and greedy tokens with n-gram drafts against those without,
batch 1 and 4. Two texts may part only where the two best tokens of the model lie within rounding.
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "unit" / "reference"))

from tiny_engine import (  # the builders of the tests
    FAMILIES,
    byte_tokenizer,
    make_engine,
    make_request,
    repetitive_prompt,
    run_all,
    tiny_model,
    token_ids_of,
)

from draftproof.core.errors import DraftproofError
from draftproof.reference.models.model import TargetModel
from draftproof.reference.models.ragged import SequenceCache

PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16}
FLOAT32_TOLERANCE = 1e-5  # root mean square, relative
BFLOAT16_FACTOR = 1.3  # over the error of the model's own bfloat16, likewise; two orders of rounding differ
TIE = {"float32": 1e-3, "bfloat16": 5e-2}  # of the largest logit
PROMPTS = 6


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all checks; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda", help="cuda, cuda:1, cpu")
    parser.add_argument("--family", choices=FAMILIES, action="append", help="only these; may come often")
    chosen = parser.parse_args(arguments)
    if chosen.device.startswith("cuda") and not torch.cuda.is_available():
        print("gpu_check: torch sees no GPU here. Fix: install torch for CUDA, or use --device cpu.")
        return 2
    torch.backends.cuda.matmul.allow_tf32 = False  # float32 is meant
    failed = 0
    for name, check in _checks(chosen.device, chosen.family or list(FAMILIES)):
        fault = _outcome(check)
        failed += fault is not None
        print(
            f"{'ok    ' if fault is None else 'FAILED'} {name}{'' if fault is None else ': ' + fault}",
            flush=True,
        )
    print(f"{'all checks passed' if not failed else f'{failed} checks failed'} on {chosen.device}")
    return 1 if failed else 0


def _checks(device: str, families: Sequence[str]) -> Iterator[tuple[str, Callable[[], None]]]:
    for family in families:
        for precision in PRECISIONS:
            place = f"{family}, {precision}, {device}"
            yield f"{place}: logits", partial(check_logits, family, precision, device)
            for batch in (1, 4):
                name = f"{place}: greedy tokens off and n-gram, batch {batch}"
                yield name, partial(check_greedy, family, precision, device, batch)


def _outcome(check: Callable[[], None]) -> str | None:
    try:
        check()
    except (AssertionError, DraftproofError, RuntimeError) as fault:
        return " ".join(str(fault).split()) or type(fault).__name__
    return None


def _model(family: str, precision: str, device: str) -> Any:
    return tiny_model(family, dtype=PRECISIONS[precision]).to(device)


@torch.inference_mode()
def check_logits(family: str, precision: str, device: str) -> None:
    """Assert that passes of one and of several tokens, two texts side by side, give the model's own logits.

    In bfloat16, that they lie no further from the same weights in float32 than the model's own do.
    """
    texts = [_tokens(23, seed=1), _tokens(70, seed=2)]
    model = _model(family, precision, device)
    own, exact = _own_logits(model, texts), _own_logits(_model(family, precision, device).float(), texts)
    got = torch.cat(_engine_logits(TargetModel(model, byte_tokenizer()), texts))
    error, rounding = _distance(got, exact), _distance(own, exact)
    allowed = FLOAT32_TOLERANCE if precision == "float32" else BFLOAT16_FACTOR * rounding
    if not error <= allowed:
        raise AssertionError(f"logits are off by {error:.1e}, {allowed:.1e} is allowed")


def _own_logits(model: Any, texts: Sequence[list[int]]) -> torch.Tensor:
    rows = [model(torch.tensor([text], device=model.device), use_cache=False).logits[0] for text in texts]
    return torch.cat(rows)


def _engine_logits(target: TargetModel, texts: Sequence[list[int]]) -> list[torch.Tensor]:
    """Feed the texts side by side in pieces of different sizes; return every text's rows."""
    caches, found = [SequenceCache(target.cache_shape) for _ in texts], [list[torch.Tensor]() for _ in texts]
    for step in (9, 1, 4, 9, 100):
        pieces = [text[cache.length : cache.length + step] for text, cache in zip(texts, caches, strict=True)]
        parts = [(index, piece) for index, piece in enumerate(pieces) if piece]
        row = [token_id for _, piece in parts for token_id in piece]
        spans = [(caches[index], len(piece)) for index, piece in parts]
        logits = target.forward(row, spans, range(len(row))).logits
        sizes = [len(piece) for _, piece in parts]
        for (index, _), rows in zip(parts, torch.split_with_sizes(logits, sizes), strict=True):
            found[index].append(rows)
    return [torch.cat(rows) for rows in found]


def _distance(got: torch.Tensor, exact: torch.Tensor) -> float:
    """Return the root mean square of the difference relative to that of the exact logits."""
    return float((got.float() - exact).square().mean().sqrt() / exact.square().mean().sqrt())


def check_greedy(family: str, precision: str, device: str, batch: int) -> None:
    """Assert that drafts change no token, but where the model's two best tokens are as good as equal."""
    generator = torch.Generator().manual_seed(5)
    prompts = [repetitive_prompt(generator) for _ in range(PROMPTS)]
    target = TargetModel(_model(family, precision, device), byte_tokenizer())
    ordinary, _ = _generate(target, prompts, 0, batch)
    drafted, proposed = _generate(target, prompts, 4, batch)
    if proposed == 0:
        raise AssertionError("nothing was drafted")
    model = _model(family, precision, device)
    for prompt, expected, got in zip(prompts, ordinary, drafted, strict=True):
        if got != expected:
            _assert_tie(model, prompt, expected, got, precision)


def _generate(
    target: TargetModel, prompts: Sequence[list[int]], drafts: int, batch: int
) -> tuple[list[list[int]], int]:
    engine = make_engine(target, max_num_seqs=batch, max_num_batched_tokens=24)
    requests = [make_request(f"r{i}", prompt, drafts=drafts) for i, prompt in enumerate(prompts)]
    outputs = run_all(engine, requests)
    rounds = [output.round for many in outputs.values() for output in many if output.round is not None]
    tokens = [token_ids_of(outputs[f"r{index}"]) for index in range(len(prompts))]
    return tokens, sum(round_.proposed for round_ in rounds)


@torch.inference_mode()
def _assert_tie(model: Any, prompt: list[int], expected: list[int], got: list[int], precision: str) -> None:
    pairs = list(zip(expected, got, strict=False))
    same = next((index for index, (left, right) in enumerate(pairs) if left != right), len(pairs))
    context = torch.tensor([[*prompt, *expected[:same]]], device=model.device)
    logits = model(context, use_cache=False).logits[0, -1].float()
    best = logits.topk(2).values
    gap = float((best[0] - best[1]) / logits.abs().max())
    if not gap < TIE[precision]:
        raise AssertionError(f"texts part after {same} tokens where the best token leads by {gap:.1e}")


def _tokens(count: int, seed: int) -> list[int]:
    tokens: list[int] = torch.randint(
        0, 256, (count,), generator=torch.Generator().manual_seed(seed)
    ).tolist()
    return tokens


if __name__ == "__main__":
    raise SystemExit(main())
