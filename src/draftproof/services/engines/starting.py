"""Today's service, read from the command that starts it, and what a measurement adds to it. Pure.

Which program an engine's command begins with, and where it names model and port, are facts of the engine.
What drafts in the command already is taken out of the baseline and becomes the candidate's.
"""

import re
import shlex
from collections.abc import Sequence
from pathlib import PurePath

import msgspec

from draftproof.core.errors import UsageError
from draftproof.services.engines.adapter import EngineAdapter
from draftproof.services.engines.commands import (
    Drafts,
    drop_flags,
    find_flags,
    find_written_secret,
    list_flags,
    words_before_flags,
)
from draftproof.services.engines.facts import METHOD, OFF

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_PLAIN = re.compile(r"[\w@%+=:,./{}$-]+")
# These start a service that this program could neither reach by its process nor end.
_WRAPPERS = frozenset(
    {"docker", "podman", "kubectl", "helm", "nerdctl", "sudo", "ssh", "srun", "bash", "sh", "zsh"}
)
_PLACE = "--serve"


class Service(msgspec.Struct, frozen=True, kw_only=True):
    """A service by its engine and its launch command, with `{model}` and `{port}` in the place of theirs.

    `env`: variables in front of the command. `drafting`: words by which it drafted, taken out of `command`,
    and `method`, the method as the engine calls it. `added`: flags that the measurement adds, with reasons.
    """

    engine: str
    command: tuple[str, ...]
    model: str
    env: dict[str, str] = {}
    drafting: tuple[str, ...] = ()
    method: str | None = None
    added: tuple[tuple[str, str], ...] = ()


def read_service(text: str, adapters: Sequence[EngineAdapter]) -> Service:
    """Return the service that a command starts, as a shell would split it.

    Raises UsageError: no engine is known by this command, it names no model, or it states a secret.
    """
    env, words = _split_environment(_split(text))
    adapter, at = _find_program(words, adapters)
    if secret := find_written_secret(words):
        raise UsageError(
            f"the command states the value of --{secret.replace('_', '-')}, which a plan would keep",
            place=_PLACE,
            fix="export it and write ${NAME} in its place, within single quotes",
        )
    model, words = _take_model(adapter, words, at)
    words = _listen_here(adapter, words)
    words, drafting, method = _take_drafting(adapter, words)
    added = [one for one in adapter.starting.measured if not _states(words, one[0][0])]
    return Service(
        engine=adapter.name,
        command=(*words, *(word for flags, _ in added for word in flags)),
        model=model,
        env=adapter.starting.env | env,
        drafting=drafting,
        method=method,
        added=tuple((" ".join(flags), why) for flags, why in added),
    )


def join_words(words: Sequence[str]) -> str:
    """Return a command as one string that a shell would split into these words; marks in braces stay bare."""
    return " ".join(word if _PLAIN.fullmatch(word) else shlex.quote(word) for word in words)


def _split(text: str) -> list[str]:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(
            f"the command cannot be split into words ({error})", place=_PLACE, fix="close the quotation"
        ) from error
    if not words:
        raise UsageError("the command is empty", place=_PLACE, fix='such as --serve "vllm serve MODEL"')
    return words


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
        raise UsageError(
            f"{head} starts the service outside of this program's reach",
            place=_PLACE,
            fix="give the command that runs inside, or start both services and name them with --url and "
            "--candidate-url",
        )
    plain = (head, *words[1:])
    for adapter in adapters:
        for program in adapter.starting.programs:
            # An interpreter may stand in front of "-m module".
            for start in range(2 if program[0] == "-m" else 1):
                if plain[start : start + len(program)] == program:
                    return adapter, start + len(program)
    known = sorted({" ".join(one) for adapter in adapters for one in adapter.starting.programs})
    raise UsageError(
        f"no engine is known that is started by {' '.join(words[:3])!r}",
        place=_PLACE,
        fix=f"begin with one of: {', '.join(known)}; or name a running service with --url",
    )


def _take_model(adapter: EngineAdapter, words: tuple[str, ...], at: int) -> tuple[str, tuple[str, ...]]:
    """Return the model that a command names, and the command with `{model}` in its place."""
    flags = {flag.lstrip("-") for flag in adapter.starting.model_flags}
    named = find_flags(words, lambda name: name in flags)
    model = next((value for value in named.values() if value), None)
    if model is None and at < len(words) and not words[at].startswith("-"):
        model = words[at]
    if model is None and (own := adapter.starting.own_model) is not None:
        return own, words
    if model is None:
        raise UsageError(
            "the command names no model", place=_PLACE, fix="add the model, as your service has it"
        )
    marked = (word.replace(f"={model}", "={model}") if word.startswith("-") else word for word in words)
    return model, tuple("{model}" if word == model else word for word in marked)


def _listen_here(adapter: EngineAdapter, words: tuple[str, ...]) -> tuple[str, ...]:
    """Return the command with the address of this machine and the mark of a port that is free."""
    host, ports = adapter.starting.host_flag, adapter.starting.port_flags
    names = {flag.lstrip("-") for flag in (host, *ports)}
    return (*drop_flags(words, lambda name: name in names), host, "127.0.0.1", ports[0], "{port}")


def _take_drafting(
    adapter: EngineAdapter, words: tuple[str, ...]
) -> tuple[tuple[str, ...], tuple[str, ...], str | None]:
    """Return the command without speculation, the words by which it drafted, and its method."""
    method = adapter.read_flags(words).get(METHOD, OFF)
    if adapter.vary is None:
        own = find_flags(words, lambda name: name.startswith("specul"))
        if flag := next((name for name, value in own.items() if value not in {"0", OFF}), None):
            raise UsageError(
                f"the command drafts already, by --{flag}",
                place=_PLACE,
                fix="leave it out: the baseline does not speculate; --method says how the candidate does",
            )
    if method == OFF or adapter.vary is None:
        return words, (), None
    bare = adapter.vary(words, Drafts(length=0)).command
    kept = {use.name for use in list_flags(bare)}
    drafting = drop_flags(words, lambda name: name.replace("-", "_") in kept)
    return bare, drafting[len(words_before_flags(drafting)) :], str(method)


def _states(words: Sequence[str], flag: str) -> bool:
    """Tell whether a command has a flag already, as it is or negated."""
    bare = flag.lstrip("-").removeprefix("no-")
    return bool(find_flags(words, lambda name: name.removeprefix("no-") == bare))
