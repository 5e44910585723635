"""SGLang's command with drafts of one length, none of them accepted. Pure.

The window of a step holds the target's own token beside the drafts: release 0.5.23,
`srt/arg_groups/fields/spec.py` and `srt/environ.py`. Checked in source only.
"""

from draftproof.engines.reading.words import drop_flags, find_flags
from draftproof.engines.variation import AS_IT_COMES, Drafting, Variation, not_speculating
from draftproof.errors import PlanError

_SGLANG = "speculative-"
_SGLANG_CHAINS = ("EAGLE", "EAGLE3", "NEXTN", "STANDALONE")
_SGLANG_ACCEPTANCE = {"SGLANG_SIMULATE_ACC_LEN": "1"}
# The device timer costs two events a pass, in every start alike.
_SGLANG_TIMER = {"SGLANG_ENABLE_METRICS_DEVICE_TIMER": "1"}
_SGLANG_METRICS = "enable-metrics"


def vary_sglang(command: tuple[str, ...], draft_length: int, drafting: Drafting) -> Variation:
    """Return the command with drafts of one length, or with none where that is 0; see `vary_command`."""
    told = find_flags(command, lambda name: name.startswith(_SGLANG))
    algorithm = told.get(f"{_SGLANG}algorithm")
    if algorithm is None:
        raise not_speculating("--speculative-algorithm")
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


def free_sglang(varied: Variation) -> Variation:
    """Return the same with the acceptance left to the drafts."""
    kept = {key: value for key, value in varied.environment.items() if key not in _SGLANG_ACCEPTANCE}
    return Variation(command=varied.command, environment=kept, acceptance=AS_IT_COMES)
