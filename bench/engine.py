#!/usr/bin/env python3
"""How fast the reference engine is on this machine, beside what else runs the same weights; writes JSON.

One process, the demo's model, greedy decoding of prompts no drafter has seen. Everything is warmed up; what
is compared takes turns prompt by prompt, several times. A figure is the median over prompts of the ratio of
two sides, each the median of its repeats on that prompt, given with its quartiles. Times are those of whole
calls, from token ids to token ids, prefill included on both sides; `decode` beside a figure leaves the
prefill out on both. Ratios matter, not milliseconds; run it on a machine that does nothing else.

Figures (above 1 the engine is faster, except tpot_vs_vllm):
  ordinary_vs_transformers           speculation off over `generate` in bf16; float32 beside it
  ordinary_compiled_vs_transformers  the same, if the native kernels run: C++ compiled on first use
  ordinary_portable_vs_transformers  the same with the kernels in plain torch
  tpot_vs_vllm                       time per output token over that of vLLM for CPU; needs --vllm-python
  ngram_vs_transformers_lookup       n-gram lookup over prompt lookup, both 4 tokens
  draft_vs_transformers_assisted     draft model over assisted generation, same draft, both 4 tokens
  open_chat_speedup                  each family over speculation off, open chat, batch 1; how it drafts
                                     is the best of several ways on other prompts
  speedup_by_segment                 the same for every segment, with acceptance
  efficiency                         measured speed-up over the bound of acceptance and pass times
  overhead_share                     share of rounds outside target and drafter passes
  streams8_vs_1                      tokens per second of eight streams over one
  neighbour_slowdown                 a decode step beside loops that never wait, over the step alone
  floors, memory, steps              weights read once; bytes held; cost of a step by batch and draft length
A drafter that does not ship is left out, with the reason. A missed wanted value is printed, and no failure.
"""

import argparse
import json
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from families import (
    OFF,
    Drafting,
    Families,
    choose_drafting,
    describe_efficiency,
    describe_family,
    measure_segment,
    overhead_share,
)
from floors import describe_floors, measure_bandwidth
from memory import describe_memory
from neighbour import NeighbourPlan, measure_neighbour
from peers import (
    describe_ordinary,
    describe_peer,
    measure_assisted,
    measure_lookup,
    measure_ordinary,
    measure_vllm,
)
from report import check_thresholds, print_table
from sides import Calls, Limit, Prompt, load_peer, typical_tpot_s
from steps import CONTEXT_TOKENS, StepPlan, measure_steps
from streams import measure_streams
from workload import SEGMENTS, load_prompts

from draftproof.core.clock import monotonic_ns
from draftproof.core.errors import UsageError
from draftproof.measure.run.runner import describe_host
from draftproof.reference.drafters.loading import BUILTIN_BY_METHOD, load_drafter
from draftproof.reference.engine import Engine, default_proposers
from draftproof.reference.models.model import load_target
from draftproof.reference.types import EngineConfig
from draftproof.reference.weights.fetch import demo_model_path

WAYS = (
    *(Drafting(length, 0.0) for length in (1, 2, 3, 4, 6)),
    *(Drafting(length, below) for length, below in ((3, 0.2), (5, 0.2), (3, 0.35), (5, 0.35))),
)
BUSY_LOAD = 0.5  # one-minute load of a machine that does nothing else


@dataclass(frozen=True, slots=True)
class Extent:
    """How much is measured; numbers are prompts unless they say otherwise."""

    repeats: int = 3
    tokens: int = 64
    ordinary: int = 6
    chat: int = 10
    segment: int = 4
    compared: int = 3  # of grounded and of rewriting each
    choosing: int = 3
    ways: tuple[Drafting, ...] = WAYS
    choosing_repeats: int = 2
    streams: int = 8
    megabytes: int = 256
    memory_tokens: int = 256
    steps: StepPlan = field(default_factory=StepPlan)
    neighbour: NeighbourPlan = field(default_factory=NeighbourPlan)


QUICK = Extent(
    repeats=1,
    tokens=12,
    ordinary=1,
    chat=2,
    segment=1,
    compared=1,
    choosing=1,
    ways=WAYS[1::4],
    choosing_repeats=1,
    megabytes=64,
    memory_tokens=40,
    steps=StepPlan((1, 2), (0, 4), 2, 1),
    neighbour=NeighbourPlan((1, 4), 2, 1),
)


@dataclass
class Bench:
    """What all sections share; `reasons` says why a family is missing."""

    engine: Engine
    families: Families
    drafts: dict[str, tuple[str, Any]]
    reasons: dict[str, str]
    prompts: dict[str, list[Prompt]]
    extent: Extent
    report: dict[str, Any] = field(default_factory=dict)

    @property
    def limit(self) -> Limit:
        """Where an answer ends if it may end by itself."""
        return Limit(self.extent.tokens)

    @contextmanager
    def section(self, name: str) -> Iterator[None]:
        """Tell what is measured and note how long that takes."""
        print(f"{name} …", file=sys.stderr, flush=True)
        start_ns = monotonic_ns()
        yield
        self.report.setdefault("section_s", {})[name] = round((monotonic_ns() - start_ns) / 1e9, 1)


