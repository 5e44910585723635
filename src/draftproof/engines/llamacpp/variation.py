"""The llama.cpp server's command with drafts of one length, none of them accepted. Pure.

Each kind of drafter has a flag of its length: b11434, `common/arg.cpp` and `common/ngram-map.cpp`.
"""

from draftproof.engines.reading.words import drop_flags, find_flags
from draftproof.engines.variation import AS_IT_COMES, Drafting, Variation, not_speculating
from draftproof.errors import PlanError

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


def vary_llamacpp(command: tuple[str, ...], draft_length: int, drafting: Drafting) -> Variation:
    """Return the command with drafts of one length, or with none where that is 0; see `vary_command`."""
    told = find_flags(command, _is_llama_draft_flag)
    method = told.get("spec-type") or ("ngram-mod" if "spec-default" in told else None)
    if method is None or method == "none":
        raise not_speculating("--spec-type")
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


def free_llamacpp(varied: Variation) -> Variation:
    """Return the same with the acceptance left to the drafts."""
    command = drop_flags(varied.command, lambda name: name in _LLAMA_SYNTHETIC)
    return Variation(command=command, environment=varied.environment, acceptance=AS_IT_COMES)
