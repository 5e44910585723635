"""The text of a new plan: what can be asked for, and what fills the one template in.

What an engine needs is a fact of the engine (`Starting`); the template is `data/plans/new.toml.j2`. A plan
for one question has about sixty lines: what is left out has its default, as `draftproof plan --full` shows.
"""

import textwrap
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined

from draftproof.cli.new_workload import RECORDED_S, Prompts, describe_trace, describe_workload
from draftproof.core.errors import UsageError
from draftproof.plan.faults import PLACEHOLDER
from draftproof.plan.loading import render_string
from draftproof.services.arms.comparability import find_known_forced
from draftproof.services.engines import ADAPTERS, adapter_for
from draftproof.services.engines.facts import Method, Starting
from draftproof.services.engines.starting import Service, join_words
from draftproof.workload.moments import NS_PER, Units
from draftproof.workload.reader import load_workload
from draftproof.workload.recordings import Window

OPENAI, _REFERENCE = "openai", "reference"
# A person names a service by the protocol that it speaks, a plan calls it generic.
_ORDER = ("vllm", "sglang", "tensorrt-llm", "llamacpp", "tgi", OPENAI, _REFERENCE)
ENGINES = {name: ADAPTERS["generic" if name == OPENAI else name].starting for name in _ORDER}
# Engine to the methods that can be asked for; a service that discloses nothing has none to choose.
METHODS: dict[str, tuple[str, ...]] = {name: tuple(one.methods) for name, one in ENGINES.items()}
_WHAT = {
    "ngram": "n-gram lookup",
    "draft_model": "a draft model",
    "eagle3": "an EAGLE-3 head",
    "mtp": "multi-token prediction",
    "attached": "a trained head",
    "self": "early-exit drafting",
}
_DRAFTERS = {
    "ngram": {
        "identity": "n-gram lookup in the request's own tokens",
        "provenance": "no training",
    },
    "mtp": {"identity": "the target's own prediction heads", "provenance": "trained with the target"},
}
_DEMO_MODEL = "builtin:smollm2-135m-instruct"
_STARTER_LIMIT, _REFERENCE_LIMIT = 128, 36  # tokens of an answer
_WIDTH = 106  # of a comment and of a command


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What a plan is asked for: engine, method, target, and drafter (a path or an id); None is left open.

    `service`: today's service, by its command; `url` and `candidate_url`: services that run already.
    `needs_key`: whether they want a key; None: an API of which nothing is known does. `env`: variables that
    this host needs beside the engine's. `shares_device`: arms may run together. `prompts`: those of a log.
    `trace`: a file of recorded requests that the plan replays, with the `units` that it does not say, and how
    many requests its first ten minutes have.
    """

    engine: str
    method: str | None = None
    model: str | None = None
    draft: str | None = None
    service: Service | None = None
    url: str | None = None
    candidate_url: str | None = None
    needs_key: bool | None = None
    env: dict[str, str] = {}
    shares_device: bool = False
    prompts: Prompts | None = None
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
    UsageError: no such engine, a method that it lacks, or a drafter for a method without one.
    """
    method = _choose_method(wanted)
    values = _describe_arms(wanted, method) | _describe_workload(wanted) | {"has_marks": False}
    template = _environment().get_template("new.toml.j2")
    text = template.render(values)
    marked = template.render(values | {"has_marks": True}) if PLACEHOLDER in text else text
    return marked.rstrip() + "\n"