def prepare(options: argparse.Namespace) -> Bench:
    """Load the target with every drafter there is."""
    config = EngineConfig(model_path=options.model or str(demo_model_path()), num_threads=options.threads)
    target = load_target(config)
    drafts: dict[str, tuple[str, Any]] = {}
    reasons: dict[str, str] = {}
    for family, name in _drafter_names(options).items():
        try:
            drafts[family] = (name, load_drafter(name, target)[1])
        except UsageError as fault:
            reasons[family] = str(fault)
    trained = {family: proposer for family, (_, proposer) in drafts.items() if family in BUILTIN_BY_METHOD}
    engine = Engine(target, config, proposers=default_proposers(config) | trained)
    families: dict[str, Any] = {"ngram": (engine, "ngram")}
    families |= {family: (engine, family) for family in trained}
    if "self_layers" in drafts:
        layers = Engine(target, config, proposers={"self": drafts["self_layers"][1]})
        families["self_layers"] = (layers, "self")
    extent = QUICK if options.quick else Extent()
    return Bench(engine, families, drafts, reasons, load_prompts(target), extent)


def _drafter_names(options: argparse.Namespace) -> dict[str, str]:
    names = dict(BUILTIN_BY_METHOD)
    if options.drafters is not None:
        names = {family: str(options.drafters / name.split(":")[1]) for family, name in names.items()}
    return names | ({"self_layers": options.layers} if options.layers else {})


def run_peers(bench: Bench, vllm_python: str | None) -> Calls:
    """Fill in everything that compares with other programs; return ordinary decoding."""
    extent, report, engine = bench.extent, bench.report, bench.engine
    peer = load_peer(engine.config.model_path, torch.bfloat16)
    report["transformers_settings"] = describe_peer(peer)
    report["weight_bytes_bf16"] = sum(weight.nbytes for weight in peer.parameters())
    prompts, fixed = bench.prompts["chat"][: extent.ordinary], Limit(extent.tokens, ignore_eos=True)
    with bench.section("ordinary decoding beside transformers"):
        calls = measure_ordinary(engine, peer, prompts, fixed, extent.repeats)
        report |= describe_ordinary(calls, engine.target.kernels_name)
    with bench.section("n-gram lookup beside prompt lookup"):
        both = [one for name in ("grounded", "rewriting") for one in bench.prompts[name][: extent.compared]]
        lookup = measure_lookup(engine, peer, both, bench.limit, extent.repeats)
        report["ngram_vs_transformers_lookup"] = lookup
    with bench.section("draft model beside assisted generation"):
        report["draft_vs_transformers_assisted"] = _assisted(bench, peer)
    with bench.section("vLLM"):
        report["tpot_vs_vllm"] = measure_vllm(
            vllm_python,
            engine.config.model_path,
            prompts=prompts,
            calls=calls,
            tokens=extent.tokens,
            repeats=extent.repeats,
        )
    return calls


def _assisted(bench: Bench, peer: Any) -> dict[str, Any]:
    draft = bench.drafts.get("draft_model")
    if draft is None:
        return {"median": None, "reason": bench.reasons["draft_model"]}
    prompts = bench.prompts["chat"][: bench.extent.ordinary]
    return measure_assisted(
        bench.engine, peer, draft=draft, prompts=prompts, limit=bench.limit, repeats=bench.extent.repeats
    )


def run_families(bench: Bench) -> None:
    """Fill in speed-ups, acceptance, efficiency and overhead."""
    extent, report = bench.extent, bench.report
    choosing = bench.prompts["explanation"][: extent.choosing]
    with bench.section("choosing how each family drafts"):
        ways, tried = choose_drafting(
            bench.families, choosing, extent.ways, bench.limit, extent.choosing_repeats
        )
    report["drafting_choice_tokens_per_s"] = tried
    by_segment: dict[str, Any] = {}
    for segment in SEGMENTS:
        with bench.section(f"families on {segment}"):
            calls = measure_segment(
                bench.families, ways, _measured(bench, segment), bench.limit, extent.repeats
            )
        by_segment[segment] = _describe_segment(bench, calls, ways)
        if segment == "chat":
            report["efficiency"] = {name: describe_efficiency(calls, name) for name in bench.families}
            report["overhead_share"] = {name: overhead_share(calls[name]) for name in (OFF, *bench.families)}
    report["speedup_by_segment"], report["open_chat_speedup"] = by_segment, by_segment["chat"]


