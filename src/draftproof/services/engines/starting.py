"""Today's service, read from the command that starts it, and what a measurement adds to it. Pure.

Which program an engine's command begins with, and where it names model and port, are facts of the engine.
What drafts in the command already is taken out of the baseline and becomes the candidate's.
"""

import contextlib
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import PurePath

import msgspec

from draftproof.core.errors import PlanError, UsageError
from draftproof.core.secrets import classify_secret, is_secret_name
from draftproof.services.engines.adapter import EngineAdapter
from draftproof.services.engines.commands import (
    Drafts,
    drop_flags,
    find_flags,
    find_written_secret,
    list_flags,
    speaks_of_drafts,
    words_before_flags,
)
from draftproof.services.engines.facts import DRAFTER, METHOD, OFF, Settings

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_PLAIN = re.compile(r"[\w@%+=:,./{}$-]+")
# These start a service that this program could neither reach by its process nor end.
_WRAPPERS = frozenset(
    {"docker", "podman", "kubectl", "helm", "nerdctl", "sudo", "ssh", "srun", "bash", "sh", "zsh"}
)
_SHELL = re.compile(r"[|&;<>]+|\d?>.*|<.*|.*;")
_BARE_VARIABLE = re.compile(r"\$([A-Za-z_]\w*)")
_OPTIONS_OF_PYTHON = 4
_MODEL_MARK, _UNNAMED = "{model}", "speculation"
_PLACE = "--serve"


class Service(msgspec.Struct, frozen=True, kw_only=True):
    """A service by its engine and its launch command, with `{model}` and `{port}` in the place of theirs.

    `env`: variables in front of the command. `drafting`: words by which it drafted, taken out of `command`,
    with the `method` as the engine calls it and the `drafter` that it names. `added`: flags that the
    measurement adds, with reasons.
    """

    engine: str
    command: tuple[str, ...]
    model: str
    env: dict[str, str] = {}
    drafting: tuple[str, ...] = ()
    method: str | None = None
    drafter: str | None = None
    added: tuple[tuple[str, str], ...] = ()


def read_service(text: str, adapters: Sequence[EngineAdapter]) -> Service:
    """Return the service that a command starts, as a shell would split it.

    Raises UsageError: no engine is known by this command, it names no model, it states a secret, or it wants
    a shell.
    """
    env, words = _split_environment(_split(text))
    _refuse_secrets(env, words)
    adapter, at = _find_program(words, adapters)
    model, words = _take_model(adapter, words, at)
    if model == "MODEL":
        raise _refuse("MODEL is a placeholder", "write your model's path or id in its place")
    words = _listen_here(adapter, words)
    words, drafting, settings = _take_drafting(adapter, words)
    added = [one for one in adapter.starting.measured if not _states(adapter, words, one[0])]
    drafter = settings.get(DRAFTER)
    return Service(
        engine=adapter.name,
        command=(*words, *(word for flags, _ in added for word in flags)),
        model=model,
        env=adapter.starting.env | env,
        drafting=drafting,
        method=str(settings.get(METHOD, _UNNAMED)) if drafting else None,
        drafter=None if drafter is None else str(drafter),
        added=tuple((" ".join(flags), why) for flags, why in added),
    )


def join_words(words: Sequence[str]) -> str:
    """Return a command as one string that a shell would split into these words; marks in braces stay bare."""
    return " ".join(word if _PLAIN.fullmatch(word) else shlex.quote(word) for word in words)


def _split(text: str) -> list[str]:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise _refuse(f"the command cannot be split into words ({error})", "close the quotation") from error
    if not words:
        raise _refuse("the command is empty", 'such as --serve "vllm serve MODEL"')
    if shell := next((word for word in words if _SHELL.fullmatch(word)), None):
        raise _refuse(f"{shell!r} is for a shell, and the command is run without one", "leave it out")
    if bare := _BARE_VARIABLE.search(text):
        raise _refuse(
            f"{bare[0]} is for a shell, and the command is run without one",
            f"write ${{{bare[1]}}} within single quotes, or the value",
        )
    return words


def _refuse(what: str, fix: str) -> UsageError:
    return UsageError(what, place=_PLACE, fix=fix)


def _refuse_secrets(env: Mapping[str, str], words: Sequence[str]) -> None:
    """Refuse a command that states a key or a password: a plan would keep it. Never quotes it."""
    fix = "export it and write ${NAME} in its place, within single quotes"
    for name, value in env.items():
        if is_secret_name(name) and "${" not in value:
            raise _refuse(f"the variable {name} states a secret, which a plan would keep", fix)
    if secret := find_written_secret(words):
        flag = secret.replace("_", "-")
        raise _refuse(f"the command states the value of --{flag}, which a plan would keep", fix)
    if kind := classify_secret(" ".join(words).encode()):
        raise _refuse(f"the command holds {kind}, which a plan would keep", fix)


