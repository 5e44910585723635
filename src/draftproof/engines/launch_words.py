"""Launch commands word by word: flags taken out and put in, everything else left as it stands. Pure."""

import re
from collections.abc import Callable, Iterator, Sequence

_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?")


def drop_flags(command: Sequence[str], is_dropped: Callable[[str], bool]) -> tuple[str, ...]:
    """Return a command without some flags and their values.

    Args:
        command: program and arguments.
        is_dropped: told a flag's name without leading dashes, underscores written as dashes.
    """
    return tuple(
        word for name, words in _group(command) if name is None or not is_dropped(name) for word in words
    )


def find_flags(command: Sequence[str], is_wanted: Callable[[str], bool]) -> dict[str, str | None]:
    """Return name -> value of some flags, None for one without a value; a repeated one keeps its last."""
    return {name: _value(words) for name, words in _group(command) if name is not None and is_wanted(name)}


def _group(command: Sequence[str]) -> Iterator[tuple[str | None, tuple[str, ...]]]:
    """Yield each flag's name with its words, a flag taking at most one value; other words have no name."""
    index = 0
    while index < len(command):
        word = command[index]
        index += 1
        if not _is_flag(word):
            yield None, (word,)
            continue
        name, equals, _ = word.partition("=")
        takes_next = not equals and index < len(command) and not _is_flag(command[index])
        words = (word, command[index]) if takes_next else (word,)
        index += takes_next
        yield name.lstrip("-").replace("_", "-"), words


def _value(words: tuple[str, ...]) -> str | None:
    if len(words) == 2:
        return words[1]
    _, equals, value = words[0].partition("=")
    return value if equals else None


def _is_flag(word: str) -> bool:
    return word.startswith("-") and word != "-" and not _NUMBER.fullmatch(word)
