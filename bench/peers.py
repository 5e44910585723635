"""The engine against what else runs the same weights here: transformers, and vLLM where there is one."""

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from export_draft import check_export, export_draft
from ratios import decode_speedup, rate_ratio, rates, spread
from sides import Calls, EngineSide, Limit, PeerSide, Prompt, Side, interleave, load_peer, typical_tpot_s

from draftproof.reference.drafters.loading import load_drafter
from draftproof.reference.drafters.lockstep import LockstepProposer
from draftproof.reference.engine import Engine
from draftproof.reference.models.model import load_target
from draftproof.reference.types import EngineConfig

DRAFT_TOKENS = 4
_VLLM_TIMEOUT_S = 300
ORDINARY = ("engine", "engine_portable", "transformers_bfloat16", "transformers_float32")


def measure_ordinary(
    engine: Engine, peer: Any, prompts: Sequence[Prompt], limit: Limit, repeats: int
) -> Calls:
    """Return answers of ordinary decoding: engine, its portable kernels, transformers in bf16 and float32."""
    path = engine.config.model_path
    config = EngineConfig(model_path=path, kernels="portable")
    portable = Engine(load_target(config), config)
    single = load_peer(path, torch.float32)
    sides: dict[str, Side] = dict(
        zip(
            ORDINARY,
            (EngineSide(engine), EngineSide(portable), PeerSide(peer), PeerSide(single)),
            strict=True,
        )
    )
    return interleave(sides, prompts, limit, repeats)


def describe_ordinary(calls: Calls, kernels: str) -> dict[str, Any]:
    """Return the ratios of ordinary decoding to transformers by the names of the report.

    Each is of whole calls, prefill included on both sides; `decode` leaves it out on both; `float32` compares
    with transformers in that precision, the main figure with bf16, which the weights ship in.
    """
    default = _against_transformers(calls, "engine") | {"kernels": kernels}
    compiled = default if kernels == "native" else {"median": None, "reason": f"kernels are {kernels}"}
    return {
        "ordinary_vs_transformers": default,
        "ordinary_compiled_vs_transformers": compiled,
        "ordinary_portable_vs_transformers": _against_transformers(calls, "engine_portable"),
        "ordinary": {name: rates(calls[name]) for name in ORDINARY},
    }


def _against_transformers(calls: Calls, name: str) -> dict[str, Any]:
    ours, half, single = calls[name], calls["transformers_bfloat16"], calls["transformers_float32"]
    return rate_ratio(ours, half) | {
        "decode": decode_speedup(ours, half),
        "float32": rate_ratio(ours, single) | {"decode": decode_speedup(ours, single)},
    }


def measure_lookup(
    engine: Engine, peer: Any, prompts: Sequence[Prompt], limit: Limit, repeats: int
) -> dict[str, Any]:
    """Return n-gram lookup over prompt lookup of transformers, with as many drafted tokens."""
    lookup = {"prompt_lookup_num_tokens": DRAFT_TOKENS}
    sides: dict[str, Side] = {
        "engine": EngineSide(engine, "ngram", DRAFT_TOKENS),
        "peer": PeerSide(peer, **lookup),
    }
    calls = interleave(sides, prompts, limit, repeats)
    ngram = {"ngram_min": engine.config.ngram_min, "ngram_max": engine.config.ngram_max}
    return rate_ratio(calls["engine"], calls["peer"]) | {
        "decode": decode_speedup(calls["engine"], calls["peer"]),
        "engine": rates(calls["engine"]) | {"settings": ngram | {"num_spec_tokens": DRAFT_TOKENS}},
        "transformers": rates(calls["peer"]) | {"settings": describe_peer(peer) | lookup},
    }


