"""Launch commands: word by word, as settings, and changed for an experiment. Pure.

Every flag becomes a setting, so that one which differs between two arms is seen whether or not anybody
thought of it; an engine's adapter renames those it knows. Nothing is lost: the words of the head and of all
uses, in order, are the command.
"""

import itertools
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Literal

import msgspec

from draftproof.core.errors import PlanError
from draftproof.core.secrets import MASK, is_secret_name
from draftproof.services.engines.facts import Settings

NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?")


class FlagUse(msgspec.Struct, frozen=True):
    """One flag of a command: as written, its value where that is written behind "=", and the words behind it.

    `words` are all words up to the next flag: its value, further values, or words that stand alone.
    """

    written: str
    attached: str | None
    words: tuple[str, ...]

    @property
    def name(self) -> str:
        """The flag without dashes in front, with underscores inside."""
        return self.written.partition("=")[0].lstrip("-").replace("-", "_")

    @property
    def values(self) -> tuple[str, ...]:
        """Everything that is said behind the flag, in order."""
        return self.words if self.attached is None else (self.attached, *self.words)

    @property
    def value(self) -> str | None:
        """What is said first behind the flag, None for nothing."""
        return self.values[0] if self.values else None

    @property
    def extra(self) -> tuple[str, ...]:
        """The words that are not the flag's one value."""
        return self.words[1:] if self.attached is None else self.words


def words_before_flags(command: Sequence[str]) -> tuple[str, ...]:
    """Return the program and what stands before its first flag."""
    first = next((at for at, word in enumerate(command) if _is_flag(word)), len(command))
    return tuple(command[:first])


def list_flags(command: Sequence[str]) -> tuple[FlagUse, ...]:
    """Return the uses of flags in a command, in order."""
    starts = [at for at, word in enumerate(command) if _is_flag(word)]
    borders = itertools.pairwise([*starts, len(command)])
    return tuple(_read_use(command[start:end]) for start, end in borders)


def find_flags(command: Sequence[str], is_wanted: Callable[[str], bool]) -> dict[str, str | None]:
    """Return name -> value of some flags, None for one without a value; a repeated one keeps its last.

    Names are those of `FlagUse` with dashes inside, as programs document them.
    """
    named = ((use.name.replace("_", "-"), use.value) for use in list_flags(command))
    return {name: value for name, value in named if is_wanted(name)}


def drop_flags(command: Sequence[str], is_dropped: Callable[[str], bool]) -> tuple[str, ...]:
    """Return a command without some flags and their values; every other word stands where it stood.

    `is_dropped`: takes a flag's name as in `find_flags`.
    """
    kept = list(words_before_flags(command))
    for use in list_flags(command):
        kept += use.extra if is_dropped(use.name.replace("_", "-")) else (use.written, *use.words)
    return tuple(kept)


def _read_use(words: Sequence[str]) -> FlagUse:
    _, equals, attached = words[0].partition("=")
    return FlagUse(words[0], attached if equals else None, tuple(words[1:]))


def _is_flag(word: str) -> bool:
    return word.startswith("-") and word != "-" and not NUMBER.fullmatch(word)


