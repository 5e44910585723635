"""Command lines to settings. Pure.

Every flag of a launch command becomes a setting, so that a flag which differs between two arms is seen
whether or not anybody thought of it. An engine's adapter renames those it knows.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence

from draftproof.engines.facts import Settings

_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?")
_SECRET = re.compile(
    r"api_?key|secret|pass(w|$|_)|credential|(hf|auth|access|bearer|api)_?token|^hft$|_pat$|^pat$|dsn$",
    re.IGNORECASE,
)
_SPEAKS_OF_DRAFTS = re.compile(r"(spec|draft|md$|hfd|lcs$|lcd$|sc$|model_draft)")
MASK = "***"
# Where a service listens, how it logs and who may ask say nothing about how fast it is.
UNCOMPARED_FLAGS = frozenset({"host", "port", "api_key", "log_level", "uvicorn_log_level"})


def parse_flags(
    command: Sequence[str],
    *,
    names: Mapping[str, str] | None = None,
    switches: Collection[str] = (),
    ignored: Collection[str] = UNCOMPARED_FLAGS,
) -> Settings:
    """Return flag -> value of a command line, in the order given; a repeated flag keeps its last value.

    `--max-num-seqs 8` and `--max-num-seqs=8` both give {"max_num_seqs": 8}; a flag followed by another flag
    or by nothing is true. What precedes the first flag (program, subcommand, model) is left out.

    Args:
        command: program and arguments.
        names: flag, without dashes and with underscores, to the setting's name.
        switches: flags that take no value, in the same spelling, although a word may follow.
        ignored: flags that are left out.
    """
    renamed = names or {}
    settings: Settings = {}
    for flag, value in _pair(command, switches):
        if flag not in ignored:
            settings[renamed.get(flag, flag)] = MASK if is_secret_name(flag) else parse_scalar(value)
    return settings


def words_before_flags(command: Sequence[str]) -> tuple[str, ...]:
    """Return the program and what stands before its first flag."""
    first = next((at for at, part in enumerate(command) if _is_flag(part)), len(command))
    return tuple(command[:first])


def is_secret_name(name: str) -> bool:
    """Tell whether a flag or a variable of this name holds a key or a password."""
    return bool(_SECRET.search(name.replace("-", "_")))


def find_unread_words(command: Sequence[str], told: Settings) -> Settings:
    """Return the words of a command that its settings do not show, as settings of their own.

    Such are further values of a flag, all but the last use of a repeated one, and words that stand alone
    behind the first flag, such as a model. `launch.words` holds them in order, `speculation.words` those of
    flags that speak of drafts: nothing that two commands say differently stays unseen.

    Args:
        command: program and arguments.
        told: what an engine's adapter read from it.
    """
    groups = _group(command)
    last = {flag: at for at, (flag, _) in enumerate(groups)}
    shown, unread = list(told.values()), dict[str, list[str]]()
    for at, (flag, words) in enumerate(groups):
        key = "speculation.words" if _SPEAKS_OF_DRAFTS.match(flag) else "launch.words"
        first_is_read = bool(words) and last[flag] == at and _is_shown(flag, words[0], shown)
        unread.setdefault(key, []).extend(words[1:] if first_is_read else words)
    return {key: " ".join(words) for key, words in unread.items() if words}


def list_secret_values(command: Sequence[str]) -> tuple[str, ...]:
    """Return the values of flags that hold a key or a password, as the command writes them."""
    return tuple(value for name, value in _pair(command, ()) if is_secret_name(name) and value)


def find_written_secret(command: Sequence[str]) -> str | None:
    """Return the flag whose key or password the command states itself, None where none does.

    A value that refers to the environment, `${NAME}`, states nothing.
    """
    pairs = _pair(command, ())
    written = (name for name, value in pairs if is_secret_name(name) and value and "${" not in value)
    return next(written, None)


def parse_scalar(text: str | None) -> str | int | float | bool:
    """Return a flag's value as the number or the truth value that it spells, else as text."""
    if text is None or text.lower() == "true":
        return True
    if text.lower() == "false":
        return False
    if _NUMBER.fullmatch(text):
        return float(text) if any(mark in text for mark in ".eE") else int(text)
    return text


def mask_secrets(command: Sequence[str]) -> tuple[str, ...]:
    """Return a command line with the values of flags that hold a key or a password masked."""
    masked, hide = [], False
    for part in command:
        flag, equals, _ = part.partition("=")
        secret = part.startswith("-") and is_secret_name(_name_of(flag))
        shown = f"{flag}={MASK}" if secret and equals else part
        masked.append(MASK if hide and not part.startswith("-") else shown)
        hide = secret and not equals
    return tuple(masked)


def flatten(table: Mapping[str, object], prefix: str = "") -> Settings:
    """Return nested tables as dotted keys; a list becomes its JSON-like text, None stays None."""
    flat: Settings = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            plain = value is None or isinstance(value, str | int | float | bool)
            flat[prefix + key] = value if plain else str(value)  # type: ignore[assignment]
    return flat


def _pair(command: Sequence[str], switches: Collection[str]) -> Iterable[tuple[str, str | None]]:
    parts = list(command)
    index = len(words_before_flags(parts))
    while index < len(parts):
        part, index = parts[index], index + 1
        if not _is_flag(part):
            continue
        flag, equals, value = part.partition("=")
        name = _name_of(flag)
        if equals:
            yield name, value
        elif name not in switches and index < len(parts) and not _is_flag(parts[index]):
            yield name, parts[index]
            index += 1
        else:
            yield name, None


def _group(command: Sequence[str]) -> list[tuple[str, list[str]]]:
    """Return each flag with the words that follow it, in order."""
    groups: list[tuple[str, list[str]]] = []
    for part in command[len(words_before_flags(command)) :]:
        if _is_flag(part):
            flag, equals, value = part.partition("=")
            groups.append((_name_of(flag), [value] if equals else []))
        else:
            groups[-1][1].append(part)
    return groups


def _is_shown(flag: str, word: str, shown: Sequence[object]) -> bool:
    """Tell whether settings show a flag's value: as it is, or taken apart where it is JSON."""
    is_json = word.strip().startswith(("{", "["))
    return flag in UNCOMPARED_FLAGS or is_json or word in shown or parse_scalar(word) in shown


def _is_flag(part: str) -> bool:
    return part.startswith("-") and part != "-" and not _NUMBER.fullmatch(part)


def _name_of(flag: str) -> str:
    return flag.lstrip("-").replace("-", "_")
