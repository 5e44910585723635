#!/usr/bin/env python3
"""Screening beside decoding with speculation on the starter workload; writes bench/screen.json.

The same greedy prompts are decoded with every family and every number of drafts a round, and screened once.
Then prompts that sample are decoded with speculation, and their texts screened. Loading, and the answers that
screening starts from, are left out of both sides and shown apart; each side runs at its best batch, found
first. Ratios matter, not seconds; run it on a machine that does nothing else.

Figures:
  speed_ratio               seconds of decoding, four shipped families at all draft lengths, over those of a
                            screening of all of them; `cpu_ratio`: the same of processor time
  families.NAME.difference  largest difference of a greedy answer's rounds, measured and expected
  families.NAME.sampled     by draft length, rounds measured over expected on the same texts, with an interval
                            over prompts that is simultaneous over families and lengths
  families.NAME.speed_ratio the family's own decoding over its own screening
Skipped layers draft almost as dearly as the target decodes; they stand beside the four, not in speed_ratio.
"""

import argparse
import json
import math
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import t as student

from draftproof.core.errors import EngineError
from draftproof.explore.renewal import expect_rounds
from draftproof.measure.run.runner import describe_host
from draftproof.reference.drafters.loading import BUILTIN_BY_METHOD, load_drafter
from draftproof.reference.engine import Engine, default_proposers
from draftproof.reference.screening import Kept, Screener
from draftproof.reference.types import EngineConfig, GenerationRequest, SpeculationParams
from draftproof.reference.weights.fetch import demo_model_path
from draftproof.services.engines.chat.frames import build_chat_payload
from draftproof.workload.items import Item
from draftproof.workload.reader import load_workload

SHIPPED = ("ngram", "draft_model", "attached", "self")
SKIPPED = "self:builtin:layer-skip"
LENGTHS = tuple(range(1, 9))
BATCHES = (8, 16, 32)
LEVEL = 0.95
Tokens = tuple[int, ...]


class Family(NamedTuple):
    """How a family is asked of an engine, and of a screener."""

    method: str
    proposers: dict[str, Any]
    screens: dict[str, tuple[str, ...]]


class Spent(NamedTuple):
    """Seconds by the wall, and of the processors."""

    wall_s: float
    cpu_s: float

    def __add__(self, other: Any) -> "Spent":
        return Spent(self.wall_s + other.wall_s, self.cpu_s + other.cpu_s)


