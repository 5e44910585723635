"""SGLang's start arguments: as settings, and with drafts of one length of which none is accepted. Pure.

Names and defaults: release 0.5.23, `srt/arg_groups/fields/spec.py`, `srt/arg_groups/speculative_hook.py` and
`srt/environ.py`. The window of a step holds the target's own token beside the drafts. Checked in source only.
"""

from collections.abc import Mapping, Sequence
from typing import Any

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

_PREFIX = "speculative_"
_NAMES = {
    "speculative_algorithm": METHOD,
    "speculative_draft_model_path": DRAFTER,
    "speculative_draft_model": DRAFTER,
    "speculative_draft_model_revision": "drafter.revision",
    "uno_lora_path": DRAFTER,
    "model": "model_path",
    "context_length": "max_model_len",
    "tp": "tp_size",
    "tensor_parallel_size": "tp_size",
    "pp": "pp_size",
    "pipeline_parallel_size": "pp_size",
    "dp": "dp_size",
    "data_parallel_size": "dp_size",
}
_SWITCHES = frozenset(
    {
        *("enable_metrics", "enable_mixed_chunk", "disable_overlap_schedule", "disable_radix_cache"),
        *("disable_cuda_graph", "enable_deterministic_inference", "trust_remote_code"),
        *("speculative_adaptive", "speculative_use_rejection_sampling"),
        *("speculative_use_block_verification", "enable_multi_layer_eagle"),
    }
)
# How the server is watched, and the `-m` of `python -m sglang.launch_server`.
_UNCOMPARED = UNCOMPARED_FLAGS | {
    *("enable_metrics", "decode_log_interval", "log_requests", "log_requests_level", "m"),
}
ALIASES = {"NEXTN": "EAGLE"}
_NGRAM_WINDOW = 12  # a window holds the target's own token besides the drafts


def read_flags(command: Sequence[str]) -> Settings:
    """Return the settings of a launch command; without an algorithm and a config file nothing drafts."""
    flags = parse_flags(command, switches=_SWITCHES, ignored=_UNCOMPARED)
    if "config" not in flags:
        flags.setdefault("speculative_algorithm", None)
    return name_settings(flags)


def name_settings(arguments: Mapping[str, Any]) -> Settings:
    """Return arguments under the names of settings: everything about drafting lies below `speculation`.

    An algorithm of None is "off"; the drafting arguments of a server that does not draft are left out.
    """
    settings = {_rename(key): value for key, value in flatten(arguments).items()}
    if METHOD not in settings:
        return settings
    method = settings[METHOD]
    if method is None:
        kept = {key: value for key, value in settings.items() if not _is_about_drafting(key)}
        return kept | {METHOD: OFF}
    settings[METHOD] = resolve_alias(str(method).upper(), ALIASES)
    length = _find_draft_length(str(settings[METHOD]), settings)
    drafting = {
        key: value for key, value in settings.items() if value is not None or not _is_about_drafting(key)
    }
    return drafting if length is None else drafting | {DRAFT_LENGTH: length}


def _rename(key: str) -> str:
    if key in _NAMES:
        return _NAMES[key]
    return f"speculation.{key.removeprefix(_PREFIX)}" if key.startswith(_PREFIX) else key


def _is_about_drafting(key: str) -> bool:
    return key.startswith(("speculation.", DRAFTER))


def _find_draft_length(method: str, settings: Settings) -> int | None:
    """Return the drafts that a step verifies: the window without the target's own token, of a tree its nodes.

    None where the server chooses: from the target's architecture or from the drafter's checkpoint.
    """
    block = settings.get("speculation.dspark_block_size")
    if method == "DSPARK" and isinstance(block, int):
        return block
    window = settings.get("speculation.num_draft_tokens") or settings.get("speculation.dflash_block_size")
    if isinstance(window, int):
        return window - 1
    steps, topk = settings.get("speculation.num_steps"), settings.get("speculation.eagle_topk")
    if topk == 1 and isinstance(steps, int):
        return steps
    return _NGRAM_WINDOW - 1 if method == "NGRAM" else None


_SGLANG = "speculative-"
_SGLANG_CHAINS = ("EAGLE", "EAGLE3", "NEXTN", "STANDALONE")
_SGLANG_ACCEPTANCE = {"SGLANG_SIMULATE_ACC_LEN": "1"}
# The device timer costs two events a pass, in every start alike.
_SGLANG_TIMER = {"SGLANG_ENABLE_METRICS_DEVICE_TIMER": "1"}
_SGLANG_METRICS = "enable-metrics"


def vary_sglang(command: tuple[str, ...], wanted: Drafts) -> Variation:
    """Return the command with drafts of one length, or with none where that is 0."""
    stated = find_flags(command, lambda name: name.startswith(_SGLANG))
    algorithm = stated.get(f"{_SGLANG}algorithm")
    if algorithm is None:
        raise not_speculating("--speculative-algorithm")
    if not find_flags(command, lambda name: name == _SGLANG_METRICS):
        command = (*command, f"--{_SGLANG_METRICS}")
    if wanted.length == 0:
        bare = drop_flags(command, lambda name: name.startswith(_SGLANG))
        return Variation(command=bare, environment=dict(_SGLANG_TIMER), acceptance="speculation off")
    if wanted.drafting == "ngram" and algorithm.upper() != "NGRAM":
        command = drop_flags(command, lambda name: name.startswith(_SGLANG))
        command, algorithm = (*command, f"--{_SGLANG}algorithm", "NGRAM"), "NGRAM"
    flags = _sglang_lengths(algorithm.upper(), wanted.length)
    bare = drop_flags(command, lambda name: name in flags or name.startswith(f"{_SGLANG}adaptive"))
    words = [word for name, value in flags.items() for word in (f"--{name}", value)]
    fixed = "none, by a simulated acceptance length of 1" if wanted.synthetic else AS_IT_COMES
    environment = _SGLANG_TIMER | (_SGLANG_ACCEPTANCE if wanted.synthetic else {})
    return Variation(command=(*bare, *words), environment=environment, acceptance=fixed)


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