def _split_environment(words: list[str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the variables that stand in front of a command, and the command."""
    rest = words[1:] if words[0] == "env" else words
    env = {}
    while rest and (found := _ASSIGNMENT.fullmatch(rest[0])):
        env[found[1]], rest = found[2], rest[1:]
    return env, tuple(rest)


def _find_program(words: tuple[str, ...], adapters: Sequence[EngineAdapter]) -> tuple[EngineAdapter, int]:
    """Return the engine of a command, and how many of its words are the program."""
    head = PurePath(words[0]).name if words else ""
    if head in _WRAPPERS:
        raise _refuse(
            f"{head} starts the service outside of this program's reach",
            "give the command that runs inside, or start both services and name them with --url and "
            "--candidate-url",
        )
    plain = (head, *words[1:])
    for adapter in adapters:
        for program in adapter.starting.programs:
            # An interpreter and its options may be in front of "-m module".
            for start in range(_OPTIONS_OF_PYTHON if program[0] == "-m" else 1):
                if plain[start : start + len(program)] == program:
                    return adapter, start + len(program)
    known = sorted({" ".join(one) for adapter in adapters for one in adapter.starting.programs})
    raise _refuse(
        f"no engine is known that is started by {head!r}",
        f"begin with one of: {', '.join(known)}; or name a running service with --url",
    )


def _take_model(adapter: EngineAdapter, words: tuple[str, ...], at: int) -> tuple[str, tuple[str, ...]]:
    """Return the model that a command names, and the command with `{model}` in its place."""
    flags = {flag.lstrip("-") for flag in adapter.starting.model_flags}
    if at < len(words) and not words[at].startswith("-"):
        return words[at], (*words[:at], _MODEL_MARK, *words[at + 1 :])
    for index, word in enumerate(words[at:], start=at):
        name, equals, value = word.partition("=")
        if not word.startswith("-") or name.lstrip("-") not in flags:
            continue
        if equals:
            return value, (*words[:index], f"{name}={_MODEL_MARK}", *words[index + 1 :])
        if index + 1 < len(words):
            return words[index + 1], (*words[: index + 1], _MODEL_MARK, *words[index + 2 :])
    if (own := adapter.starting.own_model) is not None:
        return own, words
    program = " ".join(words[:at])
    raise _refuse(
        f"the model is not where it is looked for: right behind {program!r}"
        + (f", or behind {' or '.join(adapter.starting.model_flags)}" if flags else ""),
        "put it there",
    )


def _listen_here(adapter: EngineAdapter, words: tuple[str, ...]) -> tuple[str, ...]:
    """Return the command with the address of this machine and the mark of a port that is free."""
    host, ports = adapter.starting.host_flag, adapter.starting.port_flags
    names = {flag.lstrip("-") for flag in (host, *ports)}
    return (*drop_flags(words, lambda name: name in names), host, "127.0.0.1", ports[0], "{port}")


def _take_drafting(
    adapter: EngineAdapter, words: tuple[str, ...]
) -> tuple[tuple[str, ...], tuple[str, ...], Settings]:
    """Return the command without speculation, the words by which it drafted, and how its engine reads it."""
    settings = adapter.read_flags(words)
    own = [use for use in list_flags(words) if speaks_of_drafts(use.name) and use.value not in {"0", OFF}]
    if not own:
        return words, (), settings
    bare = words
    if adapter.vary is not None:
        with contextlib.suppress(PlanError):
            bare = adapter.vary(words, Drafts(length=0)).command
    kept = {use.name for use in list_flags(bare)}
    if any(use.name in kept for use in own):
        raise _refuse(
            f"the command drafts already, by {own[0].written.partition('=')[0]}",
            "leave it out: the baseline does not speculate; --method says how the candidate does",
        )
    drafting = drop_flags(words, lambda name: name.replace("-", "_") in kept)
    return bare, drafting[len(words_before_flags(drafting)) :], settings


def _states(adapter: EngineAdapter, words: Sequence[str], flags: Sequence[str]) -> bool:
    """Tell whether a command has a setting already, in any spelling of its engine, as it is or negated."""
    head = words_before_flags(words)
    nothing = adapter.read_flags(head).keys()
    wanted = adapter.read_flags((*head, *flags)).keys() - nothing
    bare = flags[0].lstrip("-").removeprefix("no-")
    return bool(wanted and wanted <= adapter.read_flags(words).keys() - nothing) or bool(
        find_flags(words, lambda name: name.removeprefix("no-") == bare)
    )
