"""The text of a new plan for an engine and a method: what can be asked for, and what fills the templates in.

The plans are the templates in `data/plans/init`, one for each engine; what they share stands in those whose
names begin with an underscore.
"""

from functools import cache
from pathlib import Path

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined

from draftproof.core.errors import UsageError
from draftproof.plan.faults import PLACEHOLDER
from draftproof.plan.loading import render_string
from draftproof.services.arms.comparability import find_known_forced
from draftproof.services.engines import adapter_for
from draftproof.workload.blocks import ENOUGH_BLOCKS
from draftproof.workload.moments import NS_PER, Units
from draftproof.workload.reader import load_workload
from draftproof.workload.recordings import Window

_DRAFTING = ("ngram", "draft_model", "eagle3", "mtp")
# Engine to the methods that its template knows; a service that discloses nothing has none to choose.
METHODS: dict[str, tuple[str, ...]] = {
    "vllm": _DRAFTING,
    "sglang": _DRAFTING,
    "tensorrt-llm": _DRAFTING,
    "llamacpp": _DRAFTING,
    "tgi": ("ngram",),
    "openai": (),
    "reference": ("ngram", "draft_model", "attached", "self"),
}
_WORDS = {
    "ngram": "n-gram lookup",
    "draft_model": "a draft model",
    "eagle3": "an EAGLE-3 head",
    "mtp": "multi-token prediction",
    "attached": "a trained head",
    "self": "early-exit drafting",
}
# How an engine spells a method in the settings of a running service, where it is not the method's name here.
_SPELLINGS = {
    "sglang": {"ngram": "NGRAM", "draft_model": "STANDALONE", "eagle3": "EAGLE3", "mtp": "EAGLE"},
    "tensorrt-llm": {"ngram": "NGram", "draft_model": "Draft_Target", "eagle3": "Eagle3", "mtp": "MTP"},
    "llamacpp": {
        "ngram": "ngram-simple",
        "draft_model": "draft-simple",
        "eagle3": "draft-eagle3",
        "mtp": "draft-mtp",
    },
    "tgi": {"ngram": "n-gram"},
}
_NEEDS_DRAFT = ("draft_model", "eagle3")
_REFERENCE = "reference"
_DEMO_MODEL = "builtin:smollm2-135m-instruct"
_RECORDED_S, _LARGE_BLOCK = 600.0, 128  # of a recording: what a new plan takes, and its largest block


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What a plan is asked for: engine, method, target, and drafter (a path or an id); None is left open.

    `trace`: a file of recorded requests that the plan replays, with the `units` that it does not say, and how
    many requests its first ten minutes have.
    """

    engine: str
    method: str | None = None
    model: str | None = None
    draft: str | None = None
    trace: str | None = None
    units: Units = Units()
    trace_requests: int = 0


def read_units(timestamp: str | None, block_tokens: int | None) -> Units:
    """Return what is said of a recording on the command line. Raises UsageError: a unit that there is not."""
    known = next((unit for unit in NS_PER if unit == timestamp), None)
    if known != timestamp:
        raise UsageError(
            f"is {timestamp!r}", place="--timestamp-unit", fix=f"use one of: {', '.join(NS_PER)}"
        )
    return Units(timestamp=known, block_tokens=block_tokens)


def render_new_plan(wanted: Wanted) -> str:
    """Return the text of a new plan, with marks where something is still to be filled in.

    A path that exists becomes absolute, so that it means the same wherever the plan is kept. Raises
    UsageError: no such engine, a method that its template lacks, or a drafter for a method without one.
    """
    method = _choose_method(wanted)
    model = _locate(wanted.model) or (_DEMO_MODEL if wanted.engine == _REFERENCE else f"{PLACEHOLDER}_MODEL")
    draft = _locate(wanted.draft)
    if draft is None and method in _NEEDS_DRAFT and wanted.engine != _REFERENCE:
        draft = f"{PLACEHOLDER}_DRAFT"
    values = {
        "method": method,
        "what": _WORDS.get(method or ""),
        "name": wanted.engine if method is None else f"{wanted.engine}-{method}",
        "model": model,
        "draft": draft,
        "draft_is_local": draft is not None and Path(draft).exists(),
        "trace": wanted.trace,
        "forced": _list_forced(wanted.engine, method),
        "units": wanted.units,
        "trace_block": max(1, min(_LARGE_BLOCK, wanted.trace_requests // ENOUGH_BLOCKS)),
    }
    template = _environment().get_template(f"{wanted.engine}.toml.j2")
    # The head says whether anything is left to fill in, which the text without that sentence tells.
    has_marks = PLACEHOLDER in template.render(values, placeholders=False)
    return template.render(values, placeholders=has_marks)


def _list_forced(engine: str, method: str | None) -> dict[str, str]:
    """Return what the engine is known to change by itself for the method, each with the reason."""
    if method is None:
        return {}
    return find_known_forced(adapter_for(engine), _SPELLINGS.get(engine, {}).get(method, method))


def _choose_method(wanted: Wanted) -> str | None:
    """Return the method, the first of the engine's where none is named."""
    if wanted.engine not in METHODS:
        raise UsageError(
            f"there is no template for {wanted.engine!r}",
            place="--engine",
            fix=f"use one of: {', '.join(METHODS)}",
        )
    known = METHODS[wanted.engine]
    method = wanted.method or (known[0] if known else None)
    if method is not None and method not in known:
        fix = (
            f"use one of: {', '.join(known)}"
            if known
            else "leave --method out: such a service does not say how it drafts"
        )
        raise UsageError(
            f"the template for {wanted.engine} has no method {method!r}", place="--method", fix=fix
        )
    if wanted.draft is not None and (method is None or method in {"ngram", "mtp"}):
        said = "such a service" if method is None else f"the method {method}"
        raise UsageError(
            f"{said} takes no drafter", place="--draft", fix="leave --draft out, or choose another --method"
        )
    return method


def add_trace(wanted: Wanted, path: Path | None) -> Wanted:
    """Return what is wanted with a recording, after its first ten minutes have been read as one."""
    units = wanted.units
    if path is None:
        if units != Units():
            raise UsageError(
                "--timestamp-unit and --block-tokens are a recording's.", fix="name it with --trace"
            )
        return wanted
    if load_workload(path, Window(requests=1), units).items[0].due_ns is None:
        raise UsageError(
            "its requests have no times", place=str(path), fix="state at_s in every line (docs/load.md)"
        )
    found = len(load_workload(path, Window(duration_s=_RECORDED_S), units).items)
    return msgspec.structs.replace(wanted, trace=_locate(str(path)), trace_requests=found)


def _locate(name: str | None) -> str | None:
    """Return a name as it stands, and a path that exists as an absolute one."""
    if not name:
        return None
    if not name.isprintable():
        raise UsageError("a name holds a character that cannot be printed", place=repr(name), fix="rename it")
    path = Path(name).expanduser()
    return str(path.absolute()) if path.exists() else name


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("draftproof", "data/plans/init"),
        autoescape=False,  # noqa: S701 - TOML, not HTML; strings go through the filter below
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["toml"] = render_string
    return environment
