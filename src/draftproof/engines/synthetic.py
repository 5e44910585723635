"""Launch commands that draft K tokens a step and accept none, so that every step commits exactly one. Pure.

The time per output token of such a service is the time of its step. Flags: vLLM 0.32.0,
`vllm/config/speculative.py`; llama.cpp b11434, `common/arg.cpp` and `common/ngram-map.cpp`; SGLang 0.5.23,
`srt/arg_groups/fields/spec.py` and `srt/environ.py`. SGLang's is checked in source only.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import msgspec

from draftproof.engines.reading.words import drop_flags, find_flags
from draftproof.errors import PlanError

Drafting = Literal["own", "ngram"]


class Variation(msgspec.Struct, frozen=True, kw_only=True):
    """A launch command, what must be added to its environment, and what fixes the acceptance, in words."""

    command: tuple[str, ...]
    environment: dict[str, str] = {}
    acceptance: str


def vary_command(
    engine: str,
    command: Sequence[str],
    draft_length: int,
    *,
    drafting: Drafting = "own",
    synthetic: bool = True,
) -> Variation:
    """Return a speculating command changed to drafts of one length, none of them accepted.

    Args:
        engine: as a plan names it.
        command: program and arguments.
        draft_length: tokens drafted in each step; 0 takes speculation out.
        drafting: "own" keeps the command's drafter, "ngram" puts the engine's n-gram lookup in its place.
        synthetic: False leaves the acceptance to the drafts, for builds that cannot fix it.

    Raises:
        PlanError: the command does not speculate, or its engine has no way to fix the acceptance.
    """
    vary = _ENGINES.get(engine)
    if vary is None:
        raise PlanError(
            f"step costs cannot be measured on {engine}: {_NEEDED[engine]}.", place="arms.candidate"
        )
    varied = vary(tuple(command), draft_length, drafting)
    return varied if synthetic or not draft_length else _FREED[engine](varied)


_NEEDED = {
    "tensorrt-llm": "its draft length stands in a file of options, and no option that is known accepts none "
    "of the drafts, which it would take",
    "tgi": "it has no option that fixes the acceptance of drafts, which it would take",
    "generic": "which options bound its drafts and fix their acceptance is not known; "
    "name the engine in arms.candidate.engine",
}


def _not_speculating(flag: str) -> PlanError:
    return PlanError(
        "the candidate's command does not speculate, so there is no drafter whose steps could be timed.",
        place="arms.candidate.command",
        fix=f"add {flag}.",
    )


# ---- vLLM: one JSON, or pieces of it

_VLLM_PIECES = {"spec-method": "method", "spec-model": "model", "spec-tokens": "num_speculative_tokens"}
_VLLM_CONFIGS = ("speculative-config", "sc")
# What would draft another length than asked, or accept another share.
_VLLM_REPLACED = (
    "synthetic_acceptance_rates",
    "num_speculative_tokens_per_batch_size",
    "enable_adaptive_verification",
)
_VLLM_LOOKUP: dict[str, Any] = {"method": "ngram", "prompt_lookup_min": 1, "prompt_lookup_max": 4}
_VLLM_FIXED = {"rejection_sample_method": "synthetic", "synthetic_acceptance_length": 1.0}


def _vary_vllm(command: tuple[str, ...], draft_length: int, drafting: Drafting) -> Variation:
    told = _read_vllm(command)
    if not told:
        raise _not_speculating("--speculative-config")
    # A server without speculation refuses to start with the last of these flags.
    bare = drop_flags(
        command, lambda name: _is_vllm_config(name) or name == "per-request-spec-decode-metrics"
    )
    if draft_length == 0:
        return Variation(command=bare, acceptance="speculation off")
    is_lookup = told.get("method") in {"ngram", "[ngram]"} or told.get("model") in {"ngram", "[ngram]"}
    kept = _VLLM_LOOKUP if drafting == "ngram" and not is_lookup else told
    config = {key: value for key, value in kept.items() if key not in _VLLM_REPLACED}
    # A lookup that matches a single token finds a draft in nearly every step, at the same cost.
    config |= {"prompt_lookup_min": 1} if is_lookup else {}
    config |= {"num_speculative_tokens": draft_length, **_VLLM_FIXED}
    flag = ("--speculative-config", msgspec.json.encode(config).decode())
    return Variation(command=(*bare, *flag), acceptance="none, by a synthetic acceptance length of 1")


def _is_vllm_config(name: str) -> bool:
    return name in _VLLM_PIECES or name.partition(".")[0] in _VLLM_CONFIGS


def _read_vllm(command: tuple[str, ...]) -> dict[str, Any]:
    config: dict[str, Any] = {}
    for name, value in find_flags(command, _is_vllm_config).items():
        head, _, piece = name.partition(".")
        if head in _VLLM_CONFIGS and not piece:
            config |= _decode_config(value)
        else:
            key = _VLLM_PIECES.get(name, piece.replace("-", "_"))
            config[key] = _decode_piece(value)
    return config


def _decode_config(value: str | None) -> dict[str, Any]:
    try:
        return msgspec.json.decode(value or "", type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise PlanError(
            "the value of --speculative-config is no JSON object.", place="arms.candidate.command"
        ) from error


def _decode_piece(value: str | None) -> Any:
    try:
        return msgspec.json.decode(value or "true")
    except msgspec.MsgspecError:
        return value


# ---- llama.cpp: one flag of the length for each kind of drafter

_LLAMA_LENGTHS: dict[str, str] = {
    "ngram-simple": "spec-ngram-simple-size-m",
    "ngram-map-k": "spec-ngram-map-k-size-m",
    "ngram-map-k4v": "spec-ngram-map-k4v-size-m",
    "ngram-mod": "spec-ngram-mod-n-max",
}
_LLAMA_DRAFT_LENGTH = "spec-draft-n-max"
# Spellings of draft flags that do not begin with "spec-".
_LLAMA_OLD = frozenset(
    {
        *("md", "model-draft", "hfd", "hfrd", "hf-repo-draft", "td", "threads-draft", "tbd"),
        *("threads-batch-draft", "ngld", "gpu-layers-draft", "n-gpu-layers-draft", "devd", "device-draft"),
        *("ctkd", "cache-type-k-draft", "ctvd", "cache-type-v-draft", "otd", "override-tensor-draft"),
        *("draft-p-min", "draft-p-split", "lcs", "lookup-cache-static", "lcd", "lookup-cache-dynamic"),
        *("Cd", "cpu-mask-draft", "Crd", "cpu-range-draft", "cpu-strict-draft", "prio-draft", "poll-draft"),
        *("Cbd", "cpu-mask-batch-draft", "Crbd", "cpu-range-batch-draft", "cpu-strict-batch-draft"),
        *("prio-batch-draft", "poll-batch-draft", "cmoed", "cpu-moe-draft", "ncmoed", "n-cpu-moe-draft"),
    }
)
_LLAMA_SYNTHETIC = frozenset({"spec-synth-len", "spec-synth-rates"})
_LLAMA_LOOKUP_N, _LLAMA_LOOKUP_DEFAULT = "spec-ngram-simple-size-n", 12


def _vary_llamacpp(command: tuple[str, ...], draft_length: int, drafting: Drafting) -> Variation:
    told = find_flags(command, _is_llama_draft_flag)
    method = told.get("spec-type") or ("ngram-mod" if "spec-default" in told else None)
    if method is None or method == "none":
        raise _not_speculating("--spec-type")
    if "," in method:
        raise PlanError(
            f"the candidate drafts with several methods, one after the other ({method}): which of them a "
            "step's time belongs to cannot be told.",
            place="arms.candidate.command",
            fix="name one method in --spec-type.",
        )
    if draft_length == 0:
        return Variation(command=drop_flags(command, _is_llama_draft_flag), acceptance="speculation off")
    if drafting == "ngram" and not method.startswith("ngram"):
        command, method, told = drop_flags(command, _is_llama_draft_flag), "ngram-simple", {}
        command = (*command, "--spec-type", method)
        told[_LLAMA_LOOKUP_N] = "3"
    flags = _llama_lengths(method, draft_length, told)
    bare = drop_flags(command, lambda name: name in flags or name in _LLAMA_SYNTHETIC)
    words = [word for name, value in flags.items() for word in (f"--{name}", value)]
    return Variation(
        command=(*bare, *words, "--spec-synth-len", "1"),
        acceptance="none, by a synthetic acceptance length of 1",
    )


def _llama_lengths(method: str, draft_length: int, told: dict[str, str | None]) -> dict[str, str]:
    """Return the flags that make a method draft exactly so many tokens wherever it drafts at all."""
    length = str(draft_length)
    if method == "ngram-simple":
        # A draft shorter than the n-gram that it was found by is thrown away.
        wanted = int(told.get(_LLAMA_LOOKUP_N) or _LLAMA_LOOKUP_DEFAULT)
        return {_LLAMA_LENGTHS[method]: length, _LLAMA_LOOKUP_N: str(min(wanted, draft_length))}
    if method == "ngram-mod":
        return {_LLAMA_LENGTHS[method]: length, "spec-ngram-mod-n-min": length}
    if method in _LLAMA_LENGTHS:
        return {_LLAMA_LENGTHS[method]: length}
    return {_LLAMA_DRAFT_LENGTH: length, "spec-draft-n-min": "0", "spec-draft-p-min": "0"}


def _is_llama_draft_flag(name: str) -> bool:
    return name.startswith("spec-") or name in _LLAMA_OLD


# ---- SGLang: the window of a step holds the target's own token beside the drafts

_SGLANG = "speculative-"
_SGLANG_CHAINS = ("EAGLE", "EAGLE3", "NEXTN", "STANDALONE")
_SGLANG_ACCEPTANCE = {"SGLANG_SIMULATE_ACC_LEN": "1"}
# The device timer costs two events a pass, in every start alike.
_SGLANG_TIMER = {"SGLANG_ENABLE_METRICS_DEVICE_TIMER": "1"}
_SGLANG_METRICS = "enable-metrics"


def _vary_sglang(command: tuple[str, ...], draft_length: int, drafting: Drafting) -> Variation:
    told = find_flags(command, lambda name: name.startswith(_SGLANG))
    algorithm = told.get(f"{_SGLANG}algorithm")
    if algorithm is None:
        raise _not_speculating("--speculative-algorithm")
    if not find_flags(command, lambda name: name == _SGLANG_METRICS):
        command = (*command, f"--{_SGLANG_METRICS}")
    if draft_length == 0:
        bare = drop_flags(command, lambda name: name.startswith(_SGLANG))
        return Variation(command=bare, environment=dict(_SGLANG_TIMER), acceptance="speculation off")
    if drafting == "ngram" and algorithm.upper() != "NGRAM":
        command = drop_flags(command, lambda name: name.startswith(_SGLANG))
        command, algorithm = (*command, f"--{_SGLANG}algorithm", "NGRAM"), "NGRAM"
    flags = _sglang_lengths(algorithm.upper(), draft_length)
    bare = drop_flags(command, lambda name: name in flags or name.startswith(f"{_SGLANG}adaptive"))
    words = [word for name, value in flags.items() for word in (f"--{name}", value)]
    return Variation(
        command=(*bare, *words),
        environment=_SGLANG_TIMER | _SGLANG_ACCEPTANCE,
        acceptance="none, by a simulated acceptance length of 1",
    )


def _sglang_lengths(algorithm: str, draft_length: int) -> dict[str, str]:
    window = {f"{_SGLANG}num-draft-tokens": str(draft_length + 1)}
    if algorithm == "NGRAM":
        return window | {f"{_SGLANG}ngram-max-bfs-breadth": "1"}
    if algorithm in _SGLANG_CHAINS:
        return window | {f"{_SGLANG}num-steps": str(draft_length), f"{_SGLANG}eagle-topk": "1"}
    raise PlanError(
        f"the draft length of {algorithm} is that of its trained block and cannot be varied.",
        place="arms.candidate.command",
        fix="measure the steps of another drafter of the same engine.",
    )


_ENGINES: dict[str, Callable[[tuple[str, ...], int, Drafting], Variation]] = {
    "vllm": _vary_vllm,
    "llamacpp": _vary_llamacpp,
    "sglang": _vary_sglang,
}


# ---- the acceptance left to the drafts

AS_IT_COMES = "as it comes: a chunk of the stream is a step"


def _free_vllm(varied: Variation) -> Variation:
    config = _decode_config(varied.command[-1])
    kept = {key: value for key, value in config.items() if key not in _VLLM_FIXED}
    command = (*varied.command[:-1], msgspec.json.encode(kept).decode())
    return Variation(command=command, environment=varied.environment, acceptance=AS_IT_COMES)


def _free_llamacpp(varied: Variation) -> Variation:
    command = drop_flags(varied.command, lambda name: name in _LLAMA_SYNTHETIC)
    return Variation(command=command, environment=varied.environment, acceptance=AS_IT_COMES)


def _free_sglang(varied: Variation) -> Variation:
    kept = {key: value for key, value in varied.environment.items() if key not in _SGLANG_ACCEPTANCE}
    return Variation(command=varied.command, environment=kept, acceptance=AS_IT_COMES)


_FREED: dict[str, Callable[[Variation], Variation]] = {
    "vllm": _free_vllm,
    "llamacpp": _free_llamacpp,
    "sglang": _free_sglang,
}
