#!/usr/bin/env python3
"""Searches the layers the target drafts best without, and prints them as a drafter: `layers:0-9,12-29`.

Layers are removed one after the other, each time the one whose absence changes the fewest next tokens of a
calibration text: the target's own answers, from the folder `make drafters` keeps or made on the spot. Minutes
on two cores for the demo's model. Use what it prints:

    scripts/search_layers.py --out found.json
    draftproof serve --speculation self --drafter layers:0-9,12-29
"""

import argparse
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

os.environ.setdefault("GOMP_SPINCOUNT", "5000")  # waiting threads stay awake between two products

if TYPE_CHECKING:  # torch takes seconds to import, and the environment is set first
    from draftproof.reference.models.model import TargetModel
    from draftproof.reference.training.layer_search import Estimate, Text

_PROMPTS, _ANSWER_TOKENS, _SEED = 8, 80, 1
_PAST_TOKENS, _FURTHER_ROWS, _REPEATS = 64, 4, 40


def main(arguments: list[str] | None = None) -> None:
    """Search, print the table and the choice, and write both where asked to."""
    options = _parse(arguments)

    import torch  # noqa: PLC0415

    from draftproof.reference.drafters.layer_skip import format_layers  # noqa: PLC0415
    from draftproof.reference.models.model import load_target  # noqa: PLC0415
    from draftproof.reference.training import identity, layer_search, layer_table  # noqa: PLC0415
    from draftproof.reference.types import EngineConfig  # noqa: PLC0415
    from draftproof.reference.weights.fetch import cache_dir, resolve_model  # noqa: PLC0415

    if options.threads:
        torch.set_num_threads(options.threads)
    folder, tell = resolve_model(options.model), _teller()
    target = load_target(EngineConfig(model_path=str(folder)))
    if target.decoder is None:
        sys.exit("this target cannot be taken apart; use one of the Llama, Qwen2 or Qwen3 shape")
    texts = _texts(target, options.corpus or cache_dir() / "drafter-corpus", options.tokens)
    meter = layer_search.AgreementMeter(target.decoder, target.cache_shape, texts)
    tell(f"{len(texts)} texts, {meter.positions} next tokens to agree on")
    row_price = _row_price(target) if options.row_price is None else options.row_price
    prices = layer_search.PassPrices(layer_search.output_share(target.decoder), row_price)
    total = len(target.decoder.layers)
    subsets = layer_search.search_subsets(meter, total, tell, fewest=options.fewest)
    estimates = [layer_search.estimate(one, total, prices) for one in subsets[1:]]
    best = layer_search.best_estimate(estimates)
    if best.speedup <= 1.0:
        tell("no choice of layers pays: each makes this target slower than ordinary decoding")
    sys.stdout.write("\n".join([*_table(estimates), "", format_layers(best.subset.layers), ""]))
    if options.out:
        named = identity.identify_target(folder, vocab_size=target.vocab_size, hidden_size=target.hidden_size)
        record = layer_table.make_record(named, texts, meter.positions, estimates, prices)
        layer_table.write_layer_record(options.out, record)


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", help="folder or id of the target (default: the demo's model)")
    parser.add_argument("--corpus", type=Path, help="folder of answers (default: the cache's)")
    parser.add_argument("--tokens", type=int, default=600, help="length of the calibration text")
    parser.add_argument("--fewest", type=int, default=1, help="stop at so many layers")
    parser.add_argument("--row-price", type=float, help="of a further row of a pass (default: measured)")
    parser.add_argument("--out", type=Path, help="JSON file for the choice and the table")
    parser.add_argument("--threads", type=int, help="threads of torch")
    return parser.parse_args(arguments)


def _teller() -> Callable[[str], None]:
    begun = time.monotonic()

    def tell(line: str) -> None:
        sys.stdout.write(f"[{time.monotonic() - begun:6.0f} s] {line}\n")
        sys.stdout.flush()

    return tell


def _texts(target: "TargetModel", corpus: Path, tokens: int) -> "list[Text]":
    """Return answers of the target, `tokens` tokens in all: kept ones, else new ones."""
    from draftproof.reference.training.answers import chat_ids  # noqa: PLC0415
    from draftproof.reference.training.corpus import load_corpus  # noqa: PLC0415
    from draftproof.reference.training.generation import Task, generate  # noqa: PLC0415
    from draftproof.reference.training.layer_search import Text, take_texts  # noqa: PLC0415
    from draftproof.reference.training.prompts import open_prompts  # noqa: PLC0415

    kept = [Text(tuple(one.token_ids.tolist()), one.prompt_tokens) for one in load_corpus(corpus)]
    if kept or target.decoder is None:
        return take_texts(kept, tokens)
    answers = generate(
        target.decoder,
        target.cache_shape,
        [Task(chat_ids(target, prompt), 0.0) for prompt in open_prompts(_PROMPTS, _SEED)],
        eos_ids=target.eos_ids,
        taps=(1,),
        max_tokens=_ANSWER_TOKENS,
    )
    return take_texts([Text(one.token_ids, len(one.task.prompt_ids)) for one in answers], tokens)


def _row_price(target: "TargetModel") -> float:
    """Return what a further row adds to a pass over one row, measured here; that pass costs 1."""
    one, more = _pass_ns(target, 1), _pass_ns(target, 1 + _FURTHER_ROWS)
    return max(0.0, more / one - 1.0) / _FURTHER_ROWS


def _pass_ns(target: "TargetModel", rows: int) -> float:
    """Return the time of a pass over some rows behind a short text, ns: the least disturbed of many."""
    from draftproof.reference.models.cache import SequenceCache  # noqa: PLC0415

    cache, took = SequenceCache(target.cache_shape), []
    target.forward([1] * _PAST_TOKENS, [(cache, _PAST_TOKENS)], [])
    for _ in range(_REPEATS):
        begun = time.perf_counter_ns()
        target.forward([1] * rows, [(cache, rows)], range(rows))
        took.append(time.perf_counter_ns() - begun)
        cache.truncate(_PAST_TOKENS)
    return min(took)


def _table(estimates: "list[Estimate]") -> list[str]:
    """Return a line for each number of layers."""
    from draftproof.reference.drafters.layer_skip import format_layers  # noqa: PLC0415

    lines = ["layers  agreement  draft price  drafts  tokens a round  speed-up  which"]
    for one in estimates:
        layers = one.subset.layers
        lines.append(
            f"{len(layers):6}  {one.subset.agreement:9.3f}  {one.draft_price:11.3f}  {one.drafts:6}  "
            f"{one.tokens:14.2f}  {one.speedup:8.3f}  {format_layers(layers)}"
        )
    return lines


if __name__ == "__main__":
    main()
