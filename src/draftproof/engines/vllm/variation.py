"""vLLM's command with drafts of one length, none of them accepted. Pure.

The configuration of speculation is one JSON, or pieces of it: release 0.32.0, `vllm/config/speculative.py`.
"""

from typing import Any

import msgspec

from draftproof.engines.reading.words import drop_flags, find_flags
from draftproof.engines.variation import AS_IT_COMES, Drafting, Variation, not_speculating
from draftproof.errors import PlanError

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


def vary_vllm(command: tuple[str, ...], draft_length: int, drafting: Drafting) -> Variation:
    """Return the command with drafts of one length, or with none where that is 0; see `vary_command`."""
    told = _read_vllm(command)
    if not told:
        raise not_speculating("--speculative-config")
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


def free_vllm(varied: Variation) -> Variation:
    """Return the same with the acceptance left to the drafts."""
    config = _decode_config(varied.command[-1])
    kept = {key: value for key, value in config.items() if key not in _VLLM_FIXED}
    command = (*varied.command[:-1], msgspec.json.encode(kept).decode())
    return Variation(command=command, environment=varied.environment, acceptance=AS_IT_COMES)
