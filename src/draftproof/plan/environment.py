"""References to the environment in a plan, and the secrets that they bring. Pure: the environment is given.

A plan is stored and shared as it is written; beside it a run keeps what each `${NAME}` stood for, but for
secrets. Whoever resolves a reference also learns the value, so that a secret can be masked wherever a service
quotes it.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from draftproof.core.errors import PlanError
from draftproof.core.secrets import MASK, is_secret_header, is_secret_name
from draftproof.services.engines.commands import list_secret_values

if TYPE_CHECKING:  # a load worker masks, and need not know the tables of a plan
    from draftproof.plan.schema import Arm, Plan

_REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
# A shorter value stands in any text by chance, and masking it would spoil the record.
_SHORTEST_SECRET = 6
_S = TypeVar("_S", bound=msgspec.Struct)


def resolve_references(text: str, environment: Mapping[str, str], place: str) -> str:
    """Return a text with every `${NAME}` replaced by its value. Raises PlanError: a name is not set."""
    for name in find_references(text):
        if name not in environment:
            raise PlanError(
                f"the environment variable {name} is not set.", place=place, fix=f"export {name}=... first."
            )
    return _REFERENCE.sub(lambda found: environment[found[1]], text)


def resolve_plan(plan: "Plan", environment: Mapping[str, str], secrets: Collection[str]) -> "Plan":
    """Return a plan whose target, settings and facts of drafters hold values in place of references.

    A reference to a secret stays what it is. Raises PlanError: a name is not set.
    """

    def read(table: Iterable[tuple[str, Any]], place: str) -> dict[str, Any]:
        return {
            key: _resolve_open(value, environment, f"{place}.{key}", secrets)
            if isinstance(value, str)
            else value
            for key, value in table
        }

    target = plan.target.model_copy(update=read(plan.target, "target"))
    arms = {
        name: arm.model_copy(
            update={
                "settings": read(arm.settings.items(), f"arms.{name}.settings"),
                "drafter": read(arm.drafter.items(), f"arms.{name}.drafter"),
            }
        )
        for name, arm in plan.arms
        if arm is not None
    }
    return plan.model_copy(update={"target": target, "arms": plan.arms.model_copy(update=arms)})


def list_values(plan: "Plan", environment: Mapping[str, str], secrets: Collection[str]) -> dict[str, str]:
    """Return what each name that a plan refers to stands for: a secret masked, one that is not set absent.

    All that a header refers to counts as secret, however short it is.
    """
    values = plan.model_dump(mode="json")
    names = {name for name in _list_names(values) if name in environment}
    hidden = {name for table in _find_headers(values) for name in _list_names(table)}
    return {
        name: MASK if name in hidden or _is_secret(name, environment[name], secrets) else environment[name]
        for name in sorted(names)
    }


def _list_names(node: object) -> Iterator[str]:
    if isinstance(node, str):
        yield from find_references(node)
    elif isinstance(node, Mapping | list):
        for value in node.values() if isinstance(node, Mapping) else node:
            yield from _list_names(value)


def _find_headers(node: object) -> Iterator[object]:
    if isinstance(node, Mapping):
        for key, value in node.items():
            yield from [value] if key == "headers" else _find_headers(value)


def _resolve_open(text: str, environment: Mapping[str, str], place: str, secrets: Collection[str]) -> str:
    """Return a text with its references resolved, but for those to secrets."""
    kept = {
        name: f"${{{name}}}"
        for name in find_references(text)
        if name in environment and _is_secret(name, environment[name], secrets)
    }
    return resolve_references(text, {**environment, **kept}, place)


def _is_secret(name: str, value: str, secrets: Collection[str]) -> bool:
    return is_secret_header(name) or any(secret in value for secret in secrets)


def find_references(text: str) -> tuple[str, ...]:
    """Return the names that a text refers to, in order."""
    return tuple(_REFERENCE.findall(text))


def resolve_headers(
    headers: Mapping[str, str], environment: Mapping[str, str], place: str
) -> tuple[tuple[str, str], ...]:
    """Return request headers with their references resolved.

    Raises PlanError: a name is not set, a value has a line break, or a header that holds a secret states it
    in the plan.
    """
    for name, value in headers.items():
        if is_secret_header(name):
            _check_referred_to(name, value, place)
    resolved = {
        name: resolve_references(value, environment, f"{place}.{name}") for name, value in headers.items()
    }
    for name, value in resolved.items():
        if any(mark in name + value for mark in "\r\n"):
            raise PlanError(
                "a header holds a line break.", place=f"{place}.{name}", fix="write it on one line."
            )
    return tuple(resolved.items())


def resolve_variables(
    variables: Mapping[str, str], environment: Mapping[str, str], place: str
) -> dict[str, str]:
    """Return variables of a launched command with their references resolved.

    Raises PlanError: a name is not set, or a variable that holds a secret states it in the plan.
    """
    for name, value in variables.items():
        if is_secret_name(name):
            _check_referred_to(name, value, place)
    return {
        name: resolve_references(value, environment, f"{place}.{name}") for name, value in variables.items()
    }


def check_request_fields(fields: Mapping[str, object], place: str) -> None:
    """Do nothing if no further field of a request holds a secret: fields are stored with the run.

    Raises PlanError: names the field.
    """
    for name in fields:
        if is_secret_name(name):
            raise PlanError(
                "a secret in a plan would be copied into every run.",
                place=f"{place}.{name}",
                fix="send it as a header, taken from the environment.",
            )


def _check_referred_to(name: str, value: str, place: str) -> None:
    if not find_references(value):
        raise PlanError(
            "a secret in a plan would be copied into every run.",
            place=f"{place}.{name}",
            fix=f'export it and write {name} = "... ${{NAME}}".',
        )


def collect_secrets(
    headers: Iterable[str], others: Iterable[str], environment: Mapping[str, str]
) -> tuple[str, ...]:
    """Return the values that must not be seen, longest first; names that are not set have none.

    All that a request header refers to counts as secret; of what `others` (a command, its environment) refer
    to, those whose name says so: a folder is referred to as well.
    """
    names = {name for text in headers for name in find_references(text)}
    names |= {name for text in others for name in find_references(text) if is_secret_header(name)}
    values = {environment[name] for name in names if name in environment}
    return tuple(sorted((v for v in values if len(v) >= _SHORTEST_SECRET), key=lambda v: (-len(v), v)))


def find_secrets(arms: Iterable["Arm"], environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the secrets that arms refer to."""
    arms = list(arms)
    headers = [text for arm in arms for text in arm.headers.values()]
    headers += [text for arm in arms for key, text in arm.env.items() if is_secret_name(key)]
    headers += [value for arm in arms for value in list_secret_values(arm.command or ())]
    others = [text for arm in arms for text in (*arm.env.values(), *(arm.command or ()))]
    return collect_secrets(headers, others, environment)


def mask_values(text: str, secrets: Iterable[str]) -> str:
    """Return a text with every secret masked."""
    for secret in secrets:
        text = text.replace(secret, MASK)
    return text


def mask_struct(value: _S, secrets: Iterable[str]) -> _S:
    """Return a struct with the secrets masked in all its texts; one that holds none comes back as it is.

    A secret may hold signs that JSON writes otherwise, so it is sought in the form in which it is written.
    """
    line = msgspec.json.encode(value).decode()
    masked = mask_values(line, [msgspec.json.encode(secret).decode()[1:-1] for secret in secrets])
    return value if masked == line else msgspec.json.decode(masked, type=type(value))
