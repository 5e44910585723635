"""The refusal of a request, and the readers of single JSON fields that raise it.

Pure. A reader returns the checked value, or None or the given default where the field is absent or null.
"""

from collections.abc import Mapping, Sequence
from typing import Any

_MAX_TOKEN_ID = 1 << 31
_MAX_SHOWN_CHARS = 100


class BadRequestError(Exception):
    """A request that gets an OpenAI error body instead of an answer.

    `param`: the field at fault, or None. `code`: OpenAI's machine-readable code, or None.
    """

    def __init__(
        self, message: str, param: str | None, *, status: int = 400, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.message, self.param, self.status, self.code = message, param, status, code

    def body(self) -> dict[str, Any]:
        """Return the error body of the OpenAI form."""
        return error_body(self.message, self.status, param=self.param, code=self.code)


def error_body(
    message: str, status: int, *, param: str | None = None, code: str | None = None
) -> dict[str, Any]:
    """Return an OpenAI error body; `type` follows from the status."""
    kinds = {404: "not_found_error", 429: "rate_limit_error"}
    kind = kinds.get(status, "invalid_request_error" if status < 500 else "server_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def shown(value: Any) -> str:
    """Return a value as a message names it: short, whatever a client sent."""
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN_CHARS else f"{text[:_MAX_SHOWN_CHARS]}..."


def read_flag(body: Mapping[str, Any], field: str, prefix: str = "") -> bool:
    """Return a truth value, False where there is none."""
    value = body.get(field)
    if value is not None and not isinstance(value, bool):
        raise BadRequestError(f"{prefix}{field} must be true or false, not {shown(value)}.", prefix + field)
    return bool(value)


def read_integer(body: Mapping[str, Any], field: str, low: int, high: int, prefix: str = "") -> int | None:
    """Return a whole number from `low` to `high`."""
    value = body.get(field)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise BadRequestError(
            f"{prefix}{field} must be a whole number from {low} to {high}, not {shown(value)}.",
            prefix + field,
        )
    return value


def read_number(
    body: Mapping[str, Any],
    field: str,
    default: float,
    *,
    low: float,
    high: float,
    above_low: bool = False,
    prefix: str = "",
) -> float:
    """Return a number from `low` to `high`, without `low` itself where `above_low`."""
    value = body.get(field)
    if value is None:
        return default
    fits = isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high
    if not fits or (above_low and value == low):
        bounds = f"above {low:g} and at most {high:g}" if above_low else f"from {low:g} to {high:g}"
        raise BadRequestError(
            f"{prefix}{field} must be a number {bounds}, not {shown(value)}.", prefix + field
        )
    return float(value)


def read_strings(body: Mapping[str, Any], field: str, most: int) -> tuple[str, ...]:
    """Return a string, or a list of at most `most`, as a tuple; none may be empty."""
    value = body.get(field)
    strings = [value] if isinstance(value, str) else value
    if strings is None:
        return ()
    if (
        not isinstance(strings, list)
        or len(strings) > most
        or not all(isinstance(one, str) and one for one in strings)
    ):
        raise BadRequestError(
            f"{field} must be a non-empty string or a list of at most {most} of them.", field
        )
    return tuple(strings)


def read_token_ids(body: Mapping[str, Any], field: str, most: int) -> tuple[int, ...]:
    """Return a list of at most `most` token ids, doubles removed; the engine knows its vocabulary."""
    value = body.get(field)
    if value is None:
        return ()
    if not isinstance(value, list) or len(value) > most or not all(map(_is_token_id, value)):
        raise BadRequestError(f"{field} must be a list of at most {most} token ids.", field)
    return tuple(dict.fromkeys(value))


def read_biases(
    body: Mapping[str, Any], field: str, *, limit: float, most: int
) -> tuple[tuple[int, float], ...]:
    """Return {"token id": bias} as (token id, bias) pairs in order of ids; no bias is beyond +-`limit`."""
    value = body.get(field)
    if value is None:
        return ()
    if not isinstance(value, Mapping) or len(value) > most:
        raise BadRequestError(
            f"{field} must be an object of at most {most} token ids with a bias each.", field
        )
    biases: dict[int, float] = {}
    for key, bias in value.items():
        if not (key.isascii() and key.isdigit() and len(key) <= len(str(_MAX_TOKEN_ID))):
            raise BadRequestError(f"{field} has the key {shown(key)}, which is no token id.", field)
        if isinstance(bias, bool) or not isinstance(bias, int | float) or not abs(bias) <= limit:
            raise BadRequestError(
                f"{field} of token {key} must be a number from {-limit:g} to {limit:g}, not {shown(bias)}.",
                field,
            )
        if int(key) in biases:
            raise BadRequestError(f"{field} names token {int(key)} twice.", field)
        biases[int(key)] = float(bias)
    return tuple(sorted(biases.items()))


def refuse_unless_neutral(body: Mapping[str, Any], neutral: Mapping[str, Sequence[Any]]) -> None:
    """Raise BadRequestError for the first field of `neutral` with a value that would change the answer."""
    for field, values in neutral.items():
        if field in body and not any(_same(body[field], value) for value in values):
            raise BadRequestError(
                f"{field} = {shown(body[field])} is not implemented by this engine; leave it out.",
                field,
                code="unsupported_parameter",
            )


def _is_token_id(value: Any) -> bool:
    return type(value) is int and 0 <= value < _MAX_TOKEN_ID


def _same(value: Any, neutral: Any) -> bool:
    """Compare without taking True for 1."""
    return bool(value == neutral) and isinstance(value, bool) == isinstance(neutral, bool)
