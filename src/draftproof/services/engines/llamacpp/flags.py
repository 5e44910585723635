"""llama.cpp's launch commands: as settings, and with drafts of one length of which none is accepted. Pure.

Flags and defaults: release b11434, `common/arg.cpp`, `common/common.h` and `common/ngram-map.cpp`. Each kind
of drafter has a flag of its length.
"""

from collections.abc import Sequence

from draftproof.core.errors import PlanError
from draftproof.services.engines.commands import (
    AS_IT_COMES,
    UNCOMPARED_FLAGS,
    Drafts,
    Variation,
    drop_flags,
    find_flags,
    not_speculating,
    parse_flags,
)
from draftproof.services.engines.facts import DRAFT_LENGTH, DRAFTER, METHOD, OFF, Settings

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
_LOGGING = {
    *("lv", "verbosity", "log_verbosity", "v", "verbose", "log_verbose", "log_file", "log_prefix"),
    *("log_timestamps", "log_colors", "log_disable", "no_log_prefix", "no_log_timestamps"),
}
_SPEC_FLAG = "spec_"


def read_flags(command: Sequence[str]) -> Settings:
    """Return the settings of a launch command; without a type the method is off, whatever draft is loaded."""
    flags = parse_flags(command, names=_NAMES, ignored=UNCOMPARED_FLAGS | _LOGGING)
    # Every drafting flag lies below one key, so that a plan declares all of them with one word.
    settings = {
        f"speculation.{key.removeprefix(_SPEC_FLAG)}" if key.startswith(_SPEC_FLAG) else key: value
        for key, value in flags.items()
    }
    if settings.pop("speculation.default", False):
        settings |= _SPEC_DEFAULT
    method = settings.setdefault(METHOD, OFF)
    if method == "none":
        settings[METHOD] = method = OFF
    length = None if method == OFF else _find_draft_length(str(method), settings)
    return settings if length is None else settings | {DRAFT_LENGTH: length}


def read_context(command: Sequence[str]) -> object:
    """Return the tokens of a slot: the context over the slots, all of it where they share one cache.

    They do by `--kv-unified`, and where the number of slots is left to the server.
    """
    settings = read_flags(command)
    size, slots = settings.get("ctx_size"), settings.get("parallel")
    is_split = isinstance(slots, int) and slots > 0 and settings.get("kv_unified") is not True
    return size // slots if isinstance(size, int) and isinstance(slots, int) and is_split else size


def _find_draft_length(method: str, settings: Settings) -> int | None:
    """Return the longest draft of the methods in force; a list of methods drafts with one after the other."""
    lengths = [_find_length_of(one, settings) for one in method.split(",")]
    known = [length for length in lengths if isinstance(length, int)]
    return max(known) if len(known) == len(lengths) else None


def _find_length_of(method: str, settings: Settings) -> object:
    flag = _LENGTH_FLAGS.get(method, _MODEL_LENGTH_FLAG)
    return _FIXED_LENGTHS.get(method, settings.get(f"speculation.{flag}", _DEFAULT_LENGTHS[flag]))


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


def vary_llamacpp(command: tuple[str, ...], wanted: Drafts) -> Variation:
    """Return the command with drafts of one length, or with none where that is 0."""
    stated = find_flags(command, _is_llama_draft_flag)
    method = stated.get("spec-type") or ("ngram-mod" if "spec-default" in stated else None)
    if method is None or method == "none":
        raise not_speculating("--spec-type")
    if "," in method:
        raise PlanError(
            f"the candidate drafts with several methods, one after the other ({method}): which of them a "
            "step's time belongs to cannot be told.",
            place="arms.candidate.command",
            fix="name one method in --spec-type.",
        )
    if wanted.length == 0:
        return Variation(command=drop_flags(command, _is_llama_draft_flag), acceptance="speculation off")
    if wanted.drafting == "ngram" and not method.startswith("ngram"):
        command, method = drop_flags(command, _is_llama_draft_flag), "ngram-simple"
        command, stated = (*command, "--spec-type", method), {_LLAMA_LOOKUP_N: "3"}
    flags = _llama_lengths(method, wanted.length, stated)
    bare = drop_flags(command, lambda name: name in flags or name in _LLAMA_SYNTHETIC)
    words = [word for name, value in flags.items() for word in (f"--{name}", value)]
    if not wanted.synthetic:
        return Variation(command=(*bare, *words), acceptance=AS_IT_COMES)
    return Variation(
        command=(*bare, *words, "--spec-synth-len", "1"),
        acceptance="none, by a synthetic acceptance length of 1",
    )


def _llama_lengths(method: str, draft_length: int, stated: dict[str, str | None]) -> dict[str, str]:
    """Return the flags that make a method draft exactly so many tokens wherever it drafts at all."""
    length = str(draft_length)
    own = {"spec-" + _LENGTH_FLAGS.get(method, _MODEL_LENGTH_FLAG).replace("_", "-"): length}
    if method == "ngram-simple":
        # A draft shorter than the n-gram that it was found by is thrown away.
        wanted = int(stated.get(_LLAMA_LOOKUP_N) or _LLAMA_LOOKUP_DEFAULT)
        return own | {_LLAMA_LOOKUP_N: str(min(wanted, draft_length))}
    if method == "ngram-mod":
        return own | {"spec-ngram-mod-n-min": length}
    return own if method in _LENGTH_FLAGS else own | {"spec-draft-n-min": "0", "spec-draft-p-min": "0"}


def _is_llama_draft_flag(name: str) -> bool:
    return name.startswith("spec-") or name in _LLAMA_OLD
