"""Bodies of identity addresses to decoded values. Pure; a body that is not what it should be says nothing."""

from typing import Any

import msgspec


def decode_body(body: bytes | None) -> Any:
    """Return the decoded JSON of a body, None where there is no body or it is not JSON."""
    if body is None:
        return None
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def decode_object(body: bytes | None) -> dict[str, Any]:
    """Return the decoded JSON object of a body, {} where there is none."""
    return as_table(decode_body(body))


def as_table(value: object) -> dict[str, Any]:
    """Return a decoded value that is an object, {} for any other."""
    return value if isinstance(value, dict) else {}


def as_text(value: object) -> str | None:
    """Return a decoded value that is a text, None for any other."""
    return value if isinstance(value, str) else None


def as_count(value: object) -> int | None:
    """Return a decoded value that is a whole number, None for any other."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None