def _describe_arms(wanted: Wanted, method: str | None) -> dict[str, Any]:
    """Return what the template says of services and arms."""
    starting, service, attached = ENGINES[wanted.engine], wanted.service, wanted.url is not None
    known = starting.methods.get(method or "")
    drafts = service.drafting if service else ()
    model = _locate(service.model if service else wanted.model)
    engine_method = (service.method if service else None) or (known.spelled if known else None)
    what = "the changed service" if method is None else _WHAT.get(method, method)
    title = adapter_for("generic" if wanted.engine == OPENAI else wanted.engine).facts.title
    needs_key = wanted.engine == OPENAI if wanted.needs_key is None else wanted.needs_key
    # Without a command the reference engine is started from its settings.
    is_launched = service is not None or (not attached and wanted.engine not in {OPENAI, _REFERENCE})
    has_settings = wanted.engine == _REFERENCE and not is_launched and not attached
    values: dict[str, Any] = {
        "engine": wanted.engine,
        "name": wanted.engine if method is None else f"{wanted.engine}-{method.replace('_', '-')}",
        "question": f"Does {what} make {title} faster here, for this model and these prompts?"
        if method
        else "Does the changed service answer faster than today's, as well and as surely?",
        "what": what,
        "target": _describe_target(wanted, model),
        "placement": "together" if attached or wanted.shares_device else starting.placement,
        "ready_s": 60.0 if attached or wanted.engine == OPENAI else starting.ready_s,
        "command": (service.command if service else _measured_command(starting)) if is_launched else (),
        "engine_why": [f"Added for the measurement: {flags} ({why})." for flags, why in service.added]
        if service
        else (),
        "env": (service.env if service else starting.env) | wanted.env if is_launched else {},
        "settings": starting.settings if has_settings else {},
        "url": wanted.url
        or (f"https://{PLACEHOLDER}_ADDRESS_OF_BASELINE" if wanted.engine == OPENAI else None),
        "headers": {"Authorization": "Bearer ${OPENAI_API_KEY}"} if needs_key else {},
        "served_model": model or f"{PLACEHOLDER}_MODEL" if wanted.engine == OPENAI else None,
        "candidate_url": wanted.candidate_url
        or (f"https://{PLACEHOLDER}_ADDRESS_OF_CANDIDATE" if attached or wanted.engine == OPENAI else None),
        "candidate_keys": ("served_model", "max_model_len")
        if wanted.engine == OPENAI
        else _list_keys(wanted),
        "alternative_keys": (),
        "alternative_add": (),
        "alternative_settings": {},
        "forced": _list_forced(wanted.engine, engine_method),
    }
    if is_launched or has_settings:
        values |= {
            f"alternative_{name}": getattr(starting, f"alternative_{name}") for name in ("keys", "why")
        }
        values["alternative_add"] = starting.alternative if is_launched else ()
        values["alternative_settings"] = starting.alternative_settings if has_settings else {}
    return values | _describe_drafting(wanted, method, known, drafts, is_launched=is_launched)


def _describe_target(wanted: Wanted, model: str | None) -> dict[str, str]:
    """Return the target; formats shorter than float32 have ties, by which greedy answers differ more."""
    if wanted.engine == _REFERENCE:
        return {"model": model or _DEMO_MODEL, "dtype": "float32"}
    return {"model": model or f"{PLACEHOLDER}_MODEL"}


def _describe_drafting(
    wanted: Wanted, method: str | None, known: Method | None, drafts: Sequence[str], *, is_launched: bool
) -> dict[str, Any]:
    """Return what the template says of the candidate's drafts and drafter."""
    draft = _locate(wanted.draft or (wanted.service.drafter if wanted.service else None))
    if draft is None and known is not None and known.needs_draft:
        draft = f"{PLACEHOLDER}_DRAFT"
    words = drafts or (known.add if known else ())
    added = tuple(word.replace("{draft}", draft or "") for word in words)
    measured = ENGINES[wanted.engine].measured_drafting if known or drafts else ()
    settings = dict(known.settings) if known and not wanted.url and not is_launched else {}
    if wanted.engine == _REFERENCE and draft and is_launched:
        added += ("--drafter", draft)
    elif wanted.engine == _REFERENCE and draft:
        settings["drafter"] = draft
    # A drafter that ships states its facts in its own record.
    is_shipped = wanted.engine == _REFERENCE and (draft or "builtin:").startswith(("layers:", "builtin:"))
    facts = _DRAFTERS.get(method or "", {"identity": draft} if draft and not is_shipped else {})
    local = {"path": draft} if draft is not None and Path(draft).exists() and not is_shipped else {}
    note = tuple(
        line.replace("{draft}", draft or "") for line in (known.note if known and not drafts else ())
    )
    return {
        "candidate_add": (*added, *measured) if is_launched else (),
        "candidate_settings": settings,
        "candidate_why": note,
        "drafter": facts | local,
    }


def _list_keys(wanted: Wanted) -> tuple[str, ...]:
    return (
        ("speculation", "drafter", "config")
        if wanted.engine == "tensorrt-llm"
        else ("speculation", "drafter")
    )


def _measured_command(starting: Starting) -> tuple[str, ...]:
    return (*starting.command, *(word for flags, _ in starting.measured for word in flags))


def _describe_workload(wanted: Wanted) -> dict[str, Any]:
    if wanted.trace is not None:
        return describe_trace(wanted.trace, wanted.trace_requests, wanted.units)
    peak = 4 if wanted.shares_device else ENGINES[wanted.engine].peak
    limit = _REFERENCE_LIMIT if wanted.engine == _REFERENCE else _STARTER_LIMIT
    return describe_workload(wanted.prompts, peak=peak, limit=limit)


def _list_forced(engine: str, method: str | None) -> dict[str, str]:
    """Return what the engine is known to change by itself for the method, each with the reason."""
    return find_known_forced(adapter_for(engine), method) if method is not None else {}