def measure_assisted(
    engine: Engine,
    peer: Any,
    *,
    draft: tuple[str, LockstepProposer],
    prompts: Sequence[Prompt],
    limit: Limit,
    repeats: int,
) -> dict[str, Any]:
    """Return the draft model over assisted generation of transformers with the same draft.

    The draft goes to transformers as a Llama folder, checked against the engine's own. Its reduced vocabulary
    is a form the peer has not; `full_vocabulary` therefore compares with the engine drafting from the very
    folder the peer uses.

    Args:
        engine: holds the draft as draft_model.
        peer: the target in transformers.
        draft: its name and the engine's proposer of it.
        prompts: token ids.
        limit: of an answer.
        repeats: per prompt.
    """
    name, proposer = draft
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        export_draft(name, engine.config.model_path, folder)
        difference = check_export(folder, proposer, prompts[0])
        assistant = load_peer(scratch, torch.bfloat16)
        whole = Engine(engine.target, engine.config, proposers=dict([load_drafter(scratch, engine.target)]))
    assistant.generation_config.num_assistant_tokens = DRAFT_TOKENS
    assistant.generation_config.num_assistant_tokens_schedule = "constant"
    sides: dict[str, Side] = {
        "engine": EngineSide(engine, "draft_model", DRAFT_TOKENS),
        "full_vocabulary": EngineSide(whole, "draft_model", DRAFT_TOKENS),
        "peer": PeerSide(peer, assistant_model=assistant),
    }
    calls = interleave(sides, prompts, limit, repeats)
    return rate_ratio(calls["engine"], calls["peer"]) | {
        "decode": decode_speedup(calls["engine"], calls["peer"]),
        "full_vocabulary": rate_ratio(calls["full_vocabulary"], calls["peer"]),
        "export_logit_difference": difference,
        "engine": rates(calls["engine"]) | {"settings": {"num_spec_tokens": DRAFT_TOKENS}},
        "transformers": rates(calls["peer"]) | {"settings": describe_peer(peer, assistant)},
    }


def describe_peer(model: Any, assistant: Any = None) -> dict[str, Any]:
    """Return what transformers runs with, stated defaults filled in; None is one it does not state."""
    defaults = model.generation_config._get_default_generation_params()  # noqa: SLF001 - no public name
    settings = {
        "dtype": str(model.dtype),
        "attention": model.config._attn_implementation,  # noqa: SLF001 - no public name
        "cache_implementation": model.generation_config.cache_implementation,
        "max_matching_ngram_size": _setting(model, "max_matching_ngram_size", defaults),
        "do_sample": False,
        "compiled": False,
    }
    if assistant is not None:
        named = ("num_assistant_tokens", "num_assistant_tokens_schedule", "assistant_confidence_threshold")
        settings |= {name: _setting(assistant, name, defaults) for name in named}
    return settings


def _setting(model: Any, name: str, defaults: Mapping[str, Any]) -> Any:
    own = getattr(model.generation_config, name, None)
    return defaults.get(name) if own is None else own


def measure_vllm(
    python: str | None,
    model_path: str,
    *,
    prompts: Sequence[Prompt],
    calls: Calls,
    tokens: int,
    repeats: int,
) -> dict[str, Any]:
    """Return the engine's time per output token over vLLM's, or null with the reason.

    Args:
        python: an interpreter that has vLLM for CPU, or None.
        model_path: a folder.
        prompts: those of `calls`.
        calls: ordinary decoding of the engine.
        tokens: of an answer.
        repeats: per prompt.
    """
    if python is None:
        return {"median": None, "reason": "no --vllm-python was given"}
    task = {"model": model_path, "prompts": prompts, "max_tokens": tokens, "repeats": repeats}
    try:
        found = _run_vllm(python, task)
    except (OSError, subprocess.SubprocessError, ValueError, IndexError) as fault:
        said = (getattr(fault, "stderr", None) or str(fault)).strip().splitlines()
        return {"median": None, "reason": f"vLLM did not run: {said[-1] if said else fault!r}"}
    ours = [typical_tpot_s(one) for one in calls["engine"]]
    return spread(own / other for own, other in zip(ours, found["tpot_s"], strict=True)) | {
        "vllm": {"version": found["vllm"], "settings": found["settings"]},
        "vllm_tpot_ms": spread(1e3 * one for one in found["tpot_s"]),
        "transformers_over_vllm": spread(
            typical_tpot_s(one) / other
            for one, other in zip(calls["transformers_bfloat16"], found["tpot_s"], strict=True)
        ),
    }


def _run_vllm(python: str, task: dict[str, Any]) -> dict[str, Any]:
    """Run the script from a folder of its own, so that no module beside it is found in place of vLLM's."""
    with tempfile.TemporaryDirectory() as scratch:
        script = Path(scratch) / "vllm_tpot.py"
        shutil.copy(Path(__file__).with_name("vllm_tpot.py"), script)
        written = Path(scratch) / "task.json"
        written.write_text(json.dumps(task), encoding="utf-8")
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        done = subprocess.run(  # noqa: S603 - the interpreter the user named
            [python, str(script), str(written)],
            check=True,
            capture_output=True,
            text=True,
            timeout=_VLLM_TIMEOUT_S,
            env=environment,
        )
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found
