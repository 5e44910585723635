"""What a running vLLM says of its settings: in its log while it starts, and at /server_info. Pure.

Words and names: release 0.32.0, `vllm/config/vllm.py`, `vllm/config/speculative.py`,
`vllm/v1/engine/core.py`, `vllm/v1/core/kv_cache_utils.py` and
`vllm/entrypoints/serve/dev/server_info/api_router.py`. What another release words otherwise is not found and
stays absent.
"""

import re
from collections.abc import Mapping
from typing import Any

from draftproof.services.engines.commands import flatten, parse_scalar
from draftproof.services.engines.facts import DRAFT_LENGTH, DRAFTER, METHOD, OFF, Settings
from draftproof.services.engines.values import as_table, name_facts, read_gpu_list, read_nccl
from draftproof.services.engines.vllm.flags import name_speculation

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
    """Return what only the log tells for certain: the settings in force after vLLM has resolved them.

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


def _read_system(told: Mapping[str, Any]) -> Settings:
    """Return what vLLM's own report of its environment says of the platform."""
    return name_facts(
        {
            "accelerator": read_gpu_list(told.get("nvidia_gpu_models")),
            "driver": told.get("nvidia_driver_version"),
            "cuda": told.get("cuda_runtime_version"),
            "cudnn": told.get("cudnn_version"),
            "rocm": told.get("rocm_version"),
            "torch": told.get("torch_version"),
            "engine_build": told.get("vllm_build_flags"),
        }
    )


def _read_speculation(stated: Any) -> Settings:
    if stated is None:
        return {METHOD: OFF}
    table = as_table(stated)
    told = {name: table[name] for name in _SPEC_FIELDS if table.get(name) is not None}
    return name_speculation(flatten({"speculative_config": told}))


def _is_scalar(value: object) -> bool:
    return isinstance(value, str | int | float)


def _plain(value: Any) -> Any:
    """Return a value as a flag spells it: torch.bfloat16 as bfloat16."""
    return value.removeprefix("torch.") if isinstance(value, str) else value