class Bench:
    """The model, its drafters, and what is asked."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.config = EngineConfig(
            model_path=str(demo_model_path()), max_num_seqs=16, max_num_batched_tokens=512
        )
        self.plain = Screener(self.config, methods=("ngram",))
        self.target = self.plain.target
        self.families = {name: self._family(name) for name in (*SHIPPED, SKIPPED)}
        items = [item for item in load_workload("builtin:starter").items if not item.follow_ups]
        greedy = [one for one in items if one.is_greedy and one.segments["language"] in options.languages]
        self.greedy = [self._read(one, options, 0) for one in spread(greedy, options.per_group)]
        creative = [item for item in items if not item.is_greedy]
        self.sampled = [self._read(one, options, seed) for one in creative for seed in range(options.seeds)]

    def _family(self, name: str) -> Family:
        if name == "ngram":
            return Family(name, default_proposers(self.config), {"methods": (name,)})
        method, _, drafter = name.partition(":")
        _, proposer = load_drafter(drafter or BUILTIN_BY_METHOD[method], self.target)
        screens = {"drafters": (drafter,), "methods": ()} if drafter else {"methods": (method,)}
        return Family(method, {method: proposer}, screens)

    def _read(self, item: Item, options: argparse.Namespace, seed: int) -> GenerationRequest:
        body = build_chat_payload(item, seed=seed, served_model="", max_tokens=options.tokens)
        return self.plain.read(f"{item.id}#{seed}", body)

    def screener(self, *names: str) -> Screener:
        """Return a screener of some families that has loaded them."""
        asked: dict[str, list[str]] = defaultdict(list)
        for name in names:
            for kind, values in self.families[name].screens.items():
                asked[kind] += values
        screener = Screener(self.config, **{"methods": (), **asked})
        screener.__dict__["target"] = self.target
        screener.load()
        return screener

    def decode(
        self, name: str, requests: Sequence[GenerationRequest], length: int, batch: int
    ) -> tuple[list[Tokens], list[int], Spent]:
        """Return tokens and rounds of each request, decoded with speculation, and the time for all."""
        family = self.families[name]
        limits = {
            "max_num_seqs": batch,
            "max_num_batched_tokens": 256 + 9 * batch,
            "max_queue": len(requests),
        }
        config = EngineConfig(model_path=self.config.model_path, **limits)
        engine = Engine(self.target, config, proposers=family.proposers)
        speculation = SpeculationParams(method=family.method, num_spec_tokens=length)  # type: ignore[arg-type]
        tokens: dict[str, list[int]] = {request.request_id: [] for request in requests}
        rounds = dict.fromkeys(tokens, 0)
        with stopwatch() as spent:
            for one in requests:
                engine.add_request(
                    GenerationRequest(
                        request_id=one.request_id,
                        prompt_token_ids=one.prompt_token_ids,
                        sampling=one.sampling,
                        speculation=speculation,
                    )
                )
            while engine.has_work:
                for request_id, output in engine.step():
                    tokens[request_id] += output.token_ids
                    rounds[request_id] += output.round is not None
        if engine.stats().fallbacks:
            raise EngineError("the drafter failed during the benchmark", place=name)
        return [tuple(found) for found in tokens.values()], list(rounds.values()), spent[0]


def spread(items: Sequence[Item], per_group: int) -> list[Item]:
    """Return so many items of each task and language, in file order."""
    taken: dict[tuple[str, str], int] = defaultdict(int)
    chosen = []
    for item in items:
        group = item.segments["task"], item.segments["language"]
        taken[group] += 1
        if taken[group] <= per_group:
            chosen.append(item)
    return chosen


@contextmanager
def stopwatch() -> Iterator[list[Spent]]:
    """Time a block; the list gets what it took."""
    spent: list[Spent] = []
    wall, cpu = time.perf_counter(), time.process_time()
    yield spent
    spent.append(Spent(time.perf_counter() - wall, time.process_time() - cpu))


def expect(
    screener: Screener, requests: Sequence[GenerationRequest], tokens: Sequence[Tokens]
) -> tuple[dict[str, list[list[float]]], Spent]:
    """Return method -> expected rounds by length and answer, NaN where there is none; and the time."""
    found: dict[str, list[list[float]]] = {}
    with stopwatch() as spent:
        for one in screener.screen(list(zip(requests, tokens, strict=True)), max(LENGTHS)):
            if isinstance(one, Kept):
                table = found.setdefault(one.method, [[math.nan] * len(requests) for _ in LENGTHS])
                for row, expected in zip(table, expect_rounds(one.kept, one.made, LENGTHS), strict=True):
                    row[one.at] = expected.rounds
    return found, spent[0]


def choose_batch(bench: Bench, name: str, say: Any) -> tuple[int, dict[str, float]]:
    """Return the batch that decodes a part of the prompts quickest, and the seconds of each."""
    part = bench.greedy[:: max(1, len(bench.greedy) // 12)]
    seconds = {batch: bench.decode(name, part, 4, batch)[2].wall_s for batch in BATCHES}
    say(f"{name}: batches {seconds}")
    return min(seconds, key=lambda batch: seconds[batch]), {str(k): round(v, 2) for k, v in seconds.items()}


def compare_greedy(bench: Bench, say: Any) -> dict[str, Any]:
    """Decode and screen the greedy prompts; return what was found."""
    with stopwatch() as answering:
        answers = bench.plain.answer(bench.greedy)
    say(f"answered {len(answers)} prompts, {sum(map(len, answers))} tokens: {answering[0]}")
    families: dict[str, Any] = {}
    decoding: dict[str, Spent] = {}
    for name in bench.families:
        batch, tried = choose_batch(bench, name, say)
        expected, screening = expect(bench.screener(name), bench.greedy, answers)
        worst, other, total = 0.0, 0, Spent(0.0, 0.0)
        for length, row in zip(LENGTHS, expected[name], strict=True):
            tokens, rounds, spent = bench.decode(name, bench.greedy, length, batch)
            same = [at for at, found in enumerate(tokens) if found == answers[at] and len(found) > 1]
            worst = max([worst, *(abs(rounds[at] - row[at]) for at in same)])
            other += sum(found != answers[at] for at, found in enumerate(tokens))
            total += spent
            say(f"{name} k={length}: {spent.wall_s:.1f} s, worst {worst}, other texts {other}")
        decoding[name] = total
        families[name] = {
            "difference": worst,
            "answers": len(answers),
            "other_texts": other,
            "speed_ratio": round(total.wall_s / screening.wall_s, 2),
            "cpu_ratio": round(total.cpu_s / screening.cpu_s, 2),
            "decode_s": round(total.wall_s, 2),
            "screen_s": round(screening.wall_s, 3),
            "batch": batch,
            "tried_batches_s": tried,
            "tokens_per_round": [
                round(sum(len(one) - 1 for one in answers) / float(np.nansum(row)), 4)
                for row in expected[name]
            ],
        }
    _, together = expect(bench.screener(*SHIPPED), bench.greedy, answers)
    total = sum((decoding[name] for name in SHIPPED), Spent(0.0, 0.0))
    return {
        "speed_ratio": round(total.wall_s / together.wall_s, 2),
        "cpu_ratio": round(total.cpu_s / together.cpu_s, 2),
        "decode_s": round(total.wall_s, 2),
        "screen_s": round(together.wall_s, 2),
        "answering_s": round(answering[0].wall_s, 2),
        "prompts": len(answers),
        "tokens": sum(map(len, answers)),
        "families": families,
    }


def compare_sampled(bench: Bench, families: dict[str, Any], say: Any) -> Iterator[None]:
    """Decode prompts that sample, screen those very texts, and note the ratio of rounds with its interval.

    Yields before the first family and after each, so that what was found is kept.
    """
    comparisons = len(bench.families) * len(LENGTHS)
    yield
    for name in bench.families:
        screener, found = bench.screener(name), []
        for length in LENGTHS:
            tokens, rounds, _ = bench.decode(name, bench.sampled, length, families[name]["batch"])
            expected = expect(screener, bench.sampled, tokens)[0][name][length - 1]
            found.append(ratio_of_rounds(bench.sampled, rounds, expected, 1 - (1 - LEVEL) / comparisons))
            say(f"{name} k={length}: sampled {found[-1]}")
        families[name]["sampled"] = found
        families[name]["sampled_within"] = all(one["low"] <= 1 <= one["high"] for one in found)
        yield


def ratio_of_rounds(
    requests: Sequence[GenerationRequest], rounds: Sequence[int], expected: Sequence[float], level: float
) -> dict[str, float]:
    """Return Σ measured / Σ expected rounds, and its interval with prompts as sampling units."""
    sums: dict[str, np.ndarray] = defaultdict(lambda: np.zeros(2))
    for request, measured, wanted in zip(requests, rounds, expected, strict=True):
        if not math.isnan(wanted):
            sums[request.request_id.partition("#")[0]] += (measured, wanted)
    table = np.array(list(sums.values()))
    ratio = table[:, 0].sum() / table[:, 1].sum()
    residuals = (table[:, 0] - ratio * table[:, 1]) / table[:, 1].sum()
    reach = student.ppf(0.5 + level / 2, len(table) - 1) * math.sqrt(
        len(table) / (len(table) - 1) * (residuals**2).sum()
    )
    # Where drafts leave nothing to chance, as lookup does, both sides are equal and the interval is a point.
    slack = 1e-9
    return {
        "ratio": round(float(ratio), 5),
        "low": round(float(ratio - reach - slack), 5),
        "high": round(float(ratio + reach + slack), 5),
        "prompts": len(table),
    }


def main() -> None:
    """Run the benchmark and write its file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--per-group", type=int, default=2, help="greedy prompts of each task and language")
    parser.add_argument("--languages", nargs="+", default=["en", "ar", "zh"], help="of the greedy prompts")
    parser.add_argument("--tokens", type=int, default=48, help="most tokens of an answer")
    parser.add_argument("--seeds", type=int, default=2, help="answers to each prompt that samples")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".json"))
    options = parser.parse_args()
    say = lambda text: print(text, file=sys.stderr, flush=True)  # noqa: E731 - three words
    bench = Bench(options)
    summary = compare_greedy(bench, say)
    flags = next(
        (line for line in Path("/proc/cpuinfo").read_text("utf-8").splitlines() if "flags" in line), ""
    )
    wide = [name for name in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if name in flags.split()]
    summary["host"] = describe_host() | {"instruction_sets": wide, "kernels": bench.target.kernels_name}
    for _ in compare_sampled(bench, summary["families"], say):
        options.out.write_text(json.dumps(summary, indent=1, sort_keys=True) + "\n", "utf-8")
    print(f"speed ratio {summary['speed_ratio']}, wrote {options.out}")


if __name__ == "__main__":
    main()
