"""One item of a workload: what is asked, within which limits, and how the answer is judged.

Pure data. Segment labels are free-form data of the item, never code.
"""

from typing import Any, Literal

import msgspec


class ExactCheck(msgspec.Struct, frozen=True, kw_only=True, tag="exact", forbid_unknown_fields=True):
    """The answer, stripped, equals `value`."""

    value: str
    ignore_case: bool = False
    critical: bool = False


class ContainsCheck(msgspec.Struct, frozen=True, kw_only=True, tag="contains", forbid_unknown_fields=True):
    """Every string of `all_of`, at least one of `any_of` (if given), and none of `none_of` occurs."""

    all_of: tuple[str, ...] = ()
    any_of: tuple[str, ...] = ()
    none_of: tuple[str, ...] = ()
    ignore_case: bool = True
    critical: bool = False


class NumericCheck(msgspec.Struct, frozen=True, kw_only=True, tag="numeric", forbid_unknown_fields=True):
    """A number of the answer (`pick`: the first or the last) is within `tolerance` of `value`."""

    value: float
    tolerance: float = 0.0
    pick: Literal["first", "last"] = "first"
    critical: bool = False


class RegexCheck(msgspec.Struct, frozen=True, kw_only=True, tag="regex", forbid_unknown_fields=True):
    """The pattern (Python `re`, searched, DOTALL and MULTILINE) matches."""

    pattern: str
    critical: bool = False


class JsonSchemaCheck(
    msgspec.Struct, frozen=True, kw_only=True, tag="json_schema", forbid_unknown_fields=True
):
    """The answer's JSON value (whole text, else first fenced or braced block) is valid under `schema`."""

    schema: dict[str, Any]
    critical: bool = False


class LengthCheck(msgspec.Struct, frozen=True, kw_only=True, tag="length", forbid_unknown_fields=True):
    """The answer has between `min_chars` and `max_chars` characters after stripping."""

    min_chars: int = 1
    max_chars: int | None = None
    critical: bool = False


Check = ExactCheck | ContainsCheck | NumericCheck | RegexCheck | JsonSchemaCheck | LengthCheck


class Message(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A chat message of the OpenAI form."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str


class Sampling(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Sampling of the request; temperature 0 is greedy."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None


class Item(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One line of a workload file.

    `segments` maps a dimension to a label, e.g. {"task": "rewriting", "language": "ar",
    "sampling": "regulated", "prompt_length": "short", "history": "none", "answer_length": "short",
    "traffic": "interactive"}.
    """

    id: str
    messages: tuple[Message, ...]
    segments: dict[str, str]
    checks: tuple[Check, ...] = ()
    max_tokens: int = 64
    sampling: Sampling = Sampling()
    stop: tuple[str, ...] = ()
    tools: tuple[dict[str, Any], ...] = ()
    response_schema: dict[str, Any] | None = None


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """A named, versioned and hashed list of items, in file order."""

    name: str
    version: str
    licence: str
    evidence: Literal["representative", "synthetic", "smoke"]
    sha256: str
    items: tuple[Item, ...]
