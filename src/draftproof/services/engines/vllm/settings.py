"""vLLM's settings: of a launch command, which it can also vary, of the log, and of /server_info. Pure.

Words and names: release 0.32.0, `vllm/engine/arg_utils.py`, `vllm/config/`, for JSON given in pieces
(`--speculative-config.method ngram`) `vllm/utils/argparse_utils.py`, `vllm/v1/engine/core.py`,
`vllm/v1/core/kv_cache_utils.py` and `vllm/entrypoints/serve/dev/server_info/api_router.py`. What another
release words otherwise is not found and stays absent.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from draftproof.core.errors import PlanError
from draftproof.services.engines.commands import (
    AS_IT_COMES,
    UNCOMPARED_FLAGS,
    Drafts,
    Variation,
    drop_flags,
    find_flags,
    flatten,
    not_speculating,
    parse_flags,
    parse_scalar,
)
from draftproof.services.engines.facts import DRAFT_LENGTH, DRAFTER, METHOD, OFF, Settings, resolve_alias
from draftproof.services.engines.values import as_table, name_facts, read_gpu_list, read_nccl

_CONFIG = "speculative_config"
_Value = str | int | float | bool | None
_NGRAM_MODELS = ("ngram", "[ngram]")
# vLLM replaces every name of a model's own heads by mtp (`SpeculativeConfig.__post_init__`). A bracket is
# escaped, for it would begin a set of letters.
ALIASES = {"*_mtp": "mtp", "[[]ngram]": "ngram"}
# One flag has several spellings; two arms that spell it differently are still alike.
_SPELLINGS: dict[str, tuple[str, ...]] = {
    _CONFIG: ("sc",),
    "compilation_config": ("cc",),
    "attention_config": ("ac",),
    "quantization": ("q",),
    "tensor_parallel_size": ("tp",),
    "pipeline_parallel_size": ("pp",),
    "data_parallel_size": ("dp",),
    "enable_expert_parallel": ("ep",),
    "optimization_level": ("O",),
    f"{_CONFIG}.method": ("spec_method",),
    f"{_CONFIG}.model": ("spec_model",),
    f"{_CONFIG}.num_speculative_tokens": ("spec_tokens",),
}
_NAMES = {spelling: name for name, spellings in _SPELLINGS.items() for spelling in spellings}
_ON_OR_OFF = (
    *("enforce_eager", "enable_prefix_caching", "enable_chunked_prefill", "async_scheduling"),
    *("enable_expert_parallel", "enable_auto_tool_choice", "trust_remote_code", "enable_lora"),
    *("disable_log_stats", "enable_log_requests", "disable_uvicorn_access_log"),
    *("enable_per_request_metrics", "enable_force_include_usage", "enable_prompt_tokens_details"),
)
# Flags that take no value, so that a model named after one of them is not taken for its value.
_SWITCHES = frozenset(flag for name in _ON_OR_OFF for flag in (name, f"no_{name}"))
# The service states its model's name itself.
_TALK = UNCOMPARED_FLAGS | {"served_model_name", "enable_log_requests", "disable_uvicorn_access_log"}
_SPEC_NAMES = {
    "method": METHOD,
    "model": DRAFTER,
    "num_speculative_tokens": DRAFT_LENGTH,
    # A server without speculation refuses this flag, so no two arms can be made equal in it.
    "per_request_spec_decode_metrics": "speculation.per_request_metrics",
}


def read_flags(command: Sequence[str]) -> Settings:
    """Return the settings of a `vllm serve` command; those of speculation stand below `speculation.`.

    The draft model is the setting `drafter`. A command without speculation says "off", unless it names a
    file of further flags. A method that vLLM infers from the draft model stays open: the log tells it.
    """
    flags = parse_flags(command, switches=_SWITCHES, ignored=_TALK)
    flat: Settings = {}
    for flag, value in flags.items():
        flat |= _normalise(flag, value)
    settings = name_speculation(flat)
    if "config" not in settings and not any(key.startswith("speculation.") for key in settings):
        settings[METHOD] = OFF
    return settings


def name_speculation(flat: Settings) -> Settings:
    """Return settings with the keys of vLLM's `speculative_config` under this project's names."""
    settings: Settings = {}
    for key, value in flat.items():
        inner = key.removeprefix(f"{_CONFIG}.").replace("-", "_")
        if inner != key.replace("-", "_"):
            settings[_SPEC_NAMES.get(inner, f"speculation.{inner}")] = value
        else:
            settings[_SPEC_NAMES.get(key, key) if key.startswith("per_request_spec") else key] = value
    method = settings.get(METHOD)
    if isinstance(method, str):
        settings[METHOD] = resolve_alias(method, ALIASES)
    if settings.get(DRAFTER) in _NGRAM_MODELS:
        settings.setdefault(METHOD, "ngram")
        del settings[DRAFTER]
    return settings


def _normalise(flag: str, value: _Value) -> Settings:
    """Return one flag by its full name; JSON becomes dotted keys, `--no-x` becomes x false."""
    head, dot, inner = flag.partition(".")
    name = _NAMES.get(head, head) + dot + inner
    if name.startswith("no_") and value is True:
        return {name.removeprefix("no_"): False}
    decoded = _decode(value)
    return flatten({name: decoded})


def _decode(value: _Value) -> object:
    if not isinstance(value, str) or value[:1] not in {"{", "["}:
        return value
    try:
        found = msgspec.json.decode(value)
    except msgspec.DecodeError:
        return value
    return found if isinstance(found, Mapping | list) else value


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


def vary_vllm(command: tuple[str, ...], wanted: Drafts) -> Variation:
    """Return the command with drafts of one length, or with none where that is 0."""
    stated = _read_vllm(command)
    if not stated:
        raise not_speculating("--speculative-config")
    # A server without speculation refuses to start with the last of these flags.
    bare = drop_flags(
        command, lambda name: _is_vllm_config(name) or name == "per-request-spec-decode-metrics"
    )
    if wanted.length == 0:
        return Variation(command=bare, acceptance="speculation off")
    is_lookup = bool({stated.get("method"), stated.get("model")} & set(_NGRAM_MODELS))
    kept = _VLLM_LOOKUP if wanted.drafting == "ngram" and not is_lookup else stated
    config = {key: value for key, value in kept.items() if key not in {*_VLLM_REPLACED, *_VLLM_FIXED}}
    # A lookup that matches a single token finds a draft in nearly every step, at the same cost.
    config |= {"prompt_lookup_min": 1} if is_lookup else {}
    config |= {"num_speculative_tokens": wanted.length} | (_VLLM_FIXED if wanted.synthetic else {})
    fixed = "none, by a synthetic acceptance length of 1" if wanted.synthetic else AS_IT_COMES
    flag = ("--speculative-config", msgspec.json.encode(config).decode())
    return Variation(command=(*bare, *flag), acceptance=fixed)


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


CACHE_TOKENS, SCHEDULED_TOKENS = "capacity.kv_cache_tokens", "capacity.max_num_scheduled_tokens"
CUDAGRAPH_MODE, RUNNER = "compilation_config.cudagraph_mode", "model_runner"
_ENGINE_LINE = re.compile(r"Initializing a V\d LLM engine \(v[^)]+\) with config: (.+)")
_NO_SPECULATION = re.compile(r"\bspeculative_config=None\b")
_SPECULATION = re.compile(r"\bspeculative_config=SpeculativeConfig\((.*?)\), tokenizer=")
_SPEC_FIELD = re.compile(r"(method|model|num_spec_tokens)=(?:'([^']*)'|(\d+))")
_SPEC_KEYS = {"method": METHOD, "model": DRAFTER, "num_spec_tokens": DRAFT_LENGTH}
_CUDAGRAPH = re.compile(r"'cudagraph_mode': <CUDAGraphMode\.(\w+):")
_CUDAGRAPH_OVERRIDE = re.compile(
    r"Overriding cudagraph_mode from \w+ to (\w+)|CUDAGraphMode\.\w+ is not supported [^\n]*; setting "
    r"cudagraph_mode=(\w+)"
)
_CACHE = re.compile(r"KV cache size: (\d[\d,]*) tokens")
_SCHEDULED = re.compile(r"max_num_scheduled_tokens is set to (\d+)")
_ATTENTION = re.compile(r"Using (\w+) attention backend out of potential backends")
_ASYNC_OFF = re.compile(r"Async scheduling [^\n]*(?:will be|is) disabled")
_RUNNER_V1 = re.compile(r"Model Runner V2 [^\n]*(?:using the V1 model\s+runner)")
_RUNNER_V2 = "Using V2 Model Runner"
# Field of the engine's line to setting.
_FIELDS = {
    "dtype": "dtype",
    "max_seq_len": "max_model_len",
    "kv_cache_dtype": "kv_cache_dtype",
    "quantization": "quantization",
    "tensor_parallel_size": "tensor_parallel_size",
    "pipeline_parallel_size": "pipeline_parallel_size",
    "data_parallel_size": "data_parallel_size",
    "enforce_eager": "enforce_eager",
    "enable_prefix_caching": "enable_prefix_caching",
    "enable_chunked_prefill": "enable_chunked_prefill",
}
# Section of /server_info to the fields of it that are settings.
_SECTIONS: dict[str, tuple[str, ...]] = {
    "model_config": ("dtype", "max_model_len", "quantization", "enforce_eager", "seed"),
    "cache_config": ("block_size", "enable_prefix_caching", "gpu_memory_utilization"),
    "parallel_config": ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size"),
    "scheduler_config": (
        *("max_num_seqs", "max_num_batched_tokens", "enable_chunked_prefill", "async_scheduling"),
        *("policy", "stream_interval"),
    ),
}
_SPEC_FIELDS = (
    *("method", "model", "num_speculative_tokens", "num_speculative_tokens_per_batch_size"),
    *("prompt_lookup_min", "prompt_lookup_max", "draft_sample_method", "rejection_sample_method"),
    *("synthetic_acceptance_rates", "parallel_drafting", "use_heterogeneous_vocab", "max_model_len"),
    *("disable_eagle_block_drop", "enable_adaptive_verification"),
)


def read_log(text: str) -> Settings:
    """Return what only the log says for certain: the settings in force after vLLM has resolved them.

    A mode is stated only where the log names it; that asynchronous scheduling stayed on, it never says.
    """
    settings: Settings = {}
    if found := _ENGINE_LINE.search(text):
        settings |= _read_engine_line(found[1])
    for found in _CUDAGRAPH_OVERRIDE.finditer(text):
        settings[CUDAGRAPH_MODE] = found[1] or found[2]
    if found := _CACHE.search(text):
        settings[CACHE_TOKENS] = int(found[1].replace(",", ""))
    if found := _SCHEDULED.search(text):
        settings[SCHEDULED_TOKENS] = int(found[1])
    settings |= read_nccl(text)
    if found := _ATTENTION.search(text):
        settings |= name_facts({"attention_backend": found[1]})
    if _ASYNC_OFF.search(text):
        settings["async_scheduling"] = False
    if _RUNNER_V2 in text:
        settings[RUNNER] = "V2"
    elif _RUNNER_V1.search(text):
        settings[RUNNER] = "V1"
    return settings


def _read_engine_line(line: str) -> Settings:
    settings: Settings = {}
    for field, name in _FIELDS.items():
        found = re.search(rf"\b{field}=([^,\s]+),", line)
        if found and found[1] != "None":
            settings[name] = _plain(parse_scalar(found[1]))
    if found := _CUDAGRAPH.search(line):
        settings[CUDAGRAPH_MODE] = found[1]
    if _NO_SPECULATION.search(line):
        settings[METHOD] = OFF
    elif found := _SPECULATION.search(line):
        for name, text, number in _SPEC_FIELD.findall(found[1]):
            settings[_SPEC_KEYS[name]] = int(number) if number else text
    return settings


def read_server_info(info: Mapping[str, Any]) -> Settings:
    """Return the settings in a decoded /server_info, which exists only in vLLM's development mode."""
    config = as_table(info.get("vllm_config"))
    if not config:
        return {}
    settings = _read_system(as_table(info.get("system_env")))
    for section, fields in _SECTIONS.items():
        table = as_table(config.get(section))
        settings |= {name: _plain(table[name]) for name in fields if _is_scalar(table.get(name))}
    cached = as_table(config.get("cache_config"))
    found = {
        "kv_cache_dtype": cached.get("cache_dtype"),
        CACHE_TOKENS: cached.get("kv_cache_size_tokens"),
        SCHEDULED_TOKENS: as_table(config.get("scheduler_config")).get("max_num_scheduled_tokens"),
    }
    settings |= {name: value for name, value in found.items() if _is_scalar(value)}
    if "speculative_config" in config:
        settings |= _read_speculation(config["speculative_config"])
    return settings


def _read_system(system: Mapping[str, Any]) -> Settings:
    """Return what vLLM's own report of its environment says of the platform."""
    return name_facts(
        {
            "accelerator": read_gpu_list(system.get("nvidia_gpu_models")),
            "driver": system.get("nvidia_driver_version"),
            "cuda": system.get("cuda_runtime_version"),
            "cudnn": system.get("cudnn_version"),
            "rocm": system.get("rocm_version"),
            "torch": system.get("torch_version"),
            "engine_build": system.get("vllm_build_flags"),
        }
    )


def _read_speculation(stated: Any) -> Settings:
    if stated is None:
        return {METHOD: OFF}
    table = as_table(stated)
    kept = {name: table[name] for name in _SPEC_FIELDS if table.get(name) is not None}
    return name_speculation(flatten({"speculative_config": kept}))


def _is_scalar(value: object) -> bool:
    return isinstance(value, str | int | float)


def _plain(value: Any) -> Any:
    """Return a value as a flag spells it: torch.bfloat16 as bfloat16."""
    return value.removeprefix("torch.") if isinstance(value, str) else value