_SPEAKS_OF_DRAFTS = re.compile(r"(spec|draft|md$|hfd|lcs$|lcd$|sc$|model_draft)")
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
    or by nothing is true. What precedes the first flag (program, subcommand, model) is left out. `names`:
    flag, without dashes and with underscores, to the setting's name. `switches`: flags that take no value, in
    the same spelling, although a word may follow.
    """
    renamed = names or {}
    settings: Settings = {}
    for use in list_flags(command):
        flag = use.name
        if flag not in ignored:
            value = use.attached if flag in switches else use.value
            settings[renamed.get(flag, flag)] = MASK if is_secret_name(flag) else parse_scalar(value)
    return settings


def speaks_of_drafts(flag: str) -> bool:
    """Tell whether a flag, without dashes and with underscores, is one of speculative decoding."""
    return bool(_SPEAKS_OF_DRAFTS.match(flag))


def find_unread_words(command: Sequence[str], settings: Settings) -> Settings:
    """Return the words of a command that its settings do not show, as settings of their own.

    Such are further values of a flag, all but the last use of a repeated one, and words that stand alone
    behind the first flag, such as a model. `launch.words` holds them in order, `speculation.words` those of
    flags that speak of drafts: nothing that two commands say differently stays unseen. `settings`: what an
    engine's adapter read from it.
    """
    uses = list_flags(command)
    last = {use.name: at for at, use in enumerate(uses)}
    shown, unread = list(settings.values()), dict[str, list[str]]()
    for at, use in enumerate(uses):
        key = "speculation.words" if speaks_of_drafts(use.name) else "launch.words"
        is_read = use.value is not None and last[use.name] == at and _is_shown(use.name, use.value, shown)
        unread.setdefault(key, []).extend(use.values[1:] if is_read else use.values)
    return {key: " ".join(words) for key, words in unread.items() if words}


def list_secret_values(command: Sequence[str]) -> tuple[str, ...]:
    """Return the values of flags that hold a key or a password, as the command writes them."""
    return tuple(use.value for use in list_flags(command) if is_secret_name(use.name) and use.value)


def find_written_secret(command: Sequence[str]) -> str | None:
    """Return the flag whose key or password the command states itself, None where none does.

    A value that refers to the environment, `${NAME}`, states nothing.
    """
    secret = (use for use in list_flags(command) if is_secret_name(use.name) and use.value)
    return next((use.name for use in secret if "${" not in (use.value or "")), None)


def parse_scalar(text: str | None) -> str | int | float | bool:
    """Return a flag's value as the number or the truth value that it spells, else as text."""
    if text is None or text.lower() == "true":
        return True
    if text.lower() == "false":
        return False
    if NUMBER.fullmatch(text):
        return float(text) if any(mark in text for mark in ".eE") else int(text)
    return text


def mask_secrets(command: Sequence[str]) -> tuple[str, ...]:
    """Return a command line with the values of flags that hold a key or a password masked."""
    masked = list(words_before_flags(command))
    for use in list_flags(command):
        if not is_secret_name(use.name):
            masked += (use.written, *use.words)
        elif use.attached is None:
            masked += (use.written, *(MASK for _ in use.words))
        else:
            masked += (f"{use.written.partition('=')[0]}={MASK}", *use.words)
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


def _is_shown(flag: str, word: str, shown: Sequence[object]) -> bool:
    """Tell whether settings show a flag's value: as it is, or taken apart where it is JSON."""
    is_json = word.strip().startswith(("{", "["))
    return flag in UNCOMPARED_FLAGS or is_json or word in shown or parse_scalar(word) in shown


Drafting = Literal["own", "ngram"]
AS_IT_COMES = "as it comes: a chunk of the stream is a step"


class Drafts(msgspec.Struct, frozen=True, kw_only=True):
    """What a changed command is to draft: `length` tokens in each step, 0 for none.

    `drafting`: "own" keeps the command's drafter, "ngram" puts the engine's n-gram lookup in its place.
    `synthetic`: none of the drafts is accepted; else their acceptance is left to them.
    """

    length: int
    drafting: Drafting = "own"
    synthetic: bool = True


class Variation(msgspec.Struct, frozen=True, kw_only=True):
    """A launch command, what must be added to its environment, and what fixes the acceptance, in words."""

    command: tuple[str, ...]
    environment: dict[str, str] = {}
    acceptance: str


def not_speculating(flag: str) -> PlanError:
    """Return the error of a command that drafts nothing; `flag` would make it draft."""
    return PlanError(
        "the candidate's command does not speculate, so there is no drafter whose steps could be timed.",
        place="arms.candidate.command",
        fix=f"add {flag}.",
    )