def _measured(bench: Bench, segment: str) -> Sequence[Prompt]:
    """Return a segment's prompts, without those the draft lengths were chosen on."""
    skipped = bench.extent.choosing if segment == "explanation" else 0
    wanted = bench.extent.chat if segment == "chat" else bench.extent.segment
    return bench.prompts[segment][skipped : skipped + wanted]


def _describe_segment(bench: Bench, calls: Calls, ways: Mapping[str, Drafting]) -> dict[str, Any]:
    found = {name: describe_family(calls, name, ways[name]) for name in bench.families}
    return found | {name: {"median": None, "reason": why} for name, why in bench.reasons.items()}


def run_engine(bench: Bench, ordinary: Calls) -> None:
    """Fill in what concerns the engine alone: floors, streams, memory, step costs."""
    extent, report, engine = bench.extent, bench.report, bench.engine
    with bench.section("memory bandwidth"):
        bandwidth = measure_bandwidth(extent.megabytes, 5 * extent.repeats)
    steps_s = sorted(typical_tpot_s(one) for one in ordinary["engine"])
    typical_s = steps_s[len(steps_s) // 2]
    report["floors"] = describe_floors(report.pop("weight_bytes_bf16"), typical_s, bandwidth)
    with bench.section("streams"):
        prompts, fixed = bench.prompts["chat"][: extent.streams], Limit(extent.tokens, ignore_eos=True)
        report["streams8_vs_1"] = measure_streams(engine, prompts, fixed, extent.repeats)
    with bench.section("memory"):
        live = {family: one for family, (_, one) in bench.drafts.items() if family in BUILTIN_BY_METHOD}
        prompt = bench.prompts["chat"][0]
        report["memory"] = describe_memory(engine, live, prompt, extent.memory_tokens)
    with bench.section("step costs"):
        rows = measure_steps(engine.target, engine.config.model_path, extent.steps)
        report["steps"] = {"context_tokens": CONTEXT_TOKENS, "rows": rows}
    with bench.section("a neighbour on the processors"):
        report["neighbour_slowdown"] = measure_neighbour(engine, extent.neighbour)


def describe_run(
    bench: Bench, load: tuple[float, float, float], options: argparse.Namespace
) -> dict[str, Any]:
    """Return machine, versions and settings, and warnings where figures should not be trusted."""
    busy = load[0] > BUSY_LOAD
    told = [f"the machine was busy at the start (load {load[0]:.2f}): do not trust these figures"] * busy
    told += ["--quick: these figures are from a handful of tokens"] * options.quick
    return {
        "host": describe_host() | {"load_at_start": load, "torch_threads": torch.get_num_threads()},
        "versions": {name: version(name) for name in ("draftproof", "torch", "transformers")},
        "warnings": told,
        "engine_settings": {
            "kernels": bench.engine.target.kernels_name,
            "computes_in": str(bench.engine.target.cache_shape.dtype),
            "drafters": {family: name for family, (name, _) in bench.drafts.items()},
            "missing": bench.reasons,
            "model": Path(bench.engine.config.model_path).name,
        },
        "extent": {
            name: getattr(bench.extent, name)
            for name in Extent.__slots__
            if name not in ("steps", "neighbour")
        },
    }


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    default = Path(__file__).with_name("engine.json")
    parser.add_argument("--out", type=Path, default=default, help="where to write (bench/engine.json)")
    parser.add_argument("--quick", action="store_true", help="a handful of tokens, to see that it runs")
    parser.add_argument("--model", help="target: a model folder (the demo's model)")
    parser.add_argument("--drafters", type=Path, help="folder of drafters (those that ship)")
    parser.add_argument("--layers", help="also measure plain layer skipping, such as layers:0-9,20-29")
    parser.add_argument("--threads", type=int, help="threads of torch and of the kernels (torch's default)")
    parser.add_argument("--vllm-python", help="interpreter of an environment with vLLM for CPU")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str], tell: Callable[[str], None] = print) -> None:
    """Measure everything, write the report, print the table."""
    options = parse_arguments(arguments)
    load = os.getloadavg()
    warnings.filterwarnings("ignore", category=FutureWarning)
    start_ns = monotonic_ns()
    bench = prepare(options)
    bench.report |= describe_run(bench, load, options)
    for warning in bench.report["warnings"]:
        print(f"warning: {warning}", file=sys.stderr)
    ordinary = run_peers(bench, options.vllm_python)
    run_families(bench)
    run_engine(bench, ordinary)
    bench.report["thresholds"] = check_thresholds(bench.report)
    bench.report["total_s"] = round((monotonic_ns() - start_ns) / 1e9, 1)
    options.out.write_text(json.dumps(bench.report, indent=1) + "\n", encoding="utf-8")
    print_table(bench.report, tell)
    tell(f"written: {options.out} in {bench.report['total_s']} s")


if __name__ == "__main__":
    main(sys.argv[1:])
