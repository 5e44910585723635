"""What arms share: `[engine]` written into each of them, and words that an arm adds to its command. Pure.

Works on the values as read, before they are checked: what has the wrong type is left for the schema to name.
"""

from typing import Any

from draftproof.plan.tables import split_words
from draftproof.services.engines.commands import list_flags, words_before_flags

_BASELINE = "baseline"
_ARMS = (_BASELINE, "candidate", "alternative")


def share_engine(values: dict[str, Any]) -> None:
    """Write `engine` into every arm that does not say otherwise, and `add` into its command, in place."""
    engine, arms = values.get("engine"), values.setdefault("arms", {})
    if not isinstance(arms, dict):
        return
    shared = (
        {"engine" if key == "name" else key: one for key, one in engine.items()}
        if isinstance(engine, dict)
        else {}
    )
    if shared:
        arms.setdefault(_BASELINE, {})
    for name, arm in arms.items():
        if isinstance(arm, dict) and name in _ARMS:
            arms[name] = _add_words(_inherit(shared, arm))


def _inherit(shared: dict[str, Any], arm: dict[str, Any]) -> dict[str, Any]:
    """Return an arm with what it shares; an arm with a url takes no command, and the other way round."""
    other = {"url": "command", "command": "url"}
    hidden = {other[key] for key in other if key in arm} | ({"env"} if "url" in arm else set())
    kept = {key: one for key, one in shared.items() if key not in hidden}
    both = {
        key for key in kept.keys() & arm.keys() if isinstance(kept[key], dict) and isinstance(arm[key], dict)
    }
    return kept | arm | {key: kept[key] | arm[key] for key in both}


def _add_words(arm: dict[str, Any]) -> dict[str, Any]:
    """Return an arm with the words of `add` in its command; the schema refuses those that find none."""
    if "add" not in arm:
        return arm
    added, command = _split(arm["add"]), _split(arm.get("command"))
    if not isinstance(added, tuple) or not isinstance(command, tuple):
        return arm
    kept = _drop_replaced(command, {use.name: len(use.values) for use in list_flags(added)})
    return {key: one for key, one in arm.items() if key != "add"} | {"command": [*kept, *added]}


def _drop_replaced(command: tuple[str, ...], values: dict[str, int]) -> list[str]:
    """Return a command without the flags that are said anew, each with as many words as are said of it now.

    `values`: flag -> how many. What is behind a switch is no value of it, but a word of the command.
    """
    kept = list(words_before_flags(command))
    for use in list_flags(command):
        if use.name in values:
            kept += use.words[max(0, values[use.name] - (use.attached is not None)) :]
        else:
            kept += (use.written, *use.words)
    return kept


def _split(command: object) -> tuple[str, ...] | object:
    """Return the words of a command; what is none stays as it is, for the schema to name."""
    try:
        words = split_words(command)
    except ValueError:
        return command
    is_list = isinstance(words, list | tuple) and all(isinstance(word, str) for word in words)
    return tuple(words) if is_list and isinstance(words, list | tuple) else command
