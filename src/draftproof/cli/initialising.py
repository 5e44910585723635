"""`draftproof init`: a commented plan to start from, the demo's or one for an engine and a method.

Owns what can be asked for and the file that is written. The plans themselves are the templates in
`data/plans/init`, one for each engine; what they share stands in those whose names begin with an underscore.
"""

from collections.abc import Iterable
from functools import cache
from pathlib import Path

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined

from draftproof.cli.printable import print_text
from draftproof.core.errors import StoreError, UsageError
from draftproof.plan.faults import PLACEHOLDER
from draftproof.plan.loading import load_builtin_plan, render_string
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


def initialise(
    out: Path,
    *,
    engine: str | None,
    method: str | None,
    model: str | None,
    draft: str | None,
    trace: Path | None = None,
    units: Units | None = None,
) -> None:
    """Write a new plan and say what to do next; a file that is there is never overwritten.

    Raises:
        UsageError: the file exists, the engine or its method is not one there is a template for, or the trace
            cannot be read.
        StoreError: the file cannot be written.
    """
    if engine is None:
        if trace is not None or not method is model is draft is None:
            raise UsageError(
                "--method, --model, --draft and --trace are an engine's.",
                fix=f"add --engine: {_list(METHODS)}",
            )
        text = load_builtin_plan("demo")[1]
    else:
        # A plan names such a service generic, a person by the protocol that it speaks.
        engine = "openai" if engine == "generic" else engine
        wanted = Wanted(engine=engine, method=method, model=model, draft=draft, units=units or Units())
        text = render_new_plan(_add_trace(wanted, trace))
    try:
        with out.open("x", encoding="utf-8") as stream:
            stream.write(text)
    except FileExistsError as error:
        raise UsageError("the file exists", place=str(out), fix="choose another name with --out") from error
    except OSError as error:
        raise StoreError(f"cannot write: {error.strerror}", place=str(out)) from error
    first = f"fill in every {PLACEHOLDER} in it, then " if PLACEHOLDER in text else ""
    print_text(f"Wrote {out}. Next: {first}draftproof check {out}")


def read_units(timestamp: str | None, block_tokens: int | None) -> Units:
    """Return what is said of a recording on the command line.

    Raises:
        UsageError: a unit that there is not.
    """
    for unit in NS_PER:
        if timestamp == unit:
            return Units(timestamp=unit, block_tokens=block_tokens)
    if timestamp is not None:
        raise UsageError(f"is {timestamp!r}", place="--timestamp-unit", fix=f"use one of: {_list(NS_PER)}")
    return Units(block_tokens=block_tokens)


def render_new_plan(wanted: Wanted) -> str:
    """Return the text of a new plan, with marks where something is still to be filled in.

    A path that exists becomes absolute, so that it means the same wherever the plan is kept.

    Raises:
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
            fix=f"use one of: {_list(METHODS)}",
        )
    known = METHODS[wanted.engine]
    method = wanted.method or (known[0] if known else None)
    if method is not None and method not in known:
        fix = (
            f"use one of: {_list(known)}"
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


def _add_trace(wanted: Wanted, path: Path | None) -> Wanted:
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


def _list(names: Iterable[str]) -> str:
    return ", ".join(names)


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
