"""vLLM's launch commands: as settings, and with drafts of one length of which none is accepted. Pure.

Flags and keys: release 0.32.0, `vllm/engine/arg_utils.py`, `vllm/config/speculative.py` and, for JSON given
in pieces (`--speculative-config.method ngram`), `vllm/utils/argparse_utils.py`.
"""

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
)
from draftproof.services.engines.facts import DRAFT_LENGTH, DRAFTER, METHOD, OFF, Settings, resolve_alias

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
    told = _read_vllm(command)
    if not told:
        raise not_speculating("--speculative-config")
    # A server without speculation refuses to start with the last of these flags.
    bare = drop_flags(
        command, lambda name: _is_vllm_config(name) or name == "per-request-spec-decode-metrics"
    )
    if wanted.length == 0:
        return Variation(command=bare, acceptance="speculation off")
    is_lookup = bool({told.get("method"), told.get("model")} & set(_NGRAM_MODELS))
    kept = _VLLM_LOOKUP if wanted.drafting == "ngram" and not is_lookup else told
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
