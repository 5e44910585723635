"""llama.cpp's launch commands to settings. Pure.

Flags and defaults: release b11434, `common/arg.cpp` and `common/common.h`.
"""

from collections.abc import Sequence

from draftproof.engines.facts import Settings
from draftproof.engines.reading.flags import UNCOMPARED_FLAGS, parse_flags

METHOD, DRAFT_LENGTH, DRAFTER = "speculation.method", "speculation.num_spec_tokens", "drafter"
OFF = "off"
# The flag that bounds a method's drafts; every other drafter takes the draft model's.
_LENGTH_FLAGS = {
    "ngram-simple": "ngram_simple_size_m",
    "ngram-map-k": "ngram_map_k_size_m",
    "ngram-map-k4v": "ngram_map_k4v_size_m",
    "ngram-mod": "ngram_mod_n_max",
}
_MODEL_LENGTH_FLAG = "draft_n_max"
_FIXED_LENGTHS = {"ngram-cache": 8}
_DEFAULT_LENGTHS = {
    "ngram_simple_size_m": 48,
    "ngram_map_k_size_m": 48,
    "ngram_map_k4v_size_m": 48,
    "ngram_mod_n_max": 64,
    _MODEL_LENGTH_FLAG: 3,
}
# What the switch --spec-default stands for.
_SPEC_DEFAULT: Settings = {
    METHOD: "ngram-mod",
    "speculation.ngram_mod_n_match": 24,
    "speculation.ngram_mod_n_min": 48,
    "speculation.ngram_mod_n_max": 64,
}
# One flag has several spellings; two arms that spell it differently are still alike.
_SPELLINGS: dict[str, tuple[str, ...]] = {
    "model": ("m",),
    "hf_repo": ("hf", "hfr"),
    "alias": ("a",),
    "ctx_size": ("c",),
    "parallel": ("np",),
    "batch_size": ("b",),
    "ubatch_size": ("ub",),
    "threads": ("t",),
    "threads_batch": ("tb",),
    "n_gpu_layers": ("ngl", "gpu_layers"),
    "device": ("dev",),
    "flash_attn": ("fa",),
    "cache_type_k": ("ctk",),
    "cache_type_v": ("ctv",),
    "kv_unified": ("kvu",),
    "cont_batching": ("cb",),
    "cache_ram": ("cram",),
    "seed": ("s",),
    "predict": ("n", "n_predict"),
    METHOD: ("spec_type",),
    DRAFTER: (
        *("md", "model_draft", "spec_draft_model"),
        *("hfd", "hfrd", "hf_repo_draft", "spec_draft_hf"),
    ),
    "speculation.draft_p_min": ("draft_p_min",),
    "speculation.draft_n_gpu_layers": (
        *("spec_draft_ngl", "ngld", "gpu_layers_draft", "n_gpu_layers_draft"),
    ),
    "speculation.draft_device": ("devd", "device_draft"),
    "speculation.draft_threads": ("td", "threads_draft"),
    "speculation.draft_threads_batch": ("tbd", "threads_batch_draft"),
    "speculation.draft_type_k": ("ctkd", "cache_type_k_draft"),
    "speculation.draft_type_v": ("ctvd", "cache_type_v_draft"),
    "speculation.lookup_cache_static": ("lcs", "lookup_cache_static"),
    "speculation.lookup_cache_dynamic": ("lcd", "lookup_cache_dynamic"),
}
_NAMES = {spelling: name for name, spellings in _SPELLINGS.items() for spelling in spellings}
_LOGGING: tuple[str, ...] = (
    "lv",
    "verbosity",
    "log_verbosity",
    "v",
    "verbose",
    "log_verbose",
    "log_file",
    "log_prefix",
    "log_timestamps",
    "log_colors",
    "log_disable",
    "no_log_prefix",
    "no_log_timestamps",
)
_SPEC_FLAG = "spec_"


def read_flags(command: Sequence[str]) -> Settings:
    """Return the settings of a launch command; without a type the method is off, whatever draft is loaded."""
    told = parse_flags(command, names=_NAMES, ignored=UNCOMPARED_FLAGS | set(_LOGGING))
    settings = {_under_speculation(key): value for key, value in told.items()}
    if settings.pop("speculation.default", False):
        settings |= _SPEC_DEFAULT
    method = settings.setdefault(METHOD, OFF)
    if method == "none":
        settings[METHOD] = method = OFF
    length = None if method == OFF else _find_draft_length(str(method), settings)
    return settings if length is None else settings | {DRAFT_LENGTH: length}


def _under_speculation(key: str) -> str:
    """Every drafting flag lies below one key, so that a plan declares all of them with one word."""
    return f"speculation.{key.removeprefix(_SPEC_FLAG)}" if key.startswith(_SPEC_FLAG) else key


def _find_draft_length(method: str, settings: Settings) -> int | None:
    """Return the longest draft of the methods in force; a list of methods drafts with one after the other."""
    lengths = [_find_length_of(one, settings) for one in method.split(",")]
    known = [length for length in lengths if isinstance(length, int)]
    return max(known) if len(known) == len(lengths) else None


def _find_length_of(method: str, settings: Settings) -> object:
    flag = _LENGTH_FLAGS.get(method, _MODEL_LENGTH_FLAG)
    return _FIXED_LENGTHS.get(method, settings.get(f"speculation.{flag}", _DEFAULT_LENGTHS[flag]))
