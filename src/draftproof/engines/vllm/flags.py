"""vLLM's launch commands to settings. Pure.

Flags and keys: release 0.32.0, `vllm/engine/arg_utils.py`, `vllm/config/speculative.py` and, for JSON given
in pieces (`--speculative-config.method ngram`), `vllm/utils/argparse_utils.py`.
"""

from collections.abc import Mapping, Sequence

import msgspec

from draftproof.engines.facts import Settings, resolve_alias
from draftproof.engines.reading.flags import UNCOMPARED_FLAGS, flatten, parse_flags

METHOD, DRAFT_LENGTH, DRAFTER = "speculation.method", "speculation.num_spec_tokens", "drafter"
OFF = "off"
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
    "enforce_eager",
    "enable_prefix_caching",
    "enable_chunked_prefill",
    "async_scheduling",
    "enable_expert_parallel",
    "enable_auto_tool_choice",
    "trust_remote_code",
    "enable_lora",
    "disable_log_stats",
    "enable_log_requests",
    "disable_uvicorn_access_log",
    "enable_per_request_metrics",
    "enable_force_include_usage",
    "enable_prompt_tokens_details",
)
# Flags that take no value, so that a model named after one of them is not taken for its value.
_SWITCHES = frozenset(flag for name in _ON_OR_OFF for flag in (name, f"no_{name}"))
_TALK = frozenset(
    {
        *UNCOMPARED_FLAGS,
        "served_model_name",  # stated by the service as its model
        "enable_log_requests",
        "disable_uvicorn_access_log",
    }
)
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
    told = parse_flags(command, switches=_SWITCHES, ignored=_TALK)
    flat: Settings = {}
    for flag, value in told.items():
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
