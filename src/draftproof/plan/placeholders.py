"""What a new plan leaves to its user, and whether all of it is filled in. Pure."""

from collections.abc import Iterator
from typing import Any

from draftproof.core.errors import PlanError
from draftproof.plan.reference_doc import dotted_key
from draftproof.plan.schema import Plan

PLACEHOLDER = "FILL_IN"


def check_filled_in(plan: Plan, source: str) -> None:
    """Do nothing if no value of a plan still holds the mark of a new plan.

    Args:
        plan: the plan.
        source: its file, for the message.

    Raises:
        PlanError: names the first key that is not filled in, and counts the others.
    """
    found = list(find_placeholders(plan))
    if not found:
        return
    key, value = found[0]
    further = f" ({len(found) - 1} further)" if len(found) > 1 else ""
    raise PlanError(
        f"{key} is not filled in yet: {value!r}{further}.",
        place=source,
        fix="put a value of your own in its place; the comment beside it says what is meant.",
    )


def find_placeholders(plan: Plan) -> Iterator[tuple[str, str]]:
    """Yield the dotted key and the text of every value that is still to be filled in."""
    yield from _search(plan.model_dump(mode="json"), ())


def _search(node: Any, location: tuple[str | int, ...]) -> Iterator[tuple[str, str]]:
    if isinstance(node, str):
        if PLACEHOLDER in node:
            yield dotted_key(location), node
    elif isinstance(node, dict):
        for key, value in node.items():
            yield from _search(value, (*location, key))
    elif isinstance(node, list):
        for index, value in enumerate(node):
            yield from _search(value, (*location, index))