def _choose_method(wanted: Wanted) -> str | None:
    """Return the method, the first of the engine's where none is named."""
    if wanted.engine not in METHODS:
        raise UsageError(
            f"no plan is known for {wanted.engine!r}",
            place="--engine",
            fix=f"use one of: {', '.join(METHODS)}",
        )
    if wanted.service is not None and wanted.service.method is not None:
        return _name_method(wanted)
    known = METHODS[wanted.engine]
    method = wanted.method or (known[0] if known else None)
    if method is not None and method not in known:
        fix = (
            f"use one of: {', '.join(known)}"
            if known
            else "leave --method out: such a service does not say how it drafts"
        )
        raise UsageError(f"{wanted.engine} has no method {method!r} here", place="--method", fix=fix)
    takes_draft = wanted.engine == _REFERENCE or (
        method is not None and ENGINES[wanted.engine].methods[method].needs_draft
    )
    if wanted.draft is not None and (not takes_draft or method == "ngram"):
        said = "such a service" if method is None else f"the method {method}"
        raise UsageError(
            f"{said} takes no drafter", place="--draft", fix="leave --draft out, or choose another --method"
        )
    return method


def _name_method(wanted: Wanted) -> str:
    """Return the method of a service that drafts already, which no option may contradict."""
    assert wanted.service is not None  # noqa: S101 - the caller has one
    spelled = str(wanted.service.method)
    methods = ENGINES[wanted.engine].methods
    name = next((name for name, one in methods.items() if one.spelled == spelled), spelled.lower())
    if wanted.method not in {None, name} or wanted.draft is not None:
        raise UsageError(
            f"the command of --serve drafts already, by {spelled}",
            place="--method" if wanted.draft is None else "--draft",
            fix="leave it out: the candidate is the command as it is, the baseline the same without drafts",
        )
    return name


def add_trace(wanted: Wanted, path: Path | None) -> Wanted:
    """Return what is wanted with a recording, after its first ten minutes have been read as one."""
    units = wanted.units
    if path is None:
        if units != Units() and wanted.prompts is None:
            raise UsageError(
                "--timestamp-unit and --block-tokens are a recording's.", fix="name it with --trace"
            )
        return wanted
    if load_workload(path, Window(requests=1), units).items[0].due_ns is None:
        raise UsageError(
            "its requests have no times", place=str(path), fix="state at_s in every line (docs/load.md)"
        )
    found = len(load_workload(path, Window(duration_s=RECORDED_S), units).items)
    return msgspec.structs.replace(wanted, trace=_locate(str(path)), trace_requests=found)


def _locate(name: str | None) -> str | None:
    """Return a name as it stands, and a path that exists as an absolute one."""
    if not name:
        return None
    if not name.isprintable():
        raise UsageError("a name holds a character that cannot be printed", place=repr(name), fix="rename it")
    path = Path(name).expanduser()
    return str(path.absolute()) if path.exists() else name


def _render_words(words: Sequence[str]) -> str:
    """Return a command as a TOML string: on one line, or on several that are split like one."""
    text = join_words(words)
    if "'''" in text or "\n" in text:
        return render_string(text)
    if len(text) <= 88 and "'" not in text and "\\" not in text:
        return f'"{text}"' if '"' not in text else f"'{text}'"
    lines = _fill([join_words([word]) for word in words])
    return "'''\n" + "".join(f"    {line}\n" for line in lines) + "'''" if len(lines) > 1 else f"'''{text}'''"


def _fill(words: Sequence[str]) -> list[str]:
    """Return words on lines of at most `_WIDTH` characters, a flag with its value on one line."""
    lines = [""]
    for at, word in enumerate(words):
        value = words[at + 1] if at + 1 < len(words) and not words[at + 1].startswith("-") else ""
        reach = len(word) + len(value) + 1 if word.startswith("-") else len(word)
        if lines[-1] and len(lines[-1]) + 1 + reach > _WIDTH and not _is_value(words, at):
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines


def _is_value(words: Sequence[str], at: int) -> bool:
    return at > 0 and words[at - 1].startswith("-") and not words[at].startswith("-")


def _render_inline(table: Mapping[str, Any]) -> str:
    """Return the inside of a TOML table on one line."""
    return ", ".join(
        f"{key if key.replace('_', '').isalnum() else render_string(key)} = {_render_value(value)}"
        for key, value in table.items()
    )


def _render_value(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"{{ {_render_inline(value)} }}"
    return render_string(value) if isinstance(value, str) else str(value).lower()


def _render_comment(text: str) -> str:
    return "\n".join(f"# {line}" for line in textwrap.wrap(text, _WIDTH))


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("draftproof", "data/plans"),
        autoescape=False,  # noqa: S701 - TOML, not HTML; strings go through the filter below
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"toml": render_string, "words": _render_words}
    environment.filters |= {"inline": _render_inline, "comment": _render_comment}
    return environment
