"""Launch commands that draft K tokens a step and accept none, so that every step commits exactly one. Pure.

The time per output token of such a service is the time of its step. How a command is changed is each engine's
own affair; here is which engines can be changed at all.
"""

from collections.abc import Callable, Sequence

from draftproof.core.errors import PlanError
from draftproof.services.engines.llamacpp.flags import free_llamacpp, vary_llamacpp
from draftproof.services.engines.sglang.settings import free_sglang, vary_sglang
from draftproof.services.engines.variation import AS_IT_COMES, Drafting, Variation
from draftproof.services.engines.vllm.flags import free_vllm, vary_vllm

__all__ = ["AS_IT_COMES", "Drafting", "Variation", "vary_command"]


def vary_command(
    engine: str,
    command: Sequence[str],
    draft_length: int,
    *,
    drafting: Drafting = "own",
    synthetic: bool = True,
) -> Variation:
    """Return a speculating command changed to drafts of one length, none of them accepted.

    Args:
        engine: as a plan names it.
        command: program and arguments.
        draft_length: tokens drafted in each step; 0 takes speculation out.
        drafting: "own" keeps the command's drafter, "ngram" puts the engine's n-gram lookup in its place.
        synthetic: False leaves the acceptance to the drafts, for builds that cannot fix it.

    Raises:
        PlanError: the command does not speculate, or its engine has no way to fix the acceptance.
    """
    vary = _ENGINES.get(engine)
    if vary is None:
        raise PlanError(
            f"step costs cannot be measured on {engine}: {_NEEDED[engine]}.", place="arms.candidate"
        )
    varied = vary(tuple(command), draft_length, drafting)
    return varied if synthetic or not draft_length else _FREED[engine](varied)


_NEEDED = {
    "tensorrt-llm": "its draft length stands in a file of options, and no option that is known accepts none "
    "of the drafts, which it would take",
    "tgi": "it has no option that fixes the acceptance of drafts, which it would take",
    "generic": "which options bound its drafts and fix their acceptance is not known; "
    "name the engine in arms.candidate.engine",
}
_ENGINES: dict[str, Callable[[tuple[str, ...], int, Drafting], Variation]] = {
    "vllm": vary_vllm,
    "llamacpp": vary_llamacpp,
    "sglang": vary_sglang,
}
_FREED: dict[str, Callable[[Variation], Variation]] = {
    "vllm": free_vllm,
    "llamacpp": free_llamacpp,
    "sglang": free_sglang,
}
