"""A launch command word by word: what stands before its flags, and each flag with the words behind it. Pure.

Nothing is lost: the words of the head and of all uses, in order, are the command.
"""

import itertools
import re
from collections.abc import Callable, Sequence

import msgspec

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

    Args:
        command: program and arguments.
        is_dropped: told a flag's name as in `find_flags`.
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
